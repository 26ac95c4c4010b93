"""Shared blocks: how many holders each has beyond the first, and how full shared last blocks are.

    tables         7: [47, 12, 83]     8: [47, 12, 83]     9: [47, 90]
    extra          47: 2   12: 1   83: 1         holders beyond the first; 90 has none
    part_filled    83: 6                         of 16 slots: the writer of the next token copies it first

A fork adds one holder to every block of a table; a sequence that leaves removes one. The last holder returns
a block to the pool.

Sequences that forked from one another need no count per block (`Forked`):

    tables    7: [47, 12, 83]     9: [47, 12, 90]     8: [47, 31]
    common  0                  2                   1              0      blocks that neighbours share

Tables that diverge share nothing further on. So sequences can be ordered such that all holders of a block are
adjacent: it has one more holder than pairs of neighbours that share it. A sequence shares only the first
blocks of its table, as many as with one of its neighbours. So a fork, a copy on write, and a sequence that
leaves change one or two numbers, however long the tables are.
"""

from collections import Counter
from collections.abc import Mapping

from mypy_extensions import mypyc_attr

from kvsim.allocators.records import Id, InvariantError, expect_new, holds_nothing


@mypyc_attr(allow_interpreted_subclasses=True)
class Claims:
    """References to blocks beyond the first per block.

    A shared block that is not full is the last of every table that names it. A sequence that writes to it
    gets a copy, unless it is the only holder.

    Attributes
    ----------
    extra : dict of int
        References beyond the first, of shared blocks only.
    part_filled : dict of int
        Tokens in shared blocks that are not full.
    tokens : int
        Tokens held more than once: the sum over sequences minus the slots that hold them.
    """

    def __init__(self, block_size: int, tables: dict[int, list[int]]) -> None:
        self.extra: dict[int, int] = {}
        self.part_filled: dict[int, int] = {}
        self.tokens = 0
        self._size = block_size
        self._tables = tables

    def references(self) -> dict[int, int]:
        """References beyond the first, per shared block."""
        return self.extra

    def share(self, parent: Id, child: Id, blocks: int) -> None:
        """Start a child with the first `blocks` blocks of its parent, all full."""
        self.add(self._tables[parent][:blocks])

    def leave(self, seq: Id, table: list[int]) -> list[int]:
        """Remove a sequence with this table; returns the blocks left without a holder."""
        return self.drop_all(table) if self.extra else table

    def take_place(self, seq: Id, table: list[int], parent: Id, child: Id, blocks: int) -> list[int]:
        """`share` followed by `leave`, if no shared block is partly filled."""
        self.share(parent, child, blocks)
        return self.leave(seq, table)

    def part(self, seq: Id, block: Id) -> None:
        """Give a sequence its own copy of the last block of its table, which it shared."""
        self.drop(block)

    def add(self, blocks: list[Id]) -> None:
        """Add a holder to these blocks, all full."""
        extra: dict[Id, int] = self.extra
        for block in blocks:
            extra[block] = extra.get(block, 0) + 1
        self.tokens += len(blocks) * self._size

    def count(self, tables: Mapping[int, list[int]], filled: Mapping[int, int]) -> None:
        """Count returning tables that share blocks with each other; some blocks hold only `filled` tokens."""
        for block, count in Counter(block for table in tables.values() for block in table).items():
            if count > 1:
                self.extra[block] = count - 1
                tokens = filled.get(block) or self._size
                if tokens < self._size:
                    self.part_filled[block] = tokens
                self.tokens += (count - 1) * tokens

    def drop(self, block: Id) -> bool:
        """Remove one reference; False if it was the only one."""
        extra = self.extra.get(block)
        if extra is None:
            return False
        self.tokens -= self.part_filled.get(block, self._size)
        if extra > 1:
            self.extra[block] = extra - 1
        else:
            del self.extra[block]
            self.part_filled.pop(block, None)
        return True

    def drop_all(self, table: list[int]) -> list[int]:
        """Remove one reference from each block of a table; returns the blocks left without a holder."""
        if self.part_filled and table and table[-1] in self.part_filled:
            self.drop(table[-1])
            table = table[:-1]
        alone = table[self.drop_first(table) :]
        if self.extra.keys().isdisjoint(alone):  # usually: shared blocks come first
            return alone
        return [block for block in alone if not self.drop(block)]

    def drop_first(self, table: list[Id]) -> int:
        """Remove one reference from each shared full block at the start of a table; returns how many."""
        extra: dict[Id, int] = self.extra
        shared = 0
        for block in table:
            others = extra.get(block)
            if others is None:
                break
            if others > 1:
                extra[block] = others - 1
            else:
                del extra[block]
            shared += 1
        self.tokens -= shared * self._size
        return shared

    # -- forks --------------------------------------------------------------------------------

    def fork(self, parent: int, child: int, tokens: int) -> None:
        """Start the child with a copy of the table of its parent, which holds `tokens`.

        Raises InvariantError if the parent's last block cannot end with its last token.
        """
        self._expect_last(parent, child, tokens)
        table = self._tables[parent]
        self.share(parent, child, len(table))
        empty = len(table) * self._size - tokens
        if empty:
            self.part_filled[table[-1]] = self._size - empty
            self.tokens -= empty
        self._tables[child] = table[:]

    def _expect_last(self, parent: int, child: int, tokens: int) -> None:
        """Raise InvariantError unless the parent's tokens end in its last block and the child is new."""
        expect_new(self._tables, child, tokens)
        table, size = self._tables.get(parent), self._size
        if table is None:
            raise holds_nothing(self._tables, parent)
        last, filled = table[-1], tokens - (len(table) - 1) * size
        known = self.part_filled.get(last, size) if self._shares_last(parent, table) else filled
        if not 0 < filled <= size or filled != known:
            room = f"{len(table)} blocks of {size}, {known} tokens in the last"
            raise InvariantError(f"sequence {parent} cannot hold {tokens} tokens in {room}")

    def _shares_last(self, seq: int, table: list[int]) -> bool:
        """Whether the last block of a table has other holders."""
        return table[-1] in self.extra

    # -- looking ------------------------------------------------------------------------------

    def holders(self, block: int) -> int:
        """The number of tables that name a block."""
        extra = self.references()
        if block in extra:
            return extra[block] + 1
        return sum(block in table for table in self._tables.values())

    def shared_tail_slots(self) -> int:
        """Empty slots of shared blocks."""
        return sum([self._size - filled for filled in self.part_filled.values()])


