"""A trace file and its lines, with size limits, so that endless input is refused before memory runs out."""

import os
from collections.abc import Iterator
from typing import IO, AnyStr

from kvsim.sim.errors import KvsimError
from kvsim.sim.files.reading import check_regular

LARGEST_TRACE_BYTES = 16 << 30
"""Ten times the largest public file of a format read line by line."""
LONGEST_LINE = 1 << 24


def check_trace(path: str | os.PathLike[str]) -> None:
    """Raise KvsimError unless a trace is a directory, or a regular file of at most LARGEST_TRACE_BYTES."""
    if check_regular(path, f"trace {path}") > LARGEST_TRACE_BYTES:
        raise KvsimError(f"trace {path} must have at most {LARGEST_TRACE_BYTES >> 30} GiB")


def lines_of(path: str | os.PathLike[str], file: IO[AnyStr]) -> Iterator[AnyStr]:
    """The lines of a file, each of at most LONGEST_LINE characters; else KvsimError."""
    number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise KvsimError(
                f"trace {path}, line {number}: a line must have at most {LONGEST_LINE:,} characters"
            )
        yield line
