"""Run `sim run` and `sim compare`: simulate with progress shown, write, and report the results.

    deployments, traffic --> one run, a comparison, or either with several seeds --> a directory, a report

The directory is claimed before the work starts (reports/rundir/claims.py), so no result is lost.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.sim import __version__
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.errors import KvsimError
from kvsim.sim.options.goals import NO_GOALS, Goals
from kvsim.sim.options.outputs import Output, Pictures, Seeds
from kvsim.sim.options.traffic import Traffic

if TYPE_CHECKING:
    from kvsim.reports.rundir.claims import Claim
    from kvsim.reports.rundir.run import Run
    from kvsim.reports.timeline.events import Traced
    from kvsim.sim.run import Outcome, Simulation
    from kvsim.sim.workload import Workload
    from kvsim.workloads.source import Source

    Runs = Sequence[Sequence[Mapping[str, Any]]]  # summaries by seed, then by system
    CarryOut = Callable[[Sequence[Simulation]], list[Outcome]]

MANY_STEPS = 200_000
"""Runs with more steps are repeated to record steps only if requested."""


def carry_out(
    deployments: Sequence[Deployment],
    traffic: Traffic,
    seeds: Seeds,
    output: Output,
    goals: Goals = NO_GOALS,
    *,
    compared: bool,
) -> None:
    """Run one simulation or a comparison, with one seed or several; write it and report it."""
    source = opened(traffic)
    if seeds.several:
        _with_seeds(deployments, source, seeds, output, goals, compared)
        return
    from kvsim.reports.rundir.names import run_name

    workload = source.workload()
    simulations = [_prepared(deployment, source, workload, output, goals) for deployment in deployments]
    name = "compare" if compared else simulations[0].label
    named = run_name(source.name, name, simulations[0].deployment, source.differing())
    watched = partial(_watched, output)
    with place(output, named) as held:
        if compared:
            found: Any = _write_comparison(held, simulations, source, output, watched)
        else:
            found = _write_run(held, simulations[0], output, watched)
    _report(output, found, [found] if compared else [[found]], compared, held)


def compared_with(deployment: Deployment, allocators: Sequence[str]) -> list[Deployment]:
    """The server with each of these allocators; for `all`, also print those that cannot run it."""
    from kvsim.sim.run import EVERY, label, left_out, side_by_side

    for name, reason in left_out(deployment).items() if EVERY in allocators else ():
        if name not in allocators:
            print(f"without {name}: {reason}", file=sys.stderr)
    found = side_by_side(deployment, allocators)
    if deployment.engine.enable_prefix_caching:
        for each in found:
            if not each.engine.enable_prefix_caching:
                print(
                    f"{label(each.engine)} keeps no prefixes: it runs without prefix caching", file=sys.stderr
                )
    return found


def opened(traffic: Traffic) -> "Source":
    """Read the traffic's trace; tokenizing texts shows progress."""
    from kvsim.reports.progress import progress
    from kvsim.workloads import source
    from kvsim.workloads.tokenized import file_of

    path = file_of(traffic.trace) if traffic.tokenizer else None
    counted = 0

    def heard(size: int) -> None:
        nonlocal counted
        counted = size

    with progress(traffic.trace, os.path.getsize(path) if path else 0, lambda: counted, "bytes"):
        return source.opened(traffic, heard)


@contextmanager
def place(output: Output, name: str) -> Iterator["Claim | None"]:
    """Claim the requested directory, else the first free one in `runs`; yield None if nothing is written."""
    from kvsim.reports.rundir.claims import claimed, first_free

    output.check()
    if output.no_out:
        yield None
        return
    usual = Path("runs", name)
    free = output.out is None and not output.force
    with first_free(usual) if free else claimed(output.out or usual, output.force) as claim:
        yield claim


def choices(config: Path) -> tuple[Deployment, Traffic, Goals]:
    """The contents of a config.json."""
    from kvsim.sim.files.reading import read_json, understood
    from kvsim.sim.run import deployment_of, goals_of

    what = f"config {config}"
    with understood(what, "cannot be used"):
        found = read_json(config, what)
        deployment, traffic = deployment_of(found, what)
        try:
            return deployment, Traffic.from_json(traffic), goals_of(found, what)
        except KvsimError as error:
            raise KvsimError(f"{what} cannot be used: {error}") from error


# -- earlier runs -------------------------------------------------------------------------------


