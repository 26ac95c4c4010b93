"""heatmap: two settings against each other; in each cell what the best load of the others gives.

Where there is an SLO a cell is goodput per GPU, else output tokens per second and GPU: the mean over the
seeds, the largest over all other settings and loads that the cell has.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from kvsim.reports.figures.sheet import new_sheet
from kvsim.reports.figures.style import Style
from kvsim.reports.figures.systems import short
from kvsim.reports.palette import figures, number
from kvsim.reports.sweeps.systems import LOADS, System, tokens_per_gpu
from kvsim.sim.record.slo import Slo

_MOST_WRITTEN = 150  # cells with a number


def heatmap(systems: Sequence[System], load: str | None, slo: Slo | None, style: Style) -> Figure | None:
    """The two settings with the most values; None where fewer than two vary."""
    axis = _settings(systems, load)
    if axis is None:
        return None
    (down, rows), (across, columns) = axis
    cells = np.full((len(rows), len(columns)), np.nan)
    for system in systems:
        for at, seeds in system.points.items():
            own = {**system.settings, **({load: at} if load else {})}
            place = rows.index(own.get(down)), columns.index(own.get(across))
            values = [value for row in seeds if (value := _value(row, slo)) is not None]
            if values:
                cells[place] = np.fmax(cells[place], sum(values) / len(values))
    if np.isnan(cells).all():
        return None
    figure = new_sheet(
        style, 2.0 + 0.34 * max(len(rows), 5), _headline(cells, rows, columns, (down, across), slo)
    )
    axes = figure.subplots()
    image = axes.imshow(np.ma.masked_invalid(cells), aspect="auto", cmap="viridis", vmin=0)
    axes.set_xticks(
        range(len(columns)),
        [short(_said(each), 18) for each in columns],
        rotation=30 if len(columns) > 8 else 0,
    )
    axes.set_yticks(range(len(rows)), [short(_said(each), 24) for each in rows])
    axes.set(xlabel=_named(across), ylabel=_named(down))
    axes.tick_params(length=0)
    if cells.size <= _MOST_WRITTEN:
        most = np.nanmax(cells) or 1.0
        for (row, column), value in np.ndenumerate(cells):
            text = "none" if np.isnan(value) else figures(float(value))
            ink = "black" if value > 0.6 * most else style.muted if np.isnan(value) else "white"
            axes.text(column, row, text, ha="center", va="center", color=ink, fontsize=style.small_pt)
    what = "goodput per GPU (requests/s)" if slo else "output tokens/s per GPU"
    figure.colorbar(image, ax=axes, label=what)
    return figure


def _settings(
    systems: Sequence[System], load: str | None
) -> tuple[tuple[str, list[object]], tuple[str, list[object]]] | None:
    """The rows and the columns: the two that vary most, a load last."""
    found: dict[str, list[object]] = {}
    for system in systems:
        for name, value in system.settings.items():
            found.setdefault(name, [])
            if value not in found[name]:
                found[name].append(value)
    named = sorted(
        ((name, values) for name, values in found.items() if len(values) > 1), key=lambda each: -len(each[1])
    )
    chosen = named[:2]
    if len(chosen) == 1 and load is not None:
        loads = sorted({at for system in systems for at in system.points})
        chosen.append((load, list(loads)))
    if len(chosen) < 2 or len(chosen[1][1]) < 2:
        return None
    ordered = [(name, _ordered(values)) for name, values in chosen]
    return ordered[0], ordered[1]


def _ordered(values: Sequence[object]) -> list[object]:
    """Numbers by size, others as they came."""
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    return sorted(values) if numbers else list(values)


def _value(row: Mapping[str, object], slo: Slo | None) -> float | None:
    return number(row.get("slo.goodput_requests_per_s_per_gpu")) if slo else tokens_per_gpu(row)


def _named(setting: str) -> str:
    return LOADS.get(setting, setting.replace("_", " "))


def _said(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "default" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _headline(
    cells: np.ndarray,
    rows: Sequence[object],
    columns: Sequence[object],
    names: tuple[str, str],
    slo: Slo | None,
) -> str:
    row, column = np.unravel_index(np.nanargmax(cells), cells.shape)
    what = "goodput per GPU" if slo else "output tokens/s per GPU"
    down, across = (name.replace("_", " ") for name in names)
    where = f"{down} {_said(rows[row])} and {across} {_said(columns[column])}"
    return f"Most {what} with {where}: {figures(float(cells[row, column]))}"
