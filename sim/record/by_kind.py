"""The ledger by kind of layers, for models that keep unlike layers in groups: sums over time.

    full             token | reserved | internal | cached       4 groups of 9 layers, say
    window 1,024     token | reserved | internal | cached       of one shared pool, or of pools of their own
    any kind's       free | external                            if they share one pool

All integers are slot-picoseconds. A kind's tokens follow from the tokens of all sequences, because a token
takes a fixed number of slots of each kind, except for what was freed behind windows or is held twice.

    token = slots per token * tokens of all living sequences + used - tables   (`Held`, allocators/arena.py)

The tokens of all living sequences are the only unknown, and the sum over all kinds gives them.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kvsim.allocators.arena import Held
from kvsim.allocators.protocols import InGroups
from kvsim.sim.record.span import Integrals

Sums = list[list[int]]
"""For each kind of layers, sums over time of the fields of `Held`."""


@dataclass
class HeldOverTime:
    """What each kind of layers held, summed over time.

    Attributes
    ----------
    kinds : tuple of (str, int)
        Names, and the slots that a token takes in all layers of the kind.
    pools : tuple of (str, int)
        Slots reserved for each kind; empty if the kinds share one pool.
    in_words : dict of str
        Name of a kind -> `4 groups of 9 sliding-window layers`, for some kinds.
    saturated, unsaturated : Sums
        While requests waited, and while none did.
    """

    kinds: tuple[tuple[str, int], ...]
    pools: tuple[tuple[str, int], ...]
    in_words: dict[str, str]
    saturated: Sums
    unsaturated: Sums

    @classmethod
    def none(
        cls, kinds: Sequence[tuple[str, int]], pools: Sequence[tuple[str, int]], in_words: dict[str, str]
    ) -> "HeldOverTime":
        """Nothing is held yet."""
        zeros = [[[0] * len(Held._fields) for _ in kinds] for _ in range(2)]
        return cls(tuple(kinds), tuple(pools), in_words, *zeros)

    def whole(self) -> Sums:
        """Sums over the whole run."""
        return _added(self.saturated, self.unsaturated)

    def ledger(self, sums: Sums, whole: Integrals) -> dict[str, dict[str, int]]:
        """The ledger by kind of layers; `whole` is that of all layers over the same time.

        `free` includes `external`.
        """
        tokens = whole.token - sum(used - tables for used, tables, *_ in sums)
        per_token = sum(slots for _, slots in self.kinds)
        pools = Counter[str]()
        for name, slots in self.pools:
            pools[name] += slots
        found = {}
        for (name, slots), (used, tables, internal, cached, idle) in zip(self.kinds, sums, strict=True):
            token = (slots * tokens // per_token if per_token else 0) + used - tables
            found[name] = {
                "token": token,
                "reserved": used - internal - token,
                "internal": internal,
                "cached": cached,
                "idle": idle,
            }
            if name in pools:
                found[name]["free"] = pools[name] * whole.time_ps - used - cached - idle
        return found


def together(parts: Sequence[HeldOverTime | None]) -> HeldOverTime | None:
    """The sum over several servers; None if they keep their layers in different ways."""
    first = parts[0]
    if first is None or any(part is None or _layers(part) != _layers(first) for part in parts):
        return None
    found = HeldOverTime.none(first.kinds, first.pools, first.in_words)
    for part in parts:
        if part is not None:
            found.saturated = _added(found.saturated, part.saturated)
            found.unsaturated = _added(found.unsaturated, part.unsaturated)
    return found


def rested(held: HeldOverTime, groups: InGroups | None, time_ps: int) -> HeldOverTime | None:
    """What is cached or idle in a server without requests, over `time_ps`."""
    found = HeldOverTime.none(held.kinds, held.pools, held.in_words)
    if groups is not None:
        now = groups.held_by_kind(0, 0, groups.kind_counts(int, dict)())
        found.unsaturated = [[0, 0, 0, cached * time_ps, idle * time_ps] for *_, cached, idle in now]
    return found


def _layers(held: HeldOverTime) -> tuple[object, ...]:
    return held.kinds, held.pools, held.in_words


def _added(one: Sums, other: Sums) -> Sums:
    return [[a + b for a, b in zip(*rows, strict=True)] for rows in zip(one, other, strict=True)]
