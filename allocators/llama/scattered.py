"""llama-scattered: llama.cpp since August 2025: a cell per token, in any empty cell.

    |aabbbba.cc.cab...|   one array for all sequences; no blocks, no table, no reservation
            ^ head: where the next search begins

Waste per sequence: none; a prompt fits if enough cells are empty, wherever they are. The cost is time:
attention reads every cell up to the last used one, including holes and prompts in progress, and masks what it
does not need (`read_slots`).
"""

from collections.abc import Sequence

from kvsim.allocators.base import InvariantError
from kvsim.allocators.llama import search
from kvsim.allocators.llama.held_cells import HeldCells
from kvsim.allocators.shares import shares

UBATCH = 512
"""tokens placed by one search (llama.cpp's `--ubatch-size`)"""


class LlamaScattered(HeldCells):
    """One-token cells, found one by one."""

    idea = "any empty cells of one array, searched from a moving head"
    wastes = "nothing; attention reads the holes, too"
    used_by = "llama.cpp since August 2025"
    source = "llama.cpp src/llama-kv-cache.cpp, PR 15473"

    padding = 256
    growth_unit = 1

    def admit(self, seq: int, tokens: int, bound: int) -> bool:
        self._rows.expect_new(seq, tokens)
        if tokens > self.free_slots:
            return False
        self._rows[seq] = self._take(tokens)
        return True

    def grow(self, seq: int, tokens: int) -> bool:
        row = self._rows[seq]
        missing = tokens - len(row)
        if missing > self.free_slots:
            return False
        if missing > 0:
            row += self._take(missing)
        return True

    def growth_budget(self) -> int:
        return self.capacity_slots - self.used_slots

    def grow_many(self, seqs: Sequence[int]) -> None:
        if len(seqs) > self.free_slots:
            raise InvariantError(f"{len(seqs)} growths were promised, {self.free_slots} cells are empty")
        for seq, share in shares(seqs, self._take(len(seqs))):
            self._rows[seq] += share

    def _take(self, tokens: int) -> list[int]:
        """Take cells for `tokens` tokens, which must exist, ubatch by ubatch."""
        taken: list[int] = []
        empty = self._empty
        for done in range(0, tokens, UBATCH):
            count = min(UBATCH, tokens - done)
            head = search.begin(self._head, self.used_slots, count)
            found = search.cells(empty, count, head)
            if len(found) < count:
                raise InvariantError(f"no {count} empty cells where {self.free_slots} should be")
            for cell in found:
                empty[cell] = 0
            taken += found
            self._head = found[-1] + 1
            self.used_slots += count
        return taken
