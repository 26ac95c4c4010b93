"""The command `sim`: flags become one call and one report; user errors become one line and exit code 2.

    sim run        one server under one workload -> tables, figures, a run directory
    sim compare    the same workload under several allocators, side by side
    sim sweep      all combinations of options, into one table
    sim table      the same table of any runs
    sim capacity   the largest load within an SLO, and what limits it
    sim plot       figures of earlier runs, for a screen, a paper or slides
    sim report     one page for the browser: memory map, charts, every request
    sim explain    the life of one request: what happened when, and why it waited
    sim trace-events    the lives of many requests, and the engine's steps, for a trace viewer
    sim reproduce  a paper's figures, published beside simulated
    sim traces     all traces; one in numbers and figures; convert or fetch one
    sim replay     the requests of a benchmark's result, measured against simulated
    sim calibrate  time the kernels on this machine's GPU
    sim fit        where a GPU's memory goes, and how many requests fit
    sim speculation    what speculative decoding gains, by batch and accepted tokens
    sim models, gpus, allocators, schedulers, costs, routers, eviction    the choices
    sim check-allocator, check-scheduler, check-eviction    whether your own part follows the rules

Modules that are slow to import (numpy, pyarrow, matplotlib, rich) are imported inside the commands, so that
`sim --help` answers immediately; so are the options, in option_groups.py.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvsim.command_line.calibrate import calibrate_app
from kvsim.command_line.common import AllowCode, Force, Front, show
from kvsim.command_line.flags import called, flat, given, names_of, of_parts, shortened
from kvsim.command_line.help import ALL, CONTEXT, Plain, WithUsual
from kvsim.command_line.light import collect_seldom, take_plain_values
from kvsim.command_line.lists import lists_app
from kvsim.command_line.traces import traces_app
from kvsim.sim import __version__, installed_build
from kvsim.sim.complaints import any_output, complaint
from kvsim.sim.errors import KvsimError
from kvsim.sim.files.stopping import Stopped, Stopping, caused_by_stop
from kvsim.sim.plugins import trusting

if TYPE_CHECKING:
    from kvsim.command_line.option_groups import (
        FitOptions,
        Goals,
        Output,
        Pictures,
        ReplayOptions,
        Scenario,
        ScenarioTexts,
        Seeds,
        Sought,
        Swept,
        Traffic,
        TrafficTexts,
        Where,
    )
    from kvsim.sim.deployment.deployment import Deployment
    from kvsim.sim.option import Named


app = typer.Typer(
    cls=Front,
    help="Where does the KV cache go? A simulator of LLM-serving memory and scheduling.",
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
usual = partial(app.command, cls=WithUsual, context_settings=CONTEXT)
"""Makes a command whose default help is short."""
SweepFile = Annotated[
    Path | None, typer.Argument(metavar="FILE", help="A sweep.toml.", show_default="the options")
]


@usual(short_help="Simulate one server: its KV memory, its speed.")
@flat
def run(
    *,
    ctx: typer.Context,
    traffic: Traffic,
    seeds: Seeds,
    server: Scenario,
    goals: Goals,
    output: Output,
    config: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel="Output",
            metavar="FILE",
            help="Repeat the run of this config.json, with no other choices.",
        ),
    ] = None,
    allow_code: AllowCode = False,
) -> None:
    """Simulate one server: where its KV memory goes, how fast it is."""
    from kvsim.commands.run import carry_out

    if config is None:
        deployment = server.deployed()
    else:
        deployment, traffic, goals = _repeated(ctx, config)
    carry_out([deployment], traffic, seeds, output, goals, compared=False)


@usual()
@flat
def compare(
    *,
    traffic: Traffic,
    seeds: Seeds,
    allocator: Annotated[
        str,
        typer.Option(
            rich_help_panel="Engine",
            metavar="NAME,...",
            help="See: sim allocators; each may name its reserve, as in buddy:pow2; or all.",
            show_default="contiguous, buddy:pow2, buddy:oracle, paged",
        ),
    ] = "contiguous,buddy:pow2,buddy:oracle,paged",
    server: Scenario,
    goals: Goals,
    output: Output,
) -> None:
    """Simulate several allocators under the same workload."""
    from kvsim.commands.run import carry_out, compared_with

    deployments = compared_with(server.deployed(), allocator.split(","))
    carry_out(deployments, traffic, seeds, output, goals, compared=True)


@usual(short_help="Simulate all combinations of options, into one table.")
@flat
def sweep(
    *,
    file: SweepFile = None,
    traffic: TrafficTexts,
    server: ScenarioTexts,
    goals: Goals,
    swept: Swept,
    where: Where,
    allow_code: AllowCode = False,
) -> None:
    """Simulate all combinations of options: lists (1,2,4), ranges (1:8:0.5, 1:64:x2, 1:64:log7)."""
    from kvsim.commands import sweep as sweeping

    code = sweeping.swept(file, {**vars(traffic), **vars(server)}, goals, swept, where)
    raise typer.Exit(code)


@usual(short_help="Find the largest load within an SLO, and what limits it.")
@flat
def capacity(
    *,
    file: SweepFile = None,
    traffic: TrafficTexts,
    server: ScenarioTexts,
    goals: Goals,
    sought: Sought,
    where: Where,
    allow_code: AllowCode = False,
) -> None:
    """Find the largest load within an SLO, for each combination of options, and say what limits it."""
    from kvsim.commands import capacity as sizing

    code = sizing.sized(file, {**vars(traffic), **vars(server)}, goals, sought, where)
    raise typer.Exit(code)


@app.command(short_help="Make one table of sweeps and runs.", cls=Plain)
def table(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Runs, comparisons, sweeps.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Ends with .csv or .parquet.", show_default="print it as CSV"),
    ] = None,
    force: Force = False,
) -> None:
    """Make one table from runs: the settings that differ, and every number of the summary."""
    from kvsim.commands.table import tabled

    tabled(directories, out, force=force)


@app.command(short_help="Draw figures of earlier runs, side by side.", cls=Plain)
@flat
def plot(
    *,
    directories: Annotated[
        list[Path],
        typer.Argument(metavar="DIR...", help="Runs or comparisons; or one sweep, search or replay."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Directory for the figures.", show_default="the first DIR"),
    ] = None,
    figure: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...",
            help="Which figures, as in memory,waste; a wrong name lists them.",
            show_default="all that can be drawn",
        ),
    ] = None,
    pictures: Pictures,
    at: Annotated[
        float | None,
        typer.Option(metavar="S", help="The instant of the memory map.", show_default="the fullest"),
    ] = None,
    latency: Annotated[
        str | None,
        typer.Option(
            metavar="NAME:STAT",
            help="The latency that figures over several runs show, as in ttft:p99.",
            show_default="normalized:mean",
        ),
    ] = None,
    force: Force = False,
) -> None:
    """Draw figures of earlier runs, side by side: for a screen, a paper or slides."""
    from kvsim.reports.figures import Choices, Latency, check, draw, styled
    from kvsim.reports.figures.replay import draw_replay
    from kvsim.reports.figures.swept.stored import draw_stored
    from kvsim.reports.labels import told_apart
    from kvsim.reports.replays import is_replay, read_replay
    from kvsim.reports.rundir.run import read_runs
    from kvsim.reports.rundir.writing import write_figures
    from kvsim.reports.sweeps.stored import is_sweep, read_sweep

    choices = Choices(styled(pictures), at, Latency.parse(latency) if latency is not None else None)
    names = figure.split(",") if figure is not None else None
    check(names)
    first = directories[0]
    whole = is_sweep(first) or is_replay(first)
    if whole and (len(directories) > 1 or figure or at is not None or latency):
        raise KvsimError("a sweep or a replay is drawn alone, with --style, --format and --out")
    if is_sweep(first):
        drawing = partial(draw_stored, read_sweep(first), style=choices.style)
    elif is_replay(first):
        drawing = partial(draw_replay, read_replay(first)[1], style=choices.style)
    else:
        runs = told_apart([run for directory in directories for run in read_runs(directory)])
        drawing = partial(draw, runs, names=names, choices=choices)
    if not (drawn := write_figures(out or first, drawing, force)):
        raise KvsimError(f"{first} has too few points for a figure: sim report makes its table")
    print(*drawn, sep="\n")


@app.command(short_help="Make one HTML page of runs, with the memory map.", cls=Plain)
def report(
    directories: Annotated[
        list[Path],
        typer.Argument(metavar="DIR...", help="Runs, best with --record-map; or one sweep or replay."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The page.", show_default="report.html in the first DIR"),
    ] = None,
    force: Force = False,
) -> None:
    """Make one HTML page from runs, with the memory map; works offline."""
    from kvsim.reports.html.report import write_report

    print(write_report(directories, out or directories[0] / "report.html", force))


@app.command(short_help="Show the life of one request: why it waited.", cls=Plain)
def explain(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run, or a comparison.")],
    request: Annotated[
        str, typer.Argument(metavar="REQUEST", help="Its number, or slowest, median, most-preempted.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print only JSON.")] = False,
    allow_code: AllowCode = False,
) -> None:
    """Show the life of one request: what happened when, and why it waited."""
    from kvsim.commands.explain import explained

    explained(run, request, as_json=as_json)


@app.command("trace-events", cls=Plain)
def trace_events(
    *,
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run, or a comparison.")],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Ends with .json or .json.gz.", show_default="trace-events.json in RUN"
        ),
    ] = None,
    requests: Annotated[
        str | None,
        typer.Option(
            metavar="N|A-B|all",
            help="The first N, those from A to B, or all.",
            show_default="the first 1000",
        ),
    ] = None,
    steps: Annotated[
        bool | None,
        typer.Option(
            "--steps/--no-steps",
            help="The engine's steps; repeats a run that has no step log.",
            show_default="of runs up to 200,000 steps",
        ),
    ] = None,
    force: Force = False,
    allow_code: AllowCode = False,
) -> None:
    """Write a timeline for Perfetto or chrome://tracing."""
    from kvsim.commands.explain import written_timeline

    written_timeline(run, out, requests, steps, force=force)


