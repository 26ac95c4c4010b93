"""A second, slow JSON parser that records the line of every value, for error messages.

    {
      "duration": 61.2,
      "completed": "many"        line 3: completed must be a number, got 'many'
    }

Results are read with Python's own parser, which does not report lines. If a value is wrong, the text is
parsed again, so that the message says where.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

_BLANK = re.compile(r"[ \t\n\r]*")


class Placed(dict[str, Any]):
    """An object that knows the line on which each of its values begins."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[str, int] = {}


def placed(text: str) -> Any:  # noqa: ANN401 - any value of JSON
    """The value of a valid JSON text, with every object a `Placed`."""
    return _Text(text).value(0)[0]


def at_line(where: str, record: Mapping[str, Any], name: str) -> str:
    """`where`, plus the line of that value if known."""
    line = record.lines.get(name) if isinstance(record, Placed) else None
    return where if line is None else f"{where}, line {line:,}"


class _Text:
    def __init__(self, text: str) -> None:
        self._text = text
        self._decoder = json.JSONDecoder()
        self._ends = [match.start() for match in re.finditer("\n", text)]

    def value(self, at: int) -> tuple[Any, int]:
        """The value at or after this position, skipping blanks, and the position of its end."""
        at = self._next(at)
        if self._text[at] == "{":
            return self._object(at + 1)
        if self._text[at] == "[":
            return self._list(at + 1)
        return self._decoder.raw_decode(self._text, at)

    def _object(self, at: int) -> tuple[Placed, int]:
        found = Placed()
        while self._text[at := self._next(at)] != "}":
            name, at = self._decoder.raw_decode(self._text, self._next(at + (self._text[at] == ",")))
            at = self._next(self._next(at) + 1)
            found.lines[name] = bisect_right(self._ends, at) + 1
            found[name], at = self.value(at)
        return found, at + 1

    def _list(self, at: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        while self._text[at := self._next(at)] != "]":
            value, at = self.value(at + (self._text[at] == ","))
            found.append(value)
        return found, at + 1

    def _next(self, at: int) -> int:
        """The position of the next non-blank character."""
        match = _BLANK.match(self._text, at)
        return at if match is None else match.end()
