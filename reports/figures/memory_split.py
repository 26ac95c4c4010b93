"""memory split: one GPU's memory as a stacked bar per model and GPU, with what is left for the cache.

A mark shows where the GPU's memory ends; parts beyond it do not fit.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from kvsim.reports.figures.sheet import new_sheet, save
from kvsim.reports.figures.style import Style
from kvsim.reports.fit.tables import PARTS, headline
from kvsim.sim.fit.answer import Fit
from kvsim.sim.fit.budget import MemoryLine
from kvsim.sim.models.catalog import GIB

HATCHES = {"activations": "////", "CUDA graphs": "....", "runtime": "xxxx", "KV cache": "\\\\\\\\"}
LABEL_SHARE = 0.05
"""Parts narrower than this share of the widest bar show no number."""


def draw_memory(fits: Sequence[Fit], directory: Path, style: Style) -> None:
    """Draw the figure into a directory, named after the model if there is only one."""
    name = f"memory-{fits[0].model.name.replace('/', '-')}" if len(fits) == 1 else "memory"
    save(directory, name, style, partial(memory_split, fits, style))


def memory_split(fits: Sequence[Fit], style: Style) -> Figure:
    """A bar per fit; the cache's part shows the number of tokens that the engine will print."""
    text = headline(fits[0]) if len(fits) == 1 else "Where the memory of one GPU goes"
    figure = new_sheet(style, 1.5 + 0.55 * len(fits), text)
    axes = figure.subplots()
    widest = max(max(fit.gpu.memory_bytes, sum(map(_drawn_bytes, _drawn(fit)))) for fit in fits) / GIB
    for row, fit in enumerate(fits):
        _bar(axes, row, fit, widest, style)
    axes.set_yticks(range(len(fits)), [_name(fit) for fit in fits])
    axes.invert_yaxis()
    axes.set_xlabel("GiB of one GPU, which ends at the line")
    axes.set_xlim(0, 1.02 * widest)
    axes.grid(axis="y", visible=False)
    there = {line.name for fit in fits for line in fit.lines if line.bytes > 0}
    names = [line.name for line in fits[0].lines if line.name in there]
    patches = [
        Patch(facecolor=PARTS[name][0], edgecolor=style.seam, hatch=_hatch(name, style), label=name)
        for name in names
    ]
    figure.legend(handles=patches, loc="outside lower center", ncols=3 if style.narrow else len(patches))
    return figure


def _bar(axes: Axes, row: int, fit: Fit, widest: float, style: Style) -> None:
    """Draw one bar with its numbers, and a mark where the GPU's memory ends."""
    at = 0.0
    for line in _drawn(fit):
        width = _drawn_bytes(line) / GIB
        fill = {"color": PARTS[line.name][0], "edgecolor": style.seam, "hatch": _hatch(line.name, style)}
        axes.barh(row, width, left=at, height=0.62, **fill)
        if width >= LABEL_SHARE * widest:
            text = f"{width:.1f}"
            if line.name == "KV cache" and width >= 0.25 * widest:
                text += f": {fit.capacity.kv_tokens:,} tokens"
            colour = "white" if line.name in ("weights", "KV cache") else "black"
            how = {"ha": "center", "va": "center", "fontsize": 0.85 * style.type_pt, "color": colour}
            axes.text(at + width / 2, row, text, **how)
        at += width
    end = fit.gpu.memory_bytes / GIB
    axes.plot([end, end], [row - 0.42, row + 0.42], color=style.ink, linewidth=style.line)


def _drawn_bytes(line: MemoryLine) -> int:
    return max(0, line.bytes)


def _drawn(fit: Fit) -> Sequence[MemoryLine]:
    """The parts of a bar, without the unused memory if the rest does not fit."""
    return [line for line in fit.lines if fit.kv_memory_bytes > 0 or line.name != "not used"]


def _hatch(name: str, style: Style) -> str:
    return HATCHES.get(name, "") if style.grey_print else ""


def _name(fit: Fit) -> str:
    tp = fit.options.tensor_parallel_size
    return f"{fit.model.name}\n{f'{tp} x ' if tp > 1 else ''}{fit.gpu.name}"
