"""When requests arrive, as others write it down, in seconds: numbers in any unit, times since 1970, dates.

    12500          milliseconds                    12.5
    1731000000.5   seconds since 1970              from the earliest row
    2024-05-12 00:00:00.25+00:00                   from the earliest row; without a zone it is UTC

Numbers that all lie beyond the clock of the simulation (53 days) are taken for times since 1970 or the like.
What is no number and no date is left as it is, for the loader to refuse.
"""

from collections.abc import Sequence

from kvsim.sim.workload import LATEST_ARRIVAL_S
from kvsim.workloads.columns import UNIT_NAMES
from kvsim.workloads.delimited import NOTHING, nanoseconds
from kvsim.workloads.rows import Rows
from kvsim.workloads.values import shown

LATEST_DATE_S = 1e11
"""The year 5138: no date in seconds is later, while one of today in milliseconds is."""

LARGEST = 1e20
"""Beyond it, numbers are for the loader to refuse."""


def in_seconds(
    rows: Rows, name: str, values: Sequence[object], per_second: int | None
) -> tuple[list[object], list[str]]:
    """Arrivals in seconds, and what is to be said of them.

    Parameters
    ----------
    rows : Rows
        Where they come from, for errors.
    name : str
        What the file calls them.
    per_second : int or None
        How many of their units are a second; None where the name does not say, which are seconds.

    Raises
    ------
    KvsimError
        A text among dates that is none, or numbers that cannot be seconds.
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
    """Since 1970."""
    if value is None or value in NOTHING:
        return None
    try:
        if isinstance(value, str):
            return nanoseconds(value)
    except ValueError:
        pass
    raise rows.error(row, f"{name} must be a date and time, as 2024-05-12 00:00:00.25, got {shown(value)}")
