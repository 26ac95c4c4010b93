"""Two caches side by side: layers that see everything, and layers with a window, in a smaller one.

    base     |================================|   `size` cells
    window   |========|                           (window * sequences + a ubatch), in whole 256 cells

A batch is placed in both or in none. Split simply, and if that finds no room, in equal rows. How long the
window is and what it hides are two settings in llama.cpp (`n_swa`, `swa_type`), as here.
"""

from typing import NamedTuple

from kvsim.allocators.llama.batches import Token, equal, simple
from kvsim.allocators.llama.cache import CellCache
from kvsim.allocators.llama.cells import Window
from kvsim.allocators.llama.slots import Placed

WHOLE = 256
"""cells: the size of the smaller cache is a multiple"""


class PlacedTwice(NamedTuple):
    """A ubatch in the cells of both caches."""

    base: Placed
    window: Placed


class WindowPair:
    """The caches of a model that has layers with a window and others.

    Parameters
    ----------
    size, padding, most : int
        As of `CellCache`.
    sequences : int
        How many there may be.
    window_tokens : int
        Of the layers that have a window.
    window : Window or None
        What it hides, which is written anew; None: nothing, so that cells come free with their sequence only.
    unified : bool
        One array for all sequences, or one for each.
    """

    def __init__(
        self,
        size: int,
        sequences: int,
        window_tokens: int,
        window: Window | None,
        *,
        padding: int,
        most: int,
        unified: bool,
    ) -> None:
        streams = 1 if unified else sequences
        wanted = min(size, window_tokens * (sequences if unified else 1) + most)
        self.unified, self.most = unified, most
        self.base = CellCache(size, streams=streams, padding=padding, most=most)
        self.window = CellCache(
            -(-wanted // WHOLE) * WHOLE, streams=streams, padding=padding, most=most, window=window
        )

    def decode(self, tokens: list[Token]) -> list[PlacedTwice] | None:
        """Place a batch in both caches; None when one of them has no room."""
        splits = [simple(tokens, self.most)] if self.unified else []
        rows = equal(tokens, self.most, ascending=not self.unified)
        for ubatches in splits if rows is None else [*splits, rows]:
            base = self.base.prepare(tokens, ubatches)
            window = None if base is None else self.window.prepare(tokens, ubatches)
            if base is not None and window is not None:
                return [
                    PlacedTwice(
                        self.base.place(tokens, ubatch, one), self.window.place(tokens, ubatch, other)
                    )
                    for ubatch, one, other in zip(ubatches, base, window, strict=True)
                ]
        return None

    def remove(self, seq: int, first: int = -1, end: int = -1) -> None:
        """As `CellCache.remove`, in both."""
        self.base.remove(seq, first, end)
        self.window.remove(seq, first, end)

    def copy(self, source: int, to: int, first: int = -1, end: int = -1) -> None:
        """As `CellCache.copy`, in both."""
        self.base.copy(source, to, first, end)
        self.window.copy(source, to, first, end)

    def keep(self, seq: int) -> None:
        """As `CellCache.keep`, in both."""
        self.base.keep(seq)
        self.window.keep(seq)

    def shift(self, seq: int, first: int, end: int, by: int) -> None:
        """As `CellCache.shift`, in both."""
        self.base.shift(seq, first, end, by)
        self.window.shift(seq, first, end, by)

    def rotated(self) -> None:
        """As `CellCache.rotated`, in both."""
        self.base.rotated()
        self.window.rotated()
