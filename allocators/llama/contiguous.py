"""llama-contiguous: llama.cpp until August 2025: a cell per token, contiguous per ubatch.

    |aabbbba.cc.cab...|   a prompt needs up to 512 contiguous empty cells: "no slot", though enough are empty
    |aabbbbabaccc.....|   defragmented: cells from the end fill the holes, with a limited number of moves

A prompt that finds no row triggers one defragmentation; if that takes more moves than a graph holds, it
waits. The cells are also defragmented when a sequence is released and holes are above `threshold` of the used
range. Waste per sequence: none; external: empty cells in rows too short for the next prompt.

    |.x..xx.| > |xx..x..|   with at most one move, a prompt of 3 finds no row;
    |xx..xx.| > |xxxx...|   with one more token, in the first hole, it does: an allocation ends its no

Each decoded token is placed by its own search; llama.cpp searches a row for those of all sequences. llama.cpp
keeps the moves made for a prompt that then still finds no row; here a refused call changes nothing.
"""

from array import array
from typing import Self

from kvsim.allocators.llama import search
from kvsim.allocators.llama.defrag import Move, most_moves, moves_of, worth_moving
from kvsim.allocators.llama.held_cells import HeldCells
from kvsim.allocators.llama.scattered import UBATCH
from kvsim.allocators.options import Options

GRAPH_NODES = 65_536
"""nodes of a graph; llama.cpp's minimum"""


class LlamaContiguous(HeldCells):
    """One-token cells, found in rows, and defragmented.

    Parameters
    ----------
    capacity_slots : int
        Number of cells.
    most : int
        Maximum moves of one defragmentation.
    threshold : float
        Share of holes below the last used cell above which cells are moved; 0: only for a prompt
        (llama.cpp's `--defrag-thold`).
    """

    idea = "cells in a row for each piece of a prompt; defragmented when needed"
    wastes = "nothing; rows too short for the next prompt"
    used_by = "llama.cpp until August 2025"
    source = "llama.cpp src/llama-kv-cache-unified.cpp, PRs 5735 and 11707"

    padding = 32
    moves_on_release = moves_in_part = True
    grows_by = 1

    @classmethod
    def from_options(cls, capacity_slots: int, options: Options) -> Self:
        return cls(capacity_slots, most_moves(GRAPH_NODES, options.layers))

    def __init__(self, capacity_slots: int, most: int = 341, threshold: float = 0.1) -> None:
        super().__init__(capacity_slots)
        self.most, self.threshold = most, threshold
        self._owner = array("q", [0]) * capacity_slots
        self._token = array("q", [0]) * capacity_slots

    def can_admit(self, tokens: int, bound: int) -> bool:
        if tokens > self.free_slots:
            return False
        return _room(self._empty, tokens) or _room(_after(self._empty, self._moves()), tokens)

    def admit(self, seq: int, tokens: int, bound: int) -> bool:
        self._rows.expect_new(seq, tokens)
        if not self.can_admit(tokens, bound):
            return False
        self._rows[seq] = []
        self._place(seq, tokens)
        return True

    def grow(self, seq: int, tokens: int) -> bool:
        row = self._rows[seq]
        missing = tokens - len(row)
        if missing == 1 and self.free_slots:  # any empty cell will do: no search needed
            empty, used = self._empty, self.used_slots
            cell = empty.find(1, search.begin(self._head, used, 1))
            if cell < 0:
                cell = empty.find(1)
            empty[cell], self._owner[cell], self._token[cell] = 0, seq, tokens - 1
            row.append(cell)
            self._head, self.used_slots = cell + 1, used + 1
        elif missing > 0:
            if not self.can_admit(missing, missing):
                return False
            self._place(seq, missing)
        return True

    def release(self, seq: int) -> None:
        super().release(seq)
        if worth_moving(self.used_slots, self._empty.rfind(0) + 1, self.threshold, self.padding):
            self._move()

    def external_slots(self, need: int) -> int:
        return self.free_slots - sum(map(len, search.rows(self._empty, max(1, min(need, UBATCH)))))

    def largest_free_extent(self) -> int:
        return search.longest(self._empty)

    # -- placing and moving -------------------------------------------------------------------

    def _place(self, seq: int, tokens: int) -> None:
        """Write new tokens of a sequence, which fit, if necessary after a defragmentation."""
        if not _room(self._empty, tokens):
            self._move()
        row = self._rows[seq]
        for run in self._find(tokens, self._head) or self._find(tokens, 0) or ():
            first, count = len(row), len(run)
            row += run
            self._empty[run.start : run.stop] = bytearray(count)
            self._owner[run.start : run.stop] = array("q", [seq]) * count
            self._token[run.start : run.stop] = array("q", range(first, first + count))
            self._head = run.stop
            self.used_slots += count

    def _find(self, tokens: int, head: int) -> list[range] | None:
        """Rows for tokens, ubatch by ubatch, from a head on; None if a ubatch finds none."""
        empty, used, found = self._empty, self.used_slots, []
        if tokens > UBATCH:
            empty = empty[:]
        for done in range(0, tokens, UBATCH):
            count = min(UBATCH, tokens - done)
            start = search.in_a_row(empty, count, search.begin(head, used, count))
            if start is None:
                return None
            head, used = start + count, used + count
            found.append(range(start, head))
            if tokens > UBATCH:
                empty[start:head] = bytearray(count)
        return found

    def _moves(self) -> list[Move]:
        return moves_of(self._empty, self.used_slots, self.most)

    def _move(self) -> None:
        for source, to, length in self._moves():
            for cells in (self._owner, self._token):
                cells[to : to + length] = cells[source : source + length]
            self._empty[to : to + length] = bytearray(length)
            self._empty[source : source + length] = b"\1" * length
            for cell in range(to, to + length):
                self._rows[self._owner[cell]][self._token[cell]] = cell
            self.copied_slots += length
        self._head = 0


def _room(empty: bytearray, tokens: int) -> bool:
    """Whether tokens find rows, ubatch by ubatch, in any order: all but the last need 512 cells."""
    wanted, rest = divmod(tokens, UBATCH)
    rows, beside = search.places_in_rows(empty, UBATCH) if wanted else (0, 0)
    if not wanted:
        return empty.find(b"\1" * rest) >= 0
    return rows > wanted or (rows == wanted and beside >= rest)


def _after(empty: bytearray, moves: list[Move]) -> bytearray:
    """The empty cells after moves."""
    empty = empty[:]
    for source, to, length in moves:
        empty[to : to + length] = bytearray(length)
        empty[source : source + length] = b"\1" * length
    return empty
