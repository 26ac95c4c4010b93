"""Read existing files at a calibration's output paths, only if they are regular and not too large."""

from pathlib import Path

LARGEST_BYTES = 256 << 20
"""A complete profile has 2 MiB, a journal 5 MiB."""


def foreign_text(path: Path) -> str:
    """The file's text; ValueError for a device, a pipe, a directory, a file that is too large or not text."""
    if not path.is_file() or path.stat().st_size > LARGEST_BYTES:
        raise ValueError(f"{path} is no regular file of at most {LARGEST_BYTES >> 20} MiB")
    return path.read_text(encoding="utf-8")
