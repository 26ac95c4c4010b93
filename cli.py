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
    sim models, gpus, allocators, schedulers    what there is to choose from
    sim check-allocator, check-scheduler    does your own keep the rules?

Whatever is slow to import (numpy, pyarrow, matplotlib, rich) is imported inside the commands, so that
`sim --help` answers at once.
"""

import errno
import inspect
import os
import shlex
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from functools import cached_property, partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, get_args

import typer
from typer.core import TyperGroup

from kvsim.sim import __version__
from kvsim.sim.config import FITS, POLICIES, PREEMPTIONS, RESERVES, EngineConfig, Scenario
from kvsim.sim.errors import KvsimError

if TYPE_CHECKING:
    from kvsim.reports.rundir.run import Run
    from kvsim.reports.timeline.events import Traced
    from kvsim.sim.fleet import FleetConfig
    from kvsim.sim.run import Outcome, Simulation
    from kvsim.sim.workload import Workload
    from kvsim.workloads.lengths import Lengths

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
_arrivals = partial(typer.Option, rich_help_panel="Arrivals")
_engine = partial(typer.Option, rich_help_panel="Engine")
_memory = partial(typer.Option, rich_help_panel="Memory")
_hardware = partial(typer.Option, rich_help_panel="Model and GPU")
_fleet = partial(typer.Option, rich_help_panel="Fleet")
_output = partial(typer.Option, rich_help_panel="Output")


# -- options that commands share ----------------------------------------------------------------


@dataclass(frozen=True)
class Traffic:
    """What arrives, and when."""

    trace: Annotated[
        str, _workload(metavar="NAME|FILE", help="The requests, see: sim traces; or a JSONL or parquet file.")
    ] = "sharegpt"
    num_prompts: Annotated[
        int | None,
        _workload(help="How many; beyond the trace's own, drawn from it.", show_default="1000; all of FILE"),
    ] = None
    shuffle: Annotated[
        bool, _workload("--shuffle", help="Any rows of the trace, drawn by the seed, not the first.")
    ] = False
    tokenizer: Annotated[
        str | None,
        _workload(
            metavar="FILE",
            help="Counts the tokens of a trace of texts: a tokenizer.json.",
            show_default="none",
        ),
    ] = None
    turns: Annotated[str, _workload(metavar="first|all", help="Which turns of a trace of texts.")] = "first"
    start: Annotated[
        float, _workload(metavar="S", help="Only what arrives from this second of the trace on.")
    ] = 0.0
    duration: Annotated[
        float | None,
        _workload(metavar="S", help="Only so many seconds of the trace.", show_default="to its end"),
    ] = None
    input_len: Annotated[
        str | None,
        _workload(
            metavar="DIST",
            help="Prompts: TOKENS, uniform:LOW:HIGH, lognormal:MEAN:SIGMA, zipf:ALPHA:MAX, trace:NAME.",
            show_default="the trace's; synthetic: 1024",
        ),
    ] = None
    output_len: Annotated[
        str | None,
        _workload(metavar="DIST", help="Answers likewise.", show_default="the trace's; synthetic: 128"),
    ] = None
    shared_prefix: Annotated[
        str | None,
        _workload(
            metavar="GxT",
            help="One of G system prompts of T tokens before each prompt; GxT:ALPHA: zipf.",
            show_default="none",
        ),
    ] = None
    n: Annotated[int, _workload(help="Answers to each prompt, where the trace does not say.")] = 1
    beam_width: Annotated[int, _workload(help="Candidates of a beam search (vllm-v0); 1: none.")] = 1
    beam_process: Annotated[
        str, _workload(metavar="NAME:X", help="How the candidates that survive are drawn.")
    ] = "replace:0.1"
    seed: Annotated[int, _workload(help="The same seed gives the same bytes.")] = 0
    arrivals: Annotated[
        str | None,
        _arrivals(
            metavar="NAME",
            help="poisson, gamma, onoff:ON_S:OFF_S, diurnal:PERIOD_S:PEAK_TO_MEAN, trace, trace:FILE.",
            show_default="the trace's own, else gamma",
        ),
    ] = None
    request_rate: Annotated[
        float | None,
        _arrivals(help="Requests per second; inf: all at once.", show_default="2.0, or FILE's own arrivals"),
    ] = None
    burstiness: Annotated[
        float | None,
        _arrivals(help="1: Poisson arrivals; less: in bursts; more: regular.", show_default="1.0"),
    ] = None
    rate_scale: Annotated[
        float, _arrivals(metavar="X", help="Divide the trace's own arrival times by X.")
    ] = 1.0
    spread: Annotated[
        float, _arrivals(metavar="S", help="Spread arrivals of one rounded time over the next S seconds.")
    ] = 0.0
    clients: Annotated[
        int | None,
        _arrivals(
            metavar="N",
            help="N clients instead, each asking when it has its answer.",
            show_default="none: open arrivals",
        ),
    ] = None
    think_time: Annotated[
        str | None,
        _arrivals(
            metavar="S",
            help="Seconds from an answer to the next request, or exponential:MEAN_S.",
            show_default="0",
        ),
    ] = None
    closed_sessions: Annotated[
        bool, _arrivals("--closed-sessions", help="A turn of a session waits for the answer before it.")
    ] = False

    @classmethod
    def from_json(cls, options: Mapping[str, Any]) -> Self:
        """The inverse of `as_json`."""
        given = {}
        for field in fields(cls):
            value, declared = options[field.name], get_args(field.type)[0]
            kind = (get_args(declared) or (declared,))[0]
            given[field.name] = None if value is None and field.default is None else kind(value)
        return cls(**given)

    def as_json(self) -> dict[str, object]:
        """The options in JSON's types, which have no infinity; what was left open is named."""
        named = self._named()
        rate = named["request_rate"]
        return named | {"request_rate": rate if rate is None or isfinite(rate) else str(rate)}

    @property
    def name(self) -> str:
        """The trace's name, fit for a directory's."""
        return self._lengths.name

    def with_seed(self, seed: int) -> Self:
        """The same with another seed; a trace that was read is not read again."""
        other = replace(self, seed=seed)
        if "_lengths" in vars(self):
            vars(other)["_lengths"] = self._lengths
        return other

    def build(self) -> "Workload":
        """The requests."""
        from kvsim import workloads

        given = self._named() | {"trace": self._lengths}
        return workloads.build(**{name: given[name] for name in given if name not in ("tokenizer", "turns")})

    def _named(self) -> dict[str, Any]:
        """All options, also those that were left open; None where there is nothing to choose."""
        from kvsim import workloads

        given = asdict(self)
        usual = workloads.usual(self._lengths, given)
        return {name: usual.get(name) if value is None else value for name, value in given.items()}

    @cached_property
    def _lengths(self) -> "Lengths":
        """The trace, read once."""
        return _counted(self.trace, self.tokenizer, self.turns)


