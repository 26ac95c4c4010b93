"""A profile of a GPU as tables: its origin, its ceilings, its parts, its errors.

For an analytic profile (published figures, a datasheet) the report says that nothing was measured.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvsim.reports.calibration.elsewhere import elsewhere_report
from kvsim.reports.calibration.profile import Analytic, Fit, Fitted, Timed
from kvsim.reports.calibration.words import batch, duration, layer, percent, rate, size, span
from kvsim.reports.fitting import FittingTable, facts_table
from kvsim.reports.palette import count
from kvsim.sim.cost.lent_parts import part_words, with_lent
from kvsim.sim.cost.profile_place import called_by
from kvsim.sim.counted import several
from kvsim.sim.models.spec import GpuSpec

MOST_ERROR = 0.05
"""Above this mean error of composed steps, a profile gets a note."""

LARGE_SPREAD = 0.10
GEOMETRY = 47
"""Most characters of a line about a layer, cut at a comma: no more than the longest batch has."""
_CEILINGS = (
    ("copy, read + written", "copy_bytes_per_s", "bandwidth_bytes_per_s", "B/s"),
    ("read", "read_bytes_per_s", "bandwidth_bytes_per_s", "B/s"),
    ("matrix product, 16 bit", "matrix_flops_per_s", "flops_per_s", "FLOP/s"),
)
_JOINED = {1: "sum", "max": "longer"}


def report_of(found: Fit | Analytic | GpuSpec) -> RenderableType:
    """The report on a profile of any kind."""
    if isinstance(found, Fit):
        return elsewhere_report(found) if found.file.elsewhere else profile_report(found)
    return analytic_report(found.content) if isinstance(found, Analytic) else datasheet_report(found)


def profile_report(fit: Fit) -> RenderableType:
    """The report on a calibrated profile."""
    parts: list[RenderableType] = [Text(headline(fit), style="bold"), "", _facts(fit), ""]
    parts += [ceilings_table(fit), "", _forms_table(fit), Text(_how(fit), style="dim"), "", errors_table(fit)]
    if fit.composed:
        parts += ["", _composed_table(fit)]
    found = list(notes(fit))
    return Group(*parts, *([""] if found else []), *(Text(f"note: {note}", style="yellow") for note in found))


_HOW = (
    "A launch takes (start + bytes and work) x ratio. Bytes and work are joined as a sum, as the longer of "
    "the two, or between them (p: the p-th root of the sum of p-th powers). Ratio: measured over form."
)


def _how(fit: Fit) -> str:
    merging = [each for each in fit.parts if each.form.get("merge_s")]
    more = [f"{duration(each.form['merge_s'])} more in {each.title}" for each in merging]
    return _HOW + (f" Merging the pieces of contexts that are cut takes {', '.join(more)}." if more else "")


def headline(fit: Fit) -> str:
    """The profile in one line."""
    return f"{fit.file.name}: {fit.provenance}{', few points (--quick)' if fit.file.quick else ''}"


def _facts(fit: Fit) -> Table:
    content = fit.file.content
    device, measured = content["device"], content["measured"]
    gpus = f"{count(device['count'])} x " if (device.get("count") or 1) > 1 else ""
    capability = ".".join(str(each) for each in device.get("capability") or ())
    card = f"{gpus}{device['name']}, {device['memory_bytes'] / 2**30:.1f} GiB"
    card += f", {count(device['multiprocessors'])} multiprocessors" if device.get("multiprocessors") else ""
    card += f", compute capability {capability}" if capability else ""
    names = {"driver": "driver", "cuda": "CUDA", "torch": "torch", "triton": "triton", "python": "Python"}
    versions = [f"{word} {measured[name]}" for name, word in names.items() if measured.get(name)]
    when = str(measured["date"])[:16].replace("T", " ") + " UTC"
    seconds = measured.get("seconds")
    when += f", in {span(seconds)}" if seconds else ""
    rows = [("device", card), ("made", when), ("with", ", ".join(versions) or "-")]
    if clocks := _clocks(measured.get("clocks") or ()):
        rows.append(("clocks", clocks))
    rows.append(("file", f"{fit.file.path}, sha256 {fit.file.sha256[:12]}"))
    rows.append(("used by", f"--gpu {shlex.quote(called_by(fit.file))}"))
    return facts_table(rows)


def _clocks(records: Sequence[Mapping[str, Any]]) -> str:
    """The ranges of nvidia-smi's readings before, between and after the parts."""
    said = []
    for key, before, unit in (
        ("clocks.sm", "SM ", "MHz"), ("clocks.mem", "memory ", "MHz"), ("temperature.gpu", "", "°C"),
        ("power.draw", "", "W"),
    ):  # fmt: skip
        texts = (re.match(r"[\d.]+", str(record.get(key, ""))) for record in records)
        values = sorted({round(float(found[0])) for found in texts if found})
        if values:
            low, high = f"{values[0]:,}", f"{values[-1]:,}"
            said.append(f"{before}{low if low == high else f'{low} to {high}'} {unit}")
    return ", ".join(said)


