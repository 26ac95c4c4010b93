"""Two caches side by side: one for layers that see everything, a smaller one for layers with a window.

    base     |================================|   `size` cells
    window   |========|                           (window * sequences + a ubatch), in multiples of 256

A batch is placed in both or in neither. It is split simply, and if that finds no room, in equal rows. As in
llama.cpp, the window's length and what it hides are two settings (`n_swa`, `swa_type`).
"""

from typing import NamedTuple

from kvsim.allocators.llama.batches import Token, equal, simple
from kvsim.allocators.llama.cache import CellCache
from kvsim.allocators.llama.cells import Window
from kvsim.allocators.llama.slots import Placed

WHOLE = 256
"""cells: the size of the smaller cache is a multiple of this"""


class PlacedTwice(NamedTuple):
    """A ubatch in the cells of both caches."""

    base: Placed
    window: Placed


class WindowPair:
    """The caches of a model with windowed and other layers.

    Parameters
    ----------
    size, padding, most : int
        As in `CellCache`.
    sequences : int
        Maximum number of sequences.
    window_tokens : int
        Window of the windowed layers.
    window : Window or None
        What it hides, which is overwritten; None: nothing, so cells are freed only with their sequence.
    unified : bool
        One array for all sequences, or one per sequence.
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
        """Place a batch in both caches; None if one of them has no room."""
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
        """Like `CellCache.remove`, in both."""
        self.base.remove(seq, first, end)
        self.window.remove(seq, first, end)

    def copy(self, source: int, to: int, first: int = -1, end: int = -1) -> None:
        """Like `CellCache.copy`, in both."""
        self.base.copy(source, to, first, end)
        self.window.copy(source, to, first, end)

    def keep(self, seq: int) -> None:
        """Like `CellCache.keep`, in both."""
        self.base.keep(seq)
        self.window.keep(seq)

    def shift(self, seq: int, first: int, end: int, by: int) -> None:
        """Like `CellCache.shift`, in both."""
        self.base.shift(seq, first, end, by)
        self.window.shift(seq, first, end, by)

    def rotated(self) -> None:
        """Like `CellCache.rotated`, in both."""
        self.base.rotated()
        self.window.rotated()
