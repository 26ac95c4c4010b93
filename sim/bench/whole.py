"""The complete part of a truncated JSON file: the text up to its last complete value, with brackets closed.

    {"ttfts": [0.1, 0.2], "itls": [[0.01, 0.01], [0.0          the file
    {"ttfts": [0.1, 0.2], "itls": [[0.01, 0.01]]}              the complete part

Stopped benchmarks and full disks leave such files. A file that is broken anywhere but at its end is an error
with its line.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from kvsim.sim.errors import KvsimError
from kvsim.sim.files.reading import first_line, json_in, plain_bytes

_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?\Z)|[\[\]{},]', re.DOTALL)
_CLOSERS = {"[": "]", "{": "}"}


class Whole(NamedTuple):
    """A JSON value, the line at which its file was truncated (None: it was not), and the complete text."""

    value: Any
    cut_line: int | None
    text: str


def read_whole(path: Path) -> Whole:
    """The complete part of the value in a JSON file.

    Raises
    ------
    KvsimError
        The file cannot be read, is not JSON, or holds nothing complete.
    """
    text = text_of(path)
    try:
        return Whole(json.loads(text), None, text)
    except (json.JSONDecodeError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        if not isinstance(error, json.JSONDecodeError) or not _at_end(text, error):
            what = f"result {path}, line {line}: must be JSON, got {first_line(error)}"
            raise KvsimError(what) from error
    kept = _repaired(text)
    if kept is None:
        raise KvsimError(f"result {path}, line {text.count(chr(10)) + 1}: it is cut before anything is whole")
    return Whole(json_in(kept, f"result {path}"), text.count("\n") + 1, kept)


def text_of(path: Path) -> str:
    """The text of a file, unpacked; KvsimError if it cannot be read."""
    return plain_bytes(path, f"result {path}").decode("utf-8-sig", errors="replace")


def objects_of(path: Path) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Line number and object of each nonempty line; None for a truncated last line.

    Raises
    ------
    KvsimError
        A line other than the last is not a JSON object.
    """
    lines = text_of(path).split("\n")
    last = max((place for place, text in enumerate(lines) if text.strip()), default=-1)
    for place, text in enumerate(lines):
        if not text.strip():
            continue
        try:
            found = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            if place == last and isinstance(error, json.JSONDecodeError):
                yield place + 1, None
                return
            raise KvsimError(
                f"result {path}, line {place + 1}: must be a JSON object, got {first_line(error)}"
            ) from error
        if not isinstance(found, dict):
            raise KvsimError(
                f"result {path}, line {place + 1}: must be a JSON object, got {type(found).__name__}"
            )
        yield place + 1, found


def _at_end(text: str, error: json.JSONDecodeError) -> bool:
    """Whether the parser stopped because there was no more text."""
    if not text.lstrip().startswith(("{", "[")):
        return False
    if error.msg.startswith("Unterminated string"):
        return True
    return not text[error.pos :].strip() or bool(re.fullmatch(r"[\w.+-]*\s*", text[error.pos :]))


def _repaired(text: str) -> str | None:
    """The text up to its last comma or closing bracket, closed; None if there is neither."""
    opened: list[str] = []
    kept: tuple[int, str] | None = None
    for match in _TOKENS.finditer(text):
        token = match.group()
        if token in _CLOSERS:
            opened.append(token)
        elif token in "]}":
            if not opened:
                return None
            opened.pop()
            kept = match.end(), "".join(opened)
        elif token == ",":
            kept = match.start(), "".join(opened)
    if kept is None:
        return None
    end, still = kept
    return text[:end] + "".join(_CLOSERS[each] for each in reversed(still))
