"""A sweep, or a search for capacity, as one HTML file: its answer, its figures, its table."""

from functools import partial

from kvsim.reports.figures.swept.stored import draw_stored
from kvsim.reports.html.plain import drawn, plain_page, table
from kvsim.reports.palette import figures, number
from kvsim.reports.sweeps.stored import StoredSweep
from kvsim.reports.sweeps.systems import load_of, systems
from kvsim.reports.sweeps.words import headline

_SHOWN = (
    *("status", "gpus", "requests_per_s", "clients", "rate_scale", "requests_per_s_per_gpu", "limited_by"),
    *("fleet_servers", "fleet_price_per_hour", "throughput.requests_per_s", "output_tokens_per_s_per_gpu"),
    *("throughput.output_tokens_per_s", "latency.ttft_s.p50", "latency.ttft_s.p99", "latency.tpot_s.p50"),
    *("latency.e2e_s.p50", "slo.attained_share", "cost.trust"),
)
"""Columns that are shown after the settings that vary, if the table has them."""


def sweep_page(sweep: StoredSweep) -> str:
    """The whole file; it fetches nothing."""
    there = [name for name in _SHOWN if any(row.get(name) is not None for row in sweep.rows)]
    columns = [*sweep.names, *there]
    rows = [[_text(row.get(name)) for name in columns] for row in sweep.rows]
    return plain_page(
        sweep.path.name,
        _said(sweep),
        {
            "Figures": drawn(partial(draw_stored, sweep)),
            "In numbers": table(columns, rows, "table.csv and table.parquet have every column."),
        },
    )


def _said(sweep: StoredSweep) -> str:
    if sweep.answer is not None:
        return f"{sweep.answer['answer']}."
    found = [system for system in systems(sweep.rows, sweep.names) if system.points]
    return f"{headline(found, load_of(sweep.names), sweep.slo)}." if found else "No run finished."


def _text(value: object) -> str:
    found = number(value)
    return ("-" if value is None else str(value)) if found is None else figures(found)