def ceilings_table(fit: Fit) -> Table:
    """Measured peak rates of memory and matrix units beside the datasheet's, and kernel launch overheads."""
    ceilings, limits, launch = (fit.file.content[key] for key in ("ceilings", "limits", "launch"))
    table = _table("ceilings", "measured", "datasheet", "share")
    for title, key, limit, unit in _CEILINGS:
        measured, sheet = ceilings.get(key), limits.get(limit)
        table.add_row(
            title,
            rate(measured, unit) if measured else "-",
            rate(sheet, unit) if sheet else "unknown",
            f"{100 * measured / sheet:.0f} %" if measured and sheet else "-",
        )
    for title, key in (
        ("starting a kernel, from the host", "eager_s"), ("a kernel in a CUDA graph", "graph_s"),
        ("starting a CUDA graph", "replay_s"), ("sharing contexts out, once a step", "cut_s"),
    ):  # fmt: skip
        if launch.get(key):
            table.add_row(title, duration(launch[key]), "", "")
    return table


def _forms_table(fit: Fit) -> Table:
    """The time of a launch of each part."""
    table = _table("a launch of", "start", "bytes at", "work at", "joined", "ratio")
    for part in fit.parts:
        form = part.form
        bounds = [f"{each:.2f}" for each in part.ratios]
        table.add_row(
            part.title,
            duration(form["t0_s"]),
            rate(form["bandwidth_bytes_per_s"], "B/s"),
            _work(part),
            _JOINED.get(form["p"], f"p={form['p']}") if form["work_per_s"] else "",
            bounds[0] if bounds[0] == bounds[1] else " to ".join(bounds),
        )
    return table


def _work(part: Fitted) -> str:
    """The compute rate: sequential tiles in decode attention, else multiply-adds."""
    per_second = part.form["work_per_s"]
    if not per_second:
        return "-"
    in_tiles = part.name in {"decode", "latent"}
    return f"{duration(1 / per_second)}/tile" if in_tiles else rate(per_second, "FLOP/s")


def errors_table(fit: Fit) -> Table:
    """The points of each part, their spread, and its errors; composed steps last."""
    table = _table("error", "points", "spread", "form alone", "held out", "mean", "worst")
    for part in fit.parts:
        table.add_row(part.title, count(part.count), _spread(part.points), *_errors(part))
    error = fit.composed_error
    if error is not None:
        table.add_section()
        steps = (count(error.points), _spread(fit.composed), "", count(error.points))
        table.add_row("composed steps", *steps, percent(error.mean), percent(error.worst), style="bold")
    return table


def _errors(part: Fitted) -> tuple[str, str, str, str]:
    """Errors of the form at its fitted points, and of form and ratios at held-out points."""
    form, held_out = part.form_error, part.held_out_error
    return (
        percent(form.mean if form else None),
        count(held_out.points) if held_out else "-",
        percent(held_out.mean if held_out else None),
        percent(held_out.worst if held_out else None),
    )