def repeated(run: "Run", lacking: str, step_log: bool = False) -> "Outcome":
    """Repeat an earlier run to record what was missing, with progress shown."""
    from kvsim.commands import repeat

    print(f"{run.label}: no {lacking} were recorded: repeating the run", file=sys.stderr)
    simulation = repeat.prepared(run, lacking, step_log=step_log)
    (outcome,) = _watched(Output(), [simulation])
    return repeat.checked(run, outcome)


def traced(run: "Run", steps: bool | None) -> "list[Traced]":
    """A run with its events and steps, recorded or repeated; without steps if there are many.

    A fleet has one entry per replica.
    """
    from kvsim.reports.away import away_in
    from kvsim.reports.lives.apart import lives_of, seen_by
    from kvsim.reports.lives.event_log import event_log, read_events
    from kvsim.reports.timeline.events import Traced

    log, found = read_events(run.path), run.path / "steps.parquet"
    many = (run.summary["engine"].get("steps") or 0) > MANY_STEPS
    wanted = steps or (steps is None and (found.exists() or not many))
    if wanted and not found.exists():
        again = repeated(run, "steps" if log else "events", step_log=True)
        log, logged = event_log(again.events), again.steps
    else:
        logged = None
        if steps is None and not wanted:
            print(f"{run.label}: its steps are many, and none were recorded: see --steps", file=sys.stderr)
    if log is None:
        log = event_log(repeated(run, "events").events)
    shown = logged or (found if wanted else None)
    gone = away_in(run.summary, run.summary["duration_s"]) or [[]]
    return [
        Traced(seen_by(run, each, log), lives_of(run, each, log), shown, times)
        for each, times in zip(run.replicas or [run], gone, strict=True)
    ]


# -- simulating ---------------------------------------------------------------------------------


def _prepared(
    deployment: Deployment,
    source: "Source",
    workload: "Workload",
    output: Output,
    goals: Goals,
) -> "Simulation":
    """The simulation, in the requested mode and with the requested recordings."""
    from kvsim.sim.run import prepare

    output.check()
    _pace(output)
    told = output.result_format is not None
    if told and workload.beam is not None:
        raise KvsimError(
            f"result_format must be left out with beam_width {source.traffic.beam_width}: "
            "a beam search answers when it ends, so there is no stream of tokens to time"
        )
    return prepare(
        deployment.with_seed(source.traffic.seed),
        workload,
        source.as_json(),
        step_log=output.step_log or told,
        step_mode=output.step_mode,
        events=output.record_map is not None or told,
        map_instants=output.record_map or 0,
        goals=goals,
    )


def _watched(output: Output, simulations: "Sequence[Simulation]") -> "list[Outcome]":
    """Run the simulations in order, with progress shown."""
    outcomes: list[Outcome] = []
    show = _shown(output)
    for simulation in simulations:
        with show(simulation, outcomes, len(simulations)):
            outcomes.append(simulation.outcome())
    return outcomes


def _unwatched(simulations: "Sequence[Simulation]") -> "list[Outcome]":
    return [simulation.outcome() for simulation in simulations]


def _pace(output: Output) -> float | None:
    """Simulated seconds per second for a live view; KvsimError if the pace is invalid."""
    from kvsim.reports.pace import pace_of

    return None if output.pace is None else pace_of(output.pace, live=output.live)


def _shown(output: Output) -> "Callable[[Simulation, list[Outcome], int], AbstractContextManager[None]]":
    """The display during a run: a dashboard, or a progress bar if it takes long."""
    if output.live and not (output.quiet or output.json):
        from kvsim.reports import live

        if live.can_show():
            return partial(live.of_several, pace=_pace(output))
        print("--live needs a terminal that can be drawn on: running without it", file=sys.stderr)
    from kvsim.reports.progress import progress

    return lambda simulation, *_: progress(simulation.label, len(simulation.engine.workload), simulation.done)


# -- several seeds ------------------------------------------------------------------------------


