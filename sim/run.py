"""One run from start to finish: takes a deployment and a workload, returns the contents of a run directory.

    deployment, workload --prepare--> Simulation --outcome--> config, summary, tables of columns

`config` is everything needed to repeat the run, with full specs of model and GPU instead of names. The same
deployment and workload give the same outcome, except for the `simulation` part of the summary, which says how
long the simulation took.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from kvsim.allocators import ALLOCATORS
from kvsim.allocators.option import declared_by
from kvsim.sim import __version__
from kvsim.sim.build import (
    Resolved,
    build_allocator,
    build_engine,
    parts_of,
    resolve,
    scheduler_class_of,
    server_defaults,
)
from kvsim.sim.cost.clock import clock_of
from kvsim.sim.cost.collective import network_note
from kvsim.sim.cost.frontend import Floats, behind_frontend, frontend_of
from kvsim.sim.cost.profile_checks import check_profile
from kvsim.sim.cost.profile_files import REHEARSAL
from kvsim.sim.deployment.deployment import Deployment, Pool
from kvsim.sim.deployment.engine import EngineConfig, split_reserve
from kvsim.sim.deployment.kinds import kinds_in_words
from kvsim.sim.deployment.memory import KvCapacity, gpu_memory
from kvsim.sim.deployment.registry import allocator_class
from kvsim.sim.deployment.vllm_defaults import (
    FAMILY,
    NEWEST,
    OF_ANY_ENGINE,
    Asked,
    defaults_note,
    rules_of,
    scheduled_as,
)
from kvsim.sim.errors import KvsimError
from kvsim.sim.files.reading import understood
from kvsim.sim.files.records import record_of
from kvsim.sim.fleet_summary import FleetSummary
from kvsim.sim.link_summary import link_shares
from kvsim.sim.models.spec import GpuSpec, ModelSpec
from kvsim.sim.options.goals import NO_GOALS, Goals
from kvsim.sim.parts import declared_everywhere
from kvsim.sim.record import metrics
from kvsim.sim.record.attainment import SECONDS_PER_HOUR, attained
from kvsim.sim.record.instants import TIMELINE_ROWS
from kvsim.sim.record.outside import seconds_of
from kvsim.sim.record.recorder import Result
from kvsim.sim.serving.engine import Engine
from kvsim.sim.serving.fleet import FleetConfig
from kvsim.sim.starts import starts_told
from kvsim.sim.workload import PS_PER_S, Workload

Json = dict[str, object]

EVERY = "all"
"""Stands for all allocators in a comparison."""
POOL_FACTS = ("name", "role", "replicas")
"""The entries of `config.json` for a pool besides its server."""
TOLD = 4
"""Number of reasons of extrapolation that a note lists: those with the longest times."""


@dataclass(frozen=True)
class Outcome:
    """The contents of a run directory: two JSON objects and two to six tables of columns."""

    config: Json
    summary: Json
    requests: dict[str, metrics.Column]
    timeline: dict[str, metrics.Column]
    steps: dict[str, metrics.Column] | None
    samples: dict[str, metrics.Column] | None
    events: metrics.Table | None
    map: metrics.Table | None


@dataclass(frozen=True)
class Simulation:
    """An engine that is ready to run once, and what it was made from."""

    resolved: Resolved
    traffic: Mapping[str, object]
    engine: Engine
    goals: Goals = NO_GOALS

    @property
    def deployment(self) -> Deployment:
        """The servers with all defaults filled in."""
        return self.resolved.deployment

    @property
    def capacity(self) -> KvCapacity:
        """The KV memory of one server; if servers differ, of the first."""
        return self.resolved.kept.capacity

    @property
    def label(self) -> str:
        """The name of the run among others: `paged`, `buddy-pow2`, `my.module.Mine`."""
        return label(self.deployment.engine)

    @property
    def gpus(self) -> int:
        """GPUs of all replicas."""
        return self.deployment.all_gpus

    @property
    def gpu_price(self) -> float | None:
        """Price of a GPU per hour, the mean over all; None if unknown."""
        prices = [self.goals.price_of_server(pool.server) for pool in self.deployment.every_pool]
        if len(prices) == 1:
            return prices[0]
        counted = zip(prices, self.deployment.every_pool, strict=True)
        return (
            None if None in prices else sum((price or 0) * pool.gpus for price, pool in counted) / self.gpus
        )

    def done(self) -> int:
        """Requests finished or rejected so far; may be called from another thread."""
        rejected = [replica.recorder.rejected for replica in self.engine.lives.every]
        return self.engine.log.finished_count + sum(sum(each.values()) for each in rejected)

    def outcome(self) -> Outcome:
        """Run the simulation and return its outcome."""
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        result = self.engine.run()
        wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
        requests = metrics.request_table(result, self._outside_s(result))
        fleet = FleetSummary(self.engine, self.deployment, self.goals)
        every = self.engine.lives.lives
        return Outcome(
            config=config_of(self.resolved, self.traffic, self.goals),
            summary=self._summary(result, requests, wall_s, cpu_s, fleet) | fleet.of(requests),
            requests=requests,
            timeline=metrics.timeline_table(result),
            steps=metrics.step_table(result),
            samples=metrics.sample_table(result),
            events=metrics.together(
                [
                    metrics.in_turn([metrics.event_table(life.server.events) for life in lives])
                    for lives in every
                ]
            ),
            map=metrics.together(
                [
                    metrics.maps_in_turn([metrics.map_table(life.recorder.memory_map) for life in lives])
                    for lives in every
                ]
            ),
        )

    def _outside_s(self, result: Result) -> Floats | float:
        """Time that requests spend in the front end."""
        return seconds_of(result, frontend_of(self.deployment), self.deployment.fleet.replicas)

    def _summary(
        self,
        result: Result,
        requests: Mapping[str, metrics.Column],
        wall_s: float,
        cpu_s: float,
        fleet: FleetSummary,
    ) -> Json:
        duration_s = result.end_ps / PS_PER_S
        gpus, gpu_price = self._billed(fleet, duration_s)
        engine, cost = self.deployment.engine, self.engine.replica.pricing.cost
        numbers = metrics.summary(result, requests)
        links = link_shares(self.engine.lives.lives, self.engine.absences(), result.end_ps)
        if links and isinstance(tier := numbers["tier"], dict):
            tier["links"] = links
        counts = numbers.pop("engine")
        names = {"allocator": engine.allocator, "scheduler": engine.scheduler, "reserve": engine.reserve}
        return {
            "label": self.label,
            **numbers,
            "engine": {**names, **(counts if isinstance(counts, dict) else {})},
            "cost": {
                "source": cost.source,
                "extrapolated_share": cost.extrapolated_share,
                **clock_of(self.deployment).as_json(),
            },
            "notes": self._notes(result),
            "simulation": {
                "cpu_s": cpu_s,
                "wall_s": wall_s,
                "requests_per_cpu_s": len(self.engine.workload) / cpu_s if cpu_s else None,
            },
            **attained(
                self.goals.limits,
                gpu_price,
                requests,
                metrics.throughput(result),
                duration_s,
                gpus,
            ),
        }

    def _billed(self, fleet: FleetSummary, duration_s: float) -> tuple[float, float | None]:
        """GPUs of all replicas and the price of one per hour: means of those billed if some come and go."""
        hours, cost = fleet.billed()
        if self.engine.scaler is None or not hours:
            return self.gpus, self.gpu_price
        return hours * SECONDS_PER_HOUR / duration_s, None if cost is None else cost / hours

    def _rooms(self) -> Iterator[str]:
        """The KV memory of a server of each pool, in words."""
        first = 0
        for pool, found in zip(self.deployment.every_pool, self.resolved.every_pool, strict=True):
            last = first + pool.replicas - 1
            which = f"replica {first}" if first == last else f"replicas {first} to {last}"
            of = f"Pool {pool.name} ({which}): " if pool.name else ""
            yield f"{of}KV memory of {found.kept.capacity.tokens:,} tokens: {found.kept.capacity.reason}."
            if pool.name:
                yield f"{of}step times {self.engine.replicas[first].pricing.cost.source}."
            first = last + 1

    def _notes(self, result: Result) -> list[str]:
        """Notes on the results."""
        model, pools = self.deployment.model, self.resolved.every_pool
        hybrid = any(pool.kept.hybrid for pool in pools)
        notes = [*result.workload.notes, *self._rooms(), *_model_notes(model, hybrid)]
        if model.hub_name:
            notes.append(f"Model {model.hub_name}: the built-in {model.name}, of the same geometry.")
        fleet = self.deployment.fleet
        if fleet.replicas > 1:
            spread = f"{fleet.router}{', sessions stick' if fleet.sticky else ''}"
            means = ["costs"] * bool(fleet.scale) + ["is alive"] * bool(fleet.fail)
            notes.append(
                f"{fleet.replicas:,} replicas behind a router ({spread}): memory, requests at once and "
                f"other means over time are those of one replica{' while it ' * bool(means)}"
                f"{' and '.join(means)}; counts are those of all."
            )
        notes += dict.fromkeys(note for pool in pools for note in _memory_notes(pool))
        policies = [replica.scheduler.policy for replica in self.engine.replicas]
        notes += dict.fromkeys(policy.note for policy in policies if policy is not None and policy.note)
        notes += starts_told(pools)
        notes += defaults_told([pool.deployment for pool in pools])
        notes += dict.fromkeys(note for pool in pools for note in _time_notes(pool.deployment))
        for cost in dict.fromkeys(replica.pricing.cost for replica in self.engine.replicas):
            outside = cost.outside()
            if outside:
                more = f"; and {len(outside) - TOLD} more" if len(outside) > TOLD else ""
                notes.append(f"Outside what was measured: {'; '.join(outside[:TOLD])}{more}.")
        longest, trained = self.deployment.max_model_len, self.deployment.model.max_model_len
        if longest > trained:
            notes.append(f"Sequences may grow to {longest:,} tokens, beyond the {trained:,} of the model.")
        beam = result.workload.beam
        if beam is not None:
            process = f"drawn at random ({beam.process}, seed {beam.seed})"
            notes.append(
                f"Beam search of width {beam.width}: which candidates survive is {process}, an assumption."
            )
        for reason, count in result.rejected.items():
            notes.append(f"{count:,} request{'s' * (count > 1)} rejected: {reason}.")
        if result.truncated:
            longest = self.deployment.max_model_len
            notes.append(f"{result.truncated:,} answers cut at the maximum length of {longest:,} tokens.")
        return notes


def _memory_notes(found: Resolved) -> list[str]:
    """Notes on how a server keeps its layers."""
    kept, told = found.kept, found.deployment.allocator.note
    notes = [told] if told else []
    groups = kept.capacity.groups
    if groups is not None:
        words = kinds_in_words(None, groups, found.deployment.served_model)
        notes.append(
            f"Groups of layers: {'; '.join(words.values())}. A slot is one token of one group: "
            f"{kept.capacity.slots:,} slots."
        )
    return notes if kept.hybrid is None else [*notes, kept.hybrid.in_words]


def _time_notes(deployment: Deployment) -> list[str]:
    """Notes on the step times of a server, and on its release's rules."""
    notes = []
    if deployment.profile is not None and deployment.profile["kind"] == "rehearsal":
        notes.append(f"Step times are a {REHEARSAL}: they say nothing about any GPU.")
    name, _, release = (deployment.engine.scheduler or "").partition("@")
    if name == FAMILY and release and scheduled_as(release) != release:
        notes.append(f"vLLM {release} decides its steps as {scheduled_as(release)}, which was recorded.")
    network = network_note(deployment)
    return [*notes, network] if network else notes


