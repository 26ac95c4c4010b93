"""The command `sim`: flags become one call and one report, mistakes one line and exit code 2.

    sim run        one server under one workload -> tables, figures, a run directory
    sim compare    the same workload under several allocators, side by side
    sim plot       figures of earlier runs, for a screen, a paper or slides
    sim report     one page for the browser: memory map, charts, every request
    sim explain    the life of one request: what happened when, and why it waited
    sim trace-events    the same of many, and the engine's steps, for a trace viewer
    sim reproduce  the figures of a paper, published beside simulated
    sim traces     all traces; one in numbers and pictures; convert or fetch one
    sim calibrate  time the kernels on this machine's GPU
    sim fit        where a GPU's memory goes, and how many requests fit
    sim models, gpus, allocators, schedulers    what there is to choose from
    sim check-allocator    does your own keep the rules?

Whatever is slow to import (numpy, pyarrow, matplotlib, rich) is imported inside the commands, so that
`sim --help` answers at once.
"""

import inspect
import os
import shlex
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from kvsim.sim import __version__
from kvsim.sim.complaints import any_output, complaint
from kvsim.sim.config import Scenario as Deployment
from kvsim.sim.errors import KvsimError
from kvsim.sim.fit.answer import FitOptions
from kvsim.sim.options import Named, options_of
from kvsim.sim.scenario import Scenario
from kvsim.sim.stopping import Stopping
from kvsim.sim.traffic import Traffic

if TYPE_CHECKING:
    from kvsim.reports.rundir.claims import Claim
    from kvsim.reports.rundir.run import Run
    from kvsim.reports.timeline.events import Traced
    from kvsim.sim.run import Outcome, Simulation
    from kvsim.sim.workload import Workload
    from kvsim.workloads.lengths import Lengths
    from kvsim.workloads.source import Source

    CarryOut = Callable[[Sequence[Simulation]], list[Outcome]]


class _Front(TyperGroup):
    """The list of commands without frames: importing what draws them takes longer than all the rest."""

    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 - passed on
        super().__init__(*args, **options | {"rich_markup_mode": None})


app = typer.Typer(
    cls=_Front,
    help="Where does the KV cache go? A simulator of LLM-serving memory and scheduling.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

MAP_INSTANTS = 240
MANY_STEPS = 200_000
"""A run of more is not repeated for its steps unless they are asked for."""

_workload = partial(typer.Option, rich_help_panel="Workload")
_output = partial(typer.Option, rich_help_panel="Output")


# -- options that commands share ----------------------------------------------------------------


@dataclass(frozen=True)
class Output:
    """Where the results go."""

    out: Annotated[
        Path | None,
        _output(metavar="DIR", help="Directory for the results.", show_default="a new one in runs/"),
    ] = None
    no_out: Annotated[bool, _output("--no-out", help="Write nothing, only print.")] = False
    force: Annotated[bool, _output("--force", help="Replace an earlier run in that directory.")] = False
    json: Annotated[bool, _output("--json", help="Print the summary as JSON, and nothing else.")] = False
    quiet: Annotated[bool, _output("--quiet", "-q", help="Print only where the results are.")] = False
    no_plots: Annotated[bool, _output("--no-plots", help="Draw no figures.")] = False
    step_log: Annotated[bool, _output("--step-log", help="Also write steps.parquet, a row per step.")] = False
    record_map: Annotated[
        int | None,
        _output(
            metavar="[N]",
            help=f"Also write what lies where at N instants ({MAP_INSTANTS}), and each request's life.",
            show_default="no",
        ),
    ] = None
    live: Annotated[bool, _output("--live", help="Watch the run in the terminal.")] = False
    pace: Annotated[
        str | None,
        _output(
            metavar="Nx",
            help="With --live: N simulated seconds per second.",
            show_default="as fast as it goes",
        ),
    ] = None
    step_mode: Annotated[bool, _output("--step-mode", help="One event per step: slow.", hidden=True)] = False

    def prepare(
        self, scenario: Deployment, source: "Source", workload: "Workload", events: bool = False
    ) -> "Simulation":
        """The simulation, in the mode asked for; with its events, or where a map is asked for."""
        from kvsim.sim.run import prepare

        if self.record_map is not None and self.record_map < 1:
            raise KvsimError(f"record_map must be at least 1 instant, got {self.record_map}")
        self._pace()
        return prepare(
            scenario,
            workload,
            source.as_json(),
            step_log=self.step_log,
            step_mode=self.step_mode,
            events=events or self.record_map is not None,
            map_instants=self.record_map or 0,
        )

    @contextmanager
    def place(self, name: str) -> Iterator["Claim | None"]:
        """Hold the directory asked for, else the first free one in `runs`, from before the work on."""
        from kvsim.reports.rundir.claims import claimed, first_free

        if self.no_out:
            for option in ("out", "force", "step_log", "record_map"):
                if getattr(self, option):
                    raise KvsimError(f"{option} must be left out with no_out, which writes nothing")
            yield None
            return
        usual = Path("runs", name)
        free = self.out is None and not self.force
        with first_free(usual) if free else claimed(self.out or usual, self.force) as claim:
            yield claim

    def carry_out(self, simulations: "Sequence[Simulation]") -> "list[Outcome]":
        """Run them, one after the other, while somebody may watch."""
        outcomes: list[Outcome] = []
        show = self._show()
        for simulation in simulations:
            with show(simulation, outcomes, len(simulations)):
                outcomes.append(simulation.outcome())
        return outcomes

    def _pace(self) -> float | None:
        """Simulated seconds per second, for who watches; complains about what is none."""
        from kvsim.reports.pace import pace_of

        return None if self.pace is None else pace_of(self.pace, live=self.live)

    def _show(self) -> "Callable[[Simulation, list[Outcome], int], AbstractContextManager[None]]":
        """What is seen of a run: a dashboard, or a progress bar where it takes long."""
        if self.live and not (self.quiet or self.json):
            from kvsim.reports import live

            if live.can_show():
                return partial(live.of_several, pace=self._pace())
            print("--live needs a terminal that can be drawn on: running without it", file=sys.stderr)
        from kvsim.reports.progress import progress

        return lambda simulation, *_: progress(
            simulation.label, len(simulation.engine.workload), simulation.done
        )

    def report(self, found: Any, table: Callable[[Any], Any], place: "Claim | None") -> None:  # noqa: ANN401 - JSON
        """Print what was found: as JSON, or as a table; and where it lies, if that was not asked for."""
        chosen = place is not None and self.out is None
        if self.json:
            import json

            print(json.dumps(found, indent=2, ensure_ascii=False))
            if place is not None and chosen:
                print(f"written to {place.path}", file=sys.stderr)
        elif self.quiet:
            if place is not None and chosen:
                print(place.path)
        else:
            from rich.console import Console

            console = Console(highlight=False)
            console.print(table(found))
            if place is not None:
                console.print(f"\nwritten to {place.path}", markup=False, soft_wrap=True)


def _flat(command: Callable[..., None]) -> Callable[..., None]:
    """The command with every parameter that is a dataclass replaced by its fields, as options.

    A parameter of the command's own takes the place of a field of that name.
    """
    parameters = inspect.signature(command).parameters
    groups = {name: p.annotation for name, p in parameters.items() if is_dataclass(p.annotation)}
    own = parameters.keys() - groups.keys()
    flattened = {name: _options(group, own) for name, group in groups.items()}

    def flat(**values: Any) -> None:  # noqa: ANN401 - whatever the options hold
        for name, group in groups.items():
            given = {option.name: values.pop(option.name) for option in flattened[name]}
            values[name] = group(**_chosen(given))
        command(**values)

    options: list[inspect.Parameter] = []
    for name, parameter in parameters.items():
        options += flattened.get(name) or [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)]
    flat.__name__, flat.__doc__ = command.__name__, command.__doc__
    flat.__annotations__ = {option.name: option.annotation for option in options}
    flat.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    return flat


