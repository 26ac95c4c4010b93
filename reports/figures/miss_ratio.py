"""miss-ratio: the share of a trace's prompt tokens that a prefix cache misses, by its size."""

from typing import Protocol

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter

from kvsim.reports.figures.style import SCREEN

POINTS = 400


class Curve(Protocol):
    """What is drawn of a curve."""

    block_tokens: int

    @property
    def ceiling(self) -> float:
        """Share of the prompt tokens that an endless cache hits."""

    def hit_ratio(self, capacity_tokens: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Share of the prompt tokens that caches of these sizes hit."""

    def tokens_for(self, share: float) -> int | None:
        """The smallest cache that hits this share of what an endless one hits."""


def paint(curve: Curve, figure: Figure) -> None:
    """Draw the curve, and the floor that no cache goes below."""
    axes = figure.subplots()
    most = curve.tokens_for(1.0) or curve.block_tokens
    sizes = np.geomspace(curve.block_tokens, 1.5 * most, POINTS)
    axes.plot(sizes, 1 - curve.hit_ratio(sizes), color=SCREEN.look(0).colour, lw=SCREEN.line)
    floor = 1 - curve.ceiling
    axes.axhline(floor, color=SCREEN.muted, lw=SCREEN.line / 2, ls=":")
    axes.text(
        sizes[0],
        floor - 0.01,
        f"{100 * floor:.1f} % was never there before",
        va="top",
        fontsize=SCREEN.small_pt,
    )
    axes.set(xscale="log", ylim=(0, 1), xlabel="cache, tokens", ylabel="prompt tokens missed")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.grid(axis="y")
