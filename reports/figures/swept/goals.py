"""goals: the share of requests that met their own goals, by policy, under each traffic and load.

For sweeps over policies whose requests have goals (`clients_mix`, or trace columns). Cases that vary more
than policy and load are left out. A rejected request counts as missing its goals.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from kvsim.reports.figures.sheet import new_sheet
from kvsim.reports.figures.style import Style
from kvsim.reports.grouping import by_key
from kvsim.reports.palette import number
from kvsim.reports.sweeps.systems import System
from kvsim.sim.record.slo import Slo

FEWEST = 3  # policies; with fewer, other figures suffice
MET = "service.attained_share"


def goals(systems: Sequence[System], load: str | None, slo: Slo | None, style: Style) -> Figure | None:
    """Draw a heat map; None if policies do not vary, or no request has a goal."""
    by_case = by_key(systems, lambda system: system.settings.get("case"))
    told = {case: members for case, members in by_case.items() if _by_policy(members)}
    rows = list(dict.fromkeys(str(s.settings["policy"]) for members in told.values() for s in members))
    columns = [(case, at) for case, members in told.items() for at in sorted(members[0].points)]
    cells = np.full((len(rows), len(columns)), np.nan)
    for case, members in told.items():
        for system in members:
            for at, seeds in system.points.items():
                met = [value for row in seeds if (value := number(row.get(MET))) is not None]
                if met and (case, at) in columns:
                    place = rows.index(str(system.settings["policy"])), columns.index((case, at))
                    cells[place] = 100 * sum(met) / len(met)
    if np.isnan(cells).all():
        return None
    mean = np.nanmean(cells, axis=1)
    best, worst = int(np.nanargmax(mean)), int(np.nanargmin(mean))
    headline = (
        f"Within their own goals, mean over all columns: {rows[best]} {mean[best]:.0f} % of the requests, "
        f"{rows[worst]} {mean[worst]:.0f} %"
    )
    figure = new_sheet(style, 2.0 + 0.3 * len(rows), headline)
    axes = figure.subplots()
    axes.imshow(np.ma.masked_invalid(cells), aspect="auto", cmap="viridis", vmin=0, vmax=100)
    names = [f"{at:g}" if case is None else f"{case} {at:g}" for case, at in columns]
    axes.set_xticks(range(len(columns)), names, rotation=30 if len(columns) > 6 else 0, ha="right")
    axes.set_yticks(range(len(rows)), rows)
    axes.set_xlabel("requests that met all goals they brought (%), by traffic and requests/s")
    axes.tick_params(length=0)
    for (row, column), value in np.ndenumerate(cells):
        text = "" if np.isnan(value) else f"{value:.0f}"
        how = {"color": "black" if value > 60 else "white", "fontsize": style.small_pt}
        axes.text(column, row, text, ha="center", va="center", **how)
    return figure


def _by_policy(members: Sequence[System]) -> bool:
    """Whether these differ only in policy, with enough policies."""
    others = {tuple(sorted((k, str(v)) for k, v in s.settings.items() if k != "policy")) for s in members}
    return len(others) == 1 and len({s.settings.get("policy") for s in members}) >= FEWEST