@dataclass(frozen=True)
class Server:
    """The engine and what it runs on."""

    scheduler: Annotated[
        str | None,
        _engine(
            help="See: sim schedulers; a release as in vllm-v1@0.11.0.",
            show_default="vllm-v1 for paged and radix, else orca",
        ),
    ] = None
    max_num_seqs: Annotated[
        int | None, _engine(help="Most requests computed at once.", show_default="256")
    ] = None
    max_num_batched_tokens: Annotated[
        int | None,
        _engine(help="Most tokens in a step; prompts are split to fit.", show_default="2048"),
    ] = None
    enable_chunked_prefill: Annotated[bool | None, _engine(hidden=True)] = None
    max_model_len: Annotated[
        int | None, _engine(help="Most tokens of a request.", show_default="the model's maximum")
    ] = None
    policy: Annotated[
        str,
        _engine(
            metavar="|".join(POLICIES), help="Who is next: the first to come, by priority, the shortest."
        ),
    ] = EngineConfig.policy
    watermark: Annotated[
        float | None,
        _engine(
            help="Share of the memory that an admission leaves free (vLLM).", show_default="0; vllm-v0: 0.01"
        ),
    ] = None
    enable_prefix_caching: Annotated[
        bool | None,
        _engine(
            "--enable-prefix-caching",
            help="Share and keep what prompts have in common (vLLM; nano-vllm: always).",
            show_default="no",
        ),
    ] = None
    no_enable_prefix_caching: Annotated[bool, _engine("--no-enable-prefix-caching", hidden=True)] = False
    async_scheduling: Annotated[
        bool | None,
        _engine(
            "--async-scheduling",
            help="Decide a step before the last one has ended (vllm-v1; --no-...: not).",
            show_default="vllm-v1: yes",
        ),
    ] = EngineConfig.async_scheduling
    no_async_scheduling: Annotated[bool, _engine("--no-async-scheduling", hidden=True)] = False
    enforce_eager: Annotated[
        bool, _engine("--enforce-eager", help="Launch all kernels without CUDA graphs (--cost calibrated).")
    ] = EngineConfig.enforce_eager
    preemption: Annotated[
        str | None,
        _engine(
            metavar="|".join(PREEMPTIONS),
            help="What becomes of evicted requests; swap: vllm-v0.",
            show_default="the engine's",
        ),
    ] = None
    num_cpu_blocks: Annotated[
        int | None,
        _engine(help="Blocks of host memory for swapped requests (vllm-v0).", show_default="4 GiB"),
    ] = None
    reserve_full_prompt: Annotated[bool | None, _engine(hidden=True)] = EngineConfig.reserve_full_prompt
    disable_hybrid_kv_cache_manager: Annotated[
        bool,
        _memory(
            "--disable-hybrid-kv-cache-manager",
            help="Keep all tokens in windowed layers where other layers do (vLLM).",
            hidden=True,  # its name is too long for 80 columns
        ),
    ] = EngineConfig.disable_hybrid_kv_cache_manager
    block_size: Annotated[int | None, _memory(help="Tokens of a KV block.", show_default="16")] = None
    reserve: Annotated[
        str | None,
        _memory(
            metavar="|".join(RESERVES),
            help="What those that reserve set aside: the maximum, a power of two, the exact length.",
            show_default="max",
        ),
    ] = None
    fit: Annotated[
        str, _memory(metavar="|".join(FITS), help="The hole that a contiguous reservation takes.")
    ] = EngineConfig.fit
    gpu_memory_utilization: Annotated[float, _memory(help="Share of the GPU's memory to use.")] = (
        Scenario.gpu_memory_utilization
    )
    num_gpu_blocks: Annotated[
        int | None, _memory(help="KV memory in blocks, as engines print it.", show_default="computed")
    ] = None
    kv_tokens: Annotated[
        int | None, _memory(help="KV memory in tokens instead.", show_default="computed")
    ] = None
    kv_cache_dtype: Annotated[
        str, _memory(metavar="auto|fp8|bf16|...", help="Type of a cached number; auto: the model's.")
    ] = Scenario.kv_cache_dtype
    model: Annotated[str, _hardware(help="See: sim models; or a Hugging Face config.json.")] = "opt-13b"
    gpu: Annotated[str, _hardware(metavar="NAME|FILE", help="See: sim gpus; or a profile's file.")] = (
        "a100-40gb"
    )
    tensor_parallel_size: Annotated[int, _hardware(help="GPUs that share every layer.")] = 1
    cost: Annotated[
        str | None,
        _hardware(
            metavar="NAME",
            help="Time of a step: calibrated, roofline, constant:SECONDS, a100-40gb-sosp23.",
            show_default="calibrated if the GPU was, else roofline",
        ),
    ] = None

    def scenario(self) -> Scenario:
        """The scenario, its allocator yet to be chosen."""
        from kvsim.sim.build import engine_defaults
        from kvsim.sim.catalog import model_named
        from kvsim.sim.profile_files import gpu_and_cost

        given = {name: value for name, value in asdict(self).items() if value is not None}
        if self.no_enable_prefix_caching:
            if self.enable_prefix_caching:
                raise KvsimError("enable_prefix_caching must be either on or off, got both")
            given["enable_prefix_caching"] = False
        if self.no_async_scheduling:
            if self.async_scheduling:
                raise KvsimError("async_scheduling must be either on or off, got both")
            given["async_scheduling"] = False
        model = model_named(self.model)
        longest = self.max_model_len or model.max_model_len
        settings = {**engine_defaults(self.scheduler, longest), **given}
        engine = EngineConfig(
            **{f.name: settings[f.name] for f in fields(EngineConfig) if f.name in settings}
        )
        gpu, cost, profile = gpu_and_cost(self.gpu, self.cost)
        specs = {"model": model, "gpu": gpu, "engine": engine, "cost": cost, "profile": profile}
        return Scenario(**{f.name: given[f.name] for f in fields(Scenario) if f.name in given} | specs)


