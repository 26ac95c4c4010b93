"""An array of cells, each empty or with a token's position and the sequences that share it.

cell      0   1   2   3   4   5   6   7
position  0   1   2   .   0   .   3   .        used 5, top 7 (attention also reads the holes below it)
seqs      a   ab  ab      c       b            a sequence is copied by its name: no cell is copied
"""

from collections.abc import Iterable
from typing import NamedTuple

EVERY = 1 << 62
"""a position beyond every token"""


class Window(NamedTuple):
    """What later tokens see: the last `tokens`, or (`chunked`) their own chunk of `tokens`."""

    tokens: int
    chunked: bool = False

    def hides(self, position: int, later: int) -> bool:
        """Whether the token at `later` does not see the one at `position`."""
        if self.chunked:
            return position < later // self.tokens * self.tokens
        return later - position >= self.tokens


class Sequence:
    """The cells of a sequence.

    Attributes
    ----------
    cells : dict of int to None
        Its cells, in the order in which they were written.
    """

    __slots__ = ("_counts", "_high", "_low", "cells")

    def __init__(self) -> None:
        self.cells: dict[int, None] = {}
        self._counts: dict[int, int] = {}  # position -> cells with it
        self._low: int | None = None
        self._high: int | None = None

    def add(self, position: int) -> None:
        """Record that a cell got this position."""
        if position in self._counts:
            self._counts[position] += 1
            return
        if not self._counts:
            self._low = self._high = position
        elif self._high is not None and position > self._high:
            self._high = position
        elif self._low is not None and position < self._low:
            self._low = position
        self._counts[position] = 1

    def remove(self, position: int) -> None:
        """Record that a cell lost this position."""
        left = self._counts[position] - 1
        if left:
            self._counts[position] = left
            return
        del self._counts[position]
        if position == self._low:
            self._low = None
        if position == self._high:
            self._high = None

    @property
    def low(self) -> int:
        """Its first position; -1 if it has none."""
        if self._low is None:
            self._low = min(self._counts, default=-1)
        return self._low if self._counts else -1

    @property
    def high(self) -> int:
        """Its last position; -1 if it has none."""
        if self._high is None:
            self._high = max(self._counts, default=-1)
        return self._high if self._counts else -1


class Cells:
    """An array of cells.

    Attributes
    ----------
    size, used : int
        Number of cells, and of cells that are not empty.
    position : list of int
        Position of each cell's token; -1: the cell is empty.
    owners : list of set of int
        The sequences that share each cell.
    shifts : dict of int to int
        Cell -> shift of its position since the keys were last rotated.
    shifted : bool
        Whether any cell was shifted.
    empty : bytearray
        1 per empty cell.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.clear()

    def clear(self) -> None:
        """Empty every cell."""
        self.used = 0
        self.position = [-1] * self.size
        self.owners: list[set[int]] = [set() for _ in range(self.size)]
        self.shifts: dict[int, int] = {}
        self.shifted = False
        self.empty = bytearray(b"\1" * self.size)
        self._top = 0
        self._sequences: dict[int, Sequence] = {}

    @property
    def top(self) -> int:
        """One past the last used cell."""
        self._top = self.empty.rfind(b"\0", 0, self._top) + 1
        return self._top

    def sequence(self, seq: int) -> Sequence:
        """The cells of a sequence; an empty `Sequence` if it has none."""
        return self._sequences.get(seq, Sequence())

    def sequences(self) -> dict[int, Sequence]:
        """All sequences that have cells."""
        return {seq: known for seq, known in sorted(self._sequences.items()) if known.cells}

    def is_empty(self, cell: int) -> bool:
        """Whether the cell holds no token."""
        return self.position[cell] < 0

    def usable(self, window: Window | None) -> bytearray:
        """1 per cell that may be written: empty, or behind the window of its only sequence."""
        if window is None:
            return self.empty
        usable = self.empty[:]
        for cell, owners in enumerate(self.owners):
            if len(owners) == 1:
                (owner,) = owners
                usable[cell] = window.hides(self.position[cell], self._sequences[owner].high + 1)
        return usable

    # -- changing -----------------------------------------------------------------------------

    def write(self, cell: int, position: int, seqs: Iterable[int]) -> None:
        """Put a token into an empty cell."""
        self.position[cell] = position
        self.empty[cell] = 0
        self.used += 1
        self._top = max(self._top, cell + 1)
        for seq in seqs:
            self.share(cell, seq)

    def share(self, cell: int, seq: int) -> None:
        """Add a sequence to a cell."""
        if seq in self.owners[cell]:
            return
        known = self._sequences.setdefault(seq, Sequence())
        self.owners[cell].add(seq)
        known.cells[cell] = None
        known.add(self.position[cell])

    def leave(self, cell: int, seq: int) -> bool:
        """Remove a sequence from a cell; True if that empties it."""
        known = self._sequences[seq]
        self.owners[cell].remove(seq)
        known.remove(self.position[cell])
        del known.cells[cell]
        if not known.cells:
            del self._sequences[seq]
        if self.owners[cell]:
            return False
        self._forget(cell)
        return True

    def erase(self, cell: int) -> None:
        """Empty a cell."""
        for seq in tuple(self.owners[cell]):
            self.leave(cell, seq)

    def shift(self, cell: int, by: int) -> bool:
        """Shift a token's position; True if it falls below 0, which empties the cell."""
        old = self.position[cell]
        self.shifted = True
        if old + by < 0:
            self.erase(cell)
            return True
        for seq in self.owners[cell]:
            self._sequences[seq].remove(old)
            self._sequences[seq].add(old + by)
        self.position[cell] = old + by
        self.shifts[cell] = self.shifts.get(cell, 0) + by
        return False

    def rotated(self) -> None:
        """Note that the keys of shifted cells were rotated to their new positions."""
        self.shifts.clear()
        self.shifted = False

    def move(self, source: int, to: int) -> None:
        position, owners, shift = self.position[source], self.owners[source], self.shifts.get(source)
        seqs = tuple(owners)
        self.erase(source)
        self.write(to, position, seqs)
        if shift is not None:
            self.shifts[to] = shift

    def _forget(self, cell: int) -> None:
        self.position[cell] = -1
        self.shifts.pop(cell, None)
        self.empty[cell] = 1
        self.used -= 1
