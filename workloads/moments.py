"""Convert arrivals in other formats to seconds: numbers in any unit, times since 1970, dates.

    12500          milliseconds                    12.5
    1731000000.5   seconds since 1970              from the earliest row
    2024-05-12 00:00:00.25+00:00                   from the earliest row; without a zone it is UTC

Numbers that are all beyond the simulation's clock (53 days) count as times since 1970 or similar. Values that
are neither numbers nor dates are passed on; the loader refuses them.
"""

from collections.abc import Sequence

from kvsim.sim.workload import LATEST_ARRIVAL_S
from kvsim.workloads.columns import UNIT_NAMES
from kvsim.workloads.delimited import NOTHING, nanoseconds
from kvsim.workloads.rows import Rows
from kvsim.workloads.values import shown

LATEST_DATE_S = 1e11
"""The year 5138: dates in seconds are earlier, current dates in milliseconds are later."""

LARGEST = 1e20
"""The loader refuses larger numbers."""


def in_seconds(
    rows: Rows, name: str, values: Sequence[object], per_second: int | None
) -> tuple[list[object], list[str]]:
    """Arrivals in seconds, and notes on them.

    Parameters
    ----------
    rows : Rows
        The rows they come from, for errors.
    name : str
        Their name in the file.
    per_second : int or None
        Their units per second; None if the name does not say, which means seconds.

    Raises
    ------
    KvsimError
        A string that is not a date, among dates, or numbers that cannot be seconds.
    """
    first = next((value for value in values if value is not None), None)
    if isinstance(first, str) and _is_date(first):
        values, per_second = [_nanoseconds(rows, name, row, value) for row, value in enumerate(values)], 10**9
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    given = sum(value is not None for value in values)
    unit = per_second or 1
    if not numbers or len(numbers) < given or not all(abs(value) < LARGEST for value in numbers):
        return list(values), []
    least = min(numbers)
    dated = isinstance(first, str) or least > LATEST_ARRIVAL_S * unit
    if least / unit > LATEST_DATE_S:
        raise rows.error(
            values.index(first),
            f"{name} must be in {UNIT_NAMES[unit]} unless its name says the unit, as timestamp_ms does "
            f"(or: --columns arrival_ms={name}), got {shown(first)}",
        )
    start = least if dated else 0
    if unit == 1 and not start:
        return list(values), []
    seconds = [None if value is None else (value - start) / unit for value in values]  # type: ignore[operator]
    return list(seconds), ["Arrivals count from the earliest row."] if dated else []


def _is_date(text: str) -> bool:
    try:
        return text not in NOTHING and bool(nanoseconds(text))
    except ValueError:
        return False


def _nanoseconds(rows: Rows, name: str, row: int, value: object) -> int | None:
    if value is None or value in NOTHING:
        return None
    try:
        if isinstance(value, str):
            return nanoseconds(value)
    except ValueError:
        pass
    raise rows.error(row, f"{name} must be a date and time, as 2024-05-12 00:00:00.25, got {shown(value)}")
