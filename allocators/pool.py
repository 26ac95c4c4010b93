"""Free blocks, in the order in which they will be allocated.

A pool knows blocks by number, not their holders: block tables belong to the allocators. `FreeList` forgets
what was in a block; allocators/prefix_pool.py has a pool that finds cached texts.
"""

from collections.abc import Iterator, Sequence

from mypy_extensions import mypyc_attr

from kvsim.allocators.options import Order
from kvsim.allocators.records import Id


@mypyc_attr(allow_interpreted_subclasses=True)
class Pool:
    """Blocks 0 to `num_blocks - 1`.

    Attributes
    ----------
    free : int
        Blocks that no sequence holds.
    cached : int
        Free blocks whose text can be found.
    """

    def __init__(self, num_blocks: int) -> None:
        self.free = num_blocks
        self.cached = 0

    def allocate(self, count: int, evicted: list[int] | None = None) -> list[int]:
        """The next `count` free blocks, which must exist. Appends positions of cached ones to `evicted`."""
        raise NotImplementedError

    def allocate_one(self) -> Id:
        """Allocate the next free block, which must exist."""
        return self.allocate(1)[0]

    def allocate_each(
        self, seqs: Sequence[Id], tables: dict[Id, list[Id]], evicted: list[int] | None = None
    ) -> None:
        """Append one free block to the table of each of these sequences, in order."""
        for seq, block in zip(seqs, self.allocate(len(seqs), evicted), strict=True):
            tables[seq].append(block)

    def give_back(self, blocks: list[int], key: int | None = None, first: bool = False) -> None:
        """Free blocks; the last of them is allocated first. `first`: before all others, in any order.

        `key` names the text of the first block, and thus those of the next ones, if texts are cached.
        """
        raise NotImplementedError

    def cached_blocks(self) -> Iterator[int]:
        """The free blocks that hold a text."""
        return iter(())

    def queue(self) -> Iterator[int]:
        """The free blocks in allocation order."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class FreeList(Pool):
    """A list of free blocks, initially allocated from 0 up; freed ones go first or last, by the order."""

    def __init__(self, num_blocks: int, order: Order) -> None:
        super().__init__(num_blocks)
        self._stack = order is Order.STACK
        self._free = list(range(num_blocks - 1, -1, -1))  # the next one to allocate is the last

    def allocate(self, count: int, evicted: list[int] | None = None) -> list[int]:
        free = self._free
        blocks = free[: -count - 1 : -1]
        del free[len(free) - count :]
        self.free -= count
        return blocks

    def allocate_one(self) -> Id:
        free: list[Id] = self._free
        self.free -= 1
        return free.pop()

    def allocate_each(
        self, seqs: Sequence[Id], tables: dict[Id, list[Id]], evicted: list[int] | None = None
    ) -> None:
        free: list[Id] = self._free
        for seq in seqs:
            tables[seq].append(free.pop())
        self.free -= len(seqs)

    def give_back(self, blocks: list[int], key: int | None = None, first: bool = False) -> None:
        if self._stack or first:
            self._free += blocks
        else:
            self._free[:0] = blocks
        self.free += len(blocks)

    def give_back_each(self, tables: list[list[int]]) -> None:
        """Free the blocks of the tables, one table after another."""
        blocks: list[int] = []
        for table in tables if self._stack else reversed(tables):
            blocks += table
        self.give_back(blocks)

    def queue(self) -> Iterator[int]:
        return reversed(self._free)
