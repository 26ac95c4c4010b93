"""heatmap: two settings against each other; each cell shows the best over the other settings and loads.

With an SLO a cell shows goodput per GPU, else output tokens per second per GPU: a mean over seeds, the
maximum over the cell's other settings and loads. If one setting is the traffic, columns are not comparable,
so a cell is coloured by its share of its column's maximum. If only some rows find cached prefixes, a mark
says which.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from kvsim.reports.figures.sheet import new_sheet
from kvsim.reports.figures.style import Style
from kvsim.reports.figures.systems import short
from kvsim.reports.palette import figures, number, together
from kvsim.reports.seeds.words import NO_DIFFERENCE
from kvsim.reports.sweeps.headline import MOST_NAMED, at_load, in_noise
from kvsim.reports.sweeps.systems import LOADS, System, name_of, setting_words, tokens_per_gpu
from kvsim.sim.options.traffic import Traffic
from kvsim.sim.record.slo import Slo

_MOST_WRITTEN = 200  # most cells that get a number
_LETTERS_IN_A_ROW = 32  # below a figure as wide as a column
FINDS = {True: "●", False: "○"}
"""Marks of rows that find cached prefixes, if others do not."""
_ALIKE = 0.02  # smaller differences of shares are ignored in a headline
_THE_MOST = 0.995  # shares from here on are written as 100 %
_TRAFFIC = {"case", *(field.name for field in fields(Traffic))} - {*LOADS, "num_prompts"}


def heatmap(systems: Sequence[System], load: str | None, slo: Slo | None, style: Style) -> Figure | None:
    """The two settings with the most values; None if fewer than two vary."""
    axis = _settings(systems, load)
    if axis is None:
        return None
    (down, rows), (across, columns) = axis
    cells, best = _cells(systems, load, slo, axis)
    if np.isnan(cells).all():
        return None
    what = "goodput per GPU (requests/s)" if slo else "output tokens/s per GPU"
    if across in _TRAFFIC:
        most = np.fmax.reduce(cells, axis=0)
        colours, label = cells / np.where(most > 0, most, 1), "share of the most in its column"
        headline = _headline_of_shares(np.nan_to_num(colours), rows, columns, across, slo)
    else:
        colours, label = cells / (np.nanmax(cells) or 1), what
        headline = _headline(cells, best, axis, load, slo)
    figure = new_sheet(style, 2.0 + 0.34 * max(len(rows), 5), headline)
    axes = figure.subplots()
    shown = cells if label == what else colours
    image = axes.imshow(np.ma.masked_invalid(shown), aspect="auto", cmap="viridis", vmin=0)
    words = [short(_said(each), 18) for each in columns]
    crowded = len(columns) > 8 or (style.narrow and len(columns) * max(map(len, words)) > _LETTERS_IN_A_ROW)
    axes.set_xticks(range(len(columns)), words, rotation=30 if crowded else 0)
    names, found = [short(_said(each), 24) for each in rows], _finding_prefixes(systems, down, rows)
    apart = 0 < sum(found) < len(rows)
    if apart:
        names = [f"{name} {FINDS[hit]}" for name, hit in zip(names, found, strict=True)]
    axes.set_yticks(range(len(rows)), names)
    below = f"\n{FINDS[True]} finds cached prefixes, {FINDS[False]} finds none" if apart else ""
    axes.set(xlabel=f"{setting_words(across)}{below}", ylabel=setting_words(down))
    axes.tick_params(length=0)
    if cells.size <= _MOST_WRITTEN:
        for (row, column), value in np.ndenumerate(cells):
            text = "none" if np.isnan(value) else figures(float(value))
            bright = colours[row, column] > 0.6
            ink = "black" if bright else style.muted if np.isnan(value) else "white"
            axes.text(column, row, text, ha="center", va="center", color=ink, fontsize=style.small_pt)
    figure.colorbar(image, ax=axes, label=label)
    return figure


Seeds = Sequence[Mapping[str, object]]
Axis = tuple[tuple[str, list[object]], tuple[str, list[object]]]


def _cells(
    systems: Sequence[System], load: str | None, slo: Slo | None, axis: Axis
) -> tuple[npt.NDArray[np.float64], dict[tuple[int, int], Seeds]]:
    """The largest mean of each cell, and the rows, one per seed, that have it."""
    (down, rows), (across, columns) = axis
    cells, best = np.full((len(rows), len(columns)), np.nan), {}
    for system in systems:
        for at, seeds in system.points.items():
            own = {**system.settings, **({load: at} if load else {})}
            place = rows.index(own.get(down)), columns.index(own.get(across))
            values = [value for row in seeds if (value := _value(row, slo)) is not None]
            if values and not sum(values) / len(values) <= cells[place]:
                cells[place], best[place] = sum(values) / len(values), seeds
    return cells, best


def _finding_prefixes(systems: Sequence[System], down: str, rows: Sequence[object]) -> list[bool]:
    """Whether any run of each row found a cached prefix."""
    finding = [
        system.settings.get(down)
        for system in systems
        for seeds in system.points.values()
        if any(number(row.get("engine.prefix_hit_tokens")) for row in seeds)
    ]
    return [each in finding for each in rows]


def _settings(systems: Sequence[System], load: str | None) -> Axis | None:
    """The rows and the columns: the two settings that vary most, a load last, traffic always across."""
    found: dict[str, list[object]] = {}
    for system in systems:
        for name, value in system.settings.items():
            if value not in found.setdefault(name, []):
                found[name].append(value)
    several = ((name, values) for name, values in found.items() if len(values) > 1)
    chosen = sorted(several, key=lambda each: -len(each[1]))[:2]
    if len(chosen) == 1 and load is not None:
        loads = sorted({at for system in systems for at in system.points})
        chosen.append((load, list(loads)))
    if len(chosen) < 2 or len(chosen[1][1]) < 2:
        return None
    return tuple(
        sorted(((name, _ordered(values)) for name, values in chosen), key=lambda each: each[0] in _TRAFFIC)
    )


def names_unserved(systems: Sequence[System], load: str | None) -> bool:
    """Whether the headline names every system that served nothing: each has a cell, compared by column."""
    axis = _settings(systems, load)
    return axis is not None and axis[1][0] in _TRAFFIC and all(len(each.settings) == 2 for each in systems)


def _ordered(values: Sequence[object]) -> list[object]:
    """Numbers by size, others in their original order."""
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    return sorted(values) if numbers else list(values)


def _value(row: Mapping[str, object], slo: Slo | None) -> float | None:
    return number(row.get("slo.goodput_requests_per_s_per_gpu")) if slo else tokens_per_gpu(row)


def _said(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "default" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _headline(
    cells: npt.NDArray[np.float64],
    best: Mapping[tuple[int, int], Seeds],
    axis: Axis,
    load: str | None,
    slo: Slo | None,
) -> str:
    """`Highest goodput: 2.43 requests/s per GPU, at 8 requests/s (orca and vllm-v1 alike)`."""
    where = max(best, key=lambda place: cells[place])
    most = figures(cells[where])
    own = [_value(row, slo) for row in best[where]]
    same = [place for place in best if figures(cells[place]) == most]
    unsure = [
        place
        for place in best
        if place not in same and in_noise(own, [_value(row, slo) for row in best[place]])
    ]
    what, unit = ("goodput", "requests/s") if slo else ("throughput", "output tokens/s")
    said = f"Highest {what}: {most} {unit} per GPU, {_where(same, axis, load)}"
    if slo and not all(row.get("slo.met") for place in same for row in best[place]):
        missed = not any(row.get("slo.met") for place in same for row in best[place])
        said += f"; {slo} is missed there" if missed else f"; {slo} is missed by some of these runs"
    noise = f"{len(unsure)} other cell{'s' * (len(unsure) != 1)}"
    return f"{said}; {NO_DIFFERENCE}: {noise}" if unsure else said


def _where(cells: Sequence[tuple[int, int]], axis: Axis, load: str | None) -> str:
    """`at 8 requests/s with orca`; cells that have one setting in common are listed by the other."""
    names = [name for name, _ in axis]
    points = [[*zip(names, (axis[0][1][row], axis[1][1][column]), strict=True)] for row, column in cells]
    first = _point(points[0], load)
    for side in (0, 1):
        if len(cells) > 1 and len({place[side] for place in cells}) == 1:
            others = [_point([point[1 - side]], load, bare=True) for point in points]
            return f"{_point([points[0][side]], load)} ({together(others)} alike)"
    if len(cells) == 2:
        return f"{first} and {_point(points[1], load)}"
    return f"{first} ({len(cells) - 1} other cells alike)" if len(cells) > 1 else first


def _point(settings: Sequence[tuple[str, object]], load: str | None, *, bare: bool = False) -> str:
    """Settings in words: `at 8 requests/s with orca`; `bare`: without `with`."""
    others = name_of({name: value for name, value in settings if name != load})
    loads = [at_load(name, value) for name, value in settings if name == load and isinstance(value, float)]
    named = [] if len(loads) == len(settings) else [others if bare else f"with {others}"]
    return " ".join([*loads, *named])


def _headline_of_shares(
    shares: npt.NDArray[np.float64],
    rows: Sequence[object],
    columns: Sequence[object],
    across: str,
    slo: Slo | None,
) -> str:
    """The row that stays closest to the maximum of every column, and the row that falls furthest behind."""
    least = shares.min(axis=1)
    best, worst = int(least.argmax()), int(least.argmin())
    each, what = setting_words(across), "Goodput per GPU" if slo else "Output tokens/s per GPU"
    if least[best] - least[worst] < _ALIKE:
        return f"{what}: all are within {100 * (1 - least[worst]):.0f} % of the best in every {each}"
    behind = 100 * (1 - least[best])
    stays = "the best" if least[best] >= _THE_MOST else f"within {max(behind, 1):.0f} % of the best"
    said = f"{what}: {_said(rows[best])} is {stays} in every {each}"
    if nothing := _nothing(shares, rows, columns):
        return f"{said}; {nothing}"
    where = _said(columns[int(shares[worst].argmin())])
    return f"{said}; {_said(rows[worst])} has {100 * least[worst]:.0f} % of it in {where}"


def _nothing(shares: npt.NDArray[np.float64], rows: Sequence[object], columns: Sequence[object]) -> str:
    """`slab served nothing in documents`, for up to three rows; "" if all served something."""
    by_row = {
        _said(name): [_said(column) for column, share in zip(columns, own, strict=True) if share == 0]
        for name, own in zip(rows, shares, strict=True)
    }
    lacking = {name: together(where) for name, where in by_row.items() if where}
    if len(lacking) > MOST_NAMED:
        return f"{len(lacking)} served nothing somewhere"
    return ", ".join(f"{name} served nothing in {where}" for name, where in lacking.items())