@dataclass(frozen=True)
class Fleet:
    """How many servers there are."""

    replicas: Annotated[int, _fleet(metavar="N", help="Equal servers on one clock.")] = 1
    router: Annotated[
        str,
        _fleet(
            metavar="NAME",
            help="Spreads requests: round-robin, random, least-requests[:N], least-kv, prefix, mine:Mine.",
        ),
    ] = "round-robin"
    sticky: Annotated[bool, _fleet("--sticky", help="A session stays on its first replica.")] = False

    def config(self, seed: int) -> "FleetConfig":
        """The same for a run with this seed."""
        from kvsim.sim.fleet import FleetConfig

        return FleetConfig(replicas=self.replicas, router=self.router, sticky=self.sticky, seed=seed)


@dataclass(frozen=True)
class Output:
    """Where the results go."""

    out: Annotated[
        Path | None,
        _output(metavar="DIR", help="Directory for the results.", show_default="a new one in runs/"),
    ] = None
    force: Annotated[bool, _output("--force", help="Replace an earlier run in that directory.")] = False
    json: Annotated[bool, _output("--json", help="Print the summary as JSON, and nothing else.")] = False
    quiet: Annotated[bool, _output("--quiet", "-q", help="Print nothing.")] = False
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
    step_mode: Annotated[bool, _output("--step-mode", help="One event per step: slow.", hidden=True)] = False

    def prepare(
        self,
        scenario: Scenario,
        traffic: Traffic,
        workload: "Workload",
        fleet: "FleetConfig",
        events: bool = False,
    ) -> "Simulation":
        """The simulation, in the mode asked for; with its events, or where a map is asked for."""
        from kvsim.sim.run import prepare

        if self.record_map is not None and self.record_map < 1:
            raise KvsimError(f"record_map must be at least 1 instant, got {self.record_map}")
        if self.live and fleet.replicas > 1:
            raise KvsimError(f"live must be left out with replicas {fleet.replicas}: it shows one server")
        return prepare(
            scenario,
            workload,
            traffic.as_json(),
            step_log=self.step_log,
            step_mode=self.step_mode,
            events=events or self.record_map is not None,
            map_instants=self.record_map or 0,
            fleet=fleet,
        )

    def target(self, name: str) -> Path:
        """The directory asked for, else the first free one in `runs`; sure to take the results."""
        from kvsim.reports.rundir.whole import check_target

        target = self.out or Path("runs", name)
        number = 1
        while self.out is None and not self.force and os.path.lexists(target):
            number += 1
            target = Path("runs", f"{name}-{number}")
        check_target(target, self.force)
        return target

    def carry_out(self, simulations: "Sequence[Simulation]") -> "list[Outcome]":
        """Run them, one after the other, while somebody may watch."""
        outcomes: list[Outcome] = []
        show = self._show()
        for simulation in simulations:
            with show(simulation, outcomes, len(simulations)):
                outcomes.append(simulation.outcome())
        return outcomes

    def _show(self) -> "Callable[[Simulation, list[Outcome], int], AbstractContextManager[None]]":
        """What is seen of a run: a dashboard, or a progress bar where it takes long."""
        if self.live and not (self.quiet or self.json):
            from kvsim.reports import live

            if live.can_show():
                return live.of_several
            print("--live needs a terminal that can be drawn on: running without it", file=sys.stderr)
        from kvsim.reports.progress import progress

        return lambda simulation, *_: progress(
            simulation.label, len(simulation.engine.workload), simulation.done
        )

    def report(self, found: Any, table: Callable[[Any], Any], directory: Path) -> None:  # noqa: ANN401 - JSON
        """Print what was found: as JSON; as a table and where it lies; or not at all."""
        if self.json:
            import json

            print(json.dumps(found, indent=2, ensure_ascii=False))
        elif not self.quiet:
            from rich.console import Console

            console = Console(highlight=False)
            console.print(table(found))
            console.print(f"\nwritten to {directory}", markup=False, soft_wrap=True)


