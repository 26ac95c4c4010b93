"""How many replicas a fleet has over time: by a schedule, by queue and KV memory, or by goals.

    schedule:0=2,600=6,1200=3            this many from that second on
    threshold:queue=4,kv=0.8             like Kubernetes' horizontal autoscaler: every `every` seconds
        wanted = ceil(open x largest of (mean waiting / queue, mean used share / kv)), unless within 10 %
        scales down only to the most wanted in the last `cool` seconds; never below `least`
    slo:ttft=0.5,tpot=0.05               like Dynamo's planner (slo_planner.py, slo_sides.py)

The maximum is the number of replicas that it scales (scale_groups.py). Source of the second: Kubernetes,
"Horizontal Pod Autoscaling" (ratio, tolerance 0.1, a look every 15 s, downscale stabilization of 300 s).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, isfinite

from kvsim.sim.errors import KvsimError
from kvsim.sim.record.request_log import RequestLog
from kvsim.sim.routers.base import Seen
from kvsim.sim.serving.scale_policy import ScalePolicy
from kvsim.sim.serving.slo_planner import DEFAULTS as SLO
from kvsim.sim.serving.slo_planner import planner_of
from kvsim.sim.serving.slo_sides import SIDES

TOLERANCE = 0.1
LEAST_S, MOST_S = 0.001, 1e9
"""Limits of the time between two looks; the latter also of a schedule's seconds."""


@dataclass(frozen=True)
class Schedule(ScalePolicy):
    """A given number of replicas from each second on.

    Attributes
    ----------
    steps : tuple of (float, int)
        Seconds and replicas, in order; the first is at 0.
    """

    steps: tuple[tuple[float, int], ...]

    @property
    def first(self) -> int:
        """Replicas in the beginning."""
        return self.steps[0][1]

    @property
    def times_s(self) -> list[float]:
        """Times of decisions."""
        return [at_s for at_s, _ in self.steps[1:]]

    every_s = 0.0

    def target(self, now_s: float, loads: Sequence[Seen], alive: int) -> int:
        """How many there should be from now on."""
        return [count for at_s, count in self.steps if at_s <= now_s][-1]


@dataclass
class Threshold(ScalePolicy):
    """As many as bring queue and KV memory to their targets.

    Attributes
    ----------
    queue, kv : float
        Targets: waiting requests of a replica, and used share of its KV memory.
    least, most : int
        Fewest and most replicas.
    every_s, cool_s : float
        Seconds between two looks; seconds for which the most wanted holds.
    """

    queue: float
    kv: float
    least: int
    most: int
    every_s: float
    cool_s: float
    _wanted: list[tuple[float, int]] = field(default_factory=list)

    @property
    def first(self) -> int:
        """Replicas in the beginning."""
        return self.least

    def target(self, now_s: float, loads: Sequence[Seen], alive: int) -> int:
        """How many there should be from now on."""
        if not loads:
            return min(max(alive, self.least), self.most)
        count = len(loads)
        waiting = sum(load.waiting for load in loads) / count / self.queue
        used = sum(load.used_share for load in loads) / count / self.kv
        ratio = max(waiting, used)
        wanted = alive if abs(ratio - 1) <= TOLERANCE else ceil(count * ratio)
        wanted = min(max(wanted, self.least), self.most)
        self._wanted = [each for each in self._wanted if each[0] > now_s - self.cool_s]
        self._wanted.append((now_s, wanted))
        return wanted if wanted >= alive else min(alive, max(each for _, each in self._wanted))


MUST = (
    "scale must be schedule:SECOND=REPLICAS,... or threshold:queue=N,kv=X,least=N,every=S,cool=S or "
    "slo:ttft=S,tpot=S,least=N,every=S,look=S,down=X"
)


_ABOVE_0 = "above 0", lambda value: value > 0
_SHARE = "above 0 and at most 1", lambda value: 0 < value <= 1
_INTERVAL = f"{LEAST_S:g} to {MOST_S:,.0f} seconds", lambda value: LEAST_S <= value <= MOST_S
THRESHOLD = {"queue": 4.0, "kv": 0.8, "least": 1.0, "every": 15.0, "cool": 300.0}
TAKES = {"threshold": THRESHOLD, "slo": SLO}
"""The settings of a kind of policy and their defaults; a schedule has seconds instead."""
ALLOWED: Mapping[str, tuple[str, Callable[[float], bool]]] = {
    **dict.fromkeys(("queue", "ttft", "tpot"), _ABOVE_0),
    **dict.fromkeys(("kv", "down"), _SHARE),
    **dict.fromkeys(("every", "look"), _INTERVAL),
    "cool": ("at least 0 seconds", lambda value: value >= 0),
    "least": ("a whole number", float.is_integer),
}
"""What a setting must be."""


def policy_of(
    text: str, most: int, log: RequestLog | None = None, role: str = "both", replicas: str = "replicas"
) -> ScalePolicy:
    """Parse a policy, for at most `most` replicas of a role; KvsimError if it is not one.

    A policy finds finished requests in `log`; it may be omitted to only check the text. Errors say which
    `replicas` these are.
    """
    kind, _, rest = text.partition(":")
    pairs = [each.partition("=") for each in rest.split(",") if each]
    try:
        given = [(name.strip(), float(value)) for name, _, value in pairs]
        _check_each(kind, given)
        if not all(isfinite(value) and value >= 0 for _, value in given):
            raise ValueError(text)
        if kind == "schedule":
            steps = _steps(given, text)
            found: ScalePolicy = Schedule(steps)
            counts = [count for _, count in steps]
        elif kind == "threshold":
            found = _threshold(dict(given), most)
            counts = [found.first]
        elif kind == "slo":
            found = planner_of(dict(given), most, log, SIDES[role])
            counts = [found.first]
        else:
            raise ValueError(text)
    except KvsimError:
        raise
    except ValueError:
        raise KvsimError(f"{MUST}, got {text!r}") from None
    if not all(1 <= count <= most for count in counts):
        some = f"1 to {most:,}" if most > 1 else "1"
        raise KvsimError(f"scale must ask for {some} {replicas}, as many as there are, got {text!r}")
    return found


def _check_each(kind: str, given: Sequence[tuple[str, float]]) -> None:
    """Check that each name is given once, is one of this kind of policy, and is what it must be."""
    names, takes = [name for name, _ in given], TAKES.get(kind)
    for name, value in given:
        if names.count(name) > 1:
            what = f"second {name}" if takes is None else name
            raise KvsimError(f"scale must have {what} once, got it {names.count(name)} times")
        if takes is None:
            continue
        if name not in takes:
            raise KvsimError(f"scale: {kind} takes {', '.join(takes)}, got {name!r}")
        must, holds = ALLOWED[name]
        if not holds(value):
            raise KvsimError(f"scale: {name} must be {must}, got {value:g}")


def _steps(given: Sequence[tuple[str, float]], text: str) -> tuple[tuple[float, int], ...]:
    steps = tuple((float(name), int(value)) for name, value in given)
    whole = all(value == int(value) for _, value in given)
    possible = whole and all(at_s <= MOST_S for at_s, _ in steps)
    if not steps or steps != tuple(sorted(steps)) or steps[0][0] != 0 or not possible:
        raise KvsimError(
            "scale: a schedule must give whole numbers of replicas from second 0 on, in order, up to second "
            f"{MOST_S:,.0f}, got {text!r}"
        )
    return steps


def _threshold(given: dict[str, float], most: int) -> Threshold:
    queue, kv, least, every_s, cool_s = (THRESHOLD | given).values()
    return Threshold(queue, kv, int(least), most, every_s, cool_s)
