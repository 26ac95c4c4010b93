"""speculation: speed-up over batch size and accepted tokens, a panel per model, with the crossover.

Below the thick line speculation slows decoding; the dashed line marks the stated tokens per verification.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from kvsim.reports.figures import pieces
from kvsim.reports.figures.sheet import new_sheet, save
from kvsim.reports.figures.style import Style
from kvsim.reports.speculation.gain import Gain, verdict

LEVELS = (0.5, 0.75, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0)
POINTS = 60


def draw_speculation(gains: Sequence[Gain], directory: Path, style: Style) -> None:
    """Draw the figure into a directory."""
    save(directory, "speculation", style, partial(speculation, gains, style))


def speculation(gains: Sequence[Gain], style: Style) -> Figure:
    """A panel per model."""
    one = len(gains) == 1
    figure = new_sheet(
        style, 3.4, verdict(gains[0]) if one else "Where speculation gains, and where it loses"
    )
    panels = figure.subplots(1, len(gains), squeeze=False, sharey=True)[0]
    for gain, axes in zip(gains, panels, strict=True):
        _panel(axes, gain, style, first=axes is panels[0])
    pieces.legend_below(figure, style, panels[0].get_lines())
    return figure


def _panel(axes: Axes, gain: Gain, style: Style, first: bool) -> None:
    batches, least = np.array(gain.batches), np.array(gain.crossover)
    lengths = np.linspace(1, gain.most + 1, POINTS)
    speed_up = lengths[:, None] / least[None, :]
    axes.set(xscale="log", xlim=(batches[0], batches[-1]), ylim=(1, gain.most + 1), title=gain.model)
    contours = axes.contour(
        batches, lengths, speed_up, levels=LEVELS, colors=style.muted, linewidths=style.line / 2
    )
    axes.clabel(contours, fmt=lambda level: f"{level:g} x", fontsize=style.small_pt)
    colour = style.role("break even").colour
    axes.plot(batches, least, color=colour, lw=1.6 * style.line, label="break even")
    axes.fill_between(batches, 1, np.minimum(least, gain.most + 1), color=colour, alpha=0.12, lw=0)
    if gain.length is not None:
        stated = style.role("accepted").colour
        axes.axhline(gain.length, color=stated, ls="--", lw=style.line, label="assumed acceptance length")
    axes.set_xlabel("sequences in the batch")
    axes.xaxis.set_major_locator(FixedLocator(batches[::2].tolist()))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([str(batch) for batch in batches[::2]])
    axes.grid(visible=False)
    if first:
        axes.set_ylabel("tokens per verification")
