"""Means and confidence intervals over several seeds of one run.

    mean +- t(n - 1) * s / sqrt(n)            over n seeds, 95 % confidence, Student's t
    exp of that, over log(a / b) by seed      the ratio of a to b, paired: a seed gives both the same workload
    that, over a - b by seed                  the difference, paired

This assumes that the seeds' numbers are independent and roughly normal. There is no correction for multiple
comparisons: about one interval in twenty misses the true value.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean, stdev
from typing import Any, Self

from kvsim.reports.palette import number, shares

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """The mean of some numbers, and its confidence interval; `fixed`: all numbers are equal."""

    mean: float
    low: float
    high: float
    fixed: bool = False

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """The interval of some numbers; for a single one, the number itself."""
        if math.isclose(min(values), max(values), rel_tol=1e-9):
            return cls(values[0], values[0], values[0], fixed=True)
        mean = fmean(values)
        half = t_quantile(len(values) - 1) * stdev(values, mean) / math.sqrt(len(values))
        return cls(mean, mean - half, mean + half)

    @property
    def half(self) -> float:
        """Half the width of the interval, as written after +-."""
        return (self.high - self.low) / 2

    def holds(self, value: float) -> bool:
        """Whether the value lies within the bounds."""
        return self.low <= value <= self.high


def interval(values: Sequence[float | None]) -> Interval | None:
    """The interval of a number over the seeds; None if a seed lacks it, or there are no seeds."""
    known = [value for value in values if value is not None]
    return Interval.of(known) if known and len(known) == len(values) else None


def ratio(above: Sequence[float | None], below: Sequence[float | None]) -> Interval | None:
    """The ratio of the two, seed by seed: a geometric mean; None unless all numbers are above 0.

    It uses logarithms, so a to b is the inverse of b to a.
    """
    logs = []
    for one, other in zip(above, below, strict=True):
        if not one or not other or one < 0 or other < 0:
            return None
        logs.append(math.log(one / other))
    found = Interval.of(logs)
    return Interval(math.exp(found.mean), math.exp(found.low), math.exp(found.high), found.fixed)


def difference(one: Sequence[float | None], other: Sequence[float | None]) -> Interval | None:
    """The difference of the two, seed by seed; None if a number is missing."""
    pairs = zip(one, other, strict=True)
    return interval([None if a is None or b is None else a - b for a, b in pairs])


@cache
def t_quantile(degrees: int, confidence: float = CONFIDENCE) -> float:
    """The t such that Student's t lies outside [-t, t] with probability 1 - confidence.

    Parameters
    ----------
    degrees : int
        Degrees of freedom, at least 1.
    confidence : float
        Above 0, below 1.
    """
    low, high = 0.0, math.pi / 2  # of atan(t / sqrt(degrees)), which covers all t
    for _ in range(60):
        middle = (low + high) / 2
        if _probability_within(middle, degrees) < confidence:
            low = middle
        else:
            high = middle
    return math.sqrt(degrees) * math.tan((low + high) / 2)


def _probability_within(angle: float, degrees: int) -> float:
    """P(|T| < sqrt(degrees) * tan(angle)), exactly: Abramowitz and Stegun 26.7.3 and 26.7.4."""
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = degrees % 2
    total, term = 0.0, cosine if odd else 1.0
    for k in range(1 + odd, degrees, 2):  # powers of the cosine up to degrees - 2
        total += term
        term *= cosine**2 * k / (k + 1)
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


# -- summaries ----------------------------------------------------------------------------------


def merged(values: Sequence[Any]) -> Any:  # noqa: ANN401 - JSON is any value
    """Merge the JSON values of several seeds, which have the same shape, into one.

    A number becomes `{mean, low, high, values}` (null if a seed has none). Values equal for all seeds are
    kept; other strings become a list. A counter that a seed lacks is 0.
    """
    if any(isinstance(value, Mapping) for value in values):
        names = {name: None for value in values if value is not None for name in value}
        return {
            name: merged([None if value is None else value.get(name, 0) for value in values])
            for name in names
        }
    known = [number(value) for value in values]
    if any(value is not None for value in known):
        found = interval(known)
        bounds = {name: getattr(found, name, None) for name in ("mean", "low", "high")}
        return {**bounds, "values": list(values)}
    if all(value == values[0] for value in values):
        return values[0]
    return list(values)


def alike(summaries: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The summaries of one allocator, without the saturated part unless all of them use it.

    Reports then describe memory over the same part of the run for every seed.
    """
    if len({shares(summary)[1] for summary in summaries}) == 1:
        return list(summaries)
    return [{**s, "memory": {**s["memory"], "saturated": None}} for s in summaries]


def equal(runs: Sequence[Sequence[Mapping[str, Any]]]) -> bool:
    """Whether all seeds have the same numbers, apart from the wall-clock time."""
    plain = [[{**s, "simulation": None, "notes": None} for s in summaries] for summaries in runs]
    return all(summaries == plain[0] for summaries in plain)
