"""The display of `sim calibrate` while it measures: the plan, the progress, the result.

The bar is drawn between groups of points, never during a measurement, so as not to disturb it.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from kvsim.reports.calibration.profile import PARTS, Fit
from kvsim.reports.calibration.tables import ceilings_table, errors_table, notes
from kvsim.reports.calibration.words import size, span
from kvsim.reports.fitting import ruled_table
from kvsim.reports.palette import count

Values = tuple[float, float] | tuple[str, ...]
"""(minimum, maximum) of numbers; all values of strings."""

_SIZES = {
    "decode": (("batch", "batch"), ("context", "context"), ("block_size", "blocks of"),
               ("head_dim", "heads of")),
    "latent": (("heads", "query heads"), ("batch", "batch"), ("context", "context"),
               ("block_size", "blocks of")),
    "prefill": (("sequences", "prompts"), ("chunk", "tokens"), ("prefix", "after"), ("head_dim", "heads of")),
    "product": (("tokens", "tokens"), ("inputs", "inputs"), ("outputs", "outputs")),
    "product_fp8": (("tokens", "tokens"), ("inputs", "inputs"), ("outputs", "outputs")),
    "lm_head": (("tokens", "rows"), ("inputs", "inputs"), ("outputs", "words")),
    "experts": (("experts", "experts"), ("tokens", "tokens"), ("hidden", "width"), ("inner", "inner")),
    "experts_fp8": (("experts", "experts"), ("tokens", "tokens"), ("hidden", "width"), ("inner", "inner")),
    "sampling": (("rows", "rows"), ("vocabulary", "words")),
    "elementwise": (("tokens", "tokens"), ("width", "width")),
    "kv_write": (("tokens", "tokens"),),
    "block_copy": (("blocks", "blocks"),),
    "to_host": (("bytes", ""),),
    "to_gpu": (("bytes", ""),),
    "all_reduce": (("gpus", "GPUs"), ("bytes", "")),
    "ceilings": (("what", ""),),
    "launch": (("what", ""),),
    "composed": (("hidden", "width"), ("batch", "batch"), ("context", "context"), ("chunk", "prompts of")),
}  # fmt: skip
"""Part -> the launch arguments to show, with the word before each."""


class Planned(Protocol):
    """A part that will be measured."""

    part: str
    points: int
    held_out: int
    done: int
    values: Mapping[str, Values]
    left_s: float


def plan_report(
    device: Mapping[str, Any],
    parts: Sequence[Planned],
    left_out: Mapping[str, str],
    since: str,
    held_bytes: int,
) -> RenderableType:
    """The measurement plan as a report.

    Parameters
    ----------
    device : Mapping
        As in a profile, with the versions.
    parts, left_out
        From kernels/calibration/overview.py.
    since : str
        The start date, shown if some points are measured already.
    held_bytes : int
        GPU memory held by other programs.
    """
    done, points, held_out, left_s = (
        sum(getattr(part, name) for part in parts) for name in ("done", "points", "held_out", "left_s")
    )
    table = ruled_table("to measure", "points", *(["done"] if done else []), padding=(0, 2, 0, 0))
    table.add_column("from ... to")
    table.add_numbers("about")
    for part in parts:
        had = (count(part.done),) if done else ()
        left = "-" if part.done == part.points else span(part.left_s)
        table.add_row(PARTS.get(part.part, part.part), count(part.points), *had, _sizes(part), left)
    table.add_section()
    had = (count(done),) if done else ()
    said = f"{count(held_out)} of them to check the fit"
    table.add_row("total", count(points), *had, said, span(left_s), style="bold")
    lines: list[RenderableType] = [Text(_device(device), style="bold")]
    if done:
        lines.append(Text(f"continues: {done:,} of {points:,} points are there from {since}"))
    if held_bytes:
        said = f"note: other programs hold {size(held_bytes)} of this GPU: what they do falsifies the times"
        lines.append(Text(said, style="yellow"))
    lines += ["", table, ""]
    lines += [
        Text(f"left out: {PARTS.get(part, part)}, {why}", style="dim") for part, why in left_out.items()
    ]
    return Group(*lines)


def _device(device: Mapping[str, Any]) -> str:
    """`NVIDIA H200, 140.4 GiB, driver 580.1, torch 2.11.0, triton 3.6.0`."""
    if device["name"] == "CPU":
        return "A rehearsal on the CPU, on toy sizes: nothing of it is a measurement"
    gpus = f"{device['count']} x " if device["count"] > 1 else ""
    versions = [f"{key} {device[key]}" for key in ("driver", "torch", "triton") if device.get(key)]
    return ", ".join([f"{gpus}{device['name']}", f"{device['memory_bytes'] / 2**30:.1f} GiB", *versions])


def _sizes(part: Planned) -> str:
    """`batch 1 to 1,024, context 32 to 131,040`; for an unknown part, all arguments that vary."""
    wanted = _SIZES.get(part.part) or [(name, name) for name in part.values]
    said = []
    for name, word in wanted:
        values = part.values.get(name)
        if values is None or (part.part not in _SIZES and len(set(values)) < 2):
            continue
        said.append(f"{word} {_range(name, values)}".strip())
    return ", ".join(said)


def _range(name: str, values: Values) -> str:
    if isinstance(values[0], str):
        return ", ".join(map(str, values))
    low, high = (size(value) if name == "bytes" else count(float(value)) for value in values)
    if values[0] == 0 and name in ("batch", "context", "chunk"):  # some composed steps lack it
        return f"up to {high}"
    return low if low == high else f"{low} to {high}"


Heard = Callable[[str, int, float], None]
"""Called with the next part, the number of points done, and the estimated seconds left."""


@contextmanager
def watched(points: int) -> Iterator[Heard]:
    """Show a bar on stderr with the current part and the time left; without a terminal, a line per part."""
    if not sys.stderr.isatty():
        yield _lines(points)
        return
    columns = (
        TextColumn("{task.description:18}"), BarColumn(bar_width=None), MofNCompleteColumn(),
        TextColumn("points, {task.fields[left]}"),
    )  # fmt: skip
    console = Console(stderr=True)
    console.width -= len("^C ")  # room for the ^C that the terminal echoes
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task("getting ready", total=points, left="")

        def heard(part: str, done: int, left_s: float) -> None:
            said = f"about {span(left_s)} left" if part else "fitting"
            bar.update(
                task, description=PARTS.get(part, part), completed=done, left=f"{said:22}", refresh=True
            )

        bar.refresh()
        yield heard


def _lines(points: int) -> Heard:
    last = None

    def heard(part: str, done: int, left_s: float) -> None:
        nonlocal last
        if part and part != last:
            share = f"{100 * done / max(points, 1):3.0f} %"
            said = f"{share}  {PARTS.get(part, part):18}  about {span(left_s)} left"
            print(said, file=sys.stderr, flush=True)
        last = part

    return heard


def outcome(fit: Fit) -> RenderableType:
    """The result: ceilings, errors, notes."""
    said = [Text(f"note: {note}", style="yellow") for note in notes(fit)]
    return Group(ceilings_table(fit), "", errors_table(fit), "", *said, *([""] if said else []))