def defaults_told(deployments: Iterable[Deployment]) -> list[str]:
    """Which settings of servers are defaults of their releases."""
    several = [*deployments]
    without = dict.fromkeys(
        str(each.engine.allocator)
        for each in several
        if not each.allocator.keeps_prefixes and _defaults_kept(each) is not None
    )
    *first, last = without or [""]
    named = f"allocators {', '.join(first)} and {last} keep" if first else f"allocator {last} keeps"
    return [
        *release_defaults(several),
        *([f"Prefix caching is off: {named} no prefixes."] if without else []),
    ]


def release_defaults(deployments: Iterable[Deployment]) -> list[str]:
    """One line per release; GPUs that start with the same settings share it.

    If the servers of a GPU have several values of a setting, the line has all of them.
    """
    by_gpu: dict[tuple[str, str], dict[str, dict[object, None]]] = {}
    for deployment in deployments:
        name, _, release = (deployment.engine.scheduler or FAMILY).partition("@")
        of_gpu = (release if name == FAMILY and release else NEWEST, deployment.gpu.name)
        for setting, value in (_defaults_kept(deployment) or {}).items():
            by_gpu.setdefault(of_gpu, {}).setdefault(setting, {})[value] = None
    by_settings: dict[tuple[str, tuple[tuple[str, tuple[object, ...]], ...]], list[str]] = {}
    for (release, gpu), settings in by_gpu.items():
        own = tuple((setting, tuple(values)) for setting, values in settings.items())
        by_settings.setdefault((release, own), []).append(gpu)
    return [defaults_note(release, gpus, dict(own)) for (release, own), gpus in by_settings.items()]


