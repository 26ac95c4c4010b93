"""Contiguous: the whole reservation in one extent, as in engines before PagedAttention.

    |#### tokens ####|~~ reserved: answer to come ~~|...... internal: never written ......|
    '------------------------------- bound slots, one extent ----------------------------'

Waste per sequence: `bound - tokens`; with `bound` = the model's maximum, that is most of it. Free slots
between extents are lost (external) to any request that fits none of them.
"""

from collections.abc import Iterator
from typing import ClassVar, Self

from kvsim.allocators.base import Allocator, Region
from kvsim.allocators.extents import ExtentArena, ExtentOptions
from kvsim.allocators.options import Options


class Contiguous(Allocator):
    """One extent of `bound` slots per sequence.

    Parameters
    ----------
    capacity_slots : int
        Size of the arena.
    fit : "first", "best", "next" or "worst"
        Take the free extent at the lowest address that serves, the smallest that serves, the first behind
        the last allocation, or the largest (the lowest of equals); the low end of it is allocated.
    """

    family: ClassVar[str] = "extents"
    idea: ClassVar[str] = "the whole reservation in one extent"
    wastes: ClassVar[str] = "bound - tokens; holes too small to use"
    used_by: ClassVar[str] = "FasterTransformer, Orca"
    source: ClassVar[str] = "PagedAttention, SOSP '23, section 6.1"

    reserves: ClassVar[bool] = True
    declares: ClassVar[type] = ExtentOptions

    @classmethod
    def from_options(cls, capacity_slots: int, options: Options) -> Self:
        return cls(capacity_slots, options.chosen(ExtentOptions).fit)

    def __init__(self, capacity_slots: int, fit: str = "first") -> None:
        super().__init__(capacity_slots)
        self.arena = ExtentArena(capacity_slots, fit)

    def slots_needed(self, tokens: int, bound: int) -> int:
        return max(tokens, bound)

    def can_admit(self, tokens: int, bound: int) -> bool:
        return self.arena.find(self.slots_needed(tokens, bound)) is not None

    def admit(self, seq: int, tokens: int, bound: int) -> bool:
        self.arena.allocated.expect_new(seq, tokens)
        size = self.slots_needed(tokens, bound)
        if not self.arena.take(seq, size):
            return False
        self.used_slots += size
        return True

    def capacity(self, seq: int) -> int:
        return self.arena.allocated[seq][1]

    def grow(self, seq: int, tokens: int) -> bool:
        return tokens <= self.capacity(seq)

    def release(self, seq: int) -> None:
        self.used_slots -= self.arena.give_back(seq)

    def external_slots(self, need: int) -> int:
        return self.arena.smaller_than(need)

    def largest_free_extent(self) -> int:
        return self.arena.largest()

    def regions(self) -> Iterator[Region]:
        return self.arena.regions()