@app.command(short_help="Simulate the figures of a paper and compare.", cls=Plain)
@flat
def reproduce(
    *,
    paper: Annotated[
        str,
        typer.Argument(
            metavar="PAPER",
            help="pagedattention, vattention, offset-allocator, hybrid-waste, host-memory, llama-defrag, "
            "tiers, distserve, splitwise.",
        ),
    ],
    figure: Annotated[
        str | None,
        typer.Option(metavar="N,...", help="Its figures, as in 2,12,19a.", show_default="all"),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Short traces, no open choices: a look, not a verdict.")
    ] = False,
    jobs: Annotated[int | None, typer.Option(help="Processes at once.", show_default="one per core")] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Directory for the results.", show_default="a new one in runs/"),
    ] = None,
    pictures: Pictures,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier reproduction there.")] = False,
) -> None:
    """Simulate the figures of a paper and compare them with the published ones."""
    from kvsim.command_line.option_groups import Output
    from kvsim.commands.reproduce import reproduced

    reproduced(paper, figure, quick=quick, jobs=jobs, output=Output(out=out, force=force, **vars(pictures)))


@app.command("fit", short_help="Show where a GPU's memory goes, and how many requests fit.", cls=Plain)
@flat
def fit_(
    *,
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="See: sim models; or config.json.")],
    gpu: Annotated[str, typer.Option(metavar="NAME,...", help="See: sim gpus.")] = "h100",
    asked: FitOptions,
    log: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="vLLM's start-up log, to explain.", show_default="none"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Draw the memory as bars.", show_default="no")
    ] = None,
    pictures: Pictures,
) -> None:
    """Show where a GPU's memory goes, how layers share the KV cache, and how many requests fit."""
    from kvsim.reports.fit.command import FitOutput, fit_command
    from kvsim.workloads.quantiles import lengths_of

    asked = replace(asked, lengths=lengths_of(asked.lengths))
    fit_command(models, gpu.split(","), asked, log, FitOutput(json=json, out=out, **vars(pictures)))