def _defaults_kept(deployment: Deployment) -> dict[str, object] | None:
    """The defaults of its release that a server has; None if they are not those of a release."""
    engine = deployment.engine
    asked = Asked(max_model_len=engine.max_model_len)
    own = server_defaults(
        engine.allocator, engine.scheduler, deployment.gpu, deployment.model, asked, deployment.classes
    )
    name, _, release = (engine.scheduler or FAMILY).partition("@")
    chosen = {**vars(engine), "gpu_memory_utilization": deployment.gpu_memory_utilization}
    if not own or not (name == FAMILY or set(own) == set(OF_ANY_ENGINE)):
        return None
    if name == FAMILY:
        own = {**own, "async_scheduling": rules_of(release or NEWEST).async_scheduling}
    return {each: value for each, value in own.items() if chosen[each] == value}


def prepare(
    deployment: Deployment,
    workload: Workload,
    traffic: Mapping[str, object],
    *,
    step_mode: bool = False,
    step_log: bool = False,
    events: bool = False,
    map_instants: int = 0,
    timeline_rows: int = TIMELINE_ROWS,
    goals: Goals = NO_GOALS,
) -> Simulation:
    """Check everything that can be checked before the run, and build its engine.

    Parameters
    ----------
    traffic : mapping
        How the workload was made, in JSON types: recorded in `config`, not used.
    step_mode : bool
        Whether to take one step at a time: slower, with the same outcome.
    step_log : bool
        Whether to write a table with a row per step.
    events : bool
        Whether to write a table of what happens to each request.
    map_instants : int
        Approximate number of instants of a memory map for each replica; 0: no map.
    timeline_rows : int
        At most this many rows of the timeline for each replica; all else stays the same.
    goals : Goals
        Goals of the run: latency limits, the price of a GPU.
    """
    for pool in deployment.every_pool:
        goals.price_of_server(pool.server)
    found = resolve(deployment)
    deployment = found.deployment
    workload = behind_frontend(workload, frontend_of(deployment), deployment.fleet.replicas)
    engine = build_engine(
        found,
        workload,
        max_span=1 if step_mode else 1 << 20,
        step_log=step_log,
        events=events,
        map_instants=map_instants,
        timeline_rows=timeline_rows,
    )
    return Simulation(found, traffic, engine, goals)


