"""The command `sim`: flags become one call and one report, mistakes one line and exit code 2.

    sim run        one server under one workload -> tables, figures, a run directory
    sim compare    the same workload under several allocators, side by side
    sim plot       the figures again, from run directories
    sim models, gpus, allocators, schedulers, traces    what there is to choose from

Whatever is slow to import (numpy, pyarrow, matplotlib, rich) is imported inside the commands, so that
`sim --help` answers at once.
"""

import errno
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer
from typer.core import TyperGroup

from sim import __version__
from sim.config import FITS, RESERVES, EngineConfig, Scenario
from sim.errors import KvsimError

if TYPE_CHECKING:
    from sim.run import Outcome, Simulation
    from sim.workload import Workload


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

_workload = partial(typer.Option, rich_help_panel="Workload")
_engine = partial(typer.Option, rich_help_panel="Engine")
_memory = partial(typer.Option, rich_help_panel="Memory")
_hardware = partial(typer.Option, rich_help_panel="Model and GPU")
_output = partial(typer.Option, rich_help_panel="Output")


# -- options that commands share ----------------------------------------------------------------


@dataclass(frozen=True)
class Traffic:
    """What arrives, and when."""

    trace: Annotated[str, _workload(help="Lengths of the requests, see: sim traces.")] = "sharegpt"
    num_prompts: Annotated[int, _workload(help="How many; beyond the trace's own, drawn from it.")] = 1000
    request_rate: Annotated[float, _workload(help="Requests per second; inf: all at once.")] = 2.0
    burstiness: Annotated[float, _workload(help="1: Poisson arrivals; less: in bursts; more: regular.")] = 1.0
    seed: Annotated[int, _workload(help="The same seed gives the same bytes.")] = 0

    @classmethod
    def from_json(cls, options: Mapping[str, Any]) -> Self:
        """The inverse of `as_json`."""
        return cls(**{field.name: type(field.default)(options[field.name]) for field in fields(cls)})

    def as_json(self) -> dict[str, object]:
        """The options in JSON's types, which have no infinity."""
        rate = self.request_rate
        return asdict(self) | {"request_rate": rate if isfinite(rate) else str(rate)}

    def build(self) -> "Workload":
        """The requests."""
        import workloads

        return workloads.build(**asdict(self))


@dataclass(frozen=True)
class Server:
    """The engine and what it runs on."""

    scheduler: Annotated[
        str | None,
        _engine(
            help="See: sim schedulers; a release as in vllm-v1@0.11.0.",
            show_default="vllm-v1 for paged, else orca",
        ),
    ] = None
    max_num_seqs: Annotated[int, _engine(help="Most requests computed at once.")] = EngineConfig.max_num_seqs
    max_num_batched_tokens: Annotated[
        int,
        _engine(help="Most tokens in a step; prompts are split to fit (--no-enable-chunked-prefill: not)."),
    ] = EngineConfig.max_num_batched_tokens
    enable_chunked_prefill: Annotated[bool, _engine(hidden=True)] = EngineConfig.enable_chunked_prefill
    max_model_len: Annotated[
        int | None, _engine(help="Most tokens of a request.", show_default="the model's maximum")
    ] = None
    watermark: Annotated[
        float, _engine(help="Share of the memory that an admission leaves free (vllm-v1).")
    ] = EngineConfig.watermark
    reserve_full_prompt: Annotated[bool | None, _engine(hidden=True)] = EngineConfig.reserve_full_prompt
    block_size: Annotated[int, _memory(help="Tokens of a KV block.")] = EngineConfig.block_size
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
    model: Annotated[str, _hardware(help="See: sim models; or a Hugging Face config.json.")] = "opt-13b"
    gpu: Annotated[str, _hardware(help="See: sim gpus.")] = "a100-40gb"
    tensor_parallel_size: Annotated[int, _hardware(help="GPUs that share every layer.")] = 1
    cost: Annotated[str, _hardware(help="Time of a step: roofline, or constant:SECONDS.")] = Scenario.cost

    def scenario(self) -> Scenario:
        """The scenario, its allocator yet to be chosen."""
        from sim.catalog import gpu_named, model_named

        given = asdict(self)
        engine = EngineConfig(**{f.name: given[f.name] for f in fields(EngineConfig) if f.name in given})
        specs = {"model": model_named(self.model), "gpu": gpu_named(self.gpu), "engine": engine}
        return Scenario(**{f.name: given[f.name] for f in fields(Scenario) if f.name in given} | specs)


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
    step_mode: Annotated[bool, _output("--step-mode", help="One event per step: slow.", hidden=True)] = False

    def prepare(self, scenario: Scenario, traffic: Traffic, workload: "Workload") -> "Simulation":
        """The simulation, in the mode asked for."""
        from sim.run import prepare

        modes = {"step_log": self.step_log, "step_mode": self.step_mode}
        return prepare(scenario, workload, traffic.as_json(), **modes)

    def target(self, name: str) -> Path:
        """The directory asked for, else the first free one in `runs`; sure to take the results."""
        from reports.rundir import check_target

        target = self.out or Path("runs", name)
        number = 1
        while self.out is None and not self.force and os.path.lexists(target):
            number += 1
            target = Path("runs", f"{name}-{number}")
        check_target(target, self.force)
        return target

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