def _options(group: type, besides: Collection[str]) -> list[inspect.Parameter]:
    """The fields of a dataclass as parameters that typer understands."""
    described = {each.name: each for each in options_of(group)}
    found = []
    for field in fields(group):
        if field.name in besides:
            continue
        if field.name in described:
            found += _described(described[field.name])
        else:
            found.append(_parameter(field.name, field.default, field.type))
    return found


def _described(named: Named) -> list[inspect.Parameter]:
    """An option of the neutral kind; one that is on, off or open has a second, hidden name for off."""
    about = named.about
    names = [about.short or named.flag] if named.type is bool else []
    declared = typer.Option(
        *names,
        help=about.help,
        rich_help_panel=about.panel,
        metavar=about.value or None,
        show_default=about.shown or True,
    )
    kind = named.type | None if named.optional else named.type
    found = [_parameter(named.name, named.default, Annotated[kind, declared])]
    if named.type is bool and named.optional:
        off = typer.Option(f"--no-{named.flag[2:]}", hidden=True)
        found.append(_parameter(f"no_{named.name}", False, Annotated[bool, off]))
    return found


def _parameter(name: str, default: object, annotation: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _chosen(given: dict[str, Any]) -> dict[str, Any]:
    """The values of options, with `no_x` folded into `x`."""
    for off in [name for name in given if name.startswith("no_") and name[3:] in given]:
        if given.pop(off):
            if given[off[3:]]:
                raise KvsimError(f"{off[3:]} must be either on or off, got both")
            given[off[3:]] = False
    return given


# -- commands -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seeds:
    """How often, with other random numbers each time."""

    seeds: Annotated[
        int, _workload(metavar="K", help="K runs, with seeds from --seed on: means and 95 % intervals.")
    ] = 1
    jobs: Annotated[
        int | None, _workload(help="Processes at once, of several seeds.", show_default="one per core")
    ] = None

    @property
    def several(self) -> bool:
        """Whether there is more than one; complains about what cannot be."""
        for name, value in (("seeds", self.seeds), ("jobs", 1 if self.jobs is None else self.jobs)):
            if value < 1:
                raise KvsimError(f"{name} must be at least 1, got {value}")
        return self.seeds > 1

    def carry_out(
        self, scenarios: Sequence[Deployment], source: "Source", output: Output, compared: bool
    ) -> None:
        """Carry all out, write a directory with one per seed, and report them together."""
        from kvsim.reports.rundir.names import run_name
        from kvsim.reports.seeds.runs import carry_out_seeds, summary_of
        from kvsim.reports.seeds.tables import seeds_table
        from kvsim.sim.run import label, resolved

        if output.live:
            raise KvsimError(f"live must be left out with seeds {self.seeds}, which run side by side")
        first = source.traffic.seed
        seeds = range(first, first + self.seeds)
        name = "compare" if compared else label(resolved(scenarios[0]).engine)
        named = run_name(source.name, name, resolved(scenarios[0]), source.differing())
        with output.place(f"{named}-{self.seeds}-seeds") as place:
            runs = carry_out_seeds(
                place,
                partial(_one_seed, scenarios, source, replace(output, force=False, no_plots=True), compared),
                seeds,
                label=name,
                config={"kvsim": __version__, "workload": source.as_json()},
                jobs=(os.cpu_count() or 1) if self.jobs is None else self.jobs,
                draw=not output.no_plots,
            )
        found = summary_of(seeds, runs) if output.json else runs
        output.report(found, partial(seeds_table, compared=compared), place)


_AllowCode = Annotated[bool, typer.Option("--allow-code", help="Run code that a config.json names.")]


@app.command(short_help="Simulate one server: its KV memory, its speed.")
@_flat
def run(  # noqa: PLR0917 - typer passes them by name
    ctx: typer.Context,
    traffic: Traffic,
    seeds: Seeds = Seeds(),
    server: Scenario = Scenario(),
    output: Output = Output(),
    config: Annotated[
        Path | None,
        _output(metavar="FILE", help="Repeat the run of this config.json, with no other choices."),
    ] = None,
    allow_code: _AllowCode = False,
) -> None:
    """Simulate one server: where its KV memory goes, how fast it is."""
    from kvsim.reports.rundir.names import run_name
    from kvsim.reports.terminal import run_table

    if config is None:
        scenario = server.deployed()
    else:
        scenario, traffic = _repeated(ctx, config, allow_code)
    source = _opened(traffic)
    if seeds.several:
        seeds.carry_out([scenario], source, output, compared=False)
        return
    simulation = output.prepare(scenario, source, source.workload())
    name = run_name(source.name, simulation.label, simulation.scenario, source.differing())
    with output.place(name) as place:
        summary = _write_run(place, simulation, output, output.carry_out)
    output.report(summary, run_table, place)


@app.command()
@_flat
def compare(
    traffic: Traffic,
    seeds: Seeds = Seeds(),
    allocator: Annotated[
        str,
        typer.Option(
            rich_help_panel="Engine",
            metavar="NAME,...",
            help="See: sim allocators; each may name its reserve, as in buddy:pow2.",
            show_default="contiguous, buddy:pow2, buddy:oracle, paged",
        ),
    ] = "contiguous,buddy:pow2,buddy:oracle,paged",
    server: Scenario = Scenario(),
    output: Output = Output(),
) -> None:
    """Simulate several allocators under the same workload."""
    from kvsim.reports.rundir.names import run_name
    from kvsim.reports.terminal import compare_table
    from kvsim.sim.run import side_by_side

    scenarios = side_by_side(server.deployed(), allocator.split(","))
    source = _opened(traffic)
    if seeds.several:
        seeds.carry_out(scenarios, source, output, compared=True)
        return
    workload = source.workload()
    simulations = [output.prepare(scenario, source, workload) for scenario in scenarios]
    name = run_name(source.name, "compare", simulations[0].scenario, source.differing())
    with output.place(name) as place:
        summaries = _write_comparison(place, simulations, source, output, output.carry_out)
    output.report(summaries, compare_table, place)


_Format = Annotated[
    str | None,
    typer.Option("--format", metavar="png|svg|pdf", help="Kind of picture.", show_default="png; paper: pdf"),
]
_Force = Annotated[bool, typer.Option("--force", help="Replace files there that kvsim did not write.")]
_Style = Annotated[str, typer.Option(metavar="paper|screen|dark", help="How pictures look.")]


@app.command(short_help="Draw figures of earlier runs, side by side.")
def plot(  # noqa: PLR0917 - typer passes them by name
    directories: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Runs or comparisons.")],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where to.", show_default="the first DIR")
    ] = None,
    fmt: _Format = None,
    figure: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...", help="Which, as in memory,waste.", show_default="all that can be drawn"
        ),
    ] = None,
    style: _Style = "screen",
    at: Annotated[
        float | None,
        typer.Option(metavar="S", help="The instant of the memory map.", show_default="the fullest"),
    ] = None,
    latency: Annotated[
        str | None,
        typer.Option(
            metavar="NAME:STAT",
            help="Of the figures over several runs, as in ttft:p99.",
            show_default="normalized:mean",
        ),
    ] = None,
    force: _Force = False,
) -> None:
    """Draw figures of earlier runs, side by side: for a screen, a paper or slides."""
    from kvsim.reports.figures import Choices, Latency, check, draw, style_named
    from kvsim.reports.labels import told_apart
    from kvsim.reports.rundir.run import read_runs
    from kvsim.reports.rundir.writing import write_figures

    choices = Choices(style_named(style), at, Latency.parse(latency) if latency is not None else None)
    names = figure.split(",") if figure is not None else None
    check(fmt, names)
    runs = told_apart([run for directory in directories for run in read_runs(directory)])
    for path in write_figures(
        out or directories[0], lambda part: draw(runs, part, fmt, names=names, choices=choices), force
    ):
        print(path)