def _with_seeds(  # noqa: PLR0917 - the parts of a command
    deployments: Sequence[Deployment],
    source: "Source",
    seeds: Seeds,
    output: Output,
    goals: Goals,
    compared: bool,
) -> None:
    """Run all seeds, write a directory with one subdirectory per seed, and report them together."""
    from kvsim.reports.rundir.names import run_name
    from kvsim.reports.seeds.runs import carry_out_seeds, summary_of
    from kvsim.sim.build import resolve
    from kvsim.sim.run import label

    if output.live:
        raise KvsimError(f"live must be left out with seeds {seeds.seeds}, which run side by side")
    source, alone = source.drawn_anew(), source
    first = source.traffic.seed
    numbers = range(first, first + seeds.seeds)
    where = resolve(deployments[0]).deployment
    name = "compare" if compared else label(where.engine)
    named = run_name(source.name, name, where, alone.differing())
    with place(output, f"{named}-{seeds.seeds}-seeds") as held:
        runs = carry_out_seeds(
            held,
            partial(
                _one_seed,
                deployments,
                source,
                replace(output, force=False, no_plots=True),
                goals,
                compared,
            ),
            numbers,
            label=name,
            config={"kvsim": __version__, "workload": source.as_json()},
            jobs=(os.cpu_count() or 1) if seeds.jobs is None else seeds.jobs,
            pictures=_pictures(output),
        )
    found = summary_of(numbers, runs) if output.json else None
    _report(output, found, runs, compared, held)


def _one_seed(  # noqa: PLR0917 - all but the last two are bound
    deployments: Sequence[Deployment],
    source: "Source",
    output: Output,
    goals: Goals,
    compared: bool,
    seed: int,
    target: Path | None,
) -> list[dict[str, Any]]:
    """Run the command for one seed, in its own process without a display."""
    source = source.with_seed(seed)
    workload = source.workload()
    simulations = [_prepared(deployment, source, workload, output, goals) for deployment in deployments]
    if compared:
        return _write_comparison(target, simulations, source, output, _unwatched)
    return [_write_run(target, simulations[0], output, _unwatched)]


# -- writing and reporting ----------------------------------------------------------------------


def _write_run(
    target: "Path | Claim | None", simulation: "Simulation", output: Output, carried_out: "CarryOut"
) -> dict[str, Any]:
    """Simulate one run and write it; returns its summary."""
    from kvsim.reports.rundir.formats import plain
    from kvsim.reports.rundir.writing import write_run

    (outcome,) = carried_out([simulation])
    if target is None:
        found: dict[str, Any] = plain(outcome.summary)
        return found
    return write_run(target, **_parts(outcome, output), pictures=_pictures(output)).summary.as_json()


def _pictures(output: Output) -> Pictures | None:
    """The style of figures; None if none are drawn."""
    return None if output.no_plots or output.no_out else output


def _parts(outcome: "Outcome", output: Output) -> dict[str, Any]:
    """The requested parts of a run to write, and the result in a benchmark tool's format."""
    parts = dict(vars(outcome))
    if output.result_format is not None:
        from kvsim.sim.bench.write import result_files

        parts["files"] = result_files(outcome, output.result_format)
    return (
        parts | ({} if output.step_log else {"steps": None}) | ({} if output.record_map else {"events": None})
    )


def _write_comparison(
    target: "Path | Claim | None",
    simulations: "Sequence[Simulation]",
    source: "Source",
    output: Output,
    carried_out: "CarryOut",
) -> list[dict[str, Any]]:
    """Simulate a comparison and write it; returns the summaries."""
    from kvsim.reports.rundir.formats import plain
    from kvsim.reports.rundir.writing import write_comparison

    outcomes = carried_out(simulations)
    if target is None:
        return [plain(outcome.summary) for outcome in outcomes]
    configs = {str(outcome.summary["label"]): outcome.config for outcome in outcomes}
    written = write_comparison(
        target,
        [_parts(outcome, output) for outcome in outcomes],
        config={"kvsim": __version__, "workload": source.as_json(), "runs": configs},
        pictures=_pictures(output),
    )
    return [run.summary.as_json() for run in written]


def _report(output: Output, found: Any, runs: "Runs", compared: bool, held: "Claim | None") -> None:  # noqa: ANN401
    """Print `found` as JSON or a table of the runs; and their directory, unless it was given."""
    chosen = held is not None and output.out is None
    if output.json:
        import json

        print(json.dumps(found, indent=2, ensure_ascii=False))
        if held is not None and chosen:
            print(f"written to {held.path}", file=sys.stderr)
    elif output.quiet:
        if held is not None and chosen:
            print(held.path)
    else:
        from rich.console import Console

        from kvsim.reports.terminal import report_table

        console = Console(highlight=False)
        console.print(report_table(runs, compared))
        if held is not None:
            console.print(f"\nwritten to {held.path}", markup=False, soft_wrap=True)
