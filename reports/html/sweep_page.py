"""A sweep or a capacity search as one HTML file: its answer, its figures, its table."""

from collections.abc import Callable
from functools import partial

from kvsim.reports.figures.swept.stored import draw_stored
from kvsim.reports.html.plain import drawn, plain_page, table
from kvsim.reports.palette import count, figures, number, percent_text, seconds
from kvsim.reports.sweeps.headline import headline
from kvsim.reports.sweeps.stored import StoredSweep
from kvsim.reports.sweeps.systems import load_of, name_of, setting_words, systems

_SHOWN: dict[str, tuple[str, Callable[[float], str]]] = {
    "status": ("status", figures),
    "requests_per_s": ("requests/s", figures),
    "clients": ("clients", figures),
    "rate_scale": ("rate scale", figures),
    "requests_per_s_per_gpu": ("requests/s per GPU", figures),
    "gpus": ("GPUs", count),
    "limited_by": ("limited by", figures),
    "fleet_servers": ("servers", count),
    "fleet_price_per_hour": ("price per hour", figures),
    "throughput.requests_per_s": ("requests/s", figures),
    "output_tokens_per_s_per_gpu": ("tokens/s per GPU", figures),
    "throughput.output_tokens_per_s": ("output tokens/s", figures),
    "latency.ttft_s.p50": ("TTFT p50", seconds),
    "latency.ttft_s.p99": ("TTFT p99", seconds),
    "latency.tpot_s.p50": ("TPOT p50", seconds),
    "latency.e2e_s.p50": ("E2E p50", seconds),
    "slo.attained_share": ("within the SLO", lambda share: percent_text(100 * share)),
    "cost.trust": ("clock", figures),
}
"""Columns shown after the varied settings, if the table has them: heading, and a number formatter."""


def sweep_page(sweep: StoredSweep) -> str:
    """Build the whole file, which fetches nothing."""
    there = [name for name in _SHOWN if any(row.get(name) is not None for row in sweep.rows)]
    if len({row.get("status") for row in sweep.rows}) == 1 and len(there) > 1:
        there.remove("status")
    own = [*sweep.names, *(["seed"] if any(row.get("seed") is not None for row in sweep.rows) else [])]
    headings = [*map(setting_words, own), *(_SHOWN[name][0] for name in there)]
    rows = [[_text(name, row.get(name)) for name in (*own, *there)] for row in sweep.rows]
    if sweep.answer is not None:  # settings are named in the labels
        headings[: len(own)] = ["system"]
        rows = [[label, *row[len(own) :]] for label, row in zip(sweep.answer["labels"], rows, strict=True)]
    return plain_page(
        sweep.path.name,
        _said(sweep),
        {
            "Figures": drawn(partial(draw_stored, sweep)),
            "In numbers": table(headings, rows, "table.csv and table.parquet have every column."),
        },
        f"All runs: {common}." if (common := name_of(sweep.common)) != "all" else "",
    )


def _said(sweep: StoredSweep) -> str:
    if sweep.answer is not None:
        return f"{sweep.answer['answer']}."
    found = [system for system in systems(sweep.rows, sweep.names) if system.points]
    return f"{headline(found, load_of(sweep.names), sweep.slo)}." if found else "No run finished."


def _text(name: str, value: object) -> str:
    found = number(value)
    if found is None:
        return "-" if value is None else str(value)
    if name in _SHOWN:
        return _SHOWN[name][1](found)
    return count(found) if isinstance(value, int) else f"{found:g}"
