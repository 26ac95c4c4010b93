"""`sim calibrate`, `log`, `show`: time this machine's GPU, fit a server's log, look at a profile."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvsim.command_line.common import Force, Front, show
from kvsim.command_line.flags import flat, given
from kvsim.command_line.help import Plain
from kvsim.sim.errors import KvsimError

if TYPE_CHECKING:
    from kvsim.command_line.option_groups import Pictures

calibrate_app = typer.Typer(cls=Front, help="Measure this machine's GPU: a profile for --gpu.")


@calibrate_app.callback(invoke_without_command=True)
def calibrate(
    *,
    ctx: typer.Context,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The profile to write.", show_default="NAME.json among yours"),
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the profile.", show_default="the GPU's")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer points: about a minute.")] = False,
    interpret: Annotated[
        bool, typer.Option("--interpret", help="Rehearse on the CPU with toy sizes: no measurement.")
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Discard what a stopped run has measured.")] = False,
) -> None:
    """Measure this machine's GPU: a profile for --gpu."""
    if ctx.invoked_subcommand is not None:
        if extra := given(ctx):
            raise KvsimError(f"{', '.join(extra)} must be left out with calibrate {ctx.invoked_subcommand}")
        return
    from kvsim.commands.calibrate import calibrated

    calibrated(out, name, quick=quick, interpret=interpret, fresh=fresh)


@calibrate_app.command("show", cls=Plain)
@flat
def show_profile(
    *,
    profile: Annotated[str, typer.Argument(metavar="PROFILE", help="A name, see: sim gpus; or a file.")],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the picture goes.", show_default="here")
    ] = None,
    pictures: Pictures,
    no_plots: Annotated[bool, typer.Option("--no-plots", help="Draw no picture.")] = False,
    force: Force = False,
) -> None:
    """Show a profile: what was measured, how well it fits."""
    from kvsim.reports.calibration.profile import Fit, any_profile
    from kvsim.reports.calibration.tables import report_of
    from kvsim.reports.figures.calibration import draw_calibration
    from kvsim.reports.rundir.writing import print_figures

    found = any_profile(profile)
    show(report_of(found))
    if no_plots or not isinstance(found, Fit) or found.file.elsewhere:
        return
    print_figures(out or Path(), partial(draw_calibration, found), pictures, force)


@calibrate_app.command("log", cls=Plain)
def calibrate_log(
    *,
    log: Annotated[
        Path, typer.Argument(metavar="FILE", help="Of vLLM with --enable-logging-iteration-details.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The profile to write.", show_default="FILE's name.toml"),
    ] = None,
    force: Force = False,
) -> None:
    """Fit step times to a running server's log: a profile for --cost."""
    from kvsim.commands.calibrate_log import fitted_to_log

    fitted_to_log(log, out, force=force)
