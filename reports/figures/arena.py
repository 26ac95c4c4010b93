"""map: which request holds which slots at one instant, for runs that recorded it (see arena_panel.py).

Pools of different layers are drawn separately. Arenas of different sizes have separate scales.
"""

from collections.abc import Sequence
from math import ceil, log2, sqrt
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from kvsim.reports import palette
from kvsim.reports.figures import pieces
from kvsim.reports.figures.arena_panel import EMPTY_HATCH, Panel, colours_of, hatch_colour, pale
from kvsim.reports.figures.choices import CannotDraw, Choices
from kvsim.reports.figures.sheet import new_sheet
from kvsim.reports.figures.style import Style
from kvsim.reports.figures.systems import System, which_seed
from kvsim.reports.memory_map import FILE, Arena, MemoryMap, owners_of
from kvsim.reports.quantities import MEAN_RUNNING
from kvsim.reports.seeds.intervals import interval

MOST_REPLICAS = 6
_LEAST_ROWS, _MOST_ROWS = 8, 96
_PANEL_IN = 3.3
_ALIKE = 1.5  # arenas whose sizes differ by at most this factor share one scale


def memory_map(systems: Sequence[System], choices: Choices) -> Figure:
    """A panel per system (its first seed): the arena at the chosen instant, or when it is fullest.

    A fleet has a panel for each of the `MOST_REPLICAS` replicas that served the most, and for each pool.
    """
    replicas = max(len(system.first.replicas) for system in systems) or 1
    systems = [each for system in systems for each in _servers(system, named=len(systems) > 1)]
    runs = [system.first for system in systems]
    lacking = [run.label for run in runs if not (run.path / FILE).is_file()]
    if lacking:
        raise CannotDraw(
            f"figure map needs {FILE}, which --record-map writes; it is missing in: {', '.join(lacking)}"
        )
    style = choices.style
    maps = [MemoryMap.read(run.path / FILE, run.place) for run in runs]
    at_s = _fullest(maps) if choices.at_s is None else choices.at_s
    arenas = [each.at(at_s) for each in maps]
    named = len(systems) > 1 or not style.headlines
    parts = [
        part
        for system, each in zip(systems, maps, strict=True)
        for part in _parts(system.full_name if named else "", each, at_s)
    ]
    columns = _columns(style, len(parts))
    width_in = style.width_in / style.scale / columns
    alike = max(part.slots for part in parts) <= _ALIKE * max(min(part.slots for part in parts), 1)
    scales = [_row_slots(parts if alike else [part], width_in) for part in parts]
    rows = [ceil(part.slots / row_slots) for part, row_slots in zip(parts, scales, strict=True)]
    lines = ceil(len(parts) / columns)
    height_in = _PANEL_IN if max(rows) >= _LEAST_ROWS / 2 else 0.35 + 0.4 * max(rows)
    height_in *= {3: 0.8, 4: 0.6}.get(columns, 1.0)
    height_in += 0.2 * max(part.title.count("\n") for part in parts)
    headline = _headline(systems, arenas, at_s, replicas)
    figure = new_sheet(style, 1.3 + (height_in + 0.45) * lines, headline)
    grid = figure.subplots(lines, columns, sharey=alike, squeeze=False)
    panels = [
        Panel(axes, style, part.arena, part.slots, row_slots, replicas)
        for axes, part, row_slots in zip(grid.flat, parts, scales, strict=False)
    ]
    for part, panel, its_rows in zip(parts, panels, rows, strict=True):
        panel.paint(max(rows) if alike else its_rows)
        if part.title:
            pieces.panel_title(panel.axes, style, part.title, columns)
    for axes in grid.flat[len(parts) :]:
        axes.set_visible(False)
    for panel in panels[-columns:]:
        panel.axes.set_xlabel("slots")
    figure.supylabel("first slot of the row", fontsize=style.type_pt)
    pieces.legend_below(figure, style, _marks(style, arenas), columns=5)
    figure.draw_without_rendering()  # the layout is known from here on
    for panel in panels:
        panel.finish()
    return figure


class _Part(NamedTuple):
    """An arena or one of its pools, and the title above it."""

    title: str
    arena: Arena
    slots: int


def _parts(name: str, recorded: MemoryMap, at_s: float) -> list[_Part]:
    """The pools of an arena; if all layers share it, the arena itself, with each kind's share."""
    arena = recorded.at(at_s)
    instant = int(np.searchsorted(recorded.instants, at_s, side="right")) - 1
    held = {
        layers: f"{layers}: {shares[instant] if instant >= 0 else 0:.1f} %"
        for layers, shares in recorded.allocated_by_layers().items()
    }
    if len(recorded.pools) > 1:
        return [
            _Part(f"{name}\n{held[layers]}".strip(), arena.between(start, end), end - start)
            for layers, start, end in recorded.pools
        ]
    title = "\n".join([name, *held.values()]) if name else ", ".join(held.values())
    return [_Part(title, arena, recorded.slots)]