@app.command()
@_flat
def run(  # noqa: PLR0917 - typer passes them by name
    ctx: typer.Context,
    traffic: Traffic,
    allocator: Annotated[
        str, _engine(metavar="NAME", help="See: sim allocators; or your own package.module:Class.")
    ] = "paged",
    server: Server = Server(),
    output: Output = Output(),
    config: Annotated[
        Path | None,
        _output(metavar="FILE", help="Repeat the run of this config.json, with no other choices."),
    ] = None,
) -> None:
    """Simulate one server: where its KV memory goes, how fast it is."""
    from reports.rundir import write_run
    from reports.terminal import run_table
    from sim.run import with_allocator

    if config is None:
        scenario = with_allocator(server.scenario(), allocator)
    else:
        scenario, traffic = _repeated(ctx, config)
    simulation = output.prepare(scenario, traffic, traffic.build())
    target = output.target(f"{traffic.trace}-{simulation.label}")
    outcome = _carried_out(simulation)
    written = write_run(target, **vars(outcome), draw=not output.no_plots, force=output.force)
    output.report(written.summary, run_table, target)


@app.command()
@_flat
def compare(
    traffic: Traffic,
    allocator: Annotated[
        str,
        _engine(metavar="NAME,...", help="See: sim allocators; each may name its reserve, as in buddy:pow2."),
    ] = "contiguous,buddy:pow2,buddy:oracle,paged",
    server: Server = Server(),
    output: Output = Output(),
) -> None:
    """Simulate several allocators under the same workload."""
    from reports.rundir import write_comparison
    from reports.terminal import compare_table
    from sim.run import side_by_side

    scenarios = side_by_side(server.scenario(), allocator.split(","))
    workload = traffic.build()
    simulations = [output.prepare(scenario, traffic, workload) for scenario in scenarios]
    target = output.target(f"{traffic.trace}-compare")
    outcomes = [_carried_out(simulation) for simulation in simulations]
    configs = {str(outcome.summary["label"]): outcome.config for outcome in outcomes}
    written = write_comparison(
        target,
        [vars(outcome) for outcome in outcomes],
        config={"kvsim": __version__, "workload": traffic.as_json(), "runs": configs},
        draw=not output.no_plots,
        force=output.force,
    )
    output.report([run.summary for run in written], compare_table, target)


@app.command()
def plot(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Runs or comparisons.")],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where to.", show_default="the first DIR")
    ] = None,
    fmt: Annotated[str, typer.Option("--format", metavar="png|svg|pdf", help="Kind of picture.")] = "png",
) -> None:
    """Draw the figures of earlier runs again, side by side."""
    from reports.rundir import read_runs, write_figures

    runs = [run for directory in directories for run in read_runs(directory)]
    if len({run.label for run in runs}) < len(runs):
        runs = [replace(run, label=run.path.resolve().name) for run in runs]
    for path in write_figures(out or directories[0], runs, fmt):
        print(path)


@app.command()
def models() -> None:
    """List the built-in models."""
    from reports.listing import models_table

    _show(models_table(), "Any other: --model path/to/config.json, as Hugging Face writes it.")


@app.command()
def gpus() -> None:
    """List the built-in GPUs: datasheet values, nothing measured."""
    from reports.listing import gpus_table

    _show(gpus_table(), "Analytic: datasheet values, dense 16 bit, one direction; nothing is measured.")


@app.command()
def allocators() -> None:
    """List the KV-cache allocators."""
    from allocators import ALLOCATORS
    from reports.listing import names_table

    _show(names_table(ALLOCATORS), "Your own: --allocator package.module:Class")


@app.command()
def schedulers() -> None:
    """List the schedulers."""
    from reports.listing import names_table
    from sim.schedulers import SCHEDULERS

    _show(names_table(SCHEDULERS))


@app.command()
def traces() -> None:
    """List the built-in traces."""
    from reports.listing import names_table
    from workloads import TRACES

    _show(names_table(TRACES))


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
        code = app(argv, standalone_mode=False) or 0
        sys.stdout.flush()
    except KvsimError as error:
        return _failed(str(error))
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


def _repeated(ctx: typer.Context, config: Path) -> tuple[Scenario, Traffic]:
    """What an earlier config.json says; any choice beside it is a mistake."""
    from sim.run import read_config

    free = {"config", *(field.name for field in fields(Output))}
    given = [
        name for name in ctx.params if getattr(ctx.get_parameter_source(name), "name", "") == "COMMANDLINE"
    ]
    extra = [f"--{name.replace('_', '-')}" for name in given if name not in free]
    if extra:
        raise KvsimError(f"config {config} holds every choice: leave out {', '.join(extra)}")
    try:
        scenario, traffic = read_config(config.read_text(encoding="utf-8"))
        return scenario, Traffic.from_json(traffic)
    except OSError as error:
        raise KvsimError(f"config {config} cannot be read: {error.strerror}") from error
    except KeyError as error:
        raise KvsimError(f"config {config} cannot be used: it lacks {error}") from error
    except (TypeError, ValueError) as error:
        raise KvsimError(f"config {config} cannot be used: {error}") from error


def _carried_out(simulation: "Simulation") -> "Outcome":
    """Run it, with a progress bar where it takes long and somebody watches."""
    from reports.progress import progress

    with progress(simulation.label, len(simulation.engine.workload), simulation.done):
        return simulation.outcome()


def _show(table: Any, remark: str = "") -> None:  # noqa: ANN401 - whatever rich can print
    from rich.console import Console

    console = Console(highlight=False)
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
