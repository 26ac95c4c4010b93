"""A sweep, or a search for capacity, as one HTML file: its answer, its figures, its table."""

import base64
import html
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kvsim.reports.figures.style import SCREEN
from kvsim.reports.figures.swept.stored import draw_stored
from kvsim.reports.html.page import GENERATOR
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
"""Columns that are shown where the table has them, behind the settings that vary."""


def sweep_page(sweep: StoredSweep) -> str:
    """The whole file; it fetches nothing."""
    style = "".join(
        resources.files("kvsim.reports.html").joinpath(f"{name}.css").read_text("utf-8")
        for name in ("page", "parts")
    )
    title = f"{sweep.path.name} - kvsim report"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
{GENERATOR}
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{html.escape(title)}</title><style>{style}
img {{ width: 100%; height: auto; background: #fff; border-radius: 8px; }}</style></head>
<body><header class="page top"><p class="brand">kvsim report</p><h1>{html.escape(sweep.path.name)}</h1>
<p class="answer">{html.escape(_said(sweep))}</p></header><main class="page" id="main">
<section aria-labelledby="figures"><h2 id="figures">Figures</h2>{_figures(sweep)}</section>
<section aria-labelledby="table"><h2 id="table">In numbers</h2><div class="scroll" tabindex="0" role="region"
aria-label="Table of numbers">{_table(sweep.rows, sweep.names)}</div>
<p class="hint">table.csv and table.parquet have every column.</p></section></main></body></html>
"""


def _said(sweep: StoredSweep) -> str:
    if sweep.answer is not None:
        return f"{sweep.answer['answer']}."
    found = [system for system in systems(sweep.rows, sweep.names) if system.points]
    return f"{headline(found, load_of(sweep.names), sweep.slo)}." if found else "No run finished."


def _figures(sweep: StoredSweep) -> str:
    with TemporaryDirectory() as part:
        drawn = draw_stored(sweep, Path(part), replace(SCREEN, formats=("svg",)))
        return "".join(_figure(each.stem, each.read_bytes()) for each in drawn)


def _figure(name: str, svg: bytes) -> str:
    source = f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"
    return f'<figure class="figure"><img alt="{name}: its numbers are in the table" src="{source}"></figure>'


def _table(rows: Sequence[Any], names: Sequence[str]) -> str:
    there = [name for name in _SHOWN if any(row.get(name) is not None for row in rows)]
    heads = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in (*names, *there))
    lines = "".join(
        f"<tr>{''.join(f'<td>{html.escape(_text(row.get(name)))}</td>' for name in (*names, *there))}</tr>"
        for row in rows
    )
    return f'<table class="numbers"><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table>'


def _text(value: object) -> str:
    found = number(value)
    return ("-" if value is None else str(value)) if found is None else figures(found)
