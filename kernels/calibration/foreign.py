"""Files that lie where a calibration will write: read only where they are regular and not too large."""

from pathlib import Path

LARGEST_BYTES = 256 << 20
"""A profile of all points has 2 MiB, a journal 5."""


def foreign_text(path: Path) -> str:
    """The text of such a file; ValueError where it is a device, a pipe, a directory, too large or no text."""
    if not path.is_file() or path.stat().st_size > LARGEST_BYTES:
        raise ValueError(f"{path} is no regular file of at most {LARGEST_BYTES >> 20} MiB")
    return path.read_text(encoding="utf-8")
