"""Slab: equal slabs, each cut into chunks of one size class; a class that runs out gets another's slab.

    slab 0  class 1,024   |#### seq 3 ####|.. free ..|
    slab 1  class   410   |## 5 ##|. free .|## 8 ##|. free .|~|     ~ rest: too small for a chunk
    slab 2  no class      |............... free ..............|

A request gets a chunk of the smallest class that holds it; classes grow by a factor of 1.25 up to the slab.
Waste per sequence: what it does not write, and up to 1/5 by rounding. Free chunks of other classes are lost
(external) until their slab is empty and belongs to no class. A sparse class would keep slabs for ever
("calcification"), so with `rebalances` the class with the most free room frees one: the sequences of its
emptiest slab move to its other slabs (`copied_slots`), if all of them find a chunk there.

Source: Bonwick, The slab allocator, USENIX 1994; memcached's slabs (factor 1.25) and its slab rebalancer,
which evicts items; this one moves sequences, as they must stay alive.
"""

from bisect import bisect_left
from collections.abc import Iterator
from typing import ClassVar, Self

from kvsim.allocators.base import Allocator, Holdings, Region
from kvsim.allocators.options import Options

SLABS = 3
"""Default number of slabs of an arena, and the minimum if each slab must hold the longest sequence."""
FIRST_CLASS = 16
"""Slots in the smallest chunk."""


