"""The prefix cache: full blocks can be found by their text after their sequences are released.

    prompt A  [ You are a helpful | assistant. ...   | What is the ...  ]   blocks 4, 9, 2
    prompt B  [ You are a helpful | assistant. ...   | How do I ...     ]   blocks 4, 9, 7: a hit of two

A block is known by its key, which stands for all text from the first token to the end of the block
(allocators/texts.py). Keys are made only for text that another sequence may share (`content`). The private
rest of an evicted sequence gets its own keys, by which the sequence finds what is left of it when it returns.

A free block keeps its key until it is allocated again: that is the eviction (allocators/prefix_pool.py). Such
blocks are `cached` in the ledger. A look-up stops at the first miss.

`Prefixes` keeps the texts of sequences and finds them; block tables and claims belong to the allocator, which
passes them in.

A text is described by the keys of its blocks, and by how many of them are computed:

keys        [40 41 42 43 | 90 91]      of blocks 0 to 5: texts that others may share
full                   ^               blocks 0 to 2 are computed: look-ups find them
rest                     [ - - - - - -  7 8]     of blocks 6 and 7, once evicted: private keys
"""

from collections.abc import Collection, Sequence

from kvsim.allocators.base import Content, Match
from kvsim.allocators.claims import Claims
from kvsim.allocators.options import CacheRules, Order
from kvsim.allocators.prefix_pool import PrefixPool
from kvsim.allocators.texts import Keys, Texts, pieces

NOBODY = -1
"""The name of sequences that never return for what is left of them."""