def _flat(command: Callable[..., None]) -> Callable[..., None]:
    """The command with every parameter that is a dataclass replaced by its fields, as options."""
    parameters = inspect.signature(command).parameters
    groups = {name: p.annotation for name, p in parameters.items() if is_dataclass(p.annotation)}

    def flat(**values: Any) -> None:  # noqa: ANN401 - whatever the options hold
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    keyword = inspect.Parameter.KEYWORD_ONLY
    options: list[inspect.Parameter] = []
    for name, parameter in parameters.items():
        options += [
            inspect.Parameter(field.name, keyword, default=field.default, annotation=field.type)
            for field in (fields(groups[name]) if name in groups else ())
        ] or [parameter.replace(kind=keyword)]
    flat.__name__, flat.__doc__ = command.__name__, command.__doc__
    flat.__annotations__ = {option.name: option.annotation for option in options}
    flat.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    return flat


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
        self,
        scenarios: Sequence[Scenario],
        traffic: Traffic,
        output: Output,
        fleet: "Callable[[int], FleetConfig]",
        compared: bool,
    ) -> None:
        """Carry all out, write a directory with one per seed, and report them together."""
        from kvsim.reports.seeds.runs import carry_out_seeds, summary_of
        from kvsim.reports.seeds.tables import seeds_table
        from kvsim.sim.run import label, resolved

        if output.live:
            raise KvsimError(f"live must be left out with seeds {self.seeds}, which run side by side")
        seeds = range(traffic.seed, traffic.seed + self.seeds)
        name = "compare" if compared else label(resolved(scenarios[0]).engine)
        target = output.target(f"{traffic.name}-{name}-{self.seeds}-seeds")
        runs = carry_out_seeds(
            target,
            partial(_one_seed, scenarios, traffic, replace(output, force=False), fleet, compared),
            seeds,
            label=name,
            config={"kvsim": __version__, "workload": traffic.as_json()},
            jobs=(os.cpu_count() or 1) if self.jobs is None else self.jobs,
            draw=not output.no_plots,
            force=output.force,
        )
        found = summary_of(seeds, runs) if output.json else runs
        output.report(found, partial(seeds_table, compared=compared), target)