@app.command(short_help="Make one HTML page of runs, with the memory map.")
def report(
    directories: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Runs or comparisons, best with --record-map.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where to.", show_default="report.html in the first RUN"),
    ] = None,
    force: _Force = False,
) -> None:
    """Make one HTML page of runs, with the memory map: works offline."""
    from kvsim.reports.html.report import write_report

    print(write_report(directories, out or directories[0] / "report.html", force))


@app.command(short_help="Tell the life of one request: why it waited.")
def explain(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run, or a comparison.")],
    request: Annotated[
        str, typer.Argument(metavar="REQUEST", help="Its number, or slowest, median, most-preempted.")
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the same as JSON, and nothing else.")
    ] = False,
    allow_code: _AllowCode = False,
) -> None:
    """Tell the life of one request: what happened when, and why it waited."""
    from kvsim.reports.lives.event_log import event_log, read_events
    from kvsim.reports.lives.spans import lives
    from kvsim.reports.lives.story import chosen, story
    from kvsim.reports.rundir.run import read_runs

    runs, number, how = chosen(read_runs(run), request)
    stories = []
    for each in runs:
        log = read_events(each.path)
        if log is None:
            log = event_log(_carried_out_again(each, "events", allow_code).events)
        stories.append(story(each, lives(log, each.columns.requests, str(each.path)), number, how))
    if as_json:
        import json

        found = [each.as_json() for each in stories]
        print(json.dumps(found if len(found) > 1 else found[0], indent=2, ensure_ascii=False))
    else:
        from kvsim.reports.lives.view import stories_view, story_view

        _show(stories_view(stories) if len(stories) > 1 else story_view(stories[0]))


