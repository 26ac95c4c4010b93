"""Check the values of a trace's column: plain values become numbers or names, or raise one error.

    numbers    an integer per row, or none       [3, None, 4.0]        -> 3, 0, 4 and which are present
    parts      some integers per row             [[1, 2], None, [3]]   -> 1, 2, 3 and where rows begin
    names      a string or an integer per row    ["a", 7, None]

4.0 counts as an integer, since tables with gaps hold their numbers as floats. True and False are not numbers.
"""

from collections.abc import Callable, Sequence
from itertools import chain
from reprlib import Repr
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvsim.sim.errors import KvsimError
from kvsim.sim.workload import Int64Column
from kvsim.workloads.rows import Rows

Name = str | int
Wrong = Callable[[int, str], KvsimError]
"""Creates the error for the value at an index, from a description."""

SMALLEST, LARGEST = -(2**63), 2**63 - 1
LONGEST_S = 1_000_000
_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxlong = _SHORT.maxother = 60


class Numbers(NamedTuple):
    """An integer per row, 0 if missing."""

    values: Int64Column
    given: npt.NDArray[np.bool_]

    def plain(self) -> list[int | None]:
        """The numbers as Python ints, None if missing."""
        pairs = zip(self.values.tolist(), self.given.tolist(), strict=True)
        return [value if given else None for value, given in pairs]


class Parts(NamedTuple):
    """Integers per row: those of row i are `values[offsets[i] : offsets[i + 1]]`."""

    offsets: Int64Column
    values: Int64Column

    @property
    def counts(self) -> Int64Column:
        """The number of values of each row."""
        return np.diff(self.offsets)

    @property
    def sums(self) -> Int64Column:
        """The sum of the values of each row."""
        return np.diff(np.concatenate([[0], np.cumsum(self.values)])[self.offsets])

    def row(self, place: int) -> int:
        """The row that a value belongs to."""
        return int(np.searchsorted(self.offsets, place, side="right")) - 1


def numbers(rows: Rows, field: str, least: int, most: int = LARGEST) -> Numbers | None:
    """A column of integers; None if no row has one."""
    values = rows.columns.get(field, [])
    given = np.fromiter((value is not None for value in values), bool, len(values))
    if not given.any():
        return None
    places = np.flatnonzero(given)
    there = values if given.all() else [value for value in values if value is not None]
    found = np.zeros(len(rows), dtype=np.int64)
    found[places] = _whole(
        there, least, most, lambda at, text: rows.error(int(places[at]), f"{field} must be {text}")
    )
    return Numbers(found, given)


def seconds(rows: Rows, field: str) -> npt.NDArray[np.float64] | None:
    """A column of times above 0, NaN if missing; None if no row has one."""
    values = rows.columns.get(field, [])
    if all(value is None for value in values):
        return None
    for row, value in enumerate(values):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (number and 0 < value <= LONGEST_S):
            allowed = f"above 0 and at most {LONGEST_S:,}"
            raise rows.error(row, f"{field} must be a number of seconds {allowed}, got {shown(value)}")
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def parts(
    rows: Rows, field: str, lists: Sequence[Sequence[object]], least: int, most: int = LARGEST
) -> Parts:
    """Lists of integers, one per row; `field` names a number in errors."""
    counts = np.fromiter(map(len, lists), np.int64, len(lists))
    offsets = np.concatenate([[0], np.cumsum(counts)])
    found = Parts(offsets, offsets)

    def wrong(at: int, text: str) -> KvsimError:
        return rows.error(found.row(at), f"{field} must be {text}")

    return Parts(offsets, _whole(list(chain.from_iterable(lists)), least, most, wrong))


def lists(rows: Rows, field: str, form: str) -> list[list[object]] | None:
    """A column of lists, empty if a row has none; None if no row has one. `form` describes a list."""
    values = rows.columns.get(field, [])
    if all(value is None for value in values):
        return None
    for row, value in enumerate(values):
        if value is not None and not (isinstance(value, list) and value):
            raise rows.error(row, f"{field} must be {form}, got {shown(value)}")
    return [value if isinstance(value, list) else [] for value in values]


def names(rows: Rows, field: str) -> list[Name | None] | None:
    """A column of names; None if no row has one."""
    values = rows.columns.get(field, [])
    places = [row for row, value in enumerate(values) if value is not None]
    if not places:
        return None
    there = [values[row] for row in places]
    checked = checked_names(there, lambda at, text: rows.error(places[at], f"{field} must be {text}"))
    found: list[Name | None] = [None] * len(values)
    for row, name in zip(places, checked, strict=True):
        found[row] = name
    return found


def checked_names(values: Sequence[object], wrong: Wrong) -> list[Name]:
    """Each value as a string or an integer."""
    allowed = "a text or a whole number"
    found: list[Name] = []
    for at, value in enumerate(values):
        if isinstance(value, str):
            found.append(value)
        elif (number := _as_int(value)) is not None:
            found.append(number)
        else:
            raise wrong(at, f"{allowed}, got {shown(value)}")
    try:
        "".join(name for name in found if isinstance(name, str)).encode()
    except UnicodeEncodeError:
        for at, name in enumerate(found):
            if isinstance(name, str) and any("\ud800" <= letter <= "\udfff" for letter in name):
                raise wrong(at, f"{allowed}, without half characters, got {shown(name)}") from None
        raise
    return found


def shown(value: object) -> str:
    """A value for an error message: short, on one line."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return _SHORT.repr(value)


def _whole(values: Sequence[object], least: int, most: int, wrong: Wrong) -> Int64Column:
    """The values as integers within the bounds; `wrong` creates the error."""
    allowed = "a whole number" + (f" of at least {least:,}" if least > SMALLEST else "")
    if not set(map(type, values)) <= {int}:
        whole = [_as_int(value) for value in values]
        if None in whole:
            at = whole.index(None)
            raise wrong(at, f"{allowed}, got {shown(values[at])}")
        values = whole
    try:
        found = np.array(values, dtype=np.int64)
    except OverflowError:
        found = np.array(values, dtype=object)
    outside = np.flatnonzero((found < least) | (found > most)).tolist()
    if outside:
        value = found[outside[0]]
        limits = allowed if value < least else f"a whole number of at most {most:,}"
        raise wrong(outside[0], f"{limits}, got {shown(int(value))}")
    return found


def _as_int(value: object) -> int | None:
    """An integer value as an int; None for anything else."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None
