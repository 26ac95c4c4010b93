"""How full a store gets: the loops of Mooncake's benchmark, with kvsim's own random numbers.

    fill the segment; then N times: allocate; while that is refused: evict a random object, try again

A random object is evicted, and the last one takes its place in the list. Utilisation is the bytes requested
by live objects over those of the segment: after each allocation (`one_by_one`), or at each refusal (`pairs`:
rounds of KV objects, then as many indexer objects; a refusal evicts a share of all).

In the steady state of one size it is `size / class_up(size)`, minus the unused end of the segment.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from kvsim.allocators.size_classes.class_heap import Extent
from kvsim.allocators.size_classes.store import Segment

MASK = (1 << 64) - 1
SIZES = 0xABCDEF
"""Difference between the seeds of sizes and of victims."""
MOST_OBJECTS = 128
"""Maximum objects of a kind in a round of pairs."""


def splitmix64(seed: int) -> Iterator[int]:
    """Random 64-bit integers."""
    while True:
        seed = (seed + 0x9E3779B97F4A7C15) & MASK
        value = ((seed ^ seed >> 30) * 0xBF58476D1CE4E5B9) & MASK
        value = ((value ^ value >> 27) * 0x94D049BB133111EB) & MASK
        yield value ^ value >> 31


@dataclass
class Outcome:
    """Results of a loop.

    Attributes
    ----------
    utilisations : list of float
        After each allocation, or at each refusal, excluding the warm-up.
    samples : list of (int, int, int)
        After each tenth of the loop: allocations (rounds), bytes alive, objects alive.
    warm_up, evictions : int
        Allocations before the loop; evictions, including those of the warm-up.
    """

    utilisations: list[float] = field(default_factory=list)
    samples: list[tuple[int, int, int]] = field(default_factory=list)
    warm_up: int = 0
    evictions: int = 0

    @property
    def mean(self) -> float:
        """Mean utilisation."""
        return sum(self.utilisations) / len(self.utilisations)


class Objects:
    """Live objects in a segment, and the choice of victims.

    Parameters
    ----------
    segment : Segment
        Holds the objects.
    seed : int
        Seed for choosing victims.
    told : callable, optional
        Called with the address of every object.
    """

    def __init__(self, segment: Segment, seed: int, told: Callable[[int], None] | None = None) -> None:
        self.segment = segment
        self.alive: list[Extent] = []
        self.evictions = 0
        self._random = splitmix64(seed)
        self._told = told

    @property
    def utilisation(self) -> float:
        """Bytes requested by live objects, over the segment's."""
        return self.segment.requested / self.segment.bytes

    def evict(self, count: int) -> None:
        """Free random objects, one after another."""
        alive, draw, give_back = self.alive, self._random.__next__, self.segment.give_back
        for _ in range(count):
            place = draw() % len(alive)
            victim, alive[place] = alive[place], alive[-1]
            alive.pop()
            give_back(victim)
        self.evictions += count

    def add(self, size: int, share: float = 0.0, refused: Callable[[], None] | None = None) -> None:
        """Place an object; while there is no room, evict a share of `share` of all objects, at least one."""
        loan = self.segment.take(size)
        while loan is None:
            if refused:
                refused()
            self.evict(max(1, int(share * len(self.alive))))
            loan = self.segment.take(size)
        self.alive.append(loan)
        if self._told:
            self._told(self.segment.address(loan))


def one_by_one(
    objects: Objects, sizes: Iterator[int], warm_up: int | None, count: int, parts: int = 10
) -> Iterator[Outcome]:
    """Place objects one at a time; yields the outcome so far after each of `parts` parts.

    `warm_up` is the number of objects before that; None: until their sizes add up to the segment.
    """
    outcome, drawn = Outcome(), 0
    while outcome.warm_up < warm_up if warm_up is not None else drawn < objects.segment.bytes:
        size = next(sizes)
        drawn += size
        objects.add(size)
        outcome.warm_up += 1
    for number in range(1, count + 1):
        objects.add(next(sizes))
        outcome.utilisations.append(objects.utilisation)
        if number % (count // parts) == 0:
            outcome.samples.append((number, objects.segment.requested, len(objects.alive)))
            outcome.evictions = objects.evictions
            yield outcome


def pairs(
    objects: Objects,
    kv: int,
    indexer: int,
    draws: Iterator[int],
    *,
    warm_up: int,
    rounds: int,
    share: float,
    parts: int = 10,
) -> Iterator[Outcome]:
    """Rounds of up to 128 KV objects and as many indexer objects (0 bytes: none); like `one_by_one`."""
    outcome = Outcome(warm_up=warm_up)

    def refused() -> None:
        if number > 0:
            outcome.utilisations.append(objects.utilisation)

    for number in range(1 - warm_up, rounds + 1):
        count = 1 + next(draws) % MOST_OBJECTS
        for size in (kv, indexer) if indexer else (kv,):
            for _ in range(count):
                objects.add(size, share, refused)
        if number > 0 and number % (rounds // parts) == 0:
            outcome.samples.append((number, objects.segment.requested, len(objects.alive)))
            outcome.evictions = objects.evictions
            yield outcome