@app.command("trace-events")
def trace_events(  # noqa: PLR0917 - typer passes them by name
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
    force: _Force = False,
    allow_code: _AllowCode = False,
) -> None:
    """Write a timeline for Perfetto or chrome://tracing."""
    from kvsim.reports.rundir.run import read_runs
    from kvsim.reports.timeline.events import chosen_requests, is_timeline, write_trace
    from kvsim.sim.whole_file import check_file

    first, last = chosen_requests(requests)
    target = run / "trace-events.json" if out is None else out
    runs = read_runs(run)
    check_file(target, force=force, ours=is_timeline)
    traced = [_traced(each, steps, allow_code) for each in runs]
    written = write_trace(traced, target, first, last, force)
    if written.requests < written.submitted:
        print(
            f"requests {first:,} to {first + written.requests - 1:,} of {written.submitted:,}, and what the "
            "engine did in their time; all: --requests all"
        )
    print(f"{written.events:,} events, {written.bytes / 1e6:.1f} MB: open it in ui.perfetto.dev\n{target}")


@app.command(short_help="Simulate the figures of a paper, beside its own.")
def reproduce(  # noqa: PLR0917 - typer passes them by name
    paper: Annotated[str, typer.Argument(metavar="PAPER", help="Which one: pagedattention.")],
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
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier reproduction there.")] = False,
) -> None:
    """Simulate the figures of a paper, and put what was published beside them."""
    from rich.console import Console

    from kvsim import workloads
    from kvsim.reports.papers import checks, declared, report, running, terminal
    from kvsim.reports.papers.cells import cache_directory

    found = declared.read_paper(paper)
    figures = declared.chosen_figures(found, figure)
    with Output(out=out, force=force).place(paper) as place:
        assert place is not None
        try:
            findings = running.carry_out_all(
                found,
                figures,
                workloads.build,
                quick=quick,
                jobs=(os.cpu_count() or 1) if jobs is None else jobs,
                store=cache_directory(),
            )
        except KeyboardInterrupt as stop:
            kept = "the simulations that are done are kept"
            code = getattr(stop, "exit_code", 130)
            raise _Stopped(f"interrupted: {kept}; the same command goes on", code) from None
        results = [checks.judged(found, each, findings) for each in figures]
        report.write_report(place, found, findings, results, quick=quick)
    console = Console(highlight=False)
    console.print(terminal.figure_tables(results))
    if quick:
        console.print(f"\nQuick: {terminal.less(results)}. These verdicts are no verdicts.")
    console.print(
        f"\n{findings.runs:,} simulations, {findings.cpu_s:,.0f} CPU s; spent now: "
        f"{findings.spent_cpu_s:,.0f} CPU s\nwritten to {place.path}",
        markup=False,
        soft_wrap=True,
    )


@app.command("fit", short_help="Where a GPU's memory goes, and how many requests fit.")
@_flat
def fit_(  # noqa: PLR0917 - typer passes them by name
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="See: sim models; or config.json.")],
    gpu: Annotated[str, typer.Option(metavar="NAME,...", help="See: sim gpus.")] = "h100",
    asked: FitOptions = FitOptions(),  # noqa: B008 - frozen
    log: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="vLLM's start-up log, to explain.", show_default="none"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Draw the memory as bars.", show_default="no")
    ] = None,
    fmt: _Format = None,
    style: _Style = "screen",
) -> None:
    """Say where a GPU's memory goes, how layers share the KV cache, and how many requests fit."""
    from kvsim.reports.fit.command import FitOutput, fit_command
    from kvsim.workloads.quantiles import lengths_of

    asked = replace(asked, lengths=lengths_of(asked.lengths))
    fit_command(models, gpu.split(","), asked, log, FitOutput(json=json, out=out, fmt=fmt, style=style))


