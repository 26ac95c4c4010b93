"""Fields of a benchmark's result; every error names the file, the line and what was expected."""

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np

from kvsim.sim.bench.measured import Floats
from kvsim.sim.bench.placed import at_line
from kvsim.sim.errors import KvsimError
from kvsim.sim.workload import Int64Column

MOST_TOKENS = 1_000_000_000
SHOWN = 60


def number(where: str, record: Mapping[str, Any], name: str) -> float | None:
    """A number in an object; None if missing."""
    value = record.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise KvsimError(f"{at_line(where, record, name)}: {name} must be a number, got {shown(value)}")
    return float(value)


def inside(where: str, record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An object in an object; empty if missing."""
    value = record.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise KvsimError(f"{at_line(where, record, name)}: {name} must be an object, got {shown(value)}")
    return value


def rows(where: str, record: Mapping[str, Any], name: str) -> list[Any]:
    """A list in an object; empty if missing."""
    value = record.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise KvsimError(f"{at_line(where, record, name)}: {name} must be a list, got {shown(value)}")
    return value


def numbers(where: str, record: Mapping[str, Any], name: str) -> list[float]:
    """A list of numbers in an object, NaN for null; empty if missing."""
    found = []
    for place, value in enumerate(rows(where, record, name)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            here = at_line(where, record, name)
            raise KvsimError(f"{here}: {name}[{place}] must be a number, got {shown(value)}")
        found.append(np.nan if value is None else float(value))
    return found


def lists(where: str, record: Mapping[str, Any], name: str) -> list[list[float]]:
    """A list of lists of numbers in an object; empty if missing."""
    return [
        numbers(f"{where}, {name}", {f"[{place}]": value}, f"[{place}]")
        for place, value in enumerate(rows(where, record, name))
    ]


def tokens(where: str, name: str, values: Sequence[float]) -> Int64Column:
    """Counts of tokens as whole numbers."""
    for place, value in enumerate(values):
        if not (0 <= value <= MOST_TOKENS and value == int(value)):
            must = f"a whole number from 0 to {MOST_TOKENS:,}"
            raise KvsimError(f"{where}: {name}[{place}] must be {must}, got {value:g}")
    return np.array(values, dtype=np.int64)


def times(where: str, name: str, values: Sequence[float]) -> Floats:
    """Times in seconds, NaN if unknown."""
    found: Floats = np.array(values, dtype=np.float64)
    for place in np.flatnonzero((found < 0) | np.isinf(found)).tolist():
        raise KvsimError(f"{where}: {name}[{place}] must be at least 0 s, got {found[place]:g}")
    return found


def starts(values: Sequence[float]) -> Floats | None:
    """When requests began, in seconds on any clock; None unless known for all of them."""
    found: Floats = np.array(values, dtype=np.float64)
    return None if np.isnan(found).any() else found


def shown(value: object) -> str:
    """A value shortened for error messages."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def told_of(
    names: Mapping[str, tuple[str, str]], get: Callable[[str], float | None], scale: float = 1.0
) -> dict[tuple[str, str], float]:
    """The tool's own numbers, where present, under kvsim's names."""
    found = {}
    for theirs, ours in names.items():
        value = get(theirs)
        if value is not None:
            found[ours] = scale * value
    return found