class Family:
    """Sequences in order, and how many blocks neighbours share.

    Attributes
    ----------
    seqs : list of int
    common : list of int
        Blocks that the i-th sequence shares with the one before; 0 at both ends.
    """

    __slots__ = ("common", "seqs")

    def __init__(self, first: int) -> None:
        self.seqs = [first]
        self.common = [0, 0]


@mypyc_attr(allow_interpreted_subclasses=True)
class Forked(Claims):
    """`Claims` for sequences that share blocks only through forks; `extra` is computed on demand."""

    def __init__(self, block_size: int, tables: dict[int, list[int]]) -> None:
        super().__init__(block_size, tables)
        self._families: dict[int, Family] = {}  # sequences that ever forked

    def references(self) -> dict[int, int]:
        """As in `Claims`, recounted."""
        extra: dict[int, int] = {}
        for first, family in self._families.items():
            if first == family.seqs[0]:
                for seq, common in zip(family.seqs, family.common, strict=False):
                    for block in self._tables[seq][:common]:
                        extra[block] = extra.get(block, 0) + 1
        return extra

    def share(self, parent: Id, child: Id, blocks: int) -> None:
        """As in `Claims`: the child is placed behind its parent."""
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
        """As in `Claims`; afterwards its neighbours share what both shared with it."""
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
        """As in `Claims`; usually both are in one family."""
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
        if common[at] == blocks:  # it moves behind the last sequence that shares the block
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
        """A sequence leaves a shared block that is not full, but whose slots were counted as full."""
        self.tokens += self._size - self.part_filled[block]
        if sum([self._tables[other][-1] == block for other in others]) == 1:
            del self.part_filled[block]

    def count(self, tables: Mapping[int, list[int]], filled: Mapping[int, int]) -> None:
        """As in `Claims`: sorted by their blocks, sequences that share most are adjacent."""
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
