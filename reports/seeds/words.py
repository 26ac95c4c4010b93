"""How allocators differ, in words: `paged serves 2.31 (2.24-2.38) times the requests ...`.

For each measure the allocator with the best mean is compared with each other one. Every seed gives both the
same workload, so the pairwise ratios (for waste: differences) are averaged.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from kvsim.reports import palette
from kvsim.reports.palette import Shown, Summary, count, figures
from kvsim.reports.quantities import MEAN_RUNNING, NORMALIZED, REQUESTS_PER_S
from kvsim.reports.ranked import left_out, ranked
from kvsim.reports.seeds.intervals import Interval, alike, difference, interval, ratio
from kvsim.reports.waiting import rounded_share

NO_DIFFERENCE = "not distinguishable given seed noise"


@dataclass(frozen=True)
class Measure:
    """A summary number that allocators are compared by."""

    name: str
    value: Callable[[Summary], float | None]
    best: Callable[[list[float]], float]
    words: tuple[str, str, str]
    """Around the ratios: `paged [serves] 2.31 times [the requests per second of] contiguous, 1.4 times
    [those of] buddy`; for points: `paged [wastes] 3.1 percentage points less [than] ...`."""
    points: bool = False

    def compared(self, one: Sequence[float | None], other: Sequence[float | None]) -> Interval | None:
        """The ratio of one to the other; for points, the difference."""
        return difference(one, other) if self.points else ratio(one, other)


def _waste(summary: Summary) -> float:
    return palette.waste(palette.shares(summary)[0])


MEASURES = (
    Measure(
        "requests per second",
        REQUESTS_PER_S.read,
        max,
        ("serves", "the requests per second of", "those of"),
    ),
    Measure(
        "requests at once", MEAN_RUNNING.read, max, ("holds", "as many requests at once as", "as many as")
    ),
    Measure("time per token", NORMALIZED.read, min, ("takes", "as long per token as", "as long as")),
    Measure("waste", _waste, min, ("wastes", "than", "than"), points=True),
)
"""Waste comes last: while requests waited if all runs have enough of that, else over whole runs."""


@dataclass(frozen=True)
class Difference:
    """The best allocator in a measure against another: `times` as much, or a number of `points` more."""

    measure: str
    of: str
    to: str
    unit: str
    mean: float
    low: float
    high: float
    values: list[float]
    beyond_spread: bool

    @property
    def tiny(self) -> bool:
        """Whether it rounds to nothing: less than half a per cent, or half a tenth of a point."""
        return abs(self.mean) < 0.05 if self.unit == "points" else 0.995 < self.mean < 1.005

    def __str__(self) -> str:
        """The number with its bounds: `2.31 (2.24-2.38) times`, `12.5 percentage points less (12.1 to 12.9)`.

        Negative points and ratios below one are inverted, for "points less" and "times" the other way round.
        """
        bounds = [self.mean, self.low, self.high]
        if self.unit == "points":
            bounds = [-self.mean, -self.high, -self.low]
        elif self.mean < 1:
            bounds = [1 / self.mean, 1 / self.high, 1 / self.low]
        middle, low, high = map(figures, bounds)
        if self.unit == "points":
            less = f"{middle} percentage points less"
            return less if low == high else f"{less} ({low} to {high})"
        return f"{middle} {self.unit}" if low == high else f"{middle} ({low}-{high}) {self.unit}"


def differences(allocators: Sequence[Sequence[Summary]]) -> list[Difference]:
    """For each measure, the best allocator against each other one.

    Parameters
    ----------
    allocators : sequence
        The summaries of each allocator, by seed.
    """
    return [each for measure in MEASURES for each in _differences(measure, _comparable(allocators))]


def difference_lines(allocators: Sequence[Sequence[Summary]]) -> list[str]:
    """A sentence for each measure that all allocators have."""
    found = differences(allocators)
    lines = [_line(measure, [each for each in found if each.measure == measure.name]) for measure in MEASURES]
    _, waiting = palette.shares_of_all([summary for each in _comparable(allocators) for summary in each])
    when = "while requests waited" if waiting else "over the whole run"
    if lines[-1] and not lines[-1].endswith(NO_DIFFERENCE):
        lines[-1] = f"{when}, {lines[-1]}"
    lines = [line for line in lines if line]
    return [*lines, rest] if lines and (rest := left_out(allocators)) else lines


def _comparable(allocators: Sequence[Sequence[Summary]]) -> list[list[Summary]]:
    """Ranked allocators that finished requests with every seed, all over the same part of their runs."""
    fit = [each for each, may in zip(allocators, ranked(allocators), strict=True) if may]
    served = [each for each in fit if all(summary["requests"]["finished"] for summary in each)]
    together = iter(alike([summary for each in served for summary in each]))
    return [[next(together) for _ in each] for each in served]


def _differences(measure: Measure, allocators: Sequence[Sequence[Summary]]) -> list[Difference]:
    columns = {str(each[0]["label"]): [measure.value(summary) for summary in each] for each in allocators}
    means = {
        label: fmean(known)
        for label, column in columns.items()
        if len(known := [value for value in column if value is not None]) == len(column)
    }
    if len(means) < 2:
        return []
    best = next(label for label in means if means[label] == measure.best(list(means.values())))
    found = []
    for label in means:
        compared = measure.compared(columns[best], columns[label]) if label != best else None
        if compared is not None:
            pairs = zip(columns[best], columns[label], strict=True)
            values = [
                (a or 0.0) - (b or 0.0) if measure.points else (a or 0.0) / (b or 1.0) for a, b in pairs
            ]
            beyond = not compared.holds(0.0 if measure.points else 1.0)
            unit = "points" if measure.points else "times"
            bounds = (compared.mean, compared.low, compared.high)
            found.append(Difference(measure.name, best, label, unit, *bounds, values, beyond))
    return found


def _line(measure: Measure, found: Sequence[Difference]) -> str:
    """`paged serves 2.31 (2.24-2.38) times the requests per second of contiguous, ...; no difference ...`."""
    if not found:
        return ""
    near = [each for each in found if each.beyond_spread and each.tiny]
    told = [each for each in found if each.beyond_spread and not each.tiny]
    rest = [
        f"{words} {_listed([each.to for each in those])}"
        for words, those in (
            (f"{NO_DIFFERENCE} from", [each for each in found if not each.beyond_spread]),
            ("hardly any from", near),
        )
        if those
    ]
    if not told:
        return f"{measure.name}: {', '.join(rest) if near else NO_DIFFERENCE}"
    verb, first, next_ = measure.words
    best = told[0].of
    if measure.best is min and not measure.points:  # how much worse the others are
        one, *more = told
        worse = [f"{one.to} {verb} {one} {first} {best}", *(f"{each.to} {each}" for each in more)]
        return "; ".join([", ".join(worse), *([f"{best}: {', '.join(rest)}"] if rest else [])])
    parts = [f"{each} {next_ if place else first} {each.to}" for place, each in enumerate(told)]
    return "; ".join([f"{best} {verb} {', '.join(parts)}", *([", ".join(rest)] if rest else [])])


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


# -- numbers with their spread -------------------------------------------------------------------


def with_spread(text: Shown, found: Interval | None) -> str:
    """The mean as formatted by `text`, and half the interval in the same unit: `31.5 ± 0.4 ms`."""
    if found is None or found.fixed:
        return text(None if found is None else found.mean)
    if text is count and found.mean < 100:
        text = "{:.1f}".format
    mean, _, unit = text(found.mean).partition(" ")
    times = 1e3 if unit == "ms" else 1
    return f"{' ± '.join(mean_and_half(mean, found.mean * times, found.half * times))} {unit}".rstrip()


def mean_and_half(mean: str, value: float, half: float) -> tuple[str, str]:
    """A formatted mean, whose `value` is in its unit, and half the interval, in no finer steps than it."""
    spread = half_width(half, mean)
    shown, decimals = (len(each.partition(".")[2]) for each in (mean, spread))
    coarser = decimals < shown and mean == f"{value:,.{shown}f}"
    return f"{value:,.{decimals}f}" if coarser else mean, spread


def share_of_time(shares: Sequence[float | None]) -> str:
    """A share of time in whole per cent, with its spread; "" if a seed lacks it."""
    found = interval(shares)
    if found is None or found.fixed:
        return "" if found is None else rounded_share(found.mean)
    return with_spread("{:.0f} %".format, interval([100 * (share or 0.0) for share in shares]))


def half_width(half: float, mean: str) -> str:
    """With as many decimals as the mean, but at most two significant figures and at least one."""
    if not half:
        return "0"
    figures_two = max(0, 1 - math.floor(math.log10(half)))
    decimals = min(figures_two, len(mean.partition(".")[2]))
    if not round(half, decimals):
        decimals = max(figures_two - 1, 0)
    return f"{half:,.{decimals}f}"
