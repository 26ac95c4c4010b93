"""Paged with a prefix cache: full blocks stay findable by their text after their sequences are gone.

    prompt A  [ You are a helpful | assistant. ...   | What is the ...  ]   blocks 4, 9, 2
    prompt B  [ You are a helpful | assistant. ...   | How do I ...     ]   blocks 4, 9, 7: a hit of two

A block is known by its key, which stands for all text from the first token to the end of the block
(allocators/texts.py). Keys are made only for text that another sequence may have too (`content`); the private
rest of an evicted sequence gets keys of its own, by which the sequence finds what is left of it when it comes
back.

A free block keeps its key until it is lent again: that is the eviction (allocators/prefix_pool.py). Such
blocks are `cached` in the ledger. A look-up stops at the first miss.
"""

from collections.abc import Sequence

from kvsim.allocators.base import Content, InvariantError, Layout, Match
from kvsim.allocators.options import CacheRules, Order
from kvsim.allocators.paged import Paged
from kvsim.allocators.prefix_pool import PrefixPool
from kvsim.allocators.texts import Keys, Texts, pieces

FIRST_IS_FOUND = CacheRules()

NOBODY = -1
"""The name of sequences that never come back to look for what is left of them."""


class Known:
    """What is known of a sequence's text.

    Attributes
    ----------
    keys : list of Keys
        Of the blocks that others may have too.
    shareable : int
        How many those are.
    rest : list of Keys
        For the private blocks, counted from the first of all; empty before the first eviction.
    own : int
        The sequence's name.
    full : int
        Blocks that are computed.
    alone : int
        From this block on nobody else can have a claim.
    """

    __slots__ = ("alone", "full", "keys", "own", "rest", "shareable")

    def __init__(self, keys: list[Keys], shareable: int, rest: list[Keys], own: int) -> None:
        self.keys = keys
        self.shareable = self.alone = shareable
        self.rest = rest
        self.own = own
        self.full = 0

    def pieces(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Blocks `start` to before `stop`, as far as they have keys: (block, its key, how many)."""
        found = pieces(self.keys, start, stop)
        if self.rest and stop > self.shareable:
            found += pieces(self.rest, max(start, self.shareable), stop)
        return found


class PagedMatch(Match):
    """The cached blocks of a prefix, in the order of its tokens."""

    __slots__ = ("blocks", "known")

    def __init__(self, tokens: int, woken_slots: int, blocks: list[int], known: Known) -> None:
        super().__init__(tokens, woken_slots)
        self.blocks = blocks
        self.known = known


class PagedPrefix(Paged):
    """Paged, with a map from text to blocks.

    Parameters
    ----------
    capacity_slots, block_size, host_slots : int
        As in Paged.
    order : Order
        QUEUE or HASHED_LAST.
    rules : CacheRules
        What is found where blocks are equal.
    """

    def __init__(
        self,
        capacity_slots: int,
        block_size: int = 16,
        order: Order = Order.HASHED_LAST,
        rules: CacheRules = FIRST_IS_FOUND,
        host_slots: int = 0,
    ) -> None:
        super().__init__(capacity_slots, block_size, order, host_slots)
        self.caches = True
        self.rules = rules
        self._pool = PrefixPool(self.num_blocks, rules)
        self._texts = Texts(block_size)
        self._known: dict[int, Known] = {}  # of each sequence
        self._filling: set[int] = set()  # sequences that will fill blocks others may share
        self._left_over: dict[int, list[Keys]] = {}  # by name: private keys of an evicted sequence

    # -- looking up ---------------------------------------------------------------------------

    def match(self, content: Content, own: int, most: int) -> PagedMatch:
        keys = self._texts.keys(content)
        shareable = sum([count for _, count in keys]) if keys else 0
        known = Known(keys, shareable, self._left_over.get(own, []), own)
        pool, size = self._pool, self.block_size
        pool.know(self._texts.count)
        blocks: list[int] = []
        woken = 0
        for _, key, count in known.pieces(0, most // size):
            found = pool.find(key, count)
            blocks += found
            woken += pool.idle(key, len(found))
            if len(found) < count:
                break
        return PagedMatch(len(blocks) * size, woken * size, blocks, known)

    def can_admit(self, tokens: int, bound: int) -> bool:
        return -(-tokens // self.block_size) <= self._pool.free

    def can_admit_after(self, match: Match, tokens: int, bound: int) -> bool:
        assert isinstance(match, PagedMatch)
        needed = -(-tokens // self.block_size) * self.block_size - match.tokens + match.woken_slots
        return needed <= self.free_slots

    def admit(self, seq: int, tokens: int, bound: int) -> bool:
        return self.admit_after(PagedMatch(0, 0, [], Known([], 0, [], NOBODY)), seq, tokens, bound)

    def admit_after(self, match: Match, seq: int, tokens: int, bound: int) -> bool:
        assert isinstance(match, PagedMatch)
        if seq in self._tables or tokens < 1:
            self._tables.expect_new(seq, tokens)
        table, known, pool = match.blocks[:], match.known, self._pool
        hits = known.full = len(table)
        missing = -(-tokens // self.block_size) - hits
        if missing * self.block_size + match.woken_slots > self.free_slots:
            return False
        if hits:
            self._share(known.pieces(0, hits))
        if missing > 0:
            table += pool.lend(missing)
        self._tables[seq] = table
        self._known[seq] = known
        if hits < known.shareable:
            self._filling.add(seq)
        self._count()
        return True

    def _share(self, hits: list[tuple[int, int, int]]) -> None:
        """Add an owner to cached blocks; one that was free is free no more."""
        extra = self._extra_owners
        for _, key, count in hits:
            others = self._pool.wake(key, count)
            self.shared_tokens += len(others) * self.block_size
            for block in others:
                extra[block] = extra.get(block, 0) + 1

    # -- keeping ------------------------------------------------------------------------------

    def fill(self, seq: int, tokens: int) -> None:
        full, known = tokens // self.block_size, self._known[seq]
        before = known.full
        if full <= before:
            return
        known.full = full
        if seq not in self._filling:
            return
        table = self._tables[seq]
        for at, key, count in pieces(known.keys, before, full):
            self._pool.enter(key, table[at : at + count])
        if full >= known.shareable:
            self._filling.remove(seq)
        self.cached_slots = self._pool.cached * self.block_size

    def evict(self, seq: int) -> None:
        known, table = self._known[seq], self._tables[seq]
        if known.own != NOBODY and known.full > known.alone:
            rest = self._left_over.setdefault(known.own, known.rest)
            self._texts.lengthen(rest, known.full)
            self._pool.know(self._texts.count)
            for at, key, count in pieces(rest, known.alone, known.full):
                self._pool.enter(key, table[at : at + count])
        self._release(seq)

    def release(self, seq: int) -> None:
        if seq not in self._tables:
            super().release(seq)
            return
        rest = self._left_over.pop(self._known[seq].own, None)
        if rest:  # nobody will ask for them again
            for key, count in rest:
                self._pool.forget(key, count)
            self._texts.give_back(rest)
        self._release(seq)

    def _release(self, seq: int) -> None:
        table, known = self._tables.pop(seq), self._known.pop(seq)
        self._filling.discard(seq)
        if self.order is Order.HASHED_LAST and known.full < len(table):
            tail = table[known.full :]
            if self._extra_owners:
                tail = [block for block in tail if not self._drop_owner(block)]
            self._pool.give_back(tail, first=True)
            del table[known.full :]
        stop = len(table)
        for at, key, count in reversed(known.pieces(0, stop)):
            if at + count < stop:
                self._give_back(table[at + count : stop], None, at + count < known.alone)
            self._give_back(table[at : at + count], key, at < known.alone)
            stop = at
        self._give_back(table[:stop], None, known.alone > 0)
        self._count()

    def _give_back(self, blocks: list[int], key: int | None, claimed: bool) -> None:
        """Free those blocks, the last first, to which nobody else has a claim."""
        extra = self._extra_owners
        shared = [block for block in blocks if block in extra] if claimed and extra else []
        start = len(shared)
        if shared and shared[-1] != blocks[start - 1]:  # not the first ones, as after a fork
            self._give_back_between(blocks, key, set(shared))
        elif start < len(blocks):
            self._pool.give_back(blocks[start:] if start else blocks, key if key is None else key + start)
        if self._part_filled:
            for block in shared:
                self._drop_owner(block)
            return
        for block in shared:  # what `_drop_owner` does for full blocks
            if extra[block] > 1:
                extra[block] -= 1
            else:
                del extra[block]
        self.shared_tokens -= start * self.block_size

    def _give_back_between(self, blocks: list[int], key: int | None, shared: set[int]) -> None:
        """Free the blocks between shared ones, the last first."""
        stop = len(blocks)
        for at in range(stop - 1, -2, -1):
            if at < 0 or blocks[at] in shared:
                self._pool.give_back(blocks[at + 1 : stop], None if key is None else key + at + 1)
                stop = at

    def fork(self, parent: int, child: int, tokens: int) -> bool:
        super().fork(parent, child, tokens)
        shared, old = len(self._tables[child]), self._known[parent]
        new = self._known[child] = Known(old.keys, old.shareable, old.rest, NOBODY)
        new.full, new.alone = old.full, shared
        old.alone = max(old.alone, shared)
        return True

    def swap_in(self, seqs: Sequence[int]) -> bool:
        if not super().swap_in(seqs):
            return False
        for seq in seqs:
            known = self._known[seq] = Known([], 0, [], NOBODY)
            known.alone = len(self._tables[seq])
        return True

    # -- growing ------------------------------------------------------------------------------

    def grow(self, seq: int, tokens: int) -> bool:
        before = self.capacity(seq) if seq in self._filling else tokens
        if not super().grow(seq, tokens):
            return False
        if before < tokens:
            self.fill(seq, before)  # what the sequence held is full now
        return True

    def grow_many(self, seqs: Sequence[int]) -> None:
        if self._part_filled or len(seqs) > self._pool.free:
            raise InvariantError(f"{len(seqs)} growths were asked for, {self.growth_budget()} promised")
        tables = self._tables
        self.evicted_by = []
        if self._filling and not self._filling.isdisjoint(seqs):
            self._fill_and_grow(seqs)
        else:
            for seq, block in zip(seqs, self._pool.lend(len(seqs), self.evicted_by), strict=False):
                tables[seq].append(block)
        self.used_slots += len(seqs) * self.block_size
        self.cached_slots = self._pool.cached * self.block_size

    def _fill_and_grow(self, seqs: Sequence[int]) -> None:
        """Grow one by one, as what a sequence held is full when it grows: a cached equal may be forgotten."""
        pool = self._pool
        for index, seq in enumerate(seqs):
            cached = pool.cached
            self.fill(seq, len(self._tables[seq]) * self.block_size)
            self._tables[seq] += pool.lend(1)
            self.evicted_by += [index] * (cached - pool.cached)

    def growth_budget(self) -> int:
        return 0 if self._part_filled else self._pool.free

    # -- looking ------------------------------------------------------------------------------

    def free_queue(self) -> tuple[int, ...]:
        return tuple(self._pool.queue())

    def known_blocks(self) -> dict[int, int]:
        """The keys of the blocks that have one, free or not."""
        return dict(self._pool.known_blocks())

    def layout(self) -> Layout:
        layout = super().layout()
        cached = bytearray(self.num_blocks)
        for block in self._pool.cached_blocks():
            cached[block] = True
        return layout._replace(cached=cached)

    # -- pieces -------------------------------------------------------------------------------

    def _room(self) -> int:
        return self._pool.free

    def _lend(self, count: int) -> list[int]:
        blocks = self._pool.lend(count)
        self._count()
        return blocks

    def _count(self) -> None:
        self.used_slots = self.capacity_slots - self._pool.free * self.block_size
        self.cached_slots = self._pool.cached * self.block_size
