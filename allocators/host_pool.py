"""Block tables of swapped sequences in host memory.

on the device    7: [47, 12, 83]    8: [47, 12, 90]
here             7: [0, 1, 2]       8: [0, 1, 3]         other numbers, the same sharing
and back         7: [5, 6, 31]      8: [5, 6, 14]
"""

from collections.abc import Mapping, Sequence

from kvsim.allocators.base import Holdings


class HostPool:
    """Block tables of swapped sequences: which blocks they share, not where the blocks lie."""

    def __init__(self) -> None:
        self.tables: Holdings[list[int]] = Holdings()
        self._filled: dict[int, int] = {}
        self._next_block = 0

    def put(self, tables: Mapping[int, list[int]], filled: Mapping[int, int]) -> None:
        """Store tables of device blocks; `filled` has the tokens of shared blocks that are not full."""
        names: dict[int, int] = {}
        for seq, table in tables.items():
            for block in table:
                names.setdefault(block, self._next_block + len(names))
            self.tables[seq] = [names[block] for block in table]
        self._next_block += len(names)
        self._filled |= {names[block]: filled[block] for block in names.keys() & filled.keys()}

    def take(self, seqs: Sequence[int], blocks: Sequence[int]) -> tuple[dict[int, list[int]], dict[int, int]]:
        """Return the tables, mapped to these device blocks, and the tokens of shared last blocks."""
        names: dict[int, int] = {}
        for seq in seqs:
            for block in self.tables[seq]:
                if block not in names:
                    names[block] = blocks[len(names)]
        tables = {seq: [names[block] for block in self.tables.pop(seq)] for seq in seqs}
        return tables, {names[block]: self._filled.pop(block) for block in names if block in self._filled}

    def drop(self, seq: int) -> int:
        """Forget a sequence; returns how many of its blocks no other sequence in the pool shares."""
        others = {block for other, table in self.tables.items() if other != seq for block in table}
        return len(set(self.tables.pop(seq)) - others)