@app.command("speculation", short_help="Estimate what speculative decoding gains, by batch size.", cls=Plain)
@flat
def speculation_(
    *,
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="See: sim models; or config.json.")],
    gpu: Annotated[str, typer.Option(metavar="NAME", help="See: sim gpus.")] = "h100",
    speculative_config: Annotated[
        str, typer.Option(metavar="JSON", help="As vLLM's: method, num_speculative_tokens, ...")
    ] = '{"method": "eagle3", "num_speculative_tokens": 3}',
    tensor_parallel_size: Annotated[int, typer.Option(metavar="N", help="GPUs that share every layer.")] = 1,
    cost: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Time of a step.", show_default="measured if the GPU was"),
    ] = None,
    context: Annotated[int, typer.Option(metavar="N", help="Tokens of each sequence.")] = 1000,
    json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Draw the speed-ups.", show_default="no")
    ] = None,
    pictures: Pictures,
) -> None:
    """Say how much faster drafts make the steps of a batch, and how many must be accepted to gain."""
    from kvsim.reports.speculation.command import SpeculationOutput, speculation_command
    from kvsim.sim.options.scenario import Scenario as Server

    said = {"speculative_config": speculative_config}
    shape = {"gpu": gpu, "tensor_parallel_size": tensor_parallel_size, "cost": cost, "options": said}
    servers = [Server(model=model, **shape) for model in models]
    speculation_command(servers, context, SpeculationOutput(json=json, out=out, **vars(pictures)))


