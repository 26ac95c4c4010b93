"""Logarithmic axes with formatted ticks, and room for names in a panel's upper left."""

from collections.abc import Callable, Sequence
from math import ceil, floor, log10

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from kvsim.reports.calibration.words import duration, size
from kvsim.reports.figures.style import Style

LEFT = 0.65
"""Share of a panel's width taken by the names of its lines."""


def log_scale(  # noqa: PLR0917
    axes: Axes,
    which: str,
    style: Style,
    span: tuple[float, float],
    words: Callable[[float], str],
    base: int = 10,
) -> None:
    """Set up a logarithmic axis over these values, with two to four formatted ticks."""
    low, high = span
    room = max((high / low) ** 0.06, 1.15, 2 * (low / high) ** 0.5)  # at least from low to 4 low
    low, high = low / room, high * room
    getattr(axes, f"set_{which}scale")("log")
    getattr(axes, f"set_{which}lim")(low, high)
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(FixedLocator(_ticks(low, high, base)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: words(value)))
    axis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis=which, labelsize=0.95 * style.small_pt)


def _ticks(low: float, high: float, base: int) -> list[float]:
    """At most four powers of the base; round numbers if fewer than two powers are in range."""
    step = log10(base)
    powers = [float(base) ** place for place in range(ceil(log10(low) / step), floor(log10(high) / step) + 1)]
    if len(powers) >= 2:
        return powers[:: -(-len(powers) // 4)]
    decade = 10.0 ** floor(log10(low))
    return [each * decade for each in (1, 2, 5, 10, 20, 50) if low <= each * decade <= high]


def plain(value: float) -> str:
    """`0.5`, `20`, `10k`, `1M`, `2G`."""
    units = (("G", 1e9), ("M", 1e6), ("k", 1e3))
    letter, unit = next((each for each in units if value >= each[1]), ("", 1.0))
    return f"{value / unit:,.4g}{letter}"


def in_bytes(value: float) -> str:
    """`512K`: powers of 1,024."""
    return size(value).replace(" ", "").removesuffix("iB")


def in_time(seconds: float) -> str:
    """`20 µs`."""
    return duration(seconds).replace(".00 ", " ").replace(".0 ", " ").replace("us", "µs")


def make_room(axes: Axes, points: Sequence[tuple[float, float]], share: float) -> None:
    """Raise the upper end of the y axis until no point in the left part lies in its upper `share`."""
    scale = log10 if axes.get_yscale() == "log" else float
    left, right = map(log10, axes.get_xlim())
    low, high = map(scale, axes.get_ylim())
    reach = max((scale(y) for x, y in points if log10(x) < left + LEFT * (right - left)), default=low)
    top = max(high, low + (reach - low) / (1 - share))
    axes.set_ylim(top=10**top if scale is log10 else top)
