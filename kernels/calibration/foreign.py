"""Existing files at a calibration's output paths: read only if they are regular and not too large."""

from pathlib import Path

LARGEST_BYTES = 256 << 20
"""A profile of all points has 2 MiB, a journal 5."""


def foreign_text(path: Path) -> str:
    """The text of such a file; ValueError if it is a device, a pipe, a directory, too large or no text."""
    if not path.is_file() or path.stat().st_size > LARGEST_BYTES:
        raise ValueError(f"{path} is no regular file of at most {LARGEST_BYTES >> 20} MiB")
    return path.read_text(encoding="utf-8")
