"""One or several runs in a notebook: the headline, the main numbers, the ledger as a bar."""

import html
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from kvsim.reports import palette
from kvsim.reports import quantities as q
from kvsim.reports.headline import headline
from kvsim.reports.palette import KINDS, Summary, seconds


def _of(row: q.Quantity, summary: Summary) -> str:
    return row.text(row.read(summary))


def _both(column: str, summary: Summary) -> str:
    return " / ".join(seconds(q.at("latency", column, point)(summary)) for point in ("p50", "p99"))


_ROWS: Mapping[str, Callable[[Summary], str]] = {
    **{row.name: partial(_of, row) for row in (q.FINISHED, q.REQUESTS_PER_S, q.OUTPUT_TOKENS_PER_S)},
    **{
        f"{name.upper()} p50 / p99": partial(_both, q.LATENCIES[name].column)
        for name in ("ttft", "tpot", "e2e")
    },
    q.MEAN_RUNNING.name: partial(_of, q.MEAN_RUNNING),
}


def run_cell(summary: Mapping[str, Any]) -> str:
    """One run."""
    table = _table([summary], [str(summary["label"])])
    return f"<div><p><b>{html.escape(headline([summary]))}</b></p>{_bar(summary)}{table}</div>"


def comparison_cell(summaries: Sequence[Mapping[str, Any]], labels: Sequence[str]) -> str:
    """Runs side by side, each with a column and a bar, under distinct labels."""
    bars = "".join(
        f"<p>{html.escape(label)}</p>{_bar(each)}" for each, label in zip(summaries, labels, strict=True)
    )
    return f"<div>{_table(summaries, labels)}{bars}</div>"


def _table(summaries: Sequence[Mapping[str, Any]], labels: Sequence[str]) -> str:
    heads = "".join(f"<th>{html.escape(label)}</th>" for label in labels)
    rows = "".join(
        f"<tr><th style='text-align:left'>{name}</th>"
        + "".join(f"<td>{html.escape(said(each))}</td>" for each in summaries)
        + "</tr>"
        for name, said in _ROWS.items()
    )
    return f"<table><thead><tr><th></th>{heads}</tr></thead><tbody>{rows}</tbody></table>"


def _bar(summary: Mapping[str, Any]) -> str:
    shares, _ = palette.shares(summary)
    parts, words = [], []
    for kind, share in shares.items():
        if share >= 0.05:
            colour = KINDS[kind].colour
            word = f"{kind} {share:.1f} %"
            parts.append(f"<div title='{word}' style='width:{share:.2f}%;background:{colour}'></div>")
            words.append(f"<span style='color:{colour}'>&#9632;</span> {word}")
    return (
        f"<div style='display:flex;width:100%;max-width:640px;height:14px'>{''.join(parts)}</div>"
        f"<div style='font-size:smaller'>{'&ensp;'.join(words)}</div>"
    )
