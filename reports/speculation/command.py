"""Run `sim speculation`: tables of speed-ups for every model, and a figure."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console, RenderableType
from rich.console import Group as Lines
from rich.table import Table
from rich.text import Text

from kvsim.reports.fitting import FittingTable
from kvsim.reports.speculation.gain import Gain, gain_of, verdict
from kvsim.sim.options.outputs import Pictures
from kvsim.sim.options.scenario import Scenario


@dataclass(frozen=True, kw_only=True)
class SpeculationOutput(Pictures):
    """Where the answer goes."""

    json: bool = False
    out: Path | None = None


def speculation_command(servers: Sequence[Scenario], context: int, output: SpeculationOutput) -> None:
    """Compute and show the answer for every server."""
    gains = [gain_of(server, context) for server in servers]
    if output.json:
        told = [gain.as_json() for gain in gains]
        print(json.dumps(told[0] if len(told) == 1 else told, indent=2))
    else:
        Console(highlight=False).print(report(gains))
    if output.out is not None:
        from kvsim.reports.figures.speculation import draw_speculation
        from kvsim.reports.rundir.writing import print_figures

        print_figures(output.out, partial(draw_speculation, gains), output)


def report(gains: Sequence[Gain]) -> Lines:
    """A table per model."""
    parts: list[RenderableType] = []
    for gain in gains:
        parts += [Text(verdict(gain), style="bold"), "", _table(gain), "", Text(_foot(gain)), ""]
    return Lines(*parts)


def _table(gain: Gain) -> Table:
    table = FittingTable()
    length = gain.length
    table.add_numbers("batch", "step", "with drafts", "tokens to break even")
    if length is not None:
        table.add_numbers(f"speed-up at {length:.2f}")
    speed_up = gain.speed_up(length or 1.0)
    columns = (gain.batches, gain.plain_s, gain.drafted_s, gain.crossover, speed_up)
    for batch, plain_s, drafted_s, least, factor in zip(*columns, strict=True):
        row = [f"{batch}", f"{1e3 * plain_s:.2f} ms", f"{1e3 * drafted_s:.2f} ms"]
        row.append(f"{least:.2f}" if least <= gain.most + 1 else f"{least:.2f} (never)")
        table.add_row(*row, *([] if length is None else [f"{factor:.2f} x"]))
    return table


def _foot(gain: Gain) -> str:
    plain, drafting = gain.fits
    return (
        f"{gain.model} on {gain.gpu}, {gain.most} drafts by {gain.draft}, contexts of {gain.context:,} "
        f"tokens, times {gain.clock}; {drafting:,} such sequences fit, {plain:,} without a draft"
    )