def with_allocator(deployment: Deployment, text: str) -> Deployment:
    """The deployment with the allocator `name[:reserve]` or `module:Class[:reserve]`."""
    name, reserve = split_reserve(text)
    given = deployment.engine.reserve if reserve is None else reserve
    return replace(deployment, engine=replace(deployment.engine, allocator=name, reserve=given))


def with_its_options(deployment: Deployment) -> Deployment:
    """The deployment with only those options that its allocator or scheduler declares."""
    known = {name for _, found in parts_of(deployment).values() for name in declared_by(found.declares)}
    kept = {name: value for name, value in deployment.engine.options.items() if name in known}
    return replace(deployment, engine=replace(deployment.engine, options=kept))


def fitting(deployment: Deployment) -> dict[str, Deployment]:
    """Built-in allocator -> the deployment with it, if it can be run quickly."""
    return {name: chosen for name, chosen in _with_each(deployment).items() if not isinstance(chosen, str)}


def left_out(deployment: Deployment) -> dict[str, str]:
    """Built-in allocator -> the reason, if the deployment cannot be run with it, or only slowly."""
    return {name: reason for name, reason in _with_each(deployment).items() if isinstance(reason, str)}


def _with_each(deployment: Deployment) -> dict[str, Deployment | str]:
    """The deployment with each built-in allocator, or the reason why it cannot be run."""
    bare = replace(deployment, engine=replace(deployment.engine, reserve=None))
    uncached = replace(bare, engine=replace(bare.engine, enable_prefix_caching=False))
    found: dict[str, Deployment | str] = {}
    for name in ALLOCATORS:
        if allocator_class(name).slow:
            found[name] = f"it is slow; for short runs: {EVERY},{name}"
            continue
        chosen = with_its_options(
            with_allocator(bare if allocator_class(name).keeps_prefixes else uncached, name)
        )
        try:
            one = resolve(chosen)
            build_allocator(one.deployment, one.scheduler, one.kept)
            found[name] = one.deployment
        except KvsimError as error:
            found[name] = str(error)
    return found


