"""When Llumnix moves a running request to another replica, and which: `--migrate llumnix:source=-48,...`.

    every 50 ms   sources: freeness is low, or a preempted request waits   targets: the others, if it is high
                  the least free source is paired with the freest target, the next with the next
    of a source   the decoding request of the lowest priority, with the fewest tokens
    a replica that drains has a freeness of minus infinity: all that decode there move away

Defaults are those of its code: -3 blocks of 16 tokens per request, one migration per replica at a time, the
last stage from 16 blocks on, 3 stages at most. Freeness is that of sim/routers/llumnix.py.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields
from math import inf, isfinite

from kvsim.sim.errors import KvsimError
from kvsim.sim.routers.base import Seen
from kvsim.sim.routers.llumnix import freeness
from kvsim.sim.serving.scaling import LEAST_S, MOST_S


@dataclass(frozen=True)
class Llumnix:
    """Options of Llumnix.

    Attributes
    ----------
    every : float
        Seconds between two looks at the replicas.
    source, target : float
        A replica whose freeness is at most `source`, or at least `target`, tokens per request is one.
    last : int
        The last stage copies at most this many blocks.
    stages : int
        A migration that takes more stages is given up.
    link : str
        Link between two GPUs: a name, or GB/s.
    """

    every: float = 0.05
    source: float = -48.0
    target: float = -48.0
    last: int = 16
    stages: int = 3
    link: str = "400gb"

    def pairs(
        self,
        replicas: Sequence[Seen],
        moving: Sequence[bool],
        preempted: Callable[[int], bool],
        draining: Collection[int] = (),
    ) -> list[tuple[int, int]]:
        """Pairs of replicas (source, target) by place.

        `moving` says by place which replicas take part in a migration, `preempted` whether a request waits to
        be recomputed there; those that are `draining` are not among `replicas`.
        """
        found = [(freeness(each), each.place) for each in replicas if not moving[each.place]]
        found += [(-inf, place) for place in draining if not moving[place]]
        needy = {place for _, place in found if preempted(place)}
        sources = sorted(each for each in found if each[0] <= self.source or each[1] in needy)
        targets = sorted(
            (-free, place) for free, place in found if free >= self.target and place not in needy
        )
        both = zip(sources, targets, strict=False)
        return [(source, target) for (_, source), (_, target) in both if source != target]


MUST = "migrate must be none, llumnix or llumnix:every=S,source=N,target=N,last=N,stages=N,link=NAME|GB/S"


def migration_of(text: str) -> Llumnix:
    """Parse the options from a text; KvsimError if it is invalid."""
    kind, _, rest = text.partition(":")
    types = {each.name: each.type for each in fields(Llumnix)}
    given: dict[str, float | int | str] = {}
    try:
        if kind != "llumnix":
            raise ValueError(text)
        for each in rest.split(",") if rest else ():
            name, _, value = each.partition("=")
            if name in given:
                raise KvsimError(f"migrate must have {name} once")
            given[name] = {float: float, int: int, str: str}[types[name]](value)  # type: ignore[index]
        found = Llumnix(**given)  # type: ignore[arg-type]
        numbers = found.every, found.source, found.target
        if not all(map(isfinite, numbers)) or found.last < 1 or found.stages < 1 or not found.link:
            raise ValueError(text)
    except KvsimError:
        raise
    except (KeyError, ValueError):
        raise KvsimError(f"{MUST}, got {text!r}") from None
    if not LEAST_S <= found.every <= MOST_S:
        raise KvsimError(f"migrate: every must be {LEAST_S:g} to {MOST_S:,.0f} seconds, got {found.every:g}")
    if found.source > found.target:
        raise KvsimError(f"migrate: source must be at most target, got {found.source:g} and {found.target:g}")
    return found