calibrate_app = typer.Typer(cls=_Front, help="Measure this machine's GPU: a profile for --gpu.")
app.add_typer(calibrate_app, name="calibrate")


@calibrate_app.callback(invoke_without_command=True)
def calibrate(  # noqa: PLR0917 - typer passes them by name
    ctx: typer.Context,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The profile to write.", show_default="NAME.json among yours"),
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of the profile.", show_default="the GPU's")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer points: about a minute.")] = False,
    interpret: Annotated[
        bool, typer.Option("--interpret", help="Rehearse on the CPU, on toy sizes: no measurement.")
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget what a stopped one has measured.")] = False,
) -> None:
    """Measure this machine's GPU: a profile for --gpu."""
    if ctx.invoked_subcommand is not None:
        if given := _given(ctx):
            raise KvsimError(f"{', '.join(given)} must be left out with calibrate {ctx.invoked_subcommand}")
        return
    from kvsim.kernels.calibration.errors import CalibrationError, NoGpuError
    from kvsim.reports.calibration.profile import fit_of
    from kvsim.reports.calibration.watch import outcome
    from kvsim.sim.profile_files import read_profile
    from kvsim.sim.profile_place import called_by

    try:
        target, kept = _measured(out, name, quick=quick, interpret=interpret, fresh=fresh)
    except NoGpuError as error:
        raise KvsimError(
            f"{error}: use a datasheet by name, as in sim run --gpu h200, or rehearse with --interpret"
        ) from error
    except CalibrationError as error:
        raise KvsimError(str(error)) from error
    found = read_profile(target)
    _show(outcome(fit_of(found)))
    called = shlex.quote(called_by(found))
    for line in (
        f"written to {target}",
        *([f"the earlier profile is kept as {kept}"] if kept is not None else []),
        f"next: sim calibrate show {called}",
        f"      sim run --gpu {called}",
    ):
        print(line)


@calibrate_app.command("show")
def show_profile(  # noqa: PLR0917 - typer passes them by name
    profile: Annotated[str, typer.Argument(metavar="PROFILE", help="A name, see: sim gpus; or a file.")],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the picture goes.", show_default="here")
    ] = None,
    fmt: _Format = None,
    style: _Style = "screen",
    no_plots: Annotated[bool, typer.Option("--no-plots", help="Draw no picture.")] = False,
    force: _Force = False,
) -> None:
    """Show a profile: what was measured, how well it fits."""
    from kvsim.reports.calibration.profile import Fit, any_profile
    from kvsim.reports.calibration.tables import report_of
    from kvsim.reports.figures import check, style_named
    from kvsim.reports.figures.calibration import draw_calibration
    from kvsim.reports.rundir.writing import write_figures

    look = style_named(style)
    check(fmt, None)
    found = any_profile(profile)
    _show(report_of(found))
    if no_plots or not isinstance(found, Fit):
        return
    stem, ending = found.file.path.stem, fmt or look.usual_format
    for path in write_figures(
        out or Path(),
        lambda part: draw_calibration(found, part / f"calibration-{stem}.{ending}", look),
        force,
    ):
        print(path)


@app.command()
def models() -> None:
    """List the built-in models."""
    from kvsim.reports.listing import models_table

    _show(
        models_table(),
        "Layers: w see a window, c a chunk, r are recurrent; MLA caches one latent for all heads.\n"
        "Names of the Hugging Face hub find them too: meta-llama/Llama-3.1-8B-Instruct.\n"
        "Any other: --model path/to/config.json, as Hugging Face writes it.",
    )


@app.command(short_help="List the GPUs, and measured profiles.")
def gpus() -> None:
    """List the GPUs: datasheets of those built in, and measured profiles."""
    from kvsim.reports.listing import gpus_table, profiles_table
    from kvsim.sim.cost_profile import profile_names
    from kvsim.sim.profile_files import directory, profile_files

    _show(
        gpus_table(),
        "Analytic: datasheet values, dense 16 bit, one direction; nothing is measured.\n"
        "Your own: --gpu FILE with six numbers, see the page on cost.",
    )
    published = ", ".join(f"--cost {name}" for name in profile_names())
    _show(f"Analytic too, from published figures, for a few models: {published}\n")
    found = profile_files()
    if found:
        _show(
            profiles_table(found),
            "Calibrated: used for their GPU by themselves. Error: of composed steps, in the mean.\n"
            f"Show one: sim calibrate show NAME. Yours: {directory()}",
        )
    else:
        _show(f"No calibrated profile: none ships, and none is in {directory()}. Make one: sim calibrate")


@app.command()
def allocators() -> None:
    """List the KV-cache allocators."""
    from kvsim.allocators import ALLOCATORS
    from kvsim.reports.listing import names_table

    _show(names_table(ALLOCATORS), "Your own: --allocator package.module:Class")