def side_by_side(deployment: Deployment, allocators: Sequence[str]) -> list[Deployment]:
    """The deployment with each allocator; `all` stands for all suitable built-in ones.

    Its `reserve` applies to allocators that reserve memory and do not name a policy of their own, other
    options to allocators that declare them, and its prefix cache to allocators that keep prefixes.

    Raises
    ------
    KvsimError
        If two are the same, or if no allocator takes one of these settings.
    """
    if EVERY in allocators:
        named = [name for name in allocators if name != EVERY]
        allocators = [*(name for name in fitting(deployment) if name not in named), *named]
    reserve = deployment.engine.reserve
    bare = replace(deployment, engine=replace(deployment.engine, reserve=None))
    usual = server_defaults("paged", deployment.engine.scheduler, deployment.gpu, deployment.model)
    cached = bool(usual.get("enable_prefix_caching")) or any(
        allocator_class(with_allocator(bare, text).engine.allocator).keeps_prefixes for text in allocators
    )
    if deployment.pools:
        raise KvsimError("pool must be left out of a comparison of allocators: a sweep compares fleets")
    deployments, taken = [], False
    for text in allocators:
        chosen = with_its_options(with_allocator(bare, text))
        found = allocator_class(chosen.engine.allocator)
        if cached and not found.keeps_prefixes:
            chosen = replace(chosen, engine=replace(chosen.engine, enable_prefix_caching=False))
        if (
            reserve
            and chosen.engine.reserve is None
            and (chosen.allocator.reserves or scheduler_class_of(chosen).reserves)
        ):
            chosen, taken = replace(chosen, engine=replace(chosen.engine, reserve=reserve)), True
        deployments.append(resolve(chosen).deployment)
    names = ", ".join(allocators)
    if reserve and not taken:
        raise KvsimError(f"reserve must be left out: none of {names} takes it, got {reserve!r}")
    for name, value in deployment.engine.options.items():
        if not any(name in each.engine.options for each in deployments):
            raise KvsimError(f"{name} must be left out: none of {names} takes it, got {value!r}")
    labels = [label(each.engine) for each in deployments]
    twice = [name for name in labels if labels.count(name) > 1]
    if twice:
        raise KvsimError(f"allocators to compare must differ, got {twice[0]} {len(twice)} times")
    return deployments


def label(engine: EngineConfig) -> str:
    """The allocator, and its reservation unless that is the model's maximum; usable as a file name.

    A class defined in a notebook or a script has its own name.
    """
    name = engine.allocator.removeprefix("__main__:").replace(":", ".")
    return name if engine.reserve in (None, "max") else f"{name}-{engine.reserve.replace(':', '-')}"


def _model_notes(model: ModelSpec, in_groups: bool) -> list[str]:
    """Notes on the model, and on parts of it that a run treats as something else."""
    notes = [f"{model.name}: {note}." for note in model.notes]
    kinds = {layers.kind for layers in model.kv_layers}
    if "chunked_local_attention" in kinds and not in_groups:
        notes.append(f"{model.name}: its chunked layers keep every token under this allocator and scheduler.")
    if "cross_attention" in kinds:
        notes.append(f"{model.name}: its cross attention counts the prompt's tokens, not an encoder's.")
    return notes