def _spread(points: Sequence[Timed]) -> str:
    """The median of the spreads of all points."""
    shares = sorted(one.spread for one in points)
    return percent(shares[len(shares) // 2] if shares else None)


def _composed_table(fit: Fit) -> Table:
    """Whole layers, left out of all fits: predicted beside measured."""
    table = _table("composed step", "measured", "predicted", "off")
    said = None
    for one in fit.composed:
        of, times = layer(one.x), (duration(one.median_s), duration(one.predicted_s))
        if of and of != said:
            table.add_row("\n".join(re.findall(rf"(.{{1,{GEOMETRY}}})(?:, |$)", of)))
        said = of
        table.add_row(f"{'  ' if of else ''}{batch(one.x)}", *times, f"{100 * one.off:+.1f} %")
    return table


def notes(fit: Fit) -> Iterator[str]:
    """What a user of this profile should know."""
    content = fit.file.content
    if fit.file.rehearsal:
        yield "A rehearsal: none of these times is a measurement, and they say nothing about any GPU."
        return
    if fit.file.quick:
        yield "Few points were measured (--quick): sim calibrate without it measures the full grid."
    for fault in fit.file.faults:
        yield f"Faulty: {fault}."
    error = fit.composed_error
    if error is None:
        yield "No composed step was measured: the error on whole steps is unknown."
    elif error.mean > MOST_ERROR and not fit.file.faults:
        yield f"Composed steps are off by {percent(error.mean)} on average: more than {percent(MOST_ERROR)}."
    if content["refused"]:
        first, points = content["refused"][0], several(len(content["refused"]), "point")
        yield (
            f"{points} failed or cannot be and were left out, the first of {first.get('part', '?')}: "
            f"{first['reason']}"
        )
    missing = [f"{part.title} {part.unmeasured}" for part in fit.parts if part.unmeasured]
    if missing:
        yield f"Cells of the grid that were not measured have their neighbour's ratio: {', '.join(missing)}."
    wide = [one for part in fit.parts for one in part.points if one.spread > LARGE_SPREAD]
    if wide:
        yield (
            f"{several(len(wide), 'point')} spread by more than {percent(LARGE_SPREAD)} around the median: "
            "was the GPU busy with something else?"
        )
    measured = {part.name for part in fit.parts}
    lender = fit.file.lender
    lent = set(with_lent(fit.file.parts, lender.parts, lender.engine)) - measured if lender else set()
    lacking = [name for name in ("to_host", "to_gpu", "all_reduce") if name not in {*measured, *lent}]
    if lacking:
        what = {"to_host": "swaps out", "to_gpu": "swaps in", "all_reduce": "all-reduces"}
        yield f"Not measured, by the datasheet instead: {', '.join(what[name] for name in lacking)}."
    if lender and lent:
        said = ", ".join(map(part_words, sorted(lent)))
        yield f"Not measured, as in {lender.name} ({lender.engine}) instead: {said}."


def analytic_report(profile: Mapping[str, Any]) -> RenderableType:
    """An analytic profile: step times from published figures."""
    name = str(profile["name"])
    table = _table("model", "GPUs", "least time of a step")
    for model, facts in profile["models"].items():
        table.add_row(model, count(facts["tensor_parallel_size"]), f"{facts['floor_ms']} ms")
    return _unmeasured(
        f"{name}: analytic, kvsim measured nothing",
        f"{profile['source']}; {profile['sequence_ms']} ms for each sequence of a step.",
        table,
        *(f"- {each}" for each in profile["provenance"]),
        "",
        f"No measurement stands behind it, so there is nothing to draw. Use it: --cost {name}.",
    )


def datasheet_report(gpu: GpuSpec) -> RenderableType:
    """The report on a GPU without a calibrated profile."""
    table = _table("datasheet", "peak", "share reached", "assumed")
    for title, peak, unit, share in (
        ("memory", gpu.bandwidth_bytes_per_s, "B/s", gpu.bandwidth_efficiency),
        ("matrix products, 16 bit", gpu.flops_per_s, "FLOP/s", gpu.matmul_efficiency),
        ("host link, one direction", gpu.pcie_bytes_per_s, "B/s", 1.0),
    ):
        table.add_row(title, rate(peak, unit), f"{share:.2f}", rate(share * peak, unit))
    head, source = f"{gpu.name}: analytic, nothing is measured", f"{size(gpu.memory_bytes)}; {gpu.source}"
    below = "There is no calibrated profile of it, so there is nothing to draw. On such a GPU: sim calibrate."
    return _unmeasured(head, source, table, below)


def _unmeasured(head: str, source: str, table: Table, *below: str) -> Group:
    """The report on what kvsim did not measure."""
    return Group(Text(head, style="bold"), "", Text(source), "", table, "", *map(Text, below))


def _table(*columns: str) -> Table:
    """A table whose first column holds words; numbers are right-aligned."""
    table = FittingTable((0, 2, 0, 0))
    table.add_column(columns[0], overflow="fold")
    table.add_numbers(*columns[1:])
    return table