@app.command(short_help="Simulate one server: its KV memory, its speed.")
@_flat
def run(  # noqa: PLR0917 - typer passes them by name
    ctx: typer.Context,
    traffic: Traffic,
    seeds: Seeds = Seeds(),
    allocator: Annotated[
        str, _engine(metavar="NAME", help="See: sim allocators; or your own package.module:Class.")
    ] = "paged",
    server: Server = Server(),
    fleet: Fleet = Fleet(),
    output: Output = Output(),
    config: Annotated[
        Path | None,
        _output(metavar="FILE", help="Repeat the run of this config.json, with no other choices."),
    ] = None,
) -> None:
    """Simulate one server: where its KV memory goes, how fast it is."""
    from kvsim.reports.terminal import run_table
    from kvsim.sim.run import with_allocator

    if config is None:
        scenario = with_allocator(server.scenario(), allocator)
    else:
        scenario, traffic, fleet = _repeated(ctx, config)
    if seeds.several:
        seeds.carry_out([scenario], traffic, output, fleet.config, compared=False)
        return
    simulation = output.prepare(scenario, traffic, traffic.build(), fleet.config(traffic.seed))
    target = output.target(f"{traffic.name}-{simulation.label}")
    summary = _write_run(target, simulation, output, output.carry_out)
    output.report(summary, run_table, target)


@app.command()
@_flat
def compare(  # noqa: PLR0917 - typer passes them by name
    traffic: Traffic,
    seeds: Seeds = Seeds(),
    allocator: Annotated[
        str,
        _engine(
            metavar="NAME,...",
            help="See: sim allocators; each may name its reserve, as in buddy:pow2.",
            show_default="contiguous, buddy:pow2, buddy:oracle, paged",
        ),
    ] = "contiguous,buddy:pow2,buddy:oracle,paged",
    server: Server = Server(),
    fleet: Fleet = Fleet(),
    output: Output = Output(),
) -> None:
    """Simulate several allocators under the same workload."""
    from kvsim.reports.terminal import compare_table
    from kvsim.sim.run import side_by_side

    scenarios = side_by_side(server.scenario(), allocator.split(","))
    if seeds.several:
        seeds.carry_out(scenarios, traffic, output, fleet.config, compared=True)
        return
    workload, servers = traffic.build(), fleet.config(traffic.seed)
    simulations = [output.prepare(scenario, traffic, workload, servers) for scenario in scenarios]
    target = output.target(f"{traffic.name}-compare")
    summaries = _write_comparison(target, simulations, traffic, output, output.carry_out)
    output.report(summaries, compare_table, target)


_Format = Annotated[
    str | None,
    typer.Option("--format", metavar="png|svg|pdf", help="Kind of picture.", show_default="png; paper: pdf"),
]
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
        out or directories[0], lambda part: draw(runs, part, fmt, names=names, choices=choices)
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
) -> None:
    """Make one HTML page of runs, with the memory map: works offline."""
    from kvsim.reports.html.report import write_report

    print(write_report(directories, out or directories[0] / "report.html"))


@app.command(short_help="Tell the life of one request: why it waited.")
def explain(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run, or a comparison.")],
    request: Annotated[
        str, typer.Argument(metavar="REQUEST", help="Its number, or slowest, median, most-preempted.")
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the same as JSON, and nothing else.")
    ] = False,
) -> None:
    """Tell the life of one request: what happened when, and why it waited."""
    from kvsim.reports.lives.event_log import event_log, read_events
    from kvsim.reports.lives.spans import lives
    from kvsim.reports.lives.story import chosen, story
    from kvsim.reports.rundir.run import read_runs

    runs = read_runs(run)
    number, how = chosen(runs, request)
    stories = []
    for each in runs:
        log = read_events(each.path)
        if log is None:
            log = event_log(_carried_out_again(each, "events").events)
        stories.append(story(each, lives(log, each.requests, str(each.path)), number, how))
    if as_json:
        import json

        found = [each.as_json() for each in stories]
        print(json.dumps(found if len(found) > 1 else found[0], indent=2, ensure_ascii=False))
    else:
        from kvsim.reports.lives.view import stories_view, story_view

        _show(stories_view(stories) if len(stories) > 1 else story_view(stories[0]))