class Known:
    """What is known about the text of a sequence.

    Attributes
    ----------
    keys : list of Keys
        Keys of the blocks that others may share.
    shareable : int
        How many blocks those are.
    rest : list of Keys
        Keys of the private blocks, counted from block 0; empty before the first eviction.
    own : int
        The sequence's name.
    full : int
        Blocks that are computed.
    alone : int
        From this block on, no other sequence can have a claim.
    """

    __slots__ = ("_range", "_range_at", "alone", "full", "keys", "own", "rest", "shareable")

    def __init__(self, keys: list[Keys], shareable: int, rest: list[Keys], own: int) -> None:
        self.keys = keys
        self.shareable = self.alone = shareable
        self.rest = rest
        self.own = own
        self.full = 0
        self._range = self._range_at = 0  # the range in `keys` that has the last full block; its first block

    def fill(self, full: int) -> list[tuple[int, int, int]]:
        """Set the number of full blocks; returns those that became full, as `pieces` does."""
        before, self.full = self.full, full
        if len(self.keys) == 1:  # usually
            return pieces(self.keys, before, full)
        found: list[tuple[int, int, int]] = []
        at = self._range_at
        for index in range(self._range, len(self.keys)):
            first, count = self.keys[index]
            end = at + count
            if end > before:
                self._range, self._range_at = index, at
                low, high = max(at, before), min(end, full)
                if low < high:
                    found.append((low, first + low - at, high - low))
                if end >= full:
                    break
            at = end
        return found

    def pieces(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Blocks `start` up to `stop` (exclusive) that have keys: (block, its key, how many)."""
        found = pieces(self.keys, start, stop)
        if self.rest and stop > self.shareable:
            found += pieces(self.rest, max(start, self.shareable), stop)
        return found

    def runs(self, stop: int) -> list[tuple[int, int, int | None]]:
        """The blocks before `stop`, last run first: (first block, end, key or None)."""
        found: list[tuple[int, int, int | None]] = []
        for at, key, count in reversed(self.pieces(0, stop)):
            if at + count < stop:
                found.append((at + count, stop, None))
            found.append((at, at + count, key))
            stop = at
        if stop:
            found.append((0, stop, None))
        return found


class PrefixMatch(Match):
    """The cached blocks of a prefix, in token order."""

    __slots__ = ("blocks", "known")

    def __init__(self, tokens: int, woken_slots: int, blocks: list[int], known: Known) -> None:
        super().__init__(tokens, woken_slots)
        self.blocks = blocks
        self.known = known


class Prefixes:
    """The texts of sequences, and a pool that finds blocks by them.

    Parameters
    ----------
    num_blocks, block_size : int
        Size of the pool.
    rules : CacheRules
        Which of equal blocks is found.
    order : Order
        QUEUE, or HASHED_LAST: blocks that are not full are reallocated before all others.

    Attributes
    ----------
    filling : set of int
        Sequences that will fill blocks that others may share.
    told : bool
        Whether only `fill` reports full blocks; otherwise a table that grows counts as full.
    """

    def __init__(self, num_blocks: int, block_size: int, rules: CacheRules, order: Order) -> None:
        self.pool = PrefixPool(num_blocks, rules)
        self.block_size = block_size
        self.filling: set[int] = set()
        self._hashed_last = order is Order.HASHED_LAST
        self._texts = Texts(block_size, rules.lookahead)
        self._beyond = max(rules.lookahead - 1, 0)  # tokens of a key behind the recomputed one
        self._drops_last = rules.drops_last
        self.told = rules.told
        self._known: dict[int, Known] = {}  # by sequence
        self._left_over: dict[int, list[Keys]] = {}  # by name: private keys of an evicted sequence

    def nothing(self) -> PrefixMatch:
        return PrefixMatch(0, 0, [], Known([], 0, [], NOBODY))

    def match(self, content: Content, own: int, most: int) -> PrefixMatch:
        """Find the blocks for the first `most` tokens of a sequence."""
        keys = self._texts.keys(content)
        shareable = sum([count for _, count in keys]) if keys else 0
        known = Known(keys, shareable, self._left_over.get(own, []), own)
        pool, size = self.pool, self.block_size
        pool.know(self._texts.count)
        blocks: list[int] = []
        woken = 0
        for _, key, count in known.pieces(0, (most - self._beyond) // size):
            found = pool.find(key, count)
            blocks += found
            woken += pool.idle(key, len(found))
            if len(found) < count:
                break
        if self._drops_last and blocks:
            woken -= pool.idle(known.pieces(len(blocks) - 1, len(blocks))[0][1], 1)
            del blocks[-1]
        return PrefixMatch(len(blocks) * size, woken * size, blocks, known)

    def enter(self, seq: int, match: PrefixMatch) -> list[int]:
        """Start a sequence with its hits; returns the blocks that others hold too."""
        known = self._known[seq] = match.known
        hits = known.full = len(match.blocks)
        if hits < known.shareable:
            self.filling.add(seq)
        others: list[int] = []
        if hits:
            for _, key, count in known.pieces(0, hits):
                others += self.pool.wake(key, count)
        return others

    def enter_unknown(self, seq: int, blocks: int) -> None:
        """Start a sequence with an unknown text; others may share all its blocks."""
        known = self._known[seq] = Known([], 0, [], NOBODY)
        known.alone = blocks

    def fork(self, parent: int, child: int, blocks: int) -> None:
        """Start a child with all blocks of its parent; it fills none for others."""
        old = self._known[parent]
        new = self._known[child] = Known(old.keys, old.shareable, old.rest, NOBODY)
        new.full, new.alone = old.full, blocks
        old.alone = max(old.alone, blocks)

    def rename(self, seq: int, name: int) -> None:
        """Give a sequence another id."""
        self._known[name] = self._known.pop(seq)
        if seq in self.filling:
            self.filling.remove(seq)
            self.filling.add(name)

    def fill(self, seq: int, table: list[int], full: int) -> None:
        """Record that the first `full` blocks of a table are computed: look-ups find the shareable ones."""
        known = self._known[seq]
        if full <= known.full:
            return
        if seq not in self.filling:
            known.full = full
            return
        for at, key, count in known.fill(full):
            self.pool.enter(key, table[at : at + count])
        if full >= known.shareable:
            self.filling.remove(seq)

    def grow_each(self, seqs: Sequence[int], tables: dict[int, list[int]]) -> list[int]:
        """Grow full tables by one block each, in order; returns which of them took a cached block."""
        pool = self.pool
        evicted: list[int] = []
        if self.told or not self.filling or self.filling.isdisjoint(seqs):
            pool.allocate_each(seqs, tables, evicted)
            return evicted
        for index, seq in enumerate(seqs):  # one by one: an equal block may be forgotten when a table is full
            cached, table = pool.cached, tables[seq]
            self.fill(seq, table, len(table))
            table += pool.allocate(1)
            evicted += [index] * (cached - pool.cached)
        return evicted

    def keep(self, seq: int, table: list[int]) -> None:
        """Keep the private blocks of a sequence that will return, until they are reused."""
        known = self._known[seq]
        if known.own == NOBODY or known.full <= known.alone:
            return
        rest = self._left_over.setdefault(known.own, known.rest)
        self._texts.lengthen(rest, known.full)
        self.pool.know(self._texts.count)
        for at, key, count in pieces(rest, known.alone, known.full):
            self.pool.enter(key, table[at : at + count])

    def forget(self, seq: int) -> None:
        """Forget the private blocks of a sequence that leaves for good."""
        rest = self._left_over.pop(self._known[seq].own, None)
        if rest:
            for key, count in rest:
                self.pool.forget(key, count)
            self._texts.give_back(rest)

    def leave(self, seq: int, table: list[int], claims: Claims) -> None:
        """Free the blocks of a sequence that have no other claim; look-ups still find them by their text."""
        self.filling.discard(seq)
        known, shared = self._known.pop(seq), 0
        if claims.extra:
            if not self.pool.unlike or claims.part_filled:
                self._leave_in_parts(known, table, claims)
                return
            shared = claims.drop_first(table)
        if self._hashed_last and known.full < len(table):
            self.pool.give_back(table[max(known.full, shared) :], first=True)
            del table[known.full :]
        for start, stop, key in known.runs(len(table)):
            if stop <= shared:
                return
            if start > shared:
                self.pool.give_back(table[start:stop], key)
                continue
            del table[stop:], table[:shared]  # usually long, so not copied
            self.pool.give_back(table, None if key is None else key + shared - start)

    def _leave_in_parts(self, known: Known, table: list[int], claims: Claims) -> None:
        """`leave`, if others may hold any of its blocks."""
        if self._hashed_last and known.full < len(table):
            self.pool.give_back(claims.drop_all(table[known.full :]), first=True)
            del table[known.full :]
        for start, stop, key in known.runs(len(table)):
            blocks = table[start:stop]
            if start < known.alone:
                self._give_back_unshared(blocks, key, claims)
            else:
                self.pool.give_back(blocks, key)

    def _give_back_unshared(self, blocks: list[int], key: int | None, claims: Claims) -> None:
        """Free the blocks without another claim, the last first; the others lose one claim."""
        alone = claims.drop_all(blocks)
        start = len(blocks) - len(alone)
        if not alone:
            return
        if blocks[start:] == alone:  # usually: shared blocks come first
            self.pool.give_back(alone, None if key is None else key + start)
            return
        mine = set(alone)
        for at in range(len(blocks) - 1, -1, -1):
            if blocks[at] in mine:
                self.pool.give_back(blocks[at : at + 1], None if key is None else key + at)

    def known_blocks(self) -> dict[int, int]:
        """The keys of all blocks that have one, free or not."""
        return dict(self.pool.known_blocks())

    def keys_of(self, content: Content, own: int) -> tuple[Collection[Keys], Collection[Keys]]:
        """The keys of a text, and the private keys left of an evicted sequence."""
        return self._texts.keys(content), self._left_over.get(own, [])
