"""The table of numbers of a report: a row per number, a column per run, or per allocator over its seeds."""

from collections.abc import Sequence
from typing import Any

from kvsim.reports import quantities as q
from kvsim.reports.alike import one_traffic
from kvsim.reports.by_layers import quantities
from kvsim.reports.html.words import group_label, grouped
from kvsim.reports.links import each_link
from kvsim.reports.ranked import different_clocks, ranked
from kvsim.reports.rundir.run import Run
from kvsim.reports.shown import occurs, shown, stars

ROWS = (
    *(q.FINISHED, q.REJECTED, q.REQUESTS_PER_S, q.OUTPUT_TOKENS_PER_S, q.MEAN_RUNNING, q.MAX_RUNNING),
    *(q.TTFT_P50, q.TTFT_P99, q.TPOT_P50, q.E2E_P50),
    *(q.TOKENS, q.TOKENS_WAITING, q.WASTE, q.WASTE_WAITING, q.SHARING, q.PREFIX_HITS, q.PREEMPTIONS),
    *q.HELD_BACK,
    *q.TIER,
    *q.GOALS,
)

_LAYERS = ROWS.index(q.SHARING)
"""The position of the rows for kinds of layers: after those of the whole memory."""


def numbers(runs: Sequence[Run]) -> dict[str, Any]:
    """Column names, and rows: a name, a string per column, and which of them are the best.

    Nothing is marked best if traffic or clocks differ, and never a run that rejected requests others served.
    """
    groups = grouped(runs)
    columns = [[run.summary for run in group] for group in groups]
    alike = one_traffic(runs) and not different_clocks(columns)
    fit = ranked(columns) if alike else [False] * len(columns)
    rows = [
        {
            "name": row.title,
            "texts": [shown(row, seeds) for seeds in columns],
            "best": stars(row, columns, [alike] * len(columns) if row.of_all else fit),
        }
        for row in (*ROWS[:_LAYERS], *quantities(columns), *ROWS[_LAYERS:], *each_link(columns))
        if occurs(row, columns)
    ]
    return {
        "columns": [group_label(group) for group in groups],
        "rows": rows,
        "ranked": sum(fit) > 1 or len(fit) == 1,
    }