@app.command("trace-events")
def trace_events(
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
) -> None:
    """Write a timeline for Perfetto or chrome://tracing."""
    from kvsim.reports.rundir.run import read_runs
    from kvsim.reports.timeline.events import chosen_requests, write_trace

    first, last = chosen_requests(requests)
    target = run / "trace-events.json" if out is None else out
    traced = [_traced(each, steps) for each in read_runs(run)]
    written = write_trace(traced, target, first, last)
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
    target = Output(out=out, force=force).target(paper)
    try:
        findings = running.carry_out_all(
            found,
            figures,
            workloads.build,
            quick=quick,
            jobs=(os.cpu_count() or 1) if jobs is None else jobs,
            store=cache_directory(),
        )
    except KeyboardInterrupt:
        kept = "the simulations that are done are kept"
        raise _Stopped(f"interrupted: {kept}; the same command goes on", 130) from None
    results = [checks.judged(found, each, findings) for each in figures]
    report.write_report(target, found, findings, results, quick=quick, force=force)
    console = Console(highlight=False)
    console.print(terminal.figure_tables(results))
    if quick:
        console.print(f"\nQuick: {terminal.less(results)}. These verdicts are no verdicts.")
    console.print(
        f"\n{findings.runs:,} simulations, {findings.cpu_s:,.0f} CPU s; spent now: "
        f"{findings.spent_cpu_s:,.0f} CPU s\nwritten to {target}",
        markup=False,
        soft_wrap=True,
    )


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
def show_profile(
    profile: Annotated[str, typer.Argument(metavar="PROFILE", help="A name, see: sim gpus; or a file.")],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the picture goes.", show_default="here")
    ] = None,
    fmt: _Format = None,
    style: _Style = "screen",
    no_plots: Annotated[bool, typer.Option("--no-plots", help="Draw no picture.")] = False,
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
        out or Path(), lambda part: draw_calibration(found, part / f"calibration-{stem}.{ending}", look)
    ):
        print(path)


@app.command()
def models() -> None:
    """List the built-in models."""
    from kvsim.reports.listing import models_table

    _show(
        models_table(),
        "Layers with w see a sliding window; MLA caches one latent for all heads.\n"
        "Any other: --model path/to/config.json, as Hugging Face writes it.",
    )


@app.command(short_help="List the GPUs, and measured profiles.")
def gpus() -> None:
    """List the GPUs: datasheets of those built in, and measured profiles."""
    from kvsim.reports.listing import gpus_table, profiles_table
    from kvsim.sim.cost_profile import profile_names
    from kvsim.sim.profile_files import directory, profile_files

    _show(gpus_table(), "Analytic: datasheet values, dense 16 bit, one direction; nothing is measured.")
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
def check_allocator(
    allocator: Annotated[
        str, typer.Argument(metavar="NAME", help="Your own package.module:Class, or one of: sim allocators.")
    ],
    calls: Annotated[int, typer.Option(help="Random calls on each arena, of four sizes.")] = 300,
    seed: Annotated[int, typer.Option(help="The same seed makes the same calls.")] = 0,
) -> None:
    """Try an allocator on random calls: does it keep every rule of the contract?"""
    from kvsim.allocators import contract
    from kvsim.allocators.base import InvariantError
    from kvsim.allocators.options import Options
    from kvsim.reports.listing import rules_table
    from kvsim.sim.build import allocator_class

    if calls < 1:
        raise KvsimError(f"calls must be at least 1, got {calls}")
    build = partial(allocator_class(allocator).from_options, options=Options())
    arenas, refused = [], ""
    for slots in contract.ARENAS:
        try:
            build(slots)
            arenas.append(slots)
        except (TypeError, ValueError) as error:  # some are too small for large blocks
            refused = str(error)
    if not arenas:
        raise KvsimError(f"allocator {allocator} cannot be built: {refused}")
    try:
        contract.check_allocator(build, seed, arenas, calls)
    except InvariantError as error:
        raise KvsimError(f"allocator {allocator} breaks a rule: {error}") from error
    rules = [*contract.RULES, contract.same_calls_give_same_addresses]
    sizes = ", ".join(f"{slots:,}" for slots in arenas)
    _show(rules_table(rules), f"All of them hold: {calls:,} random calls on each arena of {sizes} slots.")