def _servers(system: System, named: bool) -> list[System]:
    """The replicas of a fleet as systems, in order; for a single server, the system itself."""
    parts = system.first.replicas
    if len(parts) > MOST_REPLICAS:
        busiest = sorted(parts, key=lambda run: -(MEAN_RUNNING.read(run.summary) or 0.0))[:MOST_REPLICAS]
        parts = [run for run in parts if any(run is each for each in busiest)]
    before = f"{system.full_name}, " if named else ""
    return [System(f"{before}{run.label}", (run,)) for run in parts] or [system]


def _columns(style: Style, count: int) -> int:
    """Two or four panels form a square, others rows of three, very many rows of four."""
    if count in {1, 2, 4}:
        return min(count, 2)
    return 4 if count > 9 and not style.narrow else 3


def _fullest(maps: Sequence[MemoryMap]) -> float:
    """The first recorded instant at which the runs together hold the most memory."""
    instants = np.unique(np.concatenate([each.instants for each in maps]))
    share = np.zeros(len(instants))
    for each in maps:
        held = np.append(0, each.allocated_slots()) / max(each.slots, 1)
        share += held[np.searchsorted(each.instants, instants, side="right")]
    return float(instants[np.argmax(share)]) if len(instants) else 0.0


def _row_slots(parts: Sequence[_Part], width_in: float) -> int:
    """Slots per row, a power of two, so that a typical allocation is about twice as wide as high."""
    ranges, slots = 1.0, 1
    for _, arena, size in parts:
        allocated = arena.size[arena.allocated]
        slots = max(slots, size)
        if len(allocated):
            ranges = max(ranges, size / float(np.median(allocated)))
    rows = min(max(sqrt(2 * ranges * _PANEL_IN / width_in), _LEAST_ROWS), _MOST_ROWS)
    return int(2 ** max(0, round(log2(slots / rows))))


def _marks(style: Style, arenas: Sequence[Arena]) -> list[Any]:
    colour, edge = colours_of(["0"]), hatch_colour(style)
    dot: Any = {"marker": "o", "markeredgecolor": "white", "markersize": 3 * style.line, "linestyle": ""}
    empty: Any = {"facecolor": pale(style, colour)[0], "hatch": EMPTY_HATCH, "edgecolor": edge, "lw": 0}
    marks: list[Any] = [Patch(facecolor=colour[0], label="tokens, coloured by request")]
    marks.append(Patch(label="allocated, empty", **empty))
    if any(" " in arena.owners[code] for arena in arenas for code in np.unique(arena.owner).tolist()):
        marks.append(Line2D([], [], color="black", label="shared", **dot))
    kinds = {"held": "computed, waits to be read", "cached": "cached prefix", "idle": "idle"}
    for kind, label in kinds.items():
        if any(getattr(arena, kind).any() for arena in arenas):
            marks.append(Patch(label=label, lw=0, **{**style.filled(kind), "edgecolor": edge}))
    free = Rectangle((0, 0), 1, 1, facecolor=style.paper, edgecolor=style.muted, lw=0.5, label="free")
    return [*marks, free]


def _headline(systems: Sequence[System], arenas: Sequence[Arena], at_s: float, replicas: int) -> str:
    counts = [_requests(arena) for arena in arenas]
    if len(systems) > 1:
        found = [interval([count]) for count in counts]
        words = pieces.listed([system.name for system in systems], found, palette.count)
        of = f" of the {MOST_REPLICAS} busiest of {replicas} replicas" if replicas > MOST_REPLICAS else ""
        return f"Requests in the KV memory{of} after {palette.seconds(at_s)}{which_seed(systems)}: {words}"
    ((system,), (arena,)) = systems, arenas
    slots, sizes = max(int(arena.size.sum()), 1), arena.size[arena.allocated]
    allocated, filled = (100 * int(part.sum()) / slots for part in (sizes, arena.filled))
    who = "1 request holds" if counts[0] == 1 else f"{counts[0]} requests hold"
    where = f"{who} {allocated:.1f} % of the KV memory, {filled:.1f} % with tokens"
    return f"{system.name} after {palette.seconds(at_s)}{which_seed(systems)}: {where}"


def _requests(arena: Arena) -> int:
    texts = {arena.owners[code] for code in np.unique(arena.owner).tolist()}
    return len({request for text in texts for request, _ in owners_of(text)})
