"""The output of `sim validate`: measured beside simulated, by model and GPU; refusals and assumptions."""

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from statistics import median

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvsim.reports.fitting import ruled_table
from kvsim.sim.bench.assumed import ASSUMED
from kvsim.sim.cost.clock import precision_of
from kvsim.sim.cost.trust import Trust, read_errors
from kvsim.sim.counted import signed_percent
from kvsim.sim.errors import KvsimError
from kvsim.sim.files.whole_file import check_file, whole_file
from kvsim.sim.validate import (
    Compared,
    Floats,
    Point,
    Run,
    against_physics,
    compare_point,
    compare_run,
    deployment_of,
    not_simulated,
)

Grouped = Mapping[Sequence[str], Mapping[str, Sequence[Compared]]]
"""Key of a group -> quantity -> the comparisons of its points."""
WHATS = ("TTFT", "TPOT", "E2E", "throughput")
LOADS = ((1, 8), (9, 32), (33, 128), (129, 100_000))
"""Minimum and maximum number of clients per row."""


@dataclass
class Validation:
    """All comparisons.

    Attributes
    ----------
    points : list of (Point, [Compared])
    runs : list of (Run, [Compared], columns)
        Columns: quantity -> (measured, simulated), per request.
    left_out : dict
        Reason -> names of points.
    refused : list of (name, arithmetic)
        Points that contradict physics.
    """

    points: list[tuple[Point, list[Compared]]] = field(default_factory=list)
    runs: list[tuple[Run, list[Compared], Mapping[str, tuple[Floats, Floats]]]] = field(default_factory=list)
    left_out: dict[str, list[str]] = field(default_factory=dict)
    refused: list[tuple[str, str]] = field(default_factory=list)


def validate(points: Iterable[Point], runs: Iterable[Run], cost: str | None = None) -> Validation:
    """Simulate them all."""
    found = Validation()
    for run in runs:
        found.runs.append((run, *compare_run(run)))
    for point in points:
        reason = not_simulated(point)
        try:
            arithmetic = None if reason else against_physics(point)
            if arithmetic:
                found.refused.append((point.name, arithmetic))
            elif reason is None:
                found.points.append((point, compare_point(point, cost)))
        except KvsimError as error:
            reason = str(error).partition(";")[0]
        if reason:
            found.left_out.setdefault(reason, []).append(point.name)
    return found


def off(some: Sequence[Compared]) -> tuple[float, float]:
    """(median absolute error, median error), in per cent."""
    errors = [100 * each.off for each in some]
    return median(map(abs, errors)), median(errors)


def groups(
    found: Validation, key: Callable[[Point], Sequence[str]]
) -> dict[Sequence[str], dict[str, list[Compared]]]:
    """The comparisons of the points, grouped by a key."""
    grouped: dict[Sequence[str], dict[str, list[Compared]]] = {}
    for point, compared in found.points:
        group = grouped.setdefault(key(point), {})
        for each in compared:
            group.setdefault(each.what, []).append(each)
    return dict(sorted(grouped.items()))


def errors_of(found: Validation, cost: str | None = None) -> list[Trust]:
    """The errors of each clock for each model, GPU and precision that was compared."""
    compared = [(run.deployment, compared) for run, compared, _ in found.runs]
    compared += [(deployment_of(point, cost), some) for point, some in found.points]
    groups: dict[tuple[str, ...], list[Sequence[Compared]]] = {}
    for deployment, some in compared:
        key = deployment.cost, deployment.model.name, deployment.gpu.name, precision_of(deployment.model)
        groups.setdefault(key, []).append([each for each in some if each.statistic == "mean"])
    return [_trust(key, some) for key, some in sorted(groups.items())]


def _trust(key: tuple[str, ...], servers: Sequence[Sequence[Compared]]) -> Trust:
    """Median errors over servers, as shares."""
    numbers = {}
    for what in ("ttft", "tpot", "throughput"):
        each = [one for some in servers for one in some if one.what.lower() == what]
        size, bias = off(each)
        numbers |= {f"{what}_error": round(size / 100, 5), f"{what}_bias": round(bias / 100, 5)}
    return Trust(*key, len(servers), **numbers)  # type: ignore[arg-type]


