"""The user's description of a server: names and numbers; everything else has defaults.

    Scenario(model="llama-3.1-8b", gpu="h100", max_num_seqs=64).deployed() -> a Deployment

None means the default of the engine, the release, the model or the GPU. Every field is an option of
`sim run`, a keyword of `kvsim.simulate` and a row of docs/commands.md (sim/option.py). Most are declared
beside the records that take them (sim/deployment/).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from kvsim.sim.deployment.deployment import HARDWARE, Deployment, ServerChoices
from kvsim.sim.deployment.engine import EngineChoices, EngineConfig, check_reserve, split_reserve
from kvsim.sim.deployment.registry import Classes
from kvsim.sim.deployment.vllm_defaults import Asked
from kvsim.sim.errors import KvsimError
from kvsim.sim.models.spec import GpuSpec, ModelSpec
from kvsim.sim.option import check_allowed, option

FLEET = "Fleet"
NONE = "none"
"""No scaling or no migration: the baseline of a sweep."""


@dataclass(frozen=True, kw_only=True)
class Scenario(ServerChoices, EngineChoices):
    """A server: an engine, its KV memory, a model and GPUs; and the number of such servers."""

    quantization: str | None = option(
        "Weights: fp8, awq, gptq, mxfp4, nvfp4, none.",
        panel=HARDWARE,
        default=None,
        value="NAME",
        shown="as the model's",
        doc="weights of another precision: `fp8`, `awq`, `gptq`, `mxfp4`, `nvfp4`, or `none` for 16 bits; "
        "fewer bytes, and products in 8 or 4 bits if the GPU has them",
    )
    replicas: int = option(
        "Equal servers on one clock.",
        panel=FLEET,
        default=1,
        value="N",
        doc="equal servers on one clock: a [fleet](fleet.md)",
    )
    pool: str | None = option(
        "Servers that differ, once for each pool: both:2:gpu=h100,tp=2.",
        panel=FLEET,
        default=None,
        value="ROLE:N[:OPTION=X,...]",
        shown="equal replicas",
        repeats=True,
        doc="instead of `--replicas`, once for each [pool](fleet.md#pools): N servers with their own "
        "options, as in `both:2:gpu=h100,tp=2`; in files a text, with spaces between pools",
    )
    router: str | type = option(
        "Spreads requests, see: sim routers; or your own mine:Mine.",
        panel=FLEET,
        default="round-robin",
        value="NAME",
        doc="spreads requests: one of [`sim routers`](fleet.md#routers), or your own `package.module:Class`",
    )
    sticky: bool = option(
        "A session stays on its first replica.",
        panel=FLEET,
        default=False,
    )
    fail: str | None = option(
        "A replica dies, once for each death: replica=2:at=100:for=60.",
        panel=FLEET,
        default=None,
        value="replica=N:at=S[:for=S]",
        shown="none",
        repeats=True,
        doc="a replica [dies](fleet.md#faults) at a given second and comes back after a given time, or "
        "never; once for each death",
    )
    scale: str | None = option(
        "Start and stop replicas: schedule:0=2,600=6, threshold:queue=4, slo:ttft=0.5; per pool: decode=...",
        panel=FLEET,
        default=None,
        value="[POOL=]POLICY",
        shown="no scaling",
        repeats=True,
        commas=True,
        doc="[start and stop](fleet.md#scaling) replicas, `--replicas` at most: `schedule:0=2,600=6,1200=3` "
        "(2, from second 600 on 6, from 1200 on 3), or "
        "`threshold:queue=4,kv=0.8,least=1,every=15,cool=300`, or "
        "`slo:ttft=0.5,tpot=0.05,least=1,every=180,look=5,down=0.8`; once for each pool: "
        "`prefill=threshold:queue=2`, `decode=slo:tpot=0.05`, `1=schedule:0=1,60=3` for pool 1; "
        "`none`: all, always",
    )
    migrate: str | None = option(
        "Running requests move to freer replicas: llumnix, llumnix:source=0, ...",
        panel=FLEET,
        default=None,
        value="POLICY",
        shown="requests stay",
        commas=True,
        doc="running requests [move to other replicas](fleet.md#migration): `llumnix`, or "
        "`llumnix:every=0.05,source=-48,target=-48,last=16,stages=3,link=400gb`; `none`: they stay",
    )
    startup_time: float = option(
        "Seconds that a replica takes to start, without reading its weights.",
        panel=FLEET,
        default=30.0,
        value="S",
        least=0,
        most=86_400,
        doc="with `--scale`: seconds that a replica takes to start (process, compilation, CUDA graphs), in "
        "addition to reading its weights",
    )
    direct_decode: int = option(
        "Prompts with at most this many uncached tokens go straight to decode replicas.",
        panel=FLEET,
        default=0,
        value="TOKENS",
        least=0,
        most=1 << 30,
        doc="with prefill and decode pools: a prompt is [computed on a decode "
        "replica](fleet.md#prefill-and-decode-apart) whose prefix cache lacks at most this many of its "
        "tokens",
    )
    mixed_pool: int = option(
        "Longer prefill queues, in tokens, or full decode memory make replicas serve requests alone.",
        panel=FLEET,
        default=0,
        value="TOKENS",
        least=0,
        most=1 << 30,
        doc="with prefill and decode pools: while prefill queues exceed this many tokens, or decode memory "
        "is full, replicas of the other side join a [mixed pool](fleet.md#mixed-pool) and serve requests "
        "alone",
    )
    load_bandwidth: float = option(
        "Rate at which a starting replica reads its weights.",
        panel=FLEET,
        default=2.0,
        value="GB/S",
        above=0,
        doc="with `--scale`: rate at which a starting replica reads its weights",
    )
    options: Mapping[str, object] = field(default_factory=dict)
    """options of a single scheduler, allocator, cost or router, by name (sim/parts.py)"""

    def __post_init__(self) -> None:
        check_allowed(self)
        if self.reserve is not None:
            check_reserve(self.reserve)

    def with_settings(self, settings: Mapping[str, Any]) -> "Scenario":
        """A copy with these settings; names that are not fields are options of parts."""
        common = {each.name for each in fields(self)}
        found = {name: value for name, value in settings.items() if name in common}
        own = {name: value for name, value in settings.items() if name not in common}
        return replace(self, **found | ({"options": {**self.options, **own}} if own else {}))

    def part_options(self) -> dict[str, object]:
        """Options of parts: in `options`, or beside the other fields, as on a command line."""
        common = {each.name for each in fields(Scenario)}
        beside = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in common}
        return {**self.options, **{name: value for name, value in beside.items() if value is not None}}

    def with_allocator(self, chosen: str | type) -> "Scenario":
        """A copy with the allocator `name[:reserve]`, `module:Class[:reserve]`, or a class."""
        if isinstance(chosen, str):
            name, reserve = split_reserve(chosen)
            return replace(self, allocator=name, reserve=self.reserve if reserve is None else reserve)
        return replace(self, allocator=chosen)

    def deployed(self) -> Deployment:
        """The complete deployment, with all defaults filled in.

        Raises
        ------
        KvsimError
            An unknown name, a value out of range, or two options that exclude each other.
        """
        if self.pool is not None:
            return self._pooled(self.pool)
        from kvsim.sim.build import server_defaults
        from kvsim.sim.classes import name_of
        from kvsim.sim.cost.logged import cost_of as log_cost
        from kvsim.sim.cost.older_experts import of_scheduler
        from kvsim.sim.cost.profile_files import gpu_and_cost
        from kvsim.sim.models.catalog import model_named
        from kvsim.sim.models.quantization import quantized
        from kvsim.sim.serving.fleet import FleetConfig

        chosen = self.with_allocator(self.allocator)
        given: dict[str, Any] = {each.name: getattr(chosen, each.name) for each in fields(Scenario)}
        given = {name: value for name, value in given.items() if value is not None}
        given["options"] = chosen.part_options()
        for kind in ("allocator", "scheduler", "policy", "cost"):
            if kind in given:
                given[kind] = name_of(given[kind])
        chosen_model = self.model if isinstance(self.model, ModelSpec) else model_named(self.model)
        model = quantized(chosen_model, self.quantization)
        if isinstance(self.gpu, GpuSpec):
            if given.get("cost") == "calibrated":
                raise KvsimError(
                    "cost calibrated needs the name of a measured GPU, got one described by hand"
                )
            gpu, cost, profile = self.gpu, log_cost(given.get("cost")) or "roofline", None
        else:
            gpu, cost, profile = gpu_and_cost(self.gpu, given.get("cost"))
            ranks = self.tensor_parallel_size * self.data_parallel_size
            profile = of_scheduler(profile, given.get("scheduler"), gpu, ranks)
        classes = Classes()
        asked = Asked(**{each.name: given.get(each.name) for each in fields(Asked)})
        settings = {
            **server_defaults(given["allocator"], given.get("scheduler"), gpu, model, asked, classes),
            **given,
        }
        engine = EngineConfig(**_of(EngineConfig, settings))
        fleet = FleetConfig(
            replicas=self.replicas,
            router=name_of(self.router),
            **self._of_fleet,
        )
        specs = {"model": model, "gpu": gpu, "engine": engine, "fleet": fleet, "cost": cost}
        return Deployment(**_of(Deployment, settings) | specs | {"profile": profile, "classes": classes})

    @property
    def _of_fleet(self) -> dict[str, Any]:
        """The settings of a fleet, besides replicas and router; "none" is a sweep's baseline."""
        scale, migrate = ("" if text in {None, NONE} else text for text in (self.scale, self.migrate))
        starts = type(self) if self.scale == NONE else self
        return {
            "sticky": self.sticky,
            "fail": self.fail or "",
            "scale": scale,
            "migrate": migrate,
            "startup_time": starts.startup_time,
            "load_bandwidth": starts.load_bandwidth,
            "direct_decode": self.direct_decode,
            "mixed_pool": self.mixed_pool,
        }

    def _pooled(self, text: str) -> Deployment:
        """The fleet of the pools in a text, each of servers like this one with their own settings."""
        from kvsim.sim.options.pools import fleet_of, pools_of, typed
        from kvsim.sim.parts import KINDS

        if self.replicas != 1:
            raise KvsimError(f"replicas must be left out with pool, which says how many, got {self.replicas}")
        wanted = pools_of(text)
        chosen = {kind: getattr(self, kind) for kind in KINDS}
        whole = self._of_fleet
        alone = replace(self, pool=None, **{name: getattr(type(self), name) for name in whole})
        servers = [
            replace(alone, replicas=each.replicas).with_settings(typed(each, type(self), chosen)).deployed()
            for each in wanted
        ]
        return fleet_of(wanted, servers, whole)


def _of(record: type, values: dict[str, Any]) -> dict[str, Any]:
    """The values that are fields of a dataclass."""
    return {each.name: values[each.name] for each in fields(record) if each.name in values}
