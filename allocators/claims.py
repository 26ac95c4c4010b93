"""Blocks that several sequences hold: how many more than one, and how far shared last blocks are filled.

    tables         7: [47, 12, 83]     8: [47, 12, 83]     9: [47, 90]
    extra          47: 2   12: 1   83: 1         holders beyond the first; 90 has none
    part_filled    83: 6                         of 16 slots: whoever writes the next token copies it first

A fork gives every block of a table one holder more; a sequence that leaves takes one away. The pool gets a
block back from its last holder.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from mypy_extensions import mypyc_attr

from kvsim.allocators.records import Holdings, InvariantError


@mypyc_attr(allow_interpreted_subclasses=True)
class Claims:
    """References to blocks beyond the first of each.

    A shared block that is not full is the last of every table that names it: who writes behind its tokens
    gets a copy, or has it alone.

    Attributes
    ----------
    extra : dict of int
        Of shared blocks only: references beyond the first.
    part_filled : dict of int
        Of shared blocks that are not full: the tokens in them.
    tokens : int
        Tokens that are held more than once: the sum over sequences minus the slots that hold them.
    """

    def __init__(self, block_size: int, tables: Holdings[list[int]]) -> None:
        self.extra: dict[int, int] = {}
        self.part_filled: dict[int, int] = {}
        self.tokens = 0
        self._size = block_size
        self._tables = tables

    def add(self, blocks: list[int]) -> None:
        """One more sequence holds these blocks, all of them full."""
        extra = self.extra
        for block in blocks:
            extra[block] = extra.get(block, 0) + 1
        self.tokens += len(blocks) * self._size

    def add_table(self, table: list[int], tokens: int) -> None:
        """One more sequence holds a table, in whose last block its last token lies."""
        self.add(table)
        empty = len(table) * self._size - tokens
        if empty:
            self.part_filled[table[-1]] = self._size - empty
            self.tokens -= empty

    def count(self, tables: Iterable[list[int]], filled: Mapping[int, int]) -> None:
        """Tables come back that share blocks among each other; some of these hold only `filled` tokens."""
        for block, count in Counter(block for table in tables for block in table).items():
            if count > 1:
                self.extra[block] = count - 1
                tokens = filled.get(block) or self._size
                if tokens < self._size:
                    self.part_filled[block] = tokens
                self.tokens += (count - 1) * tokens

    def drop(self, block: int) -> bool:
        """Take one reference away; False when it was the only one."""
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
        """Take one reference away from each block of a table; returns those that nobody else has."""
        extra, start = self.extra, 0
        if self.part_filled and table and table[-1] in self.part_filled:
            self.drop(table[-1])
            table = table[:-1]
        for block in table:
            if block not in extra:
                break
            start += 1
            others = extra[block]
            if others > 1:
                extra[block] = others - 1
            else:
                del extra[block]
        self.tokens -= start * self._size
        alone = table[start:]
        if extra.keys().isdisjoint(alone):  # most often: what is shared comes first
            return alone
        return [block for block in alone if not self.drop(block)]

    def exchange(self, shared: list[int], left: list[int]) -> list[int]:
        """A sequence takes the first blocks, of somebody else's, instead of the second, which it leaves.

        The first are full; so are those of the second that others hold. Each block of a table has as many
        holders as the next one, or more. Returns those that nobody else holds.
        """
        extra, count = self.extra, 0
        if shared and shared[0] in extra:
            for block in shared:
                extra[block] = extra[block] + 1 if block in extra else 1
        else:
            extra.update(dict.fromkeys(shared, 1))
        if left and left[0] in extra:
            for block in left:
                if block not in extra:
                    break
                count += 1
                others = extra[block]
                if others > 1:
                    extra[block] = others - 1
                else:
                    del extra[block]
        self.tokens += (len(shared) - count) * self._size
        return left[count:] if count else left

    # -- forks --------------------------------------------------------------------------------

    def fork(self, parent: int, child: int, tokens: int) -> None:
        """The child begins with a copy of the table of its parent, which holds `tokens`.

        Raises InvariantError when the parent's last block cannot end with its last token.
        """
        self._expect_last(parent, child, tokens)
        table = self._tables[parent]
        self.add_table(table, tokens)
        self._tables[child] = table[:]

    def fork_over(self, seq: int, parent: int, child: int, tokens: int) -> list[int]:
        """`fork`, and `seq` leaves; returns the blocks that nobody holds then.

        Of blocks that `seq` shares with the parent, nothing need be counted.
        """
        table, old = self._tables[parent], self._tables[seq]
        last = self._expect_last(parent, child, tokens)
        same = min(len(table), len(old))
        while same and (same > last or table[same - 1] != old[same - 1]):
            same -= 1  # tables that part share nothing further on
        self.add_table(table[same:], tokens - same * self._size)
        alone = self.drop_all(old[same:])
        del self._tables[seq]
        self._tables[child] = table[:]
        return alone

    def _expect_last(self, parent: int, child: int, tokens: int) -> int:
        """The place of the parent's last block, if it ends with the last token, and the child is new."""
        self._tables.expect_new(child, tokens)
        table, size = self._tables[parent], self._size
        last, filled = table[-1], tokens - (len(table) - 1) * size
        known = self.part_filled.get(last, size) if last in self.extra else filled
        if not 0 < filled <= size or filled != known:
            room = f"{len(table)} blocks of {size}, {known} tokens in the last"
            raise InvariantError(f"sequence {parent} cannot hold {tokens} tokens in {room}")
        return len(table) - 1

    # -- looking ------------------------------------------------------------------------------

    def holders(self, block: int) -> int:
        """How many tables name a block."""
        if block in self.extra:
            return self.extra[block] + 1
        return sum(block in table for table in self._tables.values())

    def shared_tail_slots(self) -> int:
        """Empty slots of shared blocks."""
        return sum([self._size - filled for filled in self.part_filled.values()])

    def sharers(self) -> dict[int, tuple[int, ...]]:
        """Which sequences hold each shared block."""
        seqs: dict[int, tuple[int, ...]] = dict.fromkeys(self.extra, ())
        for seq, table in self._tables.items() if seqs else ():
            for block in seqs.keys() & table:
                seqs[block] += (seq,)
        return seqs
