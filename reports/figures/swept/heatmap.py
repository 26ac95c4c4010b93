"""heatmap: two settings against each other; each cell shows the best over the other settings and loads.

With an SLO a cell shows goodput per GPU, else output tokens per second per GPU: a mean over seeds, the
maximum over the cell's other settings and loads. If one setting is the traffic, columns are not comparable,
so a cell is coloured by its share of its column's maximum.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields

import numpy as np
from matplotlib.figure import Figure

from kvsim.reports.figures.sheet import new_sheet
from kvsim.reports.figures.style import Style
from kvsim.reports.figures.systems import short
from kvsim.reports.palette import figures, number
from kvsim.reports.sweeps.systems import LOADS, System, tokens_per_gpu
from kvsim.sim.options.traffic import Traffic
from kvsim.sim.record.slo import Slo

_MOST_WRITTEN = 200  # most cells that get a number
_ALIKE = 0.02  # smaller differences of shares are ignored in a headline
_THE_MOST = 0.995  # shares from here on are written as 100 %
_TRAFFIC = {"case", *(field.name for field in fields(Traffic))} - {*LOADS, "num_prompts"}


def heatmap(systems: Sequence[System], load: str | None, slo: Slo | None, style: Style) -> Figure | None:
    """The two settings with the most values; None if fewer than two vary."""
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
    what = "goodput per GPU (requests/s)" if slo else "output tokens/s per GPU"
    if across in _TRAFFIC:
        most = np.fmax.reduce(cells, axis=0)
        colours, label = cells / np.where(most > 0, most, 1), "share of the most in its column"
        headline = _headline_of_shares(np.nan_to_num(colours), rows, columns, across, slo)
    else:
        colours, label = cells / (np.nanmax(cells) or 1), what
        headline = _headline(cells, rows, columns, (down, across), slo)
    figure = new_sheet(style, 2.0 + 0.34 * max(len(rows), 5), headline)
    axes = figure.subplots()
    shown = cells if label == what else colours
    image = axes.imshow(np.ma.masked_invalid(shown), aspect="auto", cmap="viridis", vmin=0)
    axes.set_xticks(
        range(len(columns)),
        [short(_said(each), 18) for each in columns],
        rotation=30 if len(columns) > 8 else 0,
    )
    axes.set_yticks(range(len(rows)), [short(_said(each), 24) for each in rows])
    axes.set(xlabel=_named(across), ylabel=_named(down))
    axes.tick_params(length=0)
    if cells.size <= _MOST_WRITTEN:
        for (row, column), value in np.ndenumerate(cells):
            text = "none" if np.isnan(value) else figures(float(value))
            bright = colours[row, column] > 0.6
            ink = "black" if bright else style.muted if np.isnan(value) else "white"
            axes.text(column, row, text, ha="center", va="center", color=ink, fontsize=style.small_pt)
    figure.colorbar(image, ax=axes, label=label)
    return figure


def _settings(
    systems: Sequence[System], load: str | None
) -> tuple[tuple[str, list[object]], tuple[str, list[object]]] | None:
    """The rows and columns: the two settings with the most values, loads last."""
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
    ordered = sorted(((name, _ordered(values)) for name, values in chosen), key=_is_traffic)
    return ordered[0], ordered[1]


def _is_traffic(axis: tuple[str, object]) -> bool:
    """Whether a setting is traffic; traffic always goes across."""
    return axis[0] in _TRAFFIC


def _ordered(values: Sequence[object]) -> list[object]:
    """Numbers by size, others in their original order."""
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
    most = figures(float(cells[row, column]))
    others = sum(figures(float(value)) == most for value in cells.flat if not np.isnan(value)) - 1
    return f"Most {what} with {where}{_and_others(others)}: {most}"


def _and_others(count: int) -> str:
    return "" if not count else " and 1 other" if count == 1 else f" and {count} others"


def _headline_of_shares(
    shares: np.ndarray, rows: Sequence[object], columns: Sequence[object], across: str, slo: Slo | None
) -> str:
    """The row that stays closest to the maximum of every column, and the row that falls furthest behind."""
    least = shares.min(axis=1)
    best, worst = int(least.argmax()), int(least.argmin())
    each, what = _named(across), "Goodput per GPU" if slo else "Output tokens/s per GPU"
    if least[best] - least[worst] < _ALIKE:
        return f"{what}: all give the same in every {each}, within {100 * (1 - least[worst]):.0f} %"
    gives = f"at least {100 * least[best]:.0f} % of the most" if least[best] < _THE_MOST else "the most"
    little = f"as little as {100 * least[worst]:.0f} % of it" if least[worst] else "nothing"
    where = f"{_said(rows[worst])} {little}, in {_said(columns[int(shares[worst].argmin())])}"
    return f"{what}: {_said(rows[best])} gives {gives} in every {each}; {where}"
