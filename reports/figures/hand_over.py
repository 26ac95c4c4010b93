"""hand-over: disaggregated prefill. Memory held by prefill replicas over time; where first tokens wait."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from kvsim.reports.arrays import Floats
from kvsim.reports.figures import pieces
from kvsim.reports.figures.choices import CannotDraw, Choices
from kvsim.reports.figures.sheet import new_sheet
from kvsim.reports.figures.style import Style
from kvsim.reports.figures.systems import System
from kvsim.reports.palette import figures, seconds
from kvsim.reports.rundir.run import Run
from kvsim.reports.slices import middles, step_means

_SLICES = 240
Stages = Sequence[tuple[str, str, str]]
_HELD = (
    ("prompt_computed_s", "link_begin_s", "wait to be read"),
    ("link_begin_s", "read_end_s", "link"),
    ("read_end_s", "held_until_s", "read, not free yet"),
)
_FIRST = (
    ("arrival_s", "prompt_computed_s", "prefill"),
    ("prompt_computed_s", "link_begin_s", "wait to be read"),
    ("link_begin_s", "read_end_s", "link"),
    ("read_end_s", "first_token_s", "first decode step"),
)
"""Begin, end and role of each stage, which has the same colour in both panels."""
_PUSHED = (
    ("arrival_s", "reserved_s", "wait for room to answer"),
    ("reserved_s", "prompt_computed_s", "prefill"),
    *_FIRST[1:],
)
"""The same where room is reserved before the prompt is computed."""


def is_apart(system: System) -> bool:
    """Whether prefill is disaggregated."""
    return bool(system.first.summary.get("hand_over"))


def hand_over(systems: Sequence[System], choices: Choices) -> Figure:
    """Two panels per fleet, for its first seed."""
    found = [system for system in systems if is_apart(system)]
    if not found:
        raise CannotDraw("figure hand-over needs prefill and decode pools: a run with --pool prefill:1 ...")
    style = choices.style
    figure = new_sheet(style, 1.2 + 3.9 * len(found), "; ".join(map(_words, found)))
    grid = figure.subplots(2 * len(found), 1, squeeze=False)[:, 0]
    for place, system in enumerate(found):
        above, below = grid[2 * place : 2 * place + 2]
        _held(above, style, system.first)
        pieces.panel_title(above, style, f"{system.full_name}: held by prefill", 1)
        _first(below, style, system.first)
        pieces.panel_title(below, style, "TTFT, by arrival", 1)
    grid[-1].set_xlabel("time (s)")
    return figure


def _held(axes: Axes, style: Style, run: Run) -> None:
    """Shares of the memory of all prefill replicas, stacked; means over time slices.

    Held memory is from the ledger, where a block shared by several prompts counts once. It is split among the
    stages in proportion to their prompt tokens.
    """
    table, until_s = _served(run), _until_s(run)
    tokens = np.asarray(table["prompt_tokens"], dtype=np.float64)
    edges = np.linspace(0, until_s, _SLICES + 1)
    stages = np.array([_mean_sum(edges, table[begin], table[end], tokens) for begin, end, *_ in _HELD])
    held = 100 * _mean_held(run, edges) / _prefill_tokens(run)
    layers = list(held * stages / np.maximum(stages.sum(axis=0), 1e-9))
    _stack(axes, style, middles(edges), layers, _HELD)
    axes.set(xlim=(0, until_s), ylabel="KV memory")
    axes.yaxis.set_major_formatter(pieces.percent_of(100))


def _first(axes: Axes, style: Style, run: Run) -> None:
    """The mean time of each stage, for the requests that arrived in each time slice."""
    table, until_s = _served(run), _until_s(run)
    stages = _PUSHED if "reserved_s" in table else _FIRST
    arrival_s = np.asarray(table["arrival_s"], dtype=np.float64)
    slices = max(4, min(60, len(arrival_s) // 20))
    edges = np.linspace(0, float(arrival_s.max(initial=0.0)) or 1.0, slices + 1)
    which = np.clip(np.searchsorted(edges, arrival_s, "right") - 1, 0, slices - 1)
    counts = np.maximum(np.bincount(which, minlength=slices), 1)
    layers = [
        np.bincount(which, weights=table[end] - table[begin], minlength=slices) / counts
        for begin, end, *_ in stages
    ]
    _stack(axes, style, middles(edges), layers, stages)
    axes.set(xlim=(0, until_s), ylabel="seconds")


def _stack(axes: Axes, style: Style, at_s: Floats, layers: Sequence[Floats], stages: Stages) -> None:
    colours = [style.role(role).colour for *_, role in stages]
    axes.stackplot(at_s, *layers, colors=colours, linewidth=0)
    axes.set_ylim(0)
    axes.grid(axis="y")
    handles = [Patch(color=colour, label=each) for colour, (_, _, each) in zip(colours, stages, strict=True)]
    pieces.legend_beside(axes, style, handles)


def _mean_sum(edges: Floats, begin_s: Floats, end_s: Floats, weights: Floats) -> Floats:
    """The time-averaged sum of the weights of overlapping intervals, in each slice."""
    if not len(weights):
        return np.zeros(len(edges) - 1)
    times = np.concatenate([begin_s, end_s])
    order = np.argsort(times, kind="stable")
    level = np.cumsum(np.concatenate([weights, -weights])[order])
    return step_means(times[order], level, edges)


def _mean_held(run: Run, edges: Floats) -> Floats:
    """The ledger's held slots, averaged over each slice."""
    timeline = run.columns.timeline
    if "held" not in timeline:
        raise CannotDraw("figure hand-over needs the column held in timeline.parquet")
    begin_s = np.asarray(timeline["time_s"], dtype=np.float64)
    end_s = np.append(begin_s[1:], max(begin_s[-1], edges[-1]))
    return _mean_sum(edges, begin_s, end_s, np.asarray(timeline["held"], dtype=np.float64))


def _served(run: Run) -> dict[str, Any]:
    """The rows of the requests that were handed over; `link_begin_s`: from when the link alone took time."""
    table = run.columns.requests
    served = np.isfinite(np.asarray(table["held_until_s"], dtype=np.float64))
    found = {name: np.asarray(column)[served] for name, column in table.items()}
    return {**found, "link_begin_s": np.maximum(found["read_begin_s"], found["prompt_computed_s"])}


def _until_s(run: Run) -> float:
    return float(np.nanmax(run.columns.requests["finish_s"], initial=0.0)) or 1.0


def _prefill_tokens(run: Run) -> float:
    pools = [pool for pool in run.config["pools"] if pool["role"] == "prefill"]
    return float(sum(pool["replicas"] * pool["kv_capacity"]["tokens"] for pool in pools))


def _words(system: System) -> str:
    table, told = _served(system.first), system.first.summary["hand_over"]
    waited = np.asarray(table["read_end_s"] - table["read_begin_s"], dtype=np.float64)
    if not len(waited):
        return f"{system.name}: nothing was handed over"
    p99_s = float(np.quantile(waited, 0.99))
    return (
        f"{system.name}: reads take {seconds(told['mean_transfer_s'])} on average, {seconds(p99_s)} at p99; "
        f"prompts are held for {seconds(told['mean_held_s'])}, "
        f"at most {figures(100 * told['peak_held_share'])} % of a prefill replica"
    )
