"""An arena in blocks of one size, for sequences that take whole blocks.

    capacity_slots = num_blocks * block_size        a remainder below one block is left out
    slots of a sequence = ceil(tokens / block_size) * block_size

Each allocator decides which block a sequence gets, and when.
"""

from collections.abc import Iterator
from typing import ClassVar

from mypy_extensions import mypyc_attr

from kvsim.allocators.base import Allocator, Region


@mypyc_attr(allow_interpreted_subclasses=True)
class Blocks(Allocator):
    """`num_blocks` blocks of `block_size` slots.

    Raises ValueError unless there is at least one block of at least one slot.
    """

    pages: ClassVar[bool] = True
    has_blocks: ClassVar[bool] = True

    def __init__(self, capacity_slots: int, block_size: int) -> None:
        if block_size < 1:
            raise ValueError(f"block_size must be at least 1, got {block_size}")
        if capacity_slots < block_size:
            raise ValueError(f"capacity_slots must hold one block of {block_size}, got {capacity_slots}")
        self.block_size = block_size
        self.num_blocks = capacity_slots // block_size
        super().__init__(self.num_blocks * block_size)

    @property
    def block_slots(self) -> int:
        return self.block_size

    def slots_needed(self, tokens: int, bound: int) -> int:
        return -(-tokens // self.block_size) * self.block_size

    def regions(self) -> Iterator[Region]:
        """As in the base; a subclass that does not override this overrides `layout`."""
        return self.layout().regions()