@app.command("check-scheduler", short_help="Try a scheduler on random work, against all rules.")
def check_scheduler(
    scheduler: Annotated[
        str, typer.Argument(metavar="NAME", help="Your own package.module:Class, or one of: sim schedulers.")
    ],
    workloads: Annotated[int, typer.Option(help="Random workloads, each served twice.")] = 40,
    seed: Annotated[int, typer.Option(help="The same seed draws the same workloads.")] = 0,
) -> None:
    """Try a scheduler on random work: does it keep every rule of the contract?"""
    from kvsim.reports.checked import check_scheduler_named

    _show(*check_scheduler_named(scheduler, seed, workloads))


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
def show_trace(
    trace: Annotated[str, typer.Argument(metavar="TRACE", help="A name or a file in any format.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Draw its lengths and arrivals there.", show_default="no"),
    ] = None,
    tokenizer: _Tokenizer = None,
    turns: _Turns = "first",
) -> None:
    """Show a trace in numbers, and draw it."""
    from kvsim.reports.traces import draw, show_table
    from kvsim.workloads.statistics import QUANTILES, statistics

    lengths = _counted(trace, tokenizer, turns)
    _show(show_table(lengths.name, lengths.notes, asdict(statistics(lengths)), QUANTILES))
    if out is not None:
        columns = (lengths.prompt_tokens, lengths.output_tokens, lengths.arrival_s)
        for path in draw(out, lengths.name, *columns):
            print(path)


@traces_app.command("convert")
def convert_trace(
    trace: Annotated[str, typer.Argument(metavar="IN", help="A name or a file in any format.")],
    out: Annotated[str, typer.Argument(metavar="OUT", help="Ends with .jsonl or .parquet.")],
    force: Annotated[bool, typer.Option("--force", help="Replace OUT.")] = False,
    tokenizer: _Tokenizer = None,
    turns: _Turns = "first",
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
        read = partial(_counted, trace, tokenizer, turns) if texts else None
        done = convert(source, out, force=force, lengths=read, done=wrote)
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
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)  # for the user's own allocators
    try:
        code = app(_completed(sys.argv[1:] if argv is None else argv), standalone_mode=False) or 0
        sys.stdout.flush()
    except KvsimError as error:
        return _failed(str(error))
    except _Stopped as stop:
        print(stop, file=sys.stderr)
        return stop.code
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except OSError as error:
        return _output_failed(error)
    except MemoryError as error:
        return _failed(f"not enough memory: {error}")
    except Exception as error:
        if not hasattr(error, "format_message"):  # a usage error, wherever typer keeps its click
            raise
        message = error.format_message()
        return _failed(f"{message[:1].lower()}{message[1:]}")
    if code == 130:
        print("interrupted; nothing was written", file=sys.stderr)
    return int(code)


# -- pieces -------------------------------------------------------------------------------------