def config_of(found: Resolved, traffic: Mapping[str, object], goals: Goals = NO_GOALS) -> Json:
    """Everything needed to repeat a run; includes a fleet only for several servers, and goals only if set."""
    deployment = found.deployment
    several: Json = {"fleet": deployment.fleet.as_json()} if deployment.fleet.replicas > 1 else {}
    if deployment.pools:
        several["pools"] = [
            {
                **{name: getattr(pool, name) for name in POOL_FACTS},
                "scenario": pool.server.as_json(),
                "kv_capacity": _capacity_json(each),
            }
            for pool, each in zip(deployment.pools, found.pools, strict=True)
        ]
    asked: Json = {"goals": goals.as_json()} if goals.as_json() else {}
    return (
        several
        | asked
        | {
            "kvsim": __version__,
            "workload": dict(traffic),
            "scenario": deployment.as_json(),
            "kv_capacity": _capacity_json(found),
        }
    )


def _capacity_json(found: Resolved) -> Json:
    """The memory in JSON types, with the groups of unlike layers that share it."""
    parts, kept = gpu_memory(found.deployment), found.kept
    memory: Json = asdict(kept.capacity) | ({} if parts is None else {"gpu_memory_bytes": parts})
    return memory if kept.hybrid is None else memory | {"groups": kept.hybrid.as_json()}


def deployment_of(config: object, what: str = "config") -> tuple[Deployment, Json]:
    """The deployment and the traffic in a config: the inverse of `config_of`.

    Parameters
    ----------
    what : str
        Beginning of error messages.

    Raises
    ------
    KvsimError
        If it is not the config of a run.
    """
    with understood(what, "cannot be used"):
        if not isinstance(config, dict):
            raise KvsimError(f"{what} must hold a JSON object, got {type(config).__name__}")
        if "runs" in config:
            names = ", ".join(config["runs"])
            raise KvsimError(f"{what} belongs to a comparison: choose one of its runs ({names})")
        fleet = record_of(FleetConfig, config.get("fleet", {}), "fleet")
        deployment = _server_of(config["scenario"], fleet, "scenario")
        pools = tuple(_pool_of(each, fleet) for each in config.get("pools", ()))
        return replace(deployment, pools=pools) if pools else deployment, dict(config["workload"])


def _server_of(described: Json, fleet: FleetConfig, what: str) -> Deployment:
    """The server that a config describes."""
    parts = _with_options(described)
    specs = {"model": ModelSpec, "gpu": GpuSpec, "engine": EngineConfig}
    made: Json = {name: record_of(spec, parts[name], name) for name, spec in specs.items()}
    deployment = record_of(Deployment, {**parts, **made, "fleet": fleet}, what)
    if deployment.profile is not None:
        check_profile(deployment.profile)
    return deployment


def _pool_of(described: Mapping[str, Any], fleet: FleetConfig) -> Pool:
    """The pool that a config describes; its router is the fleet's."""
    facts = {name: described[name] for name in POOL_FACTS}
    replicas = described["replicas"]
    if isinstance(replicas, int):
        fleet = fleet.of_pool(replicas)
    return record_of(Pool, {**facts, "server": _server_of(described["scenario"], fleet, "pools")}, "pools")


def _with_options(server: Json) -> Json:
    """Convert the settings of a server to today's form: in older configs each option of a part was a setting.

    Leaves out settings equal to the default, and those of other parts.
    """
    engine = server["engine"]
    if not isinstance(engine, Mapping):
        return server
    held = ((server, Deployment.recorded()), (engine, [each.name for each in fields(EngineConfig)]))
    before = {name: value for values, kept in held for name, value in values.items() if name not in kept}
    if not before:
        return server
    known = declared_everywhere()
    own = {
        name: value
        for name, value in before.items()
        if not (name in known and value in (None, *known[name].defaults))
    }
    options = engine.get("options", {})
    if not isinstance(options, Mapping):
        raise KvsimError(f"options must be an object, got {type(options).__name__}")
    server, engine = (
        {name: value for name, value in values.items() if name not in before} for values, _ in held
    )
    return {**server, "engine": {**engine, "options": {**options, **own}}}


def goals_of(config: object, what: str = "config") -> Goals:
    """The goals in a config; no goals if it has none."""
    with understood(what, "cannot be used"):
        if not isinstance(config, dict):
            raise KvsimError(f"{what} must hold a JSON object, got {type(config).__name__}")
        return record_of(Goals, config.get("goals", {}), "goals")