@app.command("check-allocator", short_help="Try an allocator on random calls, against all rules.")
def try_allocator(
    allocator: Annotated[
        str, typer.Argument(metavar="NAME", help="Your own package.module:Class, or one of: sim allocators.")
    ],
    calls: Annotated[int, typer.Option(help="Random calls on each arena, of four sizes.")] = 300,
    seed: Annotated[int, typer.Option(help="The same seed makes the same calls.")] = 0,
) -> None:
    """Try an allocator on random calls: does it keep every rule of the contract?"""
    from kvsim.allocators import contract
    from kvsim.api import check_allocator
    from kvsim.reports.listing import rules_table

    check_allocator(allocator, calls=calls, seed=seed)
    rules = [*contract.RULES, contract.same_calls_give_same_addresses]
    sizes = ", ".join(f"{slots:,}" for slots in contract.ARENAS)
    _show(rules_table(rules), f"All of them hold: {calls:,} random calls on each arena of {sizes} slots.")


@app.command()
def schedulers() -> None:
    """List the schedulers."""
    from kvsim.reports.listing import names_table, releases
    from kvsim.sim.schedulers import SCHEDULERS

    _show(names_table(SCHEDULERS), f"Releases: {', '.join(releases(SCHEDULERS))}")


traces_app = typer.Typer(cls=_Front, help="List the traces, look at one, convert it, fetch a public one.")
app.add_typer(traces_app, name="traces", short_help="List the traces; show, convert or fetch one.")

_Tokenizer = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Counts the tokens of texts: a tokenizer.json.", show_default="none"),
]
_Turns = Annotated[str, typer.Option(metavar="first|all", help="Turns of conversations that are texts.")]
_Columns = Annotated[
    str | None,
    typer.Option(
        metavar="OURS=THEIRS,...", help="What a file calls its fields.", show_default="by their usual names"
    ),
]


@traces_app.callback(invoke_without_command=True)
def traces(ctx: typer.Context) -> None:
    """List the traces, look at one, convert it, fetch a public one."""
    if ctx.invoked_subcommand is not None:
        return
    from kvsim.reports.traces import list_tables
    from kvsim.workloads.listing import listed

    _show(
        list_tables(listed()),
        "Tokens are means; CV: variation of the gaps, 1 for Poisson arrivals.\n"
        "To fetch: sim traces fetch NAME. Not verified: no checksum is known.\n"
        "Your own: --trace FILE, in any format of the page on traces.",
    )


@traces_app.command("show")
def show_trace(  # noqa: PLR0917 - typer passes them by name
    trace: Annotated[str, typer.Argument(metavar="TRACE", help="A name or a file in any format.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Draw its lengths and arrivals there.", show_default="no"),
    ] = None,
    tokenizer: _Tokenizer = None,
    turns: _Turns = "first",
    columns: _Columns = None,
    force: _Force = False,
) -> None:
    """Show a trace in numbers, and draw it."""
    from kvsim.reports.rundir.writing import write_figures
    from kvsim.reports.traces import draw, show_table
    from kvsim.workloads.statistics import QUANTILES, statistics

    lengths = _counted(trace, tokenizer, turns, columns)
    _show(show_table(lengths.name, lengths.notes, asdict(statistics(lengths)), QUANTILES))
    if out is not None:
        drawn = (lengths.prompt_tokens, lengths.output_tokens, lengths.arrival_s)
        for path in write_figures(out, lambda part: draw(part, lengths.name, *drawn), force):
            print(path)


@traces_app.command("convert")
def convert_trace(  # noqa: PLR0917 - typer passes them by name
    trace: Annotated[str, typer.Argument(metavar="IN", help="A name or a file in any format.")],
    out: Annotated[str, typer.Argument(metavar="OUT", help="Ends with .jsonl or .parquet.")],
    force: Annotated[bool, typer.Option("--force", help="Replace OUT.")] = False,
    tokenizer: _Tokenizer = None,
    turns: _Turns = "first",
    columns: _Columns = None,
) -> None:
    """Write a trace in kvsim's own format."""
    from kvsim.reports.progress import progress
    from kvsim.workloads.convert import convert
    from kvsim.workloads.tokenized import file_of

    source = file_of(trace) or trace
    texts = tokenizer is not None or turns != "first"
    at = (0, 0)

    def wrote(rows: int, total: int) -> None:
        nonlocal at
        at = (rows, total)

    with nullcontext() if texts else progress(trace, lambda: at[1], lambda: at[0], "rows"):
        read = partial(_counted, trace, tokenizer, turns, columns) if texts else None
        done = convert(source, out, force=force, columns=columns, lengths=read, done=wrote)
    for note in done.notes:
        print(note)
    print(f"{done.rows:,} requests written to {out}")


@traces_app.command("fetch")
def fetch_trace(
    name: Annotated[str, typer.Argument(metavar="NAME", help="One of those to fetch, see: sim traces.")],
) -> None:
    """Download a public trace, once, into the platform's cache."""
    from kvsim.reports.progress import progress
    from kvsim.workloads.catalogue import Bytes, fetch

    arrived = Bytes()
    with progress(name, lambda: arrived.total, lambda: arrived.done, "bytes"):
        entry, found = fetch(name, arrived)
    print(f"{entry.path}\nsha256 {found}, {'as expected' if entry.sha256 else 'not verified: none is known'}")
    print(f"{entry.licence}, {entry.source}")


