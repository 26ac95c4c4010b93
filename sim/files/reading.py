"""Reads files that others may have written, or rejects them with a one-line reason.

`understood` surrounds all code that parses foreign content. Any error inside means that the file is damaged:
a field is missing, has the wrong type, or is too large. Later computations stay outside, so that their bugs
show as bugs.
"""

import csv
import gzip
import json
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from io import BytesIO
from os import PathLike
from pathlib import Path
from stat import S_ISDIR, S_ISREG

from kvsim.sim.errors import KvsimError, of_pyarrow

DEEPEST = 100
"""Deepest nesting of lists and objects in a JSON file; no file of kvsim needs ten levels."""


_OF_CONTENT = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, csv.Error)


@contextmanager
def understood(what: str, verdict: str = "is damaged") -> Iterator[None]:
    """Turn any error in a file's content into a KvsimError that starts with `what`."""
    try:
        yield
    except KvsimError:
        raise
    except OSError as error:
        raise KvsimError(f"{what} cannot be read: {error.strerror or first_line(error)}") from error
    except KeyError as error:
        raise KvsimError(f"{what} {verdict}: it lacks {first_line(error)}") from error
    except RecursionError as error:
        raise KvsimError(f"{what} {verdict}: it is nested too deeply") from error
    except OverflowError as error:
        raise KvsimError(f"{what} {verdict}: a number in it is too large ({first_line(error)})") from error
    except Exception as error:
        if not (isinstance(error, _OF_CONTENT) or of_pyarrow(error)):
            raise
        raise KvsimError(f"{what} {verdict}: {first_line(error)}") from error


def first_line(error: Exception) -> str:
    """The first line of the message, or the type of the error if it has no message."""
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0]


def json_in(content: bytes | str, what: str) -> object:
    """The value of a UTF-8 JSON text.

    Raises
    ------
    KvsimError
        The text is not JSON, or is nested more than DEEPEST levels.
    """
    with understood(what, "is not valid JSON"):
        text = content.decode("utf-8-sig") if isinstance(content, bytes) else content
        with suppress(RecursionError):
            value: object = json.loads(text)
            if not _deeper(value, DEEPEST):
                return value
    raise KvsimError(f"{what} is nested too deeply: more than {DEEPEST} levels")


GZIP_MAGIC = b"\x1f\x8b"

LARGEST_BYTES = 256 << 20
"""Largest file read as a whole, also after unpacking: a result of ten thousand requests has 100 MiB."""


def check_regular(path: str | PathLike[str], what: str) -> int:
    """The size of a file in bytes; KvsimError if it is not a file: a device or a pipe may never end."""
    with understood(what):
        about = os.stat(path)
    if about.st_dev in _of_the_kernel():
        raise KvsimError(f"{what} must be a regular file, got one that the kernel makes up")
    if S_ISREG(about.st_mode) or S_ISDIR(about.st_mode):
        return about.st_size
    raise KvsimError(f"{what} must be a regular file, got a device or a pipe")


@cache
def _of_the_kernel() -> frozenset[int]:
    """Paths of the kernel, /proc and /sys: their files have no size and may block forever."""
    return frozenset(os.stat(path).st_dev for path in ("/proc", "/sys") if os.path.ismount(path))


def content_of(path: Path, what: str, most: int = LARGEST_BYTES) -> bytes:
    """The bytes of a file, at most `most`; KvsimError if it cannot be read, is larger, or is no file."""
    if check_regular(path, what) <= most:
        with understood(what), open(path, "rb") as file:
            content = file.read(most + 1)  # the file may grow meanwhile
        if len(content) <= most:
            return content
    raise KvsimError(f"{what} must have at most {most >> 20:,} MiB")


def text_of(path: Path, what: str) -> str:
    """The text of such a file; KvsimError if it is not UTF-8."""
    with understood(what, "is no text in UTF-8"):
        return content_of(path, what).decode("utf-8")


def unpacked(content: bytes, what: str) -> bytes:
    """Unpack gzip content; KvsimError if it is damaged or larger than LARGEST_BYTES."""
    try:
        with gzip.GzipFile(fileobj=BytesIO(content)) as file:
            found = file.read(LARGEST_BYTES + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise KvsimError(f"{what} is packed by gzip and damaged: {first_line(error)}") from error
    if len(found) > LARGEST_BYTES:
        raise KvsimError(f"{what} must have at most {LARGEST_BYTES >> 20:,} MiB, unpacked")
    return found


def plain_bytes(path: Path, what: str) -> bytes:
    """The content of a file, unpacked if it is in gzip format.

    Raises
    ------
    KvsimError
        The file cannot be read, or is packed and damaged.
    """
    content = content_of(path, what)
    return unpacked(content, what) if content.startswith(GZIP_MAGIC) else content


def read_json(path: Path, what: str) -> object:
    """The value in a JSON file; KvsimError as in `json_in`, or if it cannot be read."""
    return json_in(content_of(path, what), what)


def read_object(path: Path, what: str) -> dict[str, object]:
    """The object in a JSON file; KvsimError as in `read_json`, or if it is not an object."""
    value = read_json(path, what)
    if not isinstance(value, dict):
        raise KvsimError(f"{what} is damaged: it must hold a JSON object, got {type(value).__name__}")
    return value


def _deeper(value: object, levels: int) -> bool:
    """Whether a JSON value is nested more than `levels` deep."""
    inside = [value]
    for _ in range(levels):
        lists = [found for found in inside if isinstance(found, list)]
        objects = [found for found in inside if isinstance(found, dict)]
        inside = [each for found in lists for each in found]
        inside += [each for found in objects for each in found.values()]
        if not inside:
            return False
    return True
