"""Sequences that forked from one another: which share how many blocks, without a count for each block.

    tables    7: [47, 12, 83]     9: [47, 12, 90]     8: [47, 31]
    common  0                  2                   1              0      blocks that neighbours share

Tables that part share nothing further on. So sequences can stand in such an order that all holders of a block
stand side by side: there is one more of them than there are neighbours that share it. What a sequence shares
with anybody are the first blocks of its table, as many as with one of its neighbours. So a fork, a copy on
write, and a sequence that leaves change a number or two, however long the tables are.
"""

from collections.abc import Mapping

from mypy_extensions import mypyc_attr

from kvsim.allocators.claims import Claims
from kvsim.allocators.records import Id


class Family:
    """Sequences in order, and what neighbours have in common.

    Attributes
    ----------
    seqs : list of int
    common : list of int
        Blocks that the i-th shares with the one before; 0 at both ends.
    """

    __slots__ = ("common", "seqs")

    def __init__(self, first: int) -> None:
        self.seqs = [first]
        self.common = [0, 0]


@mypyc_attr(allow_interpreted_subclasses=True)
class Forked(Claims):
    """`Claims` where sequences share blocks only as they forked; `extra` is found when asked for."""

    def __init__(self, block_size: int, tables: dict[int, list[int]]) -> None:
        super().__init__(block_size, tables)
        self._families: dict[int, Family] = {}  # of those that ever forked

    def references(self) -> dict[int, int]:
        """As in `Claims`, counted anew."""
        extra: dict[int, int] = {}
        for first, family in self._families.items():
            if first == family.seqs[0]:
                for seq, common in zip(family.seqs, family.common, strict=False):
                    for block in self._tables[seq][:common]:
                        extra[block] = extra.get(block, 0) + 1
        return extra

    def share(self, parent: Id, child: Id, blocks: int) -> None:
        """As in `Claims`: the child stands behind its parent."""
        families: dict[Id, Family] = self._families
        family = families.get(parent)
        if family is None:
            family = families[parent] = Family(parent)
        seqs: list[Id] = family.seqs
        at = seqs.index(parent) + 1
        seqs.insert(at, child)
        family.common.insert(at, blocks)
        families[child] = family
        self.tokens += blocks * self._size

    def leave(self, seq: Id, table: list[int]) -> list[int]:
        """As in `Claims`: its neighbours share what both shared with it."""
        families: dict[Id, Family] = self._families
        family = families.pop(seq, None)
        if family is None:
            return table
        seqs: list[Id] = family.seqs
        common = family.common
        at = seqs.index(seq)
        shared, behind = common[at], common[at + 1]
        del seqs[at], common[at]
        if shared < behind:
            common[at], shared = shared, behind
        if len(seqs) == 1:
            del families[seqs[0]]
        self.tokens -= shared * self._size
        if self.part_filled and shared == len(table) and table[-1] in self.part_filled:
            self._leave_last(table[-1], seqs)
        return table[shared:]

    def take_place(self, seq: Id, table: list[int], parent: Id, child: Id, blocks: int) -> list[int]:
        """As in `Claims`; both are most often of one family."""
        families: dict[Id, Family] = self._families
        family = families.get(parent)
        if family is None or families.get(seq) is not family:
            return super().take_place(seq, table, parent, child, blocks)
        seqs: list[Id] = family.seqs
        common = family.common
        at = seqs.index(seq)
        shared, behind = common[at], common[at + 1]
        del seqs[at], common[at], families[seq]
        if shared < behind:
            common[at], shared = shared, behind
        at = seqs.index(parent) + 1
        seqs.insert(at, child)
        common.insert(at, blocks)
        families[child] = family
        self.tokens += (blocks - shared) * self._size
        return table[shared:]

    def part(self, seq: Id, block: Id) -> None:
        family, blocks = self._families[seq], len(self._tables[seq])
        seqs: list[Id] = family.seqs
        common = family.common
        at = seqs.index(seq)
        if common[at] == blocks:  # it moves behind the last who shares the block
            del seqs[at], common[at]
            while common[at] == blocks:
                at += 1
            seqs.insert(at, seq)
            common.insert(at, blocks - 1)
        else:
            common[at + 1] = blocks - 1
        self.tokens -= self._size
        self._leave_last(block, [other for other in seqs if other != seq])

    def _leave_last(self, block: int, others: list[int]) -> None:
        """A sequence leaves a block that is not full, which others share: its slots counted as full."""
        self.tokens += self._size - self.part_filled[block]
        if sum([self._tables[other][-1] == block for other in others]) == 1:
            del self.part_filled[block]

    def count(self, tables: Mapping[int, list[int]], filled: Mapping[int, int]) -> None:
        """As in `Claims`: in order of their blocks, those who share most stand side by side."""
        before = -1
        for seq in sorted(tables, key=lambda each: tables[each]):
            if before >= 0:
                table, other = tables[seq], tables[before]
                same = min(len(table), len(other))
                while same and table[same - 1] != other[same - 1]:
                    same -= 1
                if same:
                    self.share(before, seq, same)
                    last = table[same - 1]
                    if filled.get(last, self._size) < self._size:
                        self.part_filled[last] = filled[last]
                        self.tokens -= self._size - filled[last]
            before = seq

    def _shares_last(self, seq: int, table: list[int]) -> bool:
        family = self._families.get(seq)
        if family is None:
            return False
        at = family.seqs.index(seq)
        return max(family.common[at], family.common[at + 1]) == len(table)
