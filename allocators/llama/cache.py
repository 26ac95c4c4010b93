"""Finding cells for ubatches: one array for all sequences (unified), or one per sequence.

    search from `head`; from 0, if `head` is beyond `used + 2n`; wrapping around the end, once
    contiguous   |aa..bbb....|   n free cells in a row          scattered   |aa12bbb3...|   any n free ones
                        ^ 3 in a row                            (since August 2025)

Waste: contiguous refuses although enough cells are free (external); both read every cell below `top`.
"""

from collections.abc import Callable, Iterable
from itertools import chain

from kvsim.allocators.llama import search
from kvsim.allocators.llama.batches import Token, Ubatch, equal, simple
from kvsim.allocators.llama.cells import EVERY, Cells, Window
from kvsim.allocators.llama.defrag import Move
from kvsim.allocators.llama.slots import Placed, Slot, restorer


class CellCache:
    """The cells of a context.

    Parameters
    ----------
    size : int
        Cells per array.
    streams : int
        1: one array for all sequences; else one per sequence.
    padding : int
        Attention reads a multiple of this many cells.
    most : int
        Tokens per ubatch.
    window : Window, optional
        What tokens see: cells behind it are overwritten.
    contiguous : bool
        Whether the cells of a ubatch must be contiguous.
    """

    def __init__(
        self,
        size: int,
        *,
        streams: int = 1,
        padding: int = 1,
        most: int = 512,
        window: Window | None = None,
        contiguous: bool = False,
    ) -> None:
        self.size, self.padding, self.most = size, padding, most
        self.window, self.contiguous = window, contiguous
        self.arrays = [Cells(size) for _ in range(streams)]
        self.heads = [0] * streams

    def stream(self, seq: int) -> int:
        """The array of a sequence."""
        return seq if len(self.arrays) > 1 else 0

    # -- placing ------------------------------------------------------------------------------

    def decode(self, tokens: list[Token]) -> list[Placed] | None:
        """Place a batch; None if there is no room for some of it: then nothing is placed."""
        ubatches = simple(tokens, self.most) if len(self.arrays) == 1 else equal(tokens, self.most, True)
        slots = None if ubatches is None else self.prepare(tokens, ubatches)
        if ubatches is None or slots is None:
            return None
        return [self.place(tokens, ubatch, slot) for ubatch, slot in zip(ubatches, slots, strict=True)]

    def prepare(self, tokens: list[Token], ubatches: list[Ubatch]) -> list[Slot] | None:
        """Find cells for all ubatches, each as if the previous ones were placed; None: no room.

        As in the original, tokens hidden by a window are already dropped here.
        """
        slots: list[Slot] = []
        undo: list[Callable[[], None]] = []
        for ubatch in ubatches:
            slot = self.find(self._rows(tokens, ubatch))
            if slot is None:
                break
            slots.append(slot)
            undo.append(restorer(self.arrays, self.heads, slot))
            self.place(tokens, ubatch, slot)
        for step in reversed(undo):
            step()
        return slots if len(slots) == len(ubatches) else None

    def find(self, rows: list[tuple[int, int]], contiguous: bool | None = None) -> Slot | None:
        """Find cells for rows of (array, tokens); None if some row finds none."""
        in_a_row = self.contiguous if contiguous is None else contiguous
        found = []
        for stream, count in rows:
            cells = self._search(stream, count, in_a_row)
            if cells is None:
                return None
            found.append(cells)
        return Slot(tuple(stream for stream, _ in rows), tuple(found))

    def place(self, tokens: list[Token], ubatch: Ubatch, slot: Slot) -> Placed:
        """Write a ubatch into cells; a sequence also loses the tokens before an overwritten one."""
        hidden: dict[int, int] = {}  # sequence -> last position overwritten
        places = iter(ubatch.places)
        for stream, row in zip(slot.streams, slot.cells, strict=True):
            cells = self.arrays[stream]
            for cell in row:
                token = tokens[next(places)]
                if not cells.is_empty(cell):
                    (owner,) = cells.owners[cell]
                    hidden[owner] = max(hidden.get(owner, -1), cells.position[cell])
                    cells.erase(cell)
                cells.write(cell, token.position, token.seqs)
        for seq, last in sorted(hidden.items()):
            first = self.arrays[self.stream(seq)].sequence(seq).low
            if first <= last:
                self.remove(seq, first, last + 1)
        for stream, row in zip(slot.streams, slot.cells, strict=True):
            self.heads[stream] = row[-1] + 1
        return Placed(ubatch, slot, max(self.read_cells(stream) for stream in slot.streams))

    def read_cells(self, stream: int) -> int:
        """Cells of an array that attention reads: all up to the last used one, padded."""
        pad = self.padding
        return min(self.size, max(pad, -(-self.arrays[stream].top // pad) * pad))

    # -- sequences ----------------------------------------------------------------------------

    def remove(self, seq: int, first: int = -1, end: int = -1) -> None:
        """Remove positions `first` to `end - 1` from a sequence (-1: from the first, to the last).

        Sequence -1 means every sequence.
        """
        first, end = max(first, 0), EVERY if end < 0 else end
        for stream in range(len(self.arrays)) if seq < 0 else (self.stream(seq),):
            cells = self.arrays[stream]
            inside = [
                cell
                for cell in (range(self.size) if seq < 0 else cells.sequence(seq).cells)
                if first <= cells.position[cell] < end
            ]
            if seq < 0:
                for cell in inside:
                    cells.erase(cell)
                freed = inside
            else:
                freed = [cell for cell in inside if cells.leave(cell, seq)]
            self._look_at(stream, freed)

    def copy(self, source: int, to: int, first: int = -1, end: int = -1) -> None:
        """Let sequence `to` share positions of another; between arrays every cell is copied."""
        here, there = self.stream(source), self.stream(to)
        first, end = max(first, 0), EVERY if end < 0 else end
        if source == to:
            return
        if here == there:
            cells = self.arrays[here]
            for cell in tuple(cells.sequence(source).cells):
                if first <= cells.position[cell] < end:
                    cells.share(cell, to)
            return
        cells, copies = self.arrays[here], self.arrays[there]
        copies.clear()
        for cell in sorted(cells.sequence(source).cells):
            shift = cells.shifts.get(cell, 0)
            copies.write(cell, cells.position[cell] - shift, (to,))
            if shift:
                copies.shift(cell, shift)
        self.heads[there] = self.heads[here]

    def keep(self, seq: int) -> None:
        """Remove all other sequences from this sequence's array."""
        stream = self.stream(seq)
        cells, freed = self.arrays[stream], []
        for cell in range(self.size):
            if cells.is_empty(cell):
                continue
            for other in cells.owners[cell] - {seq}:
                if cells.leave(cell, other):
                    freed.append(cell)
        self._look_at(stream, freed)

    def shift(self, seq: int, first: int, end: int, by: int) -> None:
        """Add `by` to positions `first` to `end - 1` of a sequence; those below 0 are removed."""
        first, end = max(first, 0), EVERY if end < 0 else end
        if by == 0 or first == end:
            return
        stream = self.stream(seq)
        cells = self.arrays[stream]
        inside = [cell for cell in cells.sequence(seq).cells if first <= cells.position[cell] < end]
        gone = [cell for cell in inside if cells.shift(cell, by)]
        self.heads[stream] = min(gone, default=0)

    def rotated(self) -> None:
        """Record that the keys of all shifted cells were rotated."""
        for cells in self.arrays:
            cells.rotated()

    def moved(self, stream: int, moves: Iterable[Move]) -> None:
        """Apply moves of cells, in this order."""
        cells = self.arrays[stream]
        for source, to, length in moves:
            for at in range(length):
                cells.move(source + at, to + at)
        self.heads[stream] = 0

    # -- searching ----------------------------------------------------------------------------

    def _rows(self, tokens: list[Token], ubatch: Ubatch) -> list[tuple[int, int]]:
        """The arrays of a ubatch, and the number of tokens for each."""
        if len(self.arrays) == 1:
            return [(0, len(ubatch.places))]
        length = len(ubatch.places) // ubatch.rows
        firsts = (ubatch.places[row * length] for row in range(ubatch.rows))
        return [(self.stream(tokens[place].seqs[0]), length) for place in firsts]

    def _search(self, stream: int, count: int, in_a_row: bool) -> tuple[int, ...] | None:
        cells, head = self.arrays[stream], self.heads[stream]
        if count > self.size:
            return None
        head = search.begin(head, cells.used, count)
        usable = cells.usable(self.window)
        if in_a_row:
            start = search.in_a_row(usable, count, head)
            return None if start is None else tuple(range(start, start + count))
        runs = search.anywhere(usable, count, head)
        return None if runs is None else tuple(chain.from_iterable(runs))

    def _look_at(self, stream: int, freed: list[int]) -> None:
        """Move the search head back to the first freed cell."""
        if freed:
            self.heads[stream] = min(self.heads[stream], *freed)
