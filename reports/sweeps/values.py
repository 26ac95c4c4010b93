"""The values of an option in a sweep, as lists and ranges.

    1,2,4           these
    1:8:0.5         from 1 to 8 in steps of 0.5, the end included
    1:64:x2         from 1 to 64, each twice the one before
    1:64:log4       four values from 1 to 64, evenly spaced on a logarithmic scale
    {"a": 1, "b": 2}    one value: commas inside brackets do not separate
    default         the option's default
    A B;C           for options that may be repeated, such as --pool: A and B together, or C
    a=1,b=2;a=3     for values that contain commas, such as --scale: two values

Only numeric options take ranges; any part of a list may be a range.
"""

from collections.abc import Iterable
from math import isfinite, isnan, log
from numbers import Integral, Real
from typing import Any

from kvsim.sim.errors import KvsimError
from kvsim.sim.option import Named, listed

MOST = 100_000
"""Most values of one option; more must be a mistake."""

_WORDS = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}
_ONE_TEXT = ("columns",)
"""Options that contain commas and cannot be swept."""


def values_of(named: Named, given: object) -> list[Any]:
    """The values, each once, in order.

    Parameters
    ----------
    named : Named
        The option.
    given : text, value, or iterable of either
        As on the command line, in a file, or in Python.

    Raises
    ------
    KvsimError
        A value of the wrong type, or an impossible range.
    """
    if isinstance(given, str):
        parts: Iterable[Any] = [given]
        if named.name not in _ONE_TEXT:
            parts = given.split(";") if named.semicolons else listed(given)
    elif isinstance(given, Iterable) and not isinstance(given, type | bytes):
        parts = given
    else:
        parts = [given]
    found: list[Any] = []
    for part in parts:
        new = _of_text(named, part.strip()) if isinstance(part, str) else [_of_value(named, part)]
        found += [value for value in new if value not in found]
    if not found:
        raise KvsimError(f"{named.name} must have at least one value, got none")
    return found


def _of_text(named: Named, text: str) -> list[Any]:
    if text == "default" and (named.optional or named.default is not None):
        return [None if named.optional else named.default]
    if named.type is bool:
        if text.lower() not in _WORDS:
            raise KvsimError(f"{named.name} must be on or off, got {text!r}")
        return [_WORDS[text.lower()]]
    if named.type in (int, float) and ":" in text:
        return [_number(named, text, each) for each in _range(named, text)]
    if named.type in (int, float):
        return [_number(named, text, text)]
    if not text:
        raise KvsimError(f"{named.name} must not be empty")
    return [text]


def _of_value(named: Named, value: object) -> object:
    if value is None or named.type is str or isinstance(value, bool) is (named.type is bool):
        wide = {int: Integral, float: Real}.get(named.type)
        if value is None or wide is None or isinstance(value, wide):
            return named.type(value) if wide is not None and value is not None else value
    raise KvsimError(f"{named.name} must be {named.type.__name__}, got {value!r}")


def _number(named: Named, text: str, value: object) -> float:
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = float("nan")
    if isnan(found):
        raise KvsimError(f"{named.name} must be a number or a range like 1:8:0.5, got {text!r}")
    if named.type is int:
        if not isfinite(found) or found != round(found):
            raise KvsimError(f"{named.name} must be whole numbers, got {text!r}")
        return int(found)
    return found


def _range(named: Named, text: str) -> list[float]:
    """The numbers of a range; rounded if it is not linear and the option takes integers."""
    try:
        first, last, step = text.split(":")
        low, high = float(first), float(last)
        factor = float(step[1:]) if step.startswith("x") else None
        count = int(step[3:]) if step.startswith("log") else None
        width = float(step) if factor is None and count is None else None
    except ValueError:
        must = "START:END:STEP, START:END:xFACTOR or START:END:logCOUNT"
        raise KvsimError(f"{named.name} must be a number or a range {must}, got {text!r}") from None
    if not (isfinite(low) and isfinite(high) and low <= high):
        raise KvsimError(f"{named.name} must be a range from less to more, got {text!r}")
    if width is not None:
        if not width > 0 or (high - low) / width > MOST:
            raise KvsimError(f"{named.name} must have a step above 0, and at most {MOST:,}, got {text!r}")
        many = int((high - low) / width + 1e-9) + 1
        return [float(f"{low + place * width:.12g}") for place in range(many)]
    if not low > 0:
        raise KvsimError(f"{named.name} must be a range above 0 to be even in its logarithm, got {text!r}")
    if factor is not None:
        if not factor > 1.0001:
            raise KvsimError(f"{named.name} must grow by a factor above 1, got {text!r}")
        many = int(log(high / low) / log(factor) + 1e-9) + 1
        found = [low * factor**place for place in range(many)]
    else:
        if count is None or not 2 <= count <= MOST:
            raise KvsimError(f"{named.name} must have at least 2 values, got {text!r}")
        found = [low * (high / low) ** (place / (count - 1)) for place in range(count)]
    if named.type is int:
        return list(dict.fromkeys(float(round(value)) for value in found))
    return [float(f"{value:.6g}") for value in found]