def chunk_sizes(slab: int) -> list[int]:
    """Class sizes of a slab: 16 slots, then a quarter more each time; the largest is the slab."""
    sizes, size = [], min(FIRST_CLASS, slab)
    while size < slab:
        sizes.append(size)
        size += -(-size // 4)
    return [*sizes, slab]


class _Slab:
    """A slab of some class: its chunks, by number."""

    __slots__ = ("allocated", "free", "size")

    def __init__(self, size: int, slab: int) -> None:
        self.size = size
        self.free = list(range(slab // size - 1, -1, -1))  # the last one is allocated next
        self.allocated: dict[int, int] = {}  # chunk -> sequence


class Slab(Allocator):
    """Chunks of size classes, cut from slabs.

    Parameters
    ----------
    capacity_slots : int
        Size of the arena; a remainder below one slab is left out.
    slab_slots : int, optional
        Slots of a slab, which bounds a reservation; by default a third of the arena.
    rebalances : bool
        Whether a class gives up a slab whose sequences its other slabs could hold.
    """

    reserves: ClassVar[bool] = True

    family = "classes"
    idea = "slabs cut into chunks of one size; sparse slabs are given up"
    wastes = "bound - tokens, 1/5 by rounding; free chunks of other sizes"
    used_by = "memcached, CacheLib"
    source = "The slab allocator, USENIX 1994"

    @classmethod
    def from_options(cls, capacity_slots: int, options: Options) -> Self:
        longest = options.max_model_len
        return cls(capacity_slots, longest if SLABS * longest <= capacity_slots else None)

    def __init__(self, capacity_slots: int, slab_slots: int | None = None, rebalances: bool = True) -> None:
        if capacity_slots < 1:
            raise ValueError(f"capacity_slots must be at least 1, got {capacity_slots}")
        self.slab_slots = min(slab_slots or max(1, capacity_slots // SLABS), capacity_slots)
        super().__init__(capacity_slots // self.slab_slots * self.slab_slots)
        self.rebalances = rebalances
        self.sizes = chunk_sizes(self.slab_slots)
        self._unclassed = list(range(self.capacity_slots // self.slab_slots - 1, -1, -1))
        self._slabs: dict[int, _Slab] = {}
        self._classes: list[dict[int, None]] = [{} for _ in self.sizes]  # slabs with a free chunk
        self._free_chunks = [0] * len(self.sizes)
        self._where: Holdings[tuple[int, int]] = Holdings()  # slab, chunk

    def slots_needed(self, tokens: int, bound: int) -> int:
        place = bisect_left(self.sizes, max(tokens, bound))
        return self.sizes[place] if place < len(self.sizes) else max(tokens, bound)

    def fits(self, tokens: int, bound: int) -> bool:
        return max(tokens, bound) <= self.slab_slots

    def can_admit(self, tokens: int, bound: int) -> bool:
        need = max(tokens, bound)
        if need > self.slab_slots:
            return False
        place = bisect_left(self.sizes, need)
        return bool(self._classes[place] or self._unclassed) or self._donor() is not None

    def admit(self, seq: int, tokens: int, bound: int) -> bool:
        self._where.expect_new(seq, tokens)
        need = max(tokens, bound)
        if need > self.slab_slots:
            return False
        place = bisect_left(self.sizes, need)
        if not self._classes[place] and not self._unclassed:
            donor = self._donor()
            if donor is None:
                return False
            self._free_a_slab(donor)
        if not self._classes[place]:
            self._give_slab(place)
        self._allocate(seq, place)
        self.used_slots += self.sizes[place]
        return True

    def capacity(self, seq: int) -> int:
        return self._slabs[self._where[seq][0]].size

    def grow(self, seq: int, tokens: int) -> bool:
        return tokens <= self.capacity(seq)

    def release(self, seq: int) -> None:
        number, chunk = self._where[seq]
        slab = self._slabs[number]
        del self._where[seq]
        self.used_slots -= slab.size
        place = bisect_left(self.sizes, slab.size)
        del slab.allocated[chunk]
        slab.free.append(chunk)
        self._free_chunks[place] += 1
        self._classes[place][number] = None
        if not slab.allocated:
            self._take_slab(number, place)

    def external_slots(self, need: int) -> int:
        if not need:
            return 0
        if need > self.slab_slots:
            return self.free_slots
        place = bisect_left(self.sizes, need)
        whole = len(self._unclassed) * self.slab_slots
        return self.free_slots - whole - self._free_chunks[place] * self.sizes[place]

    def largest_free_extent(self) -> int:
        if self._unclassed:
            return self.slab_slots
        return max((size for size, slabs in zip(self.sizes, self._classes, strict=True) if slabs), default=0)

    def regions(self) -> Iterator[Region]:
        for number in range(self.capacity_slots // self.slab_slots):
            start = number * self.slab_slots
            slab = self._slabs.get(number)
            if slab is None:
                yield Region(start, self.slab_slots, ())
                continue
            chunks = self.slab_slots // slab.size
            for chunk in range(chunks):
                owners = (slab.allocated[chunk],) if chunk in slab.allocated else ()
                yield Region(start + chunk * slab.size, slab.size, owners)
            if rest := self.slab_slots - chunks * slab.size:
                yield Region(start + chunks * slab.size, rest, ())

    def _allocate(self, seq: int, place: int) -> None:
        """Give a sequence a chunk of the oldest slab of its class that has a free one."""
        number = next(iter(self._classes[place]))
        slab = self._slabs[number]
        chunk = slab.free.pop()
        slab.allocated[chunk] = seq
        self._where[seq] = (number, chunk)
        self._free_chunks[place] -= 1
        if not slab.free:
            del self._classes[place][number]

    def _give_slab(self, place: int) -> None:
        """Cut the most recently freed slab into chunks of a class."""
        number = self._unclassed.pop()
        slab = self._slabs[number] = _Slab(self.sizes[place], self.slab_slots)
        self._classes[place][number] = None
        self._free_chunks[place] += len(slab.free)

    def _take_slab(self, number: int, place: int) -> None:
        """Remove an empty slab from its class."""
        slab = self._slabs.pop(number)
        self._free_chunks[place] -= len(slab.free)
        del self._classes[place][number]
        self._unclassed.append(number)

    def _donor(self) -> int | None:
        """The class with the most free slots that could spare a slab; None if there is none."""
        if not self.rebalances:
            return None
        slots = [free * size for free, size in zip(self._free_chunks, self.sizes, strict=True)]
        able = [k for k, size in enumerate(self.sizes) if self._free_chunks[k] >= self.slab_slots // size]
        return max(able, key=slots.__getitem__, default=None)

    def _free_a_slab(self, place: int) -> None:
        """Move the sequences of a class's emptiest slab to its other slabs."""
        number = min(self._classes[place], key=lambda each: len(self._slabs[each].allocated))
        slab = self._slabs[number]
        del self._classes[place][number]
        for chunk, seq in sorted(slab.allocated.items()):
            self._allocate(seq, place)
            self._free_chunks[place] += 1  # free the chunk that it leaves
            slab.free.append(chunk)
            self.copied_slots += slab.size
        slab.allocated.clear()
        self._classes[place][number] = None
        self._take_slab(number, place)