def _completed(argv: Sequence[str]) -> list[str]:
    """The command line, with the number that `--record-map` may leave out."""
    return [
        f"{word}={MAP_INSTANTS}" if word == "--record-map" and not following.isdigit() else word
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


def _repeated(ctx: typer.Context, config: Path) -> tuple[Scenario, Traffic, Fleet]:
    """What an earlier config.json says; any choice beside it is a mistake."""
    free = {"config", *(field.name for group in (Output, Seeds) for field in fields(group))}
    extra = _given(ctx, free)
    if extra:
        raise KvsimError(f"config {config} holds every choice: leave out {', '.join(extra)}")
    return _choices(config)


def _choices(config: Path) -> tuple[Scenario, Traffic, Fleet]:
    """What a config.json says."""
    from kvsim.sim.run import read_config, read_fleet

    try:
        text = config.read_text(encoding="utf-8")
        (scenario, traffic), fleet = read_config(text), read_fleet(text)
        servers = Fleet(replicas=fleet.replicas, router=fleet.router, sticky=fleet.sticky)
        return scenario, Traffic.from_json(traffic), servers
    except OSError as error:
        raise KvsimError(f"config {config} cannot be read: {error.strerror}") from error
    except KeyError as error:
        raise KvsimError(f"config {config} cannot be used: it lacks {error}") from error
    except (TypeError, ValueError) as error:
        raise KvsimError(f"config {config} cannot be used: {error}") from error


def _traced(run: "Run", steps: bool | None) -> "Traced":
    """A run with its events and its steps, recorded or carried out again; without steps if there are many."""
    from kvsim.reports.lives.event_log import event_log, read_events
    from kvsim.reports.lives.spans import lives
    from kvsim.reports.timeline.events import Traced

    log, found = read_events(run.path), run.path / "steps.parquet"
    many = (run.summary["engine"].get("steps") or 0) > MANY_STEPS
    wanted = steps or (steps is None and (found.exists() or not many))
    if wanted and not found.exists():
        again = _carried_out_again(run, "steps" if log else "events", step_log=True)
        log, logged = event_log(again.events), again.steps
    else:
        logged = None
        if steps is None and not wanted:
            print(f"{run.label}: its steps are many, and none were recorded: see --steps", file=sys.stderr)
    if log is None:
        log = event_log(_carried_out_again(run, "events").events)
    return Traced(run, lives(log, run.requests, str(run.path)), logged or (found if wanted else None))


def _carried_out_again(run: "Run", lacking: str, step_log: bool = False) -> "Outcome":
    """The outcome of an earlier run once more, with its events; sure to be the same."""
    from kvsim.reports.lives.spans import check_same

    print(f"{run.label}: no {lacking} were recorded: repeating the run", file=sys.stderr)
    try:
        scenario, traffic, fleet = _choices(run.path / "config.json")
        output = Output(step_log=step_log)
        simulation = output.prepare(scenario, traffic, traffic.build(), fleet.config(traffic.seed), True)
    except KvsimError as error:
        raise KvsimError(f"{run.path} has no {lacking}, and cannot be repeated: {error}") from error
    (outcome,) = output.carry_out([simulation])
    check_same(run, outcome.requests)
    return outcome


def _write_run(
    target: Path, simulation: "Simulation", output: Output, carry_out: "CarryOut"
) -> dict[str, Any]:
    """Carry out one run and write it: returns its summary."""
    from kvsim.reports.rundir.writing import write_run

    (outcome,) = carry_out([simulation])
    return write_run(target, **vars(outcome), draw=not output.no_plots, force=output.force).summary


def _write_comparison(
    target: Path, simulations: "Sequence[Simulation]", traffic: Traffic, output: Output, carry_out: "CarryOut"
) -> list[dict[str, Any]]:
    """Carry out a comparison and write it: returns the summaries."""
    from kvsim.reports.rundir.writing import write_comparison

    outcomes = carry_out(simulations)
    configs = {str(outcome.summary["label"]): outcome.config for outcome in outcomes}
    written = write_comparison(
        target,
        [vars(outcome) for outcome in outcomes],
        config={"kvsim": __version__, "workload": traffic.as_json(), "runs": configs},
        draw=not output.no_plots,
        force=output.force,
    )
    return [run.summary for run in written]


def _one_seed(  # noqa: PLR0917 - all but the last two are bound
    scenarios: Sequence[Scenario],
    traffic: Traffic,
    output: Output,
    fleet: "Callable[[int], FleetConfig]",
    compared: bool,
    seed: int,
    target: Path,
) -> list[dict[str, Any]]:
    """What `run` or `compare` does with this seed; in a process of its own, so nobody watches."""
    traffic = traffic.with_seed(seed)
    workload = traffic.build()
    simulations = [output.prepare(scenario, traffic, workload, fleet(seed)) for scenario in scenarios]

    def carry_out(simulations: "Sequence[Simulation]") -> "list[Outcome]":
        return [simulation.outcome() for simulation in simulations]

    if compared:
        return _write_comparison(target, simulations, traffic, output, carry_out)
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
        measured = f"{len(journal.samples):,} of {len(planned.points):,} points are measured and kept"
        raise _Stopped(f"interrupted: {measured}; the same command goes on", exit_code(stop)) from None


def _counted(trace: str, tokenizer: str | None, turns: str) -> "Lengths":
    """The trace; counting its texts, where it holds some, shows how far it is."""
    from kvsim.reports.progress import progress
    from kvsim.workloads.tokenized import file_of, load_counted

    path = file_of(trace) if tokenizer else None
    counted = 0

    def heard(size: int) -> None:
        nonlocal counted
        counted = size

    with progress(trace, os.path.getsize(path) if path else 0, lambda: counted, "bytes"):
        return load_counted(trace, tokenizer, turns, heard)


def _show(table: Any, remark: str = "", stderr: bool = False) -> None:  # noqa: ANN401 - what rich can print
    from rich.console import Console

    console = Console(highlight=False, stderr=stderr)
    console.print(table)
    if remark:
        console.print(f"\n{remark}", markup=False)


def _failed(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 2


def _output_failed(error: OSError) -> int:
    """Standard output is closed (a pipe that nobody reads any more) or its disk is full."""
    if error.errno not in (errno.EPIPE, errno.ENOSPC):
        raise error
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python tries again at its end
    return 1 if error.errno == errno.EPIPE else _failed("cannot write the output: the disk is full")
