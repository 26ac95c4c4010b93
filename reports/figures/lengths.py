"""lengths: the distribution of the workload's prompt and answer lengths; also used for traces."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvsim.reports import palette
from kvsim.reports.figures import pieces
from kvsim.reports.figures.choices import Choices
from kvsim.reports.figures.sheet import new_sheet
from kvsim.reports.figures.style import Look, Style
from kvsim.reports.figures.systems import System, short
from kvsim.reports.rundir.run import Run
from kvsim.reports.seeds.intervals import interval

Tokens = npt.NDArray[np.integer[Any]]

_BINS = 60
_MOST_DOTS = 5_000


def lengths(systems: Sequence[System], choices: Choices) -> Figure:
    """One workload as in `paint_lengths`; several as one curve each, prompts beside answers."""
    style = choices.style
    found = _workloads(systems)
    if len(found) == 1:
        ((prompt, output),) = found.values()
        figure = new_sheet(style, 3.9, lengths_headline(next(iter(found)), prompt, output))
        paint_lengths(figure, style, prompt, output)
        return figure
    names, looks = list(found), [style.other(place) for place in range(len(found))]
    medians = [interval([_median(prompt)]) for prompt, _ in found.values()]
    headline = f"Median prompt in tokens: {pieces.listed(names, medians, palette.count)}"
    figure = new_sheet(style, 3.9, headline)
    for column, (axes, title) in enumerate(
        zip(figure.subplots(1, 2, sharey=True), ("prompts", "answers"), strict=True)
    ):
        _histograms(axes, style, [tokens[column] for tokens in found.values()], looks)
        axes.set_title(f"{title} (dashed: means)")
        axes.set_ylabel("" if column else "requests (%)")
    pieces.systems_below(figure, style, names, looks)
    return figure


def _workloads(systems: Sequence[System]) -> dict[str, tuple[Tokens, Tokens]]:
    """The distinct workloads, named after their trace, or else after the first system that had it.

    The requests of different seeds are combined.
    """
    different: list[tuple[System, Tokens, Tokens]] = []
    for system in systems:
        prompt, output = _requests(system.runs)
        alike = (np.array_equal(prompt, p) and np.array_equal(output, o) for _, p, o in different)
        if not any(alike):
            different.append((system, prompt, output))
    traces = [str(each.first.workload.get("trace", each.name)) for each, _, _ in different]
    if len(set(traces)) < len(traces):
        traces = [each.full_name for each, _, _ in different]
    return {
        short(trace): (prompt, output) for trace, (_, prompt, output) in zip(traces, different, strict=True)
    }


def _requests(runs: Sequence[Run]) -> tuple[Tokens, Tokens]:
    """Prompt and answer lengths of all seeds; of the first only if the others are the same."""
    columns = [(run.columns.requests["prompt_tokens"], run.columns.requests["output_tokens"]) for run in runs]
    if all(
        np.array_equal(one, other) for each in columns for one, other in zip(each, columns[0], strict=True)
    ):
        return columns[0]
    prompts, outputs = zip(*columns, strict=True)
    return np.concatenate(prompts), np.concatenate(outputs)


def lengths_headline(what: str, prompt: Tokens, output: Tokens) -> str:
    """The number of requests, and the median lengths."""
    if not len(prompt):
        return f"{what}: no request"
    medians = [palette.count(_median(tokens)) for tokens in (prompt, output)]
    many = f"{len(prompt):,} request{'s' if len(prompt) > 1 else ''}"
    return f"{what}: {many}, median prompt {medians[0]}, answer {medians[1]} tokens"


def paint_lengths(sheet: Figure, style: Style, prompt: Tokens, output: Tokens) -> None:
    """Draw a histogram of both on a logarithmic axis, and every request as a dot."""
    left, right = sheet.subplots(1, 2, width_ratios=(1.4, 1))
    looks = [style.role(what) for what in ("prompt", "answer")]
    _histograms(left, style, [prompt, output], looks)
    left.set(ylabel="requests (%)")
    left.set_title("lengths (dashed: means)")
    if len(prompt):
        means = [
            f"{what}, mean {palette.figures(float(tokens.mean()))}"
            for what, tokens in (("prompt", prompt), ("output", output))
        ]
        pieces.systems_below(sheet, style, means, looks)
    step = max(1, -(-len(prompt) // _MOST_DOTS))
    dots: Any = {
        "markersize": (4 if len(prompt) < 30 else 1.4) * style.line,
        "alpha": 0.35 if len(prompt) > 300 else 0.8,
        "rasterized": True,
    }
    right.plot(prompt[::step], output[::step], ".", color=style.role("requests").colour, **dots)
    right.set(xlabel="prompt tokens", ylabel="output tokens")
    right.set_title("each request" if step == 1 else f"one request in {step}")
    if len(prompt):
        for which, tokens in (("x", prompt), ("y", output)):
            low, high = max(1, int(tokens.min())), max(1, int(tokens.max()))
            pieces.log_axis(right, which, low, high, few=style.narrow)
            getattr(right, f"set_{which}lim")(low / 1.4, high * 1.4)
    else:
        right.set(xticks=[], yticks=[])


def _histograms(axes: Axes, style: Style, columns: Sequence[Tokens], looks: Sequence[Look]) -> None:
    """Draw shares of the requests by length, a step curve per column."""
    axes.set_xlabel("tokens")
    if not any(len(tokens) for tokens in columns):
        axes.set(xticks=[], yticks=[])
        pieces.say(axes, style, "no request")
        return
    low = max(1, min(int(tokens.min()) for tokens in columns if len(tokens)))
    most = max(1, *(int(tokens.max()) for tokens in columns if len(tokens)))
    edges = np.geomspace(low / 1.25, most * 1.3, _BINS)
    for tokens, look in zip(columns, looks, strict=True):
        if not len(tokens):
            continue
        shares = np.histogram(np.maximum(tokens, 1), edges)[0] / len(tokens) * 100
        axes.stairs(
            shares, edges, color=look.colour, fill=True, alpha=0.3 if len(columns) < 3 else 0.12, linewidth=0
        )
        axes.stairs(shares, edges, color=look.colour, linestyle=look.dash, linewidth=style.line)
        axes.axvline(tokens.mean(), color=look.colour, linewidth=0.67 * style.line, linestyle="--")
    axes.set_ylim(bottom=0)
    axes.margins(x=0)
    pieces.log_axis(axes, "x", low, most, few=style.narrow)


def _median(tokens: Tokens) -> float | None:
    return float(np.median(tokens)) if len(tokens) else None
