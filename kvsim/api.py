"""The public functions: simulate, compare, load saved runs, check an allocator or a scheduler."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

from kvsim.results import Comparison, Run
from kvsim.sim.errors import KvsimError, check_trials, unknown
from kvsim.sim.option import check_kinds, checked, numpydoc, options_of, plain_number
from kvsim.sim.options.goals import Goals
from kvsim.sim.options.outputs import MOST_SEEDS
from kvsim.sim.options.scenario import Scenario
from kvsim.sim.options.traffic import Traffic
from kvsim.sim.parts import KINDS, known_options
from kvsim.sim.run import prepare
from kvsim.workloads.source import opened

GROUPS = (Scenario, Traffic, Goals)
REPEATED = {each.name for each in options_of(Scenario) if each.about.repeats}
"""Options that accept a list of strings."""
System = str | type | Scenario | Mapping[str, Any]


@partial(checked, but=("scenario", "traffic"))
def simulate(
    scenario: Scenario | None = None,
    traffic: Traffic | None = None,
    *,
    step_log: bool = False,
    record_map: int = 0,
    step_mode: bool = False,
    **options: Any,  # noqa: ANN401 - the options below
) -> Run:
    """Simulate one server under one workload.

    Parameters
    ----------
    scenario : Scenario, optional
        The server; None: built from the options.
    traffic : Traffic, optional
        The requests; None: built from the options.
    step_log : bool
        Also record a row per engine step.
    record_map : int
        Also record the contents of the slots at about this many instants, and the events of each request;
        0: no.
    step_mode : bool
        One event per step: slow, with the same results.
    **options
        Any option of `sim run`, spelt with underscores; it overrides `scenario` and `traffic`.

    Returns
    -------
    Run
        Settings, numbers, tables and figures.

    Raises
    ------
    KvsimError
        An unknown name, a value out of range, or two options that exclude each other.

    Examples
    --------
    >>> import kvsim
    >>> run = kvsim.simulate(model="llama-3.1-8b", gpu="h100", num_prompts=100, request_rate=20)
    >>> run.summary.requests.finished
    100
    """
    server, requests, goals = described(scenario, traffic, options)
    source = opened(requests)
    simulation = prepare(
        server.deployed().with_seed(requests.seed),
        source.workload(),
        source.as_json(),
        step_mode=step_mode,
        step_log=step_log,
        events=record_map > 0,
        map_instants=record_map,
        goals=goals,
    )
    return Run.of(simulation.outcome())


@partial(checked, but=("traffic",))
def compare(
    systems: Sequence[System],
    traffic: Traffic | None = None,
    *,
    seeds: int = 1,
    step_log: bool = False,
    record_map: int = 0,
    **options: Any,  # noqa: ANN401 - those of `simulate`
) -> Comparison:
    """Simulate several servers under the same traffic.

    Parameters
    ----------
    systems : sequence
        Each an allocator (`"paged"`, `"buddy:pow2"`, a class), a `Scenario`, or a mapping of options.
    traffic : Traffic, optional
        The requests; None: built from the options.
    seeds : int
        Runs per system, with consecutive seeds from the traffic's seed on. Each seed also draws other rows
        of the trace unless `shuffle` is False; figures show means and intervals.
    step_log, record_map
        See `simulate`.
    **options
        Options that all of them share.

    Returns
    -------
    Comparison
        The runs, system by system.

    Raises
    ------
    KvsimError
        As for `simulate`; also if there is no system, or `seeds` is below 1.

    Examples
    --------
    >>> import kvsim
    >>> both = kvsim.compare(["contiguous", "paged"], num_prompts=100, request_rate=float("inf"))
    >>> both["paged"].summary.memory.saturated.token > both["contiguous"].summary.memory.saturated.token
    True
    """
    if isinstance(systems, str):
        raise KvsimError(f"systems to compare must be a list, got {systems!r}")
    if seeds < 1:
        raise KvsimError(f"seeds must be at least 1, got {seeds}")
    if seeds > MOST_SEEDS:
        raise KvsimError(f"seeds must be at most {MOST_SEEDS:,}, got {seeds:,}")
    runs = []
    for system in systems:
        scenario, own = _system(system)
        server, requests, goals = described(scenario, traffic, {**options, **own})
        if seeds > 1:
            requests = opened(requests).drawn_anew().traffic
        for number in range(seeds):
            seeded = replace(requests, seed=requests.seed + number)
            asked = {"step_log": step_log, "record_map": record_map, **vars(goals)}
            runs.append(simulate(server, seeded, **asked))
    return Comparison(runs)


@checked
def load(directory: str | Path) -> Run | Comparison:
    """Read back the results that `sim run`, `sim compare` or `Run.save` wrote.

    Returns
    -------
    Run or Comparison
        A Comparison if the directory holds several runs: a comparison or several seeds.

    Raises
    ------
    KvsimError
        The directory holds no results, or damaged ones.
    """
    from kvsim.reports.rundir.run import read_runs

    runs = [Run.at(stored) for stored in read_runs(Path(directory))]
    return runs[0] if len(runs) == 1 else Comparison(runs)


@checked
def check_allocator(allocator: str | type, *, calls: int = 300, seed: int = 0) -> list[str]:
    """Test an allocator with random calls: does it keep every rule of the contract?

    Parameters
    ----------
    allocator : str or class
        A name from `sim allocators`, `package.module:Class`, or a subclass of `kvsim.Allocator`.
    calls : int
        Random calls on each of four arenas.
    seed : int
        The same seed makes the same calls.

    Returns
    -------
    list of str
        The rules, all of which hold.

    Raises
    ------
    KvsimError
        A broken rule, with the call and its numbers; or a class that cannot be built.
    """
    from kvsim.allocators import contract
    from kvsim.allocators.base import InvariantError
    from kvsim.sim.classes import name_of
    from kvsim.sim.deployment.registry import allocator_class

    check_trials("calls", calls)
    name = name_of(allocator)
    chosen = allocator_class(name)
    try:
        contract.try_class(chosen, calls, seed)
    except InvariantError as error:
        raise KvsimError(f"allocator {name} breaks a rule: {error}") from error
    except ValueError as error:
        raise KvsimError(f"allocator {name} cannot be built: {error}") from error
    return [rule.__name__ for rule in (*contract.RULES, contract.same_calls_give_same_addresses)]


@checked
def check_scheduler(
    scheduler: str | type, *, workloads: int = 40, seed: int = 0, policy: str | type = "fcfs"
) -> list[str]:
    """Test a scheduler on random workloads: does it keep every rule of the contract?

    Parameters
    ----------
    scheduler : str or class
        A name from `sim schedulers`, with its release, `package.module:Class`, or a subclass of
        `kvsim.sim.schedulers.base.Scheduler`.
    workloads : int
        How many workloads, each served in spans and step by step.
    seed : int
        The same seed draws the same workloads.
    policy : str or class
        The order of its queue: a name from `sim policies`, `package.module:Class`, or a subclass of
        `kvsim.sim.policies.base.Policy`.

    Returns
    -------
    list of str
        The rules, all of which hold.

    Raises
    ------
    KvsimError
        A broken rule, with the workload and its numbers; or a class that cannot be built.
    """
    from kvsim.allocators.base import InvariantError
    from kvsim.sim import contract
    from kvsim.sim.classes import class_named, name_of
    from kvsim.sim.schedulers import SCHEDULERS
    from kvsim.sim.schedulers.base import Scheduler

    check_trials("workloads", workloads)
    name = name_of(scheduler)
    base, _, version = name.partition("@")
    chosen = class_named("scheduler", base, SCHEDULERS, Scheduler)  # type: ignore[type-abstract]
    try:
        contract.check_scheduler(chosen, seed, workloads, version, name_of(policy))
    except InvariantError as error:
        raise KvsimError(f"scheduler {name} breaks a rule: {error}") from error
    return list(contract.RULES)


def described_server(server: Scenario | None, options: Mapping[str, Any]) -> Scenario:
    """The server with the options applied; traffic options are refused."""
    known = {each.name for each in fields(Scenario)}
    if options.keys() - known:
        known |= known_options(_chosen_parts(server, options)).keys()
    for name in options:
        if name not in known:
            raise unknown("option", name, sorted(known))
    return described(server, None, options)[0]


def described(
    scenario: Scenario | None, traffic: Traffic | None, options: Mapping[str, Any]
) -> tuple[Scenario, Traffic, Goals]:
    """The server, the requests and the goals with the options applied."""
    _check("scenario", scenario, Scenario, "allocator='paged'")
    _check("traffic", traffic, Traffic, "trace='sharegpt'")
    of_server, of_traffic, of_goals = ({each.name for each in fields(group)} for group in GROUPS)
    others = options.keys() - of_server - of_traffic - of_goals
    of_parts = known_options(_chosen_parts(scenario, options)) if others else {}
    known = of_server | of_traffic | of_goals | of_parts.keys()
    for name in options:
        if name not in known:
            raise unknown("option", name, sorted(known))
    options = {name: _plain(name, value) for name, value in options.items()}
    kinds = {name: kind for group in GROUPS for name, kind in get_type_hints(group).items()}
    del kinds["options"]
    kinds |= {name: each.type | None if each.optional else each.type for name, each in of_parts.items()}
    check_kinds({name: value for name, value in options.items() if name in kinds}, kinds)
    own = {name: value for name, value in options.items() if name in of_server or name in of_parts}
    of_requests = {name: value for name, value in options.items() if name in of_traffic}
    goals = Goals(**{name: value for name, value in options.items() if name in of_goals})
    server = (scenario or Scenario()).with_settings(own)
    return server, replace(traffic or Traffic(), **of_requests), goals


def _plain(name: str, value: object) -> object:
    """Convert an option's value to a plain one: from a path, a numpy number or a list of strings."""
    if isinstance(value, Path):
        return os.fspath(value)
    if name in REPEATED and isinstance(value, list | tuple) and all(isinstance(word, str) for word in value):
        return " ".join(value)
    return plain_number(value)


def _chosen_parts(scenario: Scenario | None, options: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """The chosen scheduler and allocator."""
    for kind in KINDS:
        yield kind, options.get(kind, getattr(scenario or Scenario(), kind))


def _check(field: str, given: object, kind: type, instead: str) -> None:
    if given is not None and not isinstance(given, kind):
        raise KvsimError(
            f"{field} must be a kvsim.{kind.__name__}, got {given!r}; options are keywords, as in {instead}"
        )


def _system(system: System) -> tuple[Scenario | None, Mapping[str, Any]]:
    if isinstance(system, Scenario):
        return system, {}
    if isinstance(system, Mapping):
        return None, system
    return None, {"allocator": system}


_OPTIONS = f"""

    Notes
    -----
    The options of the server:

    {numpydoc(Scenario).replace(chr(10), chr(10) + "    ")}

    and of the traffic:

    {numpydoc(Traffic).replace(chr(10), chr(10) + "    ")}

    and what is asked of it:

    {numpydoc(Goals).replace(chr(10), chr(10) + "    ")}
"""
simulate.__doc__ = f"{simulate.__doc__}{_OPTIONS}"
