"""Cells found for a ubatch, and how to put back what was in them.

before    |aa..bbb.|      found for 2 tokens of sequence c, one array: cells 2 and 3
placed    |aaccbbb.|      the head of the array goes behind them
restored  |aa..bbb.|      as if nothing had been placed, where a later ubatch finds no room
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from kvsim.allocators.llama.batches import Ubatch
from kvsim.allocators.llama.cells import Cells


class Slot(NamedTuple):
    """Cells for a ubatch: of each of its arrays, in the order of its tokens."""

    streams: tuple[int, ...]
    cells: tuple[tuple[int, ...], ...]


class Placed(NamedTuple):
    """A ubatch in its cells; attention then reads `read_cells` of each array."""

    ubatch: Ubatch
    slot: Slot
    read_cells: int


def restorer(arrays: Sequence[Cells], heads: list[int], slot: Slot) -> Callable[[], None]:
    """What puts back the cells of a slot as they are now, and the heads.

    As in the original, the head of the array at place i of a ubatch gets back what array i had.
    """
    old_heads = list(heads)
    before = [
        [(cell, arrays[stream].position[cell], tuple(arrays[stream].owners[cell])) for cell in row]
        for stream, row in zip(slot.streams, slot.cells, strict=True)
    ]

    def restore() -> None:
        for place, (stream, row) in enumerate(zip(slot.streams, before, strict=True)):
            cells = arrays[stream]
            for cell, position, owners in row:
                if not cells.is_empty(cell):
                    cells.erase(cell)
                if position >= 0:
                    cells.write(cell, position, owners)
            heads[stream] = old_heads[place]

    return restore
