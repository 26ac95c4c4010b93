"""Read a JSON array, or consecutive objects, one object at a time; the file may be larger than memory.

    [ {...}, {...}, {...}, {"id": "a", "conv         the last is cut off: three objects, and `cut_off` says so

A window of the text is kept, as large as the largest object needs. An object that ends beyond the window is
retried with twice as much text, so each character is parsed a few times at most.
"""

import codecs
import io
import re
from collections.abc import Iterator
from json import JSONDecodeError, JSONDecoder

from kvsim.sim.errors import KvsimError

WINDOW = 1 << 18
LARGEST_OBJECT = 1 << 24
_BETWEEN = re.compile(r"[\s,]*")
_LONGEST_WORD = 16
"""An error this near the end of the window may be a truncated word, such as `tr` or `\\ud83`."""


class ObjectStream:
    """The objects of a file, each with the line where it begins.

    Attributes
    ----------
    cut_off : bool
        Whether the file ended inside an object, or before the end of its array.
    objects : int
        Number of objects read.
    """

    def __init__(self, path: str, file: io.BufferedReader) -> None:
        self.cut_off = False
        self.objects = 0
        self._path, self._file = path, file
        self._text, self._at, self._line, self._column = "", 0, 1, 1
        self._ended = False
        self._bytes = codecs.getincrementaldecoder("utf-8-sig")()
        self._decoder = JSONDecoder(strict=False)

    def __iter__(self) -> Iterator[tuple[int, object]]:
        """Each object and its line.

        Raises
        ------
        KvsimError
            Invalid JSON, for a reason other than the end of the file.
        """
        array = begun = False
        self._more()
        while self._skip():
            mark = self._text[self._at]
            if mark == "[" and not begun:
                array = True
                self._move(self._at + 1)
            elif mark == "]" and array:
                self._move(self._at + 1)
                if self._skip():
                    raise self._error(self._at, "nothing may follow the array")
                return
            else:
                found, end = self._object()
                if end is None:
                    self.cut_off = True
                    return
                self.objects += 1
                yield self._line, found
                self._move(end)
            begun = True
        self.cut_off = array

    def _skip(self) -> bool:
        """Skip to the next object; False at the end of the file."""
        while True:
            match = _BETWEEN.match(self._text, self._at)
            self._move(match.end() if match else self._at)
            if self._at < len(self._text):
                return True
            if not self._more():
                return False

    def _object(self) -> tuple[object, int | None]:
        """The object that begins here and its end; None if the file ends before it."""
        while True:
            try:
                return self._decoder.raw_decode(self._text, self._at)
            except JSONDecodeError as error:
                unfinished = (
                    error.msg.startswith("Unterminated") or error.pos > len(self._text) - _LONGEST_WORD
                )
                if not unfinished:
                    raise self._error(error.pos, f"not valid JSON: {error.msg}") from error
            except (ValueError, RecursionError) as error:
                raise self._error(self._at, f"not valid JSON: {error}") from error
            size = len(self._text) - self._at
            if size > LARGEST_OBJECT:
                raise self._error(self._at, f"an object must have at most {LARGEST_OBJECT:,} characters")
            if not self._more(max(WINDOW, size)):
                return None, None

    def _more(self, size: int = WINDOW) -> bool:
        """Read more text and drop what was consumed; False at the end of the file."""
        if self._ended:
            return False
        content = self._file.read(size)
        self._ended = not content
        try:
            self._text = self._text[self._at :] + self._bytes.decode(content)
        except UnicodeDecodeError as error:
            raise self._error(len(self._text), f"not valid UTF-8 after this: {error.reason}") from error
        self._at = 0
        return not self._ended

    def _move(self, to: int) -> None:
        """Advance to a position in the window."""
        self._line, self._column = self._place(to)
        self._at = to

    def _place(self, to: int) -> tuple[int, int]:
        """The line and column of a position, from 1."""
        lines = self._text.count("\n", self._at, to)
        if not lines:
            return self._line, self._column + to - self._at
        return self._line + lines, to - self._text.rindex("\n", self._at, to)

    def _error(self, place: int, message: str) -> KvsimError:
        line, column = self._place(place)
        return KvsimError(f"trace {self._path}, line {line}, column {column}: {message}")
