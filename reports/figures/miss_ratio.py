"""miss-ratio: the share of a trace's prompt tokens that a prefix cache misses, by cache size and policy."""

from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from kvsim.reports.figures import pieces
from kvsim.reports.figures.scales import plain
from kvsim.reports.figures.sheet import draw_picture
from kvsim.reports.figures.style import Look, Style
from kvsim.reports.miss_ratio import BOUND, Misses
from kvsim.reports.palette import ROLES

POINTS = 400


def draw_miss_ratio(misses: Misses, name: str, directory: Path, style: Style) -> None:
    """Draw the figure of a trace of this name into a directory."""
    headline = f"{name}: a prefix cache hits at most {100 * misses.curve.ceiling:.1f} % of the prompt tokens"
    height_in = max(3.6, 0.6 + 0.185 * len(misses.hit_ratio))  # the legend has a line per policy
    draw_picture(directory, "miss-ratio", style, height_in, headline, partial(_paint, misses))


def _paint(misses: Misses, figure: Figure, style: Style) -> None:
    """Draw the curves and the lower bound of an infinite cache."""
    axes = figure.subplots()
    curve, floor = misses.curve, 1 - misses.curve.ceiling
    several = len(misses.hit_ratio) > 1
    most = curve.tokens_for(1.0) or curve.block_tokens
    least = misses.sizes_tokens[0] if several else curve.block_tokens
    last = misses.sizes_tokens[-1] if several else 1.5 * most
    sizes = np.geomspace(least, max(last, 2 * least), POINTS)
    bottom = max(0.0, np.floor(10 * floor - 0.4) / 10)
    if several:
        _others(axes, style, misses, bottom)
    bold = 1.6 if several else 1.0
    if "lru" in misses.hit_ratio:
        look = style.role("lru")
        axes.plot(sizes, 1 - curve.hit_ratio(sizes), color=look.colour, lw=bold * style.line, label="lru")
    axes.axhline(floor, color=style.muted, lw=style.line / 2, ls=":")
    said = f"{100 * floor:.1f} % was never there before"
    rise_pt, side = (-3, "top") if floor - bottom > 0.07 * (1 - bottom) else (3, "bottom")
    text: Any = {"textcoords": "offset points", "va": side, "fontsize": style.small_pt}
    axes.annotate(said, (sizes[0], floor), (4, rise_pt), **text)
    axes.set(xscale="log", ylim=(bottom, 1), xlim=(sizes[0], sizes[-1]))
    axes.set(xlabel="cache, tokens", ylabel="prompt tokens missed")
    few = style.narrow or sizes[-1] >= 5000 * sizes[0]
    axes.xaxis.set_major_locator(LogLocator(10, subs=(1,) if few else (1, 2, 5)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
    axes.yaxis.set_major_formatter(pieces.percent_of(1))
    axes.grid(axis="y")
    if several:
        _legend(axes, misses)


def _others(axes: Axes, style: Style, misses: Misses, bottom: float) -> None:
    """Draw the bound that no policy can beat, and each other policy in its own look."""
    looks = (style.other(place) for place in count(ROLES["lru"] + 1))
    bound, sizes = Look(style.ink, "--", "o", ""), misses.sizes_tokens
    for name, hit in misses.hit_ratio.items():
        missed = [1 - share for share in hit]
        if name == BOUND:
            axes.fill_between(sizes, bottom, missed, color=style.grid, alpha=0.5, lw=0)
        if name != "lru":
            look, wide = (bound, 1.0) if name == BOUND else (next(looks), 0.8)
            how: Any = {"color": look.colour, "ls": look.dash, "marker": look.marker, "ms": 2 * style.line}
            axes.plot(sizes, missed, lw=wide * style.line, label=name, **how)


def _legend(axes: Axes, misses: Misses) -> None:
    """A legend beside the curves, in their order at the size where they differ most."""
    rows = np.array([list(hit) for hit in misses.hit_ratio.values()])
    widest = int(np.argmax(rows.max(axis=0) - rows.min(axis=0)))
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda at: misses.hit_ratio[labels[at]][widest])
    beside: Any = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5), "labelspacing": 0.3}
    axes.legend([handles[at] for at in order], [labels[at] for at in order], **beside)