@usual(short_help="Replay a benchmark's result: measured against simulated.")
@flat
def replay(
    *,
    result: Annotated[
        Path,
        typer.Argument(
            metavar="RESULT", help="A result file of vllm bench serve, AIPerf, GuideLLM or inference-perf."
        ),
    ],
    model: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE", help="See: sim models; or a config.json.", rich_help_panel="Model and GPU"
        ),
    ],
    gpu: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE",
            help="See: sim gpus; or your own, or a profile.",
            rich_help_panel="Model and GPU",
        ),
    ],
    asked: ReplayOptions,
    fit: Annotated[
        str | None,
        typer.Option(
            metavar="host|scale",
            help="One factor for the host's time, or every step's, that meets the measured TPOT.",
            show_default="nothing is fitted",
            rich_help_panel="Replay",
        ),
    ] = None,
    server: Scenario,
) -> None:
    """Send a benchmark's requests to the simulator and compare measured with simulated."""
    from kvsim.commands.replay import replayed

    replayed(result, replace(server, model=model, gpu=gpu), replace(asked, fit=fit))


@app.command(cls=Plain)
@flat
def validate(
    *,
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="SOURCE",
            help="points, requests, a CSV of points, or a benchmark's JSON with every request.",
            show_default="points and requests",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE", help="Only this one; or the server of a JSON.", show_default="all"),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE", help="Only this one; or the server of a JSON.", show_default="all"),
    ] = None,
    tensor_parallel_size: Annotated[int, typer.Option(metavar="N", help="The server of a JSON.")] = 1,
    cost: Annotated[
        str | None, typer.Option(metavar="NAME", help="Time of a step.", show_default="as in sim run")
    ] = None,
    every: Annotated[int, typer.Option(metavar="N", help="Only every Nth point.")] = 1,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where pictures go.", show_default="no pictures")
    ] = None,
    table: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="CSV for the errors by clock, model and GPU; its rows of other clocks stay.",
            show_default="none",
        ),
    ] = None,
    pictures: Pictures,
    force: Force = False,
) -> None:
    """Compare the clock with measured servers."""
    from kvsim.reports.figures.truth import draw_truth
    from kvsim.reports.rundir.writing import print_figures
    from kvsim.reports.truth import earlier_errors, errors_of, truth_report, validate, write_errors
    from kvsim.sim.validate import sources

    points, runs = sources(source, model, gpu, tensor_parallel_size, cost)
    if table is not None:
        earlier_errors(table)
    found = validate(points[:: max(every, 1)], runs, cost)
    show(truth_report(found))
    if table is not None:
        write_errors(errors_of(found, cost), table)
    if out is not None:
        print_figures(out, partial(draw_truth, found), pictures, force)


