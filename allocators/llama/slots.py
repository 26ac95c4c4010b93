"""Cells found for a ubatch, and how to restore their contents.

before    |aa..bbb.|      found for 2 tokens of sequence c, one array: cells 2 and 3
placed    |aaccbbb.|      the head of the array moves behind them
restored  |aa..bbb.|      as if nothing had been placed, if a later ubatch finds no room
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from kvsim.allocators.llama.batches import Ubatch
from kvsim.allocators.llama.cells import Cells


class Slot(NamedTuple):
    """Cells for a ubatch, per array, in token order."""

    streams: tuple[int, ...]
    cells: tuple[tuple[int, ...], ...]


class Placed(NamedTuple):
    """A ubatch in its cells; attention then reads `read_cells` of each array."""

    ubatch: Ubatch
    slot: Slot
    read_cells: int


def restorer(arrays: Sequence[Cells], heads: list[int], slot: Slot) -> Callable[[], None]:
    """A function that restores the current contents of a slot's cells, and the heads.

    As in the original, the head of the array at place i of a ubatch is set to the old head of array i.
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