def earlier_errors(path: Path) -> list[Trust]:
    """The rows of an existing table; KvsimError if the file is something else."""
    kept = read_errors(path) if path.is_file() else []
    check_file(path, force=False, ours=lambda there: bool(kept))
    return kept


def write_errors(rows: Sequence[Trust], path: Path) -> None:
    """Write the rows as CSV, keeping the file's rows of other clocks."""
    costs = {row.cost for row in rows}
    kept = earlier_errors(path)
    text = io.StringIO()
    writer = csv.DictWriter(text, [each.name for each in fields(Trust)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(map(asdict, sorted((*(row for row in kept if row.cost not in costs), *rows), key=repr)))
    with whole_file(path, ours=lambda there: bool(kept)) as part:
        part.write_text(text.getvalue(), encoding="utf-8")


def model_and_gpu(point: Point) -> tuple[str, ...]:
    """A point's model, GPU and precision, and the engine's release."""
    release = ".".join(point.version.split(".")[:2]) if "." in point.version else "unknown"
    return (point.model.rpartition("/")[2], point.gpu, point.precision or "bf16", release)


def model_only(point: Point) -> tuple[str, ...]:
    """A point's model."""
    return (point.model.rpartition("/")[2],)


def load(point: Point) -> tuple[str, ...]:
    """A point's range of clients."""
    low, high = next(each for each in LOADS if point.clients <= each[1])
    return (f"{low:>3} to {high}" if high < 100_000 else f"{low:>3} and more",)


def truth_report(found: Validation) -> RenderableType:
    """Tables of all comparisons, and what was left out."""
    parts: list[RenderableType] = []
    for run, compared, _ in found.runs:
        parts += [Text(run.name, style="bold"), _run_table(compared), ""]
    if found.points:
        keys = {"GPU, precision, vLLM": model_and_gpu, "model": model_only, "clients": load}
        for name, key in keys.items():
            parts += [_points_table(name, groups(found, key)), ""]
        parts.append(
            Text("Median absolute and median signed error (%). Assumptions: " + "; ".join(ASSUMED) + ".")
        )
    for name, arithmetic in found.refused:
        parts.append(Text(f"refused: {name}: {arithmetic}", style="yellow"))
    for reason, names in found.left_out.items():
        parts.append(Text(f"left out: {len(names)} points: {reason}", style="yellow"))
    for run, _, _ in found.runs:
        parts += [Text(f"assumption for {run.name}: {each}") for each in run.assumed]
    return Group(*parts)


def _run_table(compared: Sequence[Compared]) -> Table:
    table = ruled_table("", "measured", "simulated", "off", padding=(0, 1, 0, 0))
    for each in compared:
        unit, scale = (" tokens/s", 1.0) if each.what == "throughput" else (" ms", 1e3)
        values = [f"{scale * value:,.1f}{unit}" for value in (each.measured, each.simulated)]
        table.add_row(f"{each.what} {each.statistic}", *values, signed_percent(each.off))
    return table


def _points_table(name: str, grouped: Mapping[Sequence[str], Mapping[str, Sequence[Compared]]]) -> Table:
    """A row per group; if its key has several words, the first is a heading."""
    table, heading = ruled_table(name, "points", *WHATS, padding=(0, 1, 0, 0)), ""
    for (first, *rest), compared in grouped.items():
        if rest and first != heading:
            table.add_row(Text(first, style="bold"))
            heading = first
        cells = [_percents(*off(compared[what])) for what in WHATS]
        table.add_row(" ".join(rest) or first, str(len(compared[WHATS[0]])), *cells)
    return table


def _percents(size: float, bias: float) -> str:
    """A median absolute error and a median error, five characters each."""
    signed = ((size, ""), (bias, "+"))
    return " ".join(f"{each:{sign}.{0 if abs(each) >= 100 else 1}f}".rjust(5) for each, sign in signed)