app.add_typer(lists_app)
app.add_typer(calibrate_app, name="calibrate")
app.add_typer(traces_app, name="traces", short_help="List the traces; show, convert or fetch one.")


@app.callback(invoke_without_command=True)
def sim(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and the build, and exit.")
    ] = False,
) -> None:
    """Answer what is asked without a command."""
    if version:
        print(f"kvsim {__version__}, {installed_build()}")
    elif ctx.invoked_subcommand is None:
        print(ctx.get_help())


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit code."""
    stop = Stopping()
    collect_seldom()
    try:
        with stop:
            any_output()
            words = list(sys.argv[1:] if argv is None else argv)
            name = called(words)
            if name:  # the list of commands needs no options
                from kvsim.command_line.words import completed, joined

                words = completed(words)
            with trusting(None if "--allow-code" in words else " ".join(words)):
                commands = _called(name, words)
                if name in commands.commands:
                    words = joined(words, commands.commands[name])
                code = commands(words, prog_name="sim", standalone_mode=False) or 0
            sys.stdout.flush()
    except Stopped as told:
        print(told, file=sys.stderr)
        return told.code
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except Exception as error:
        if not caused_by_stop(error):
            return _failed(error)
        code = 130
    if code == 130:
        code = stop.exit_code or code
        with suppress(OSError):  # the terminal has closed
            print("interrupted; nothing was written", file=sys.stderr)
    return int(code)


# -- pieces -------------------------------------------------------------------------------------


def _called(name: str, words: Sequence[str]) -> Front:
    """The commands, with the options of the schedulers and allocators that occur in the words."""
    found = command(name)
    if name not in found.commands:
        return found
    parameters = found.commands[name].params
    parts = of_parts(words, ["--help", ALL, *(flag for each in parameters for flag in each.opts)])
    return command(name, tuple(parts)) if parts else found


@cache
def command(called: str, parts: tuple[Named, ...] = ()) -> Front:
    """The commands, with the options of the named one; cached, since building them takes a while."""
    found: Front = typer.main.get_command(shortened(app, called, parts))
    for each in (found, *found.commands.values()):
        take_plain_values(each)
    return found


def _repeated(ctx: typer.Context, config: Path) -> tuple[Deployment, Traffic, Goals]:
    """The contents of an earlier config.json; other options are an error, except code that it needs."""
    from kvsim.command_line.option_groups import Output, Seeds
    from kvsim.commands.run import choices

    free = {"config", "allow_code", *names_of((Output, Seeds))}
    extra = given(ctx, free | {name for name, value in ctx.params.items() if ":" in str(value)})
    if not extra:
        deployment, traffic, goals = choices(config)
        meant = {**vars(traffic), **vars(deployment.engine), **vars(deployment.fleet)}
        extra = given(ctx, free | {name for name in meant if meant[name] == ctx.params.get(name)})
    if extra:
        raise KvsimError(f"config {config} holds every choice: leave out {', '.join(extra)}")
    return deployment, traffic, goals


def _failed(error: Exception) -> int:
    """Report an exception in one line; returns the exit code."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):  # a closed pipe, a full disk: Python would retry at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):  # the reader has closed the pipe
        return 1
    if hasattr(error, "format_message"):  # a usage error, wherever typer keeps its click
        message = error.format_message()
        error = KvsimError(f"{message[:1].lower()}{message[1:]}")
    line, code = complaint(error)
    print(line, file=sys.stderr)
    return code
