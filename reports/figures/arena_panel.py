"""Draw one arena, folded into rows of equal length, with each range in the colour of its request.

row 0    | request 17 ######......  | request 4 ###### |      solid: tokens, pale: allocated but empty
row 1    | free                                        |
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.patheffects import withStroke

from kvsim.reports.arrays import Floats
from kvsim.reports.figures import pieces
from kvsim.reports.figures.style import Style
from kvsim.reports.memory_map import Arena, Int64, owners_of

OWNERS = (
    *("#4477AA", "#EE8866", "#44AA77", "#DDCC55", "#AA4477", "#77BBDD", "#A0522D", "#99AA44"),
    *("#7766BB", "#EE6677", "#228899", "#E0A030", "#CC77AA", "#55BB55", "#8899AA", "#C45A2C"),
)
_STRIDE, _ASIDE = 7, 5  # coprime to the number of colours, so that neighbours in the trace differ
EMPTY_HATCH = "//////"
_TOP, _BOTTOM = 0.06, 0.94  # share of a row's height


def colours_of(owners: Sequence[str], replicas: int = 1) -> Floats:
    """Colours by the number of the first request only: the same at every instant and in every run.

    Neighbours differ, and so do requests that are `replicas` apart: those of one replica, by turns.
    """
    firsts = [owners_of(text)[0][0] if text else 0 for text in owners]
    places = [_STRIDE * (first // replicas) + _ASIDE * (first % replicas) for first in firsts]
    return np.array([to_rgb(OWNERS[place % len(OWNERS)]) for place in places]).reshape(-1, 3)


def pale(style: Style, colours: Floats) -> Floats:
    """The colours mixed with the background."""
    return 0.4 * colours + 0.6 * np.array(to_rgb(style.paper))


def hatch_colour(style: Style) -> Any:  # noqa: ANN401 - any of matplotlib's colours
    """The hatch colour of slots that are allocated but empty."""
    return style.seam if style.grey_print else (*to_rgb(style.muted), 0.55)


@dataclass(frozen=True)
class Panel:
    """The axes of one arena. Call `paint` first, then `finish` once the layout is known."""

    axes: Axes
    style: Style
    arena: Arena
    slots: int
    row_slots: int
    replicas: int = 1

    def paint(self, rows: int) -> None:
        """Draw the frame, then cached, idle, allocated and filled slots; `rows`: the most of any panel."""
        self._set_axes(max(rows, 1))
        if not self.slots:
            pieces.say(self.axes, self.style, "nothing was recorded")
            return
        style, arena = self.style, self.arena
        whole, _ = self._folded(np.zeros(1, np.int64), np.array([self.slots]))
        frame: Any = {"edgecolors": style.grid, "linewidths": 0.5 * style.line * min(1, 32 / max(rows, 1))}
        self._collect(whole, facecolors=style.paper, **frame)
        for kind, there in (("cached", arena.cached), ("idle", arena.idle)):
            one, hatch = np.array([to_rgb(style.kinds[kind].colour)]), style.kinds[kind].hatch
            self._fill(arena.start[there], arena.size[there], one.repeat(int(there.sum()), axis=0), hatch)
        colours = colours_of(arena.owners, self.replicas)[arena.owner]
        empty = arena.allocated & (arena.filled < arena.size)
        begin, size = (arena.start + arena.filled)[empty], (arena.size - arena.filled)[empty]
        self._fill(begin, size, pale(style, colours[empty]), EMPTY_HATCH)
        full = arena.allocated & (arena.filled > 0)
        for these, look in ((full & ~arena.held, None), (full & arena.held, style.kinds["held"])):
            seen = colours[these] if look is None else np.array([to_rgb(look.colour)] * int(these.sum()))
            self._fill(arena.start[these], arena.filled[these], seen, look and look.hatch)

    def finish(self) -> None:
        """Draw what depends on the size of a slot: seams between ranges, dots, numbers."""
        if not self.arena.allocated.any():
            return
        box, to_pt = self.axes.get_window_extent(), 72 / self.axes.figure.dpi
        slot_pt = box.width * to_pt / self.row_slots
        row_pt = box.height * to_pt / abs(self.axes.get_ylim()[0])
        self._seams(slot_pt)
        self._dots(slot_pt, row_pt)
        self._numbers(slot_pt, min(0.8 * self.style.type_pt, 0.8 * row_pt))

    def _set_axes(self, rows: int) -> None:
        axes = self.axes
        axes.set(xlim=(0, self.row_slots), ylim=(rows, 0), xticks=(0, self.row_slots // 2, self.row_slots))
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        pieces.plain_numbers(axes, "x")
        step = max(1, 2 ** ceil(log2(rows / 8)))
        places = range(0, ceil(self.slots / self.row_slots), step)
        axes.set_yticks([row + 0.5 for row in places], [f"{row * self.row_slots:,}" for row in places])

    def _folded(self, start: Int64, size: Int64) -> tuple[Floats, Int64]:
        """The rectangles of ranges split at row ends, and the index of each one's range."""
        first, last = start // self.row_slots, (start + size - 1) // self.row_slots
        parts = last - first + 1
        which = np.repeat(np.arange(len(start)), parts)
        row = first[which] + np.arange(len(which)) - (np.cumsum(parts) - parts)[which]
        left = np.maximum(start[which] - row * self.row_slots, 0)
        right = np.minimum((start + size)[which] - row * self.row_slots, self.row_slots)
        top, bottom = row + _TOP, row + _BOTTOM
        corners = [(left, top), (right, top), (right, bottom), (left, bottom)]
        return np.stack([np.stack(corner, axis=-1) for corner in corners], axis=1).astype(np.float64), which

    def _fill(self, start: Int64, size: Int64, colours: Floats, hatch: str | None) -> None:
        corners, which = self._folded(start, size)
        edge = hatch_colour(self.style) if hatch else self.style.paper
        self._collect(corners, facecolors=colours[which], edgecolors=[edge], hatch=hatch, linewidths=0)

    def _collect(self, corners: Floats, **how: Any) -> None:  # noqa: ANN401 - matplotlib's
        if len(corners):
            self.axes.add_collection(PolyCollection(corners, **how), autolim=False)

    def _seams(self, slot_pt: float) -> None:
        """Draw a line between allocated ranges, as thick as the narrow ones allow."""
        there = self.arena.allocated
        start, size = self.arena.start[there], self.arena.size[there]
        width_pt = min(0.6 * self.style.line, 0.12 * slot_pt * float(np.median(size)))
        at = np.unique(np.concatenate([start, start + size]))
        at = at[at % self.row_slots > 0]
        x, row = at % self.row_slots, at // self.row_slots
        lines = np.stack([np.stack([x, row + _TOP], -1), np.stack([x, row + _BOTTOM], -1)], axis=1)
        colour = self.style.ink if self.style.grey_print else self.style.paper
        self._collect(lines.astype(np.float64), edgecolors=colour, linewidths=width_pt)

    def _dots(self, slot_pt: float, row_pt: float) -> None:
        shared = np.array([" " in owners for owners in self.arena.owners], bool)[self.arena.owner]
        if not shared.any():
            return
        corners, _ = self._folded(self.arena.start[shared], self.arena.size[shared])
        middle = corners.mean(axis=1)
        width_pt = float(np.median(corners[:, 1, 0] - corners[:, 0, 0])) * slot_pt
        size = max(0.7, min(4.5 * self.style.scale, 0.5 * width_pt, 0.5 * row_pt))
        edge: Any = {"markeredgecolor": "white", "markeredgewidth": 0.15 * size}
        self.axes.plot(middle[:, 0], middle[:, 1], "o", color="black", markersize=size, **edge)

    def _numbers(self, slot_pt: float, pt: float) -> None:
        """Write a request's number on its widest rectangle, if that is wide enough."""
        if pt < 0.45 * self.style.type_pt:
            return
        there = self.arena.allocated
        corners, which = self._folded(self.arena.start[there], self.arena.size[there])
        owner = self.arena.owner[there][which]
        left, right, row = corners[:, 0, 0], corners[:, 1, 0], np.floor(corners[:, 0, 1])
        apart = (owner[1:] != owner[:-1]) | (row[1:] != row[:-1]) | (left[1:] != right[:-1])
        first = np.flatnonzero(np.concatenate([[True], apart]))
        last = np.concatenate([first[1:], [len(owner)]]) - 1
        widest: dict[int, int] = {}
        for place in np.argsort(left[first] - right[last], kind="stable").tolist():
            widest.setdefault(int(owner[first[place]]), place)
        halo = [withStroke(linewidth=0.3 * pt, foreground=self.style.paper)]
        how: Any = {"ha": "center", "va": "center_baseline", "fontsize": pt, "color": self.style.ink}
        for code, place in widest.items():
            x0, x1, text = left[first[place]], right[last[place]], self.arena.owners[code]
            if " " not in text and (x1 - x0) * slot_pt >= (0.66 * len(text) + 0.8) * pt:
                self.axes.text((x0 + x1) / 2, row[first[place]] + 0.5, text, path_effects=halo, **how)
