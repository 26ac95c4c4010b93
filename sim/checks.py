"""Checks of settings: numbers must be numbers, within their limits."""

from collections.abc import Iterable
from math import isfinite

from kvsim.sim.errors import KvsimError


def check_int(field: str, value: object, least: int = 1, most: int | None = None) -> None:
    """Raise unless value is an int (not a bool), at least `least` and at most `most`, if given."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise KvsimError(f"{field} must be a whole number of at least {least}, got {value!r}")
    if most is not None and value > most:
        raise KvsimError(f"{field} must be at most {most:,}, got {value:,}")


def check_number(field: str, value: object, most: float | None = None) -> None:
    """Raise unless value is a finite number above zero and at most `most`, if given."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) and value > 0
    if not number or (most is not None and isinstance(value, int | float) and value > most):
        limit = "" if most is None else f" and at most {most:g}"
        raise KvsimError(f"{field} must be a finite number above 0{limit}, got {value!r}")


def check_one_of(field: str, value: object, allowed: Iterable[object]) -> None:
    """Raise unless value is one of the allowed ones."""
    known = list(allowed)
    if value not in known:
        raise KvsimError(f"{field} must be one of {', '.join(map(str, known))}, got {value!r}")