@app.callback(invoke_without_command=True)
def sim(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    """Answer what is asked without a command."""
    if version:
        print(f"kvsim {__version__}")
    elif ctx.invoked_subcommand is None:
        print(ctx.get_help())


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out a command line; returns the exit code."""
    stop = Stopping()
    try:
        with stop:
            any_output()
            code = app(_completed(sys.argv[1:] if argv is None else argv), standalone_mode=False) or 0
            sys.stdout.flush()
    except _Stopped as told:
        print(told, file=sys.stderr)
        return told.code
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except Exception as error:
        return _failed(error)
    if code == 130:
        code = stop.exit_code or code
        with suppress(OSError):  # the terminal is gone
            print("interrupted; nothing was written", file=sys.stderr)
    return int(code)


# -- pieces -------------------------------------------------------------------------------------


def _completed(argv: Sequence[str]) -> list[str]:
    """The command line with the number that `--record-map` may leave out, long names made short."""
    short = {each.flag: each.about.short for each in options_of(Scenario) if each.about.short}
    return [
        f"{word}={MAP_INSTANTS}"
        if word == "--record-map" and not following.isdigit()
        else short.get(word, word)
        for word, following in zip(argv, [*argv[1:], ""], strict=True)
    ]


class _Stopped(Exception):
    """Somebody stopped a command that says itself what has become of its work."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def _given(ctx: typer.Context, free: Collection[str] = ()) -> list[str]:
    """The options of a command line, but for those that are free."""
    sources = {name: getattr(ctx.get_parameter_source(name), "name", "") for name in ctx.params}
    given = [name for name, source in sources.items() if source == "COMMANDLINE" and name not in free]
    return [f"--{name.replace('_', '-')}" for name in given]


def _repeated(ctx: typer.Context, config: Path, allow_code: bool) -> tuple[Deployment, Traffic]:
    """What an earlier config.json says; any choice beside it is a mistake, but for code that it names."""
    from kvsim.sim.plugins import NAMING

    free = {"config", "allow_code", *(field.name for group in (Output, Seeds) for field in fields(group))}
    named = {name: str(ctx.params[name]) for name in NAMING if ":" in str(ctx.params.get(name))}
    free |= named.keys()
    extra = _given(ctx, free)
    if extra:
        raise KvsimError(f"config {config} holds every choice: leave out {', '.join(extra)}")
    trusted = [name.removeprefix("trace:") for name in named.values()]
    scenario, traffic = _choices(config, None if allow_code else trusted)
    for field, name in named.items():
        if getattr(traffic, field, getattr(scenario.engine, field, None)) != name:
            raise KvsimError(f"config {config} holds every choice: leave out --{field.replace('_', '-')}")
    return scenario, traffic


def _choices(config: Path, trusted: Collection[str] | None) -> tuple[Deployment, Traffic]:
    """What a config.json says, and no code but what is trusted; None: any."""
    from kvsim.sim.reading import understood
    from kvsim.sim.run import read_config

    with understood(f"config {config}", "cannot be used"):
        text = config.read_text(encoding="utf-8")
        scenario, traffic = read_config(text, f"config {config}", trusted)
        return scenario, Traffic.from_json(traffic)


def _traced(run: "Run", steps: bool | None, allow_code: bool) -> "Traced":
    """A run with its events and its steps, recorded or carried out again; without steps if there are many."""
    from kvsim.reports.lives.event_log import event_log, read_events
    from kvsim.reports.lives.spans import lives
    from kvsim.reports.timeline.events import Traced

    log, found = read_events(run.path), run.path / "steps.parquet"
    many = (run.summary["engine"].get("steps") or 0) > MANY_STEPS
    wanted = steps or (steps is None and (found.exists() or not many))
    if wanted and not found.exists():
        again = _carried_out_again(run, "steps" if log else "events", allow_code, step_log=True)
        log, logged = event_log(again.events), again.steps
    else:
        logged = None
        if steps is None and not wanted:
            print(f"{run.label}: its steps are many, and none were recorded: see --steps", file=sys.stderr)
    if log is None:
        log = event_log(_carried_out_again(run, "events", allow_code).events)
    return Traced(run, lives(log, run.columns.requests, str(run.path)), logged or (found if wanted else None))


def _carried_out_again(run: "Run", lacking: str, allow_code: bool, step_log: bool = False) -> "Outcome":
    """The outcome of an earlier run once more, with its events; sure to be the same."""
    from kvsim.reports.lives.spans import check_same

    print(f"{run.label}: no {lacking} were recorded: repeating the run", file=sys.stderr)
    try:
        scenario, traffic = _choices(run.path / "config.json", None if allow_code else ())
        output = Output(step_log=step_log)
        source = _opened(traffic)
        simulation = output.prepare(scenario, source, source.workload(), events=True)
    except KvsimError as error:
        raise KvsimError(f"{run.path} has no {lacking}, and cannot be repeated: {error}") from error
    (outcome,) = output.carry_out([simulation])
    check_same(run, outcome.requests)
    return outcome


def _write_run(
    target: "Path | Claim | None", simulation: "Simulation", output: Output, carry_out: "CarryOut"
) -> dict[str, Any]:
    """Carry out one run and write it: returns its summary."""
    from kvsim.reports.rundir.formats import plain
    from kvsim.reports.rundir.writing import write_run

    (outcome,) = carry_out([simulation])
    if target is None:
        return plain(outcome.summary)
    return write_run(target, **vars(outcome), draw=not output.no_plots).summary.as_json()


def _write_comparison(
    target: "Path | Claim | None",
    simulations: "Sequence[Simulation]",
    source: "Source",
    output: Output,
    carry_out: "CarryOut",
) -> list[dict[str, Any]]:
    """Carry out a comparison and write it: returns the summaries."""
    from kvsim.reports.rundir.formats import plain
    from kvsim.reports.rundir.writing import write_comparison

    outcomes = carry_out(simulations)
    if target is None:
        return [plain(outcome.summary) for outcome in outcomes]
    configs = {str(outcome.summary["label"]): outcome.config for outcome in outcomes}
    written = write_comparison(
        target,
        [vars(outcome) for outcome in outcomes],
        config={"kvsim": __version__, "workload": source.as_json(), "runs": configs},
        draw=not output.no_plots,
    )
    return [run.summary.as_json() for run in written]


def _one_seed(  # noqa: PLR0917 - all but the last two are bound
    scenarios: Sequence[Deployment],
    source: "Source",
    output: Output,
    compared: bool,
    seed: int,
    target: Path | None,
) -> list[dict[str, Any]]:
    """What `run` or `compare` does with this seed; in a process of its own, so nobody watches."""
    source = source.with_seed(seed)
    workload = source.workload()
    simulations = [output.prepare(scenario, source, workload) for scenario in scenarios]

    def carry_out(simulations: "Sequence[Simulation]") -> "list[Outcome]":
        return [simulation.outcome() for simulation in simulations]

    if compared:
        return _write_comparison(target, simulations, source, output, carry_out)
    return [_write_run(target, simulations[0], output, carry_out)]


def _measured(
    out: Path | None, name: str | None, *, quick: bool, interpret: bool, fresh: bool
) -> tuple[Path, Path | None]:
    """Calibrate while somebody watches: the profile's file, and where the one that was there is kept."""
    from kvsim.kernels.calibration.calibrate import begin, finish
    from kvsim.kernels.calibration.earlier import kept_as, write_beside
    from kvsim.kernels.calibration.overview import held_by_others, left_out, overview
    from kvsim.kernels.calibration.plan import plan
    from kvsim.kernels.calibration.stopping import exit_code, terminable
    from kvsim.reports.calibration.watch import plan_report, watched
    from kvsim.sim.profile_place import new_profile

    journal = None
    try:
        with terminable():
            planned = plan(quick, interpret)
            gpu = planned.sheet.gpu if planned.sheet else None
            target = new_profile(planned.device.name, gpu, out, name, quick=quick, rehearsal=interpret)
            earlier, path = kept_as(target), target.with_name(f"{target.name}.journal")
            journal = begin(planned, path, fresh=fresh)
            facts, since = journal.head["device"], str(journal.head["date"])[:10]
            parts, held = overview(planned, journal), held_by_others(planned)
            shown = plan_report(facts, parts, left_out(planned), since, held)
            remark = f"It will be written to {target}."
            if earlier is not None:
                remark += f" The profile that is there is kept as {earlier.name}."
            _show(shown, f"{remark} Ctrl-C keeps what is measured.\n", stderr=True)
            with watched(len(planned.points)) as heard:
                profile = finish(
                    planned, journal, name=name or target.stem,
                    progress=lambda at: heard(at.part, at.done, at.left_s),
                )  # fmt: skip
            return target, write_beside(profile, target, path)
    except KeyboardInterrupt as stop:
        if journal is None:
            raise
        code = getattr(stop, "exit_code", None) or exit_code(stop)
        measured = f"{len(journal.samples):,} of {len(planned.points):,} points are measured and kept"
        raise _Stopped(f"interrupted: {measured}; the same command goes on", code) from None


def _counted(trace: str, tokenizer: str | None, turns: str, columns: str | None) -> "Lengths":
    """The trace; counting its texts, where it holds some, shows how far it is."""
    return _opened(Traffic(trace=trace, tokenizer=tokenizer, turns=turns, columns=columns)).lengths


def _opened(traffic: Traffic) -> "Source":
    """The traffic with its trace read; counting its texts, where it holds some, shows how far it is."""
    from kvsim.reports.progress import progress
    from kvsim.workloads.source import opened
    from kvsim.workloads.tokenized import file_of

    trace, tokenizer = traffic.trace, traffic.tokenizer
    path = file_of(trace) if tokenizer else None
    counted = 0

    def heard(size: int) -> None:
        nonlocal counted
        counted = size

    with progress(trace, os.path.getsize(path) if path else 0, lambda: counted, "bytes"):
        return opened(traffic, heard)


def _show(table: Any, remark: str = "", stderr: bool = False) -> None:  # noqa: ANN401 - what rich can print
    from rich.console import Console

    console = Console(highlight=False, stderr=stderr)
    console.print(table)
    if remark:
        console.print(f"\n{remark}", markup=False)


def _failed(error: Exception) -> int:
    """Tell of an exception in one line; returns the exit code."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):  # a closed pipe, a full disk: Python would try again at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):  # nobody reads any more
        return 1
    if hasattr(error, "format_message"):  # a usage error, wherever typer keeps its click
        message = error.format_message()
        error = KvsimError(f"{message[:1].lower()}{message[1:]}")
    line, code = complaint(error)
    print(line, file=sys.stderr)
    return code
