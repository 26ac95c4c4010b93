"""A run, or several, as a notebook shows them: the headline, the main numbers, the ledger as a bar."""

import html
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvsim.reports import palette
from kvsim.reports.headline import headline
from kvsim.reports.palette import KINDS, count, figures, number, seconds

_ROWS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "requests finished": lambda s: count(number(s["requests"]["finished"])),
    "requests/s": lambda s: figures(number(s["throughput"]["requests_per_s"])),
    "output tokens/s": lambda s: figures(number(s["throughput"]["output_tokens_per_s"])),
    "TTFT p50 / p99": lambda s: _both(s, "ttft_s"),
    "TPOT p50 / p99": lambda s: _both(s, "tpot_s"),
    "E2E p50 / p99": lambda s: _both(s, "e2e_s"),
    "requests at once": lambda s: figures(number(s["engine"]["mean_running"])),
}


def _both(summary: Mapping[str, Any], name: str) -> str:
    spread = summary["latency"][name]
    return " / ".join(seconds(number(spread[each])) for each in ("p50", "p99"))


def run_cell(summary: Mapping[str, Any]) -> str:
    """One run."""
    table = _table([summary], [str(summary["label"])])
    return f"<div><p><b>{html.escape(headline(summary))}</b></p>{_bar(summary)}{table}</div>"


def comparison_cell(summaries: Sequence[Mapping[str, Any]], labels: Sequence[str]) -> str:
    """Runs side by side, a column each, with a bar each, under labels that tell them apart."""
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
    """The ledger as a bar of coloured parts with their shares beneath."""
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
