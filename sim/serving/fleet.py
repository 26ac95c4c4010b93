"""Several replicas behind a router (see dispatcher.py), and sessions that stick to their replica.

    request -> router -> replica 0 | replica 1 | ... | replica N - 1      all on one clock

The router is asked once per request, on arrival. With `sticky`, later turns of a session go where the first
went. The router has its own randomness, so that the same seed gives the same bytes.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import inf

import numpy as np

from kvsim.sim.classes import class_named
from kvsim.sim.errors import KvsimError
from kvsim.sim.routers import ROUTERS
from kvsim.sim.routers.base import Router
from kvsim.sim.serving.faults import Fault, faults_of
from kvsim.sim.serving.llumnix import migration_of
from kvsim.sim.serving.scale_groups import policies_by_name
from kvsim.sim.serving.scaling import policy_of

MOST_REPLICAS = 1024
OF_SCALING = ("startup_time", "load_bandwidth")
"""Settings that only a fleet that scales has."""
OF_SEVERAL = ("sticky", "fail", "scale", "migrate")
"""Settings that a single server does not have."""


@dataclass(frozen=True, kw_only=True)
class FleetConfig:
    """How many servers there are, and how requests are spread over them.

    Attributes
    ----------
    replicas : int
        Equal servers on one clock.
    router : str
        A name in sim/routers, with `:OPTION` if it takes one, or `package.module:Class`.
    sticky : bool
        Whether the requests of a session all go to the replica of its first.
    seed : int
        For routers that draw random numbers.
    fail : str
        Which replicas die and when, see faults.py; empty: none.
    scale : str
        How many of the replicas run and when, see scale_groups.py; empty: all, always.
    migrate : str
        Whether running requests move to other replicas, see llumnix.py; empty: they stay.
    startup_time, load_bandwidth : float
        A replica starts in this many seconds, plus the time to read its weights at this many GB/s.
    direct_decode : int
        A prompt is computed on a decode server whose cache lacks at most this many of its tokens.
    mixed_pool : int
        Prefill queues of more pending tokens are long, see mixed_pool.py; 0: there is no mixed pool.
    """

    replicas: int = 1
    router: str = "round-robin"
    sticky: bool = False
    seed: int = 0
    fail: str = ""
    scale: str = ""
    migrate: str = ""
    startup_time: float = 30.0
    load_bandwidth: float = 2.0
    direct_decode: int = 0
    mixed_pool: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.replicas, int) or not 1 <= self.replicas <= MOST_REPLICAS:
            raise KvsimError(
                f"replicas must be a whole number from 1 to {MOST_REPLICAS:,}, got {self.replicas!r}"
            )
        for name in OF_SEVERAL:
            if self.replicas == 1 and getattr(self, name):
                raise KvsimError(f"{name} must be left out with one replica")
        if self.fail:
            faults_of(self.fail, self.replicas)
        if self.scale:
            named = policies_by_name(self.scale)
            if "" in named:  # the others are checked with the pools
                policy_of(named[""], self.replicas)
        for name in OF_SCALING:
            value = getattr(self, name)
            if not self.scale and value != getattr(type(self), name):
                raise KvsimError(f"{name} must be left out without scale, got {value!r}")
            if not (isinstance(value, int | float) and 0 <= value < inf):
                raise KvsimError(f"{name} must be a finite number of at least 0, got {value!r}")
        if not self.load_bandwidth:
            raise KvsimError("load_bandwidth must be above 0, got 0")
        if self.migrate:
            migration_of(self.migrate)

    @property
    def faults(self) -> list[Fault]:
        """Which replicas die and when, in order of time."""
        return faults_of(self.fail, self.replicas)

    def as_json(self) -> dict[str, object]:
        """Its settings; those of faults, scaling and migration only if there is any."""
        of_scaling = () if self.scale else ("scale", *OF_SCALING)
        others = (
            name for name in ("fail", "migrate", "direct_decode", "mixed_pool") if not getattr(self, name)
        )
        left_out = (*of_scaling, *others)
        return {name: value for name, value in asdict(self).items() if name not in left_out}

    def of_pool(self, replicas: int) -> "FleetConfig":
        """The part of it that a pool's server knows: replicas, and the router of the whole fleet."""
        return FleetConfig(replicas=replicas, router=self.router, seed=self.seed)

    def router_of(self, found: type[Router], options: Mapping[str, object]) -> Router:
        """A router of that class, with its own options among these."""
        name, _, argument = self.router.partition(":")
        return found(argument if name in ROUTERS else "", np.random.default_rng(self.seed), options)


ONE = FleetConfig()


def router_class(text: str) -> type[Router]:
    """The class behind `name`, `name:argument` or `package.module:Class`."""
    name = text.partition(":")[0]
    found = name if name in ROUTERS else text
    return class_named("router", found, ROUTERS, Router)  # type: ignore[type-abstract]
