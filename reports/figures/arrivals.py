"""The arrivals of a trace: requests per second over time, and the gaps between requests."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from kvsim.reports import palette
from kvsim.reports.arrays import Floats
from kvsim.reports.figures import pieces
from kvsim.reports.figures.style import Style

_SLICES = 200
_MOST_POINTS = 400


def paint_arrivals(sheet: Figure, style: Style, arrival_s: Floats, scale: float, unit: str) -> None:
    """Draw the rate over time (in units of `scale` seconds), and the share of gaps longer than each time."""
    colour, line = style.role("requests").colour, style.line
    dashed: Any = {"color": style.muted, "linestyle": "--", "linewidth": 0.67 * line}
    gaps = np.diff(arrival_s)
    left, right = sheet.subplots(1, 2, width_ratios=(1.4, 1))
    edges = np.linspace(arrival_s[0], arrival_s[-1], min(_SLICES, max(len(arrival_s) // 5, 1)) + 1)
    width = float(edges[1] - edges[0])
    rate = np.histogram(arrival_s, edges)[0] / width
    left.stairs(rate, edges / scale, color=colour, fill=True, alpha=0.3)
    left.stairs(rate, edges / scale, color=colour, linewidth=0.67 * line)
    left.axhline(len(gaps) / (arrival_s[-1] - arrival_s[0]), **dashed)
    left.set(xlabel=f"time ({unit})", ylabel="requests/s", ylim=(0, None))
    each = palette.seconds(width)
    left.set_title(f"rate every {each}" if style.narrow else f"rate in slices of {each} (dashed: mean)")
    left.margins(x=0)
    mean = float(gaps.mean())
    shown = np.sort(gaps[gaps > 0])
    if len(shown):
        grid = np.geomspace(min(shown[0], mean / 100), max(shown[-1], 6 * mean), _MOST_POINTS)
        longer = 100 * (1 - np.searchsorted(shown, grid) / len(shown)) * len(shown) / len(gaps)
        right.plot(grid, longer, color=colour, label="this trace")
        right.plot(grid, 100 * np.exp(-grid / mean), label="Poisson", **dashed)
        right.set(xlabel="gap (s)", ylabel="longer gaps (%)", ylim=(0, 100))
        right.legend()
        pieces.log_axis(right, "x", float(grid[0]), float(grid[-1]))
    right.set_title("gaps" if style.narrow else "gaps between requests")
