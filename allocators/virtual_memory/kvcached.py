"""Kvcached: blocks as in vLLM, in physical pages that are mapped and unmapped as blocks come and go.

    page 0, mapped   |## 0 ##|::: 1 :::|.......|......|   used, cached, and idle: free blocks of a mapped page
    page 1, reserved |.......|.........|.......|......|   idle: empty, kept mapped (at most 10)
    page 2           |       |         |       |      |   free

A sequence has a table of blocks (elastic_tables.py). They come from the partly free page that fits best
(elastic_blocks.py), so that pages become empty and other processes on the GPU can use them; a thread maps
five pages ahead. Waste per sequence: less than a block. A map takes one call per layer's K and V.

With `cache`, full blocks can be found by their text (elastic_prefixes.py) while a sequence holds them, and
afterwards while they are among the last 16,000 unheld tokens: more would keep too many pages mapped. Answers
count too, though no request asks for them again.

Time per call, in microseconds: 2 + 29 + 38 to map, create and set the access of a page of 2 MiB, 34 + 23 to
unmap and release it (table 3 of vAttention's paper, arXiv 2405.04437).

Source: ovg-project/kvcached e8e6406; arXiv 2508.08448.
"""

from collections.abc import Sequence
from itertools import chain, islice
from typing import Self

from kvsim.allocators.base import Content, InvariantError, Match
from kvsim.allocators.options import Options
from kvsim.allocators.prefix import NOBODY, Known, PrefixMatch
from kvsim.allocators.texts import Keys, Texts
from kvsim.allocators.virtual_memory.elastic_prefixes import ElasticPrefixes
from kvsim.allocators.virtual_memory.elastic_tables import ElasticTables

MOST_KEPT_TOKENS = 16_000
"""cached tokens without a holder (kvcached's `KVCACHED_MAX_CACHED_TOKENS`)"""


class Kvcached(ElasticTables):
    """Blocks in pages of 2 MiB, optionally found by their text.

    Parameters
    ----------
    capacity_slots : int
        Tokens that the memory holds; a remainder below one page in every layer is left out.
    options : Options
        The model's sizes, the block size, and `cache`: whether texts are kept.
    most_kept_tokens : int
        Maximum cached tokens without a holder; -1: no bound, 0: none.
    """

    family = "virtual"
    idea = "blocks in pages of 2 MiB, mapped and unmapped as they come and go"
    wastes = "< a block; blocks that straddle pages"
    used_by = "kvcached, under vLLM and SGLang"
    source = "kvcached e8e6406; arXiv 2508.08448"

    keeps_prefixes = True

    @classmethod
    def from_options(cls, capacity_slots: int, options: Options) -> Self:
        return cls(capacity_slots, options)

    def __init__(
        self,
        capacity_slots: int,
        options: Options | None = None,
        most_kept_tokens: int = MOST_KEPT_TOKENS,
    ) -> None:
        super().__init__(capacity_slots, options)
        self.caches = options is not None and options.cache is not None
        most_kept = most_kept_tokens if most_kept_tokens < 0 else most_kept_tokens // self.block_size
        self.prefixes = ElasticPrefixes(self.blocks, most_kept)
        self._texts = Texts(self.block_size)
        self._known: dict[int, Known] = {}  # by sequence
        self._left_over: dict[int, list[Keys]] = {}  # private keys of an evicted sequence, by its name

    def is_cached(self, block: int) -> bool:
        return block in self.prefixes.evictable

    # -- placing ------------------------------------------------------------------------------

    def match(self, content: Content, own: int, most: int) -> Match:
        keys = self._texts.keys(content)
        shareable = sum(count for _, count in keys)
        known = Known(keys, shareable, self._left_over.get(own, []), own)
        wanted = (range(key, key + count) for _, key, count in known.pieces(0, most // self.block_size))
        blocks = self.prefixes.find(chain.from_iterable(wanted))
        woken = sum(block in self.prefixes.evictable for block in blocks)
        return PrefixMatch(len(blocks) * self.block_size, woken * self._block, blocks, known)

    def leaves(self, match: Match | None, tokens: int, bound: int) -> int:
        found = 0 if match is None else match.tokens * self.slots_per_token - match.woken_slots
        return self.free_slots - self.slots_needed(tokens, bound) + found

    def can_admit_after(self, match: Match, tokens: int, bound: int) -> bool:
        assert isinstance(match, PrefixMatch)
        more = self._count_of(tokens) - len(match.blocks) + match.woken_slots // self._block
        return self._allocated + more <= self.most_blocks

    def admit(self, seq: int, tokens: int, bound: int) -> bool:
        if not self.caches:
            return super().admit(seq, tokens, bound)
        nothing = PrefixMatch(0, 0, [], Known([], 0, [], NOBODY))
        return self.admit_after(nothing, seq, tokens, bound)

    def admit_after(self, match: Match, seq: int, tokens: int, bound: int) -> bool:
        assert isinstance(match, PrefixMatch)
        self._table.expect_new(seq, tokens)
        if not self.can_admit_after(match, tokens, bound):
            return False
        blocks, pool = match.blocks, self.prefixes
        woken = match.woken_slots // self._block
        self.shared_tokens += (len(blocks) - woken) * self._block
        pool.share(blocks)
        self._allocated += woken
        self._known[seq] = match.known
        match.known.full = len(blocks)
        self._table[seq] = blocks + self._allocate(self._count_of(tokens) - len(blocks))
        return True

    # -- growing and leaving ------------------------------------------------------------------

    def grow_mapped(self, seqs: Sequence[int]) -> bool:
        if not super().grow_mapped(seqs):
            return False
        if self.caches:
            grown: dict[int, int] = {}
            for seq in seqs:
                grown[seq] = grown.get(seq, 0) + 1
            for seq, count in grown.items():
                self.prefixes.counts.update(dict.fromkeys(self._table[seq][-count:], 1))
        return True

    def fill(self, seq: int, tokens: int) -> None:
        """Let look-ups find full blocks from now on, as far as others may share their text."""
        if not self.caches:
            return
        known, full = self._known[seq], tokens // self.block_size
        if full > known.full:
            self._enter(seq, known.full, min(full, known.shareable))
            known.full = full

    def evict(self, seq: int) -> None:
        """Release a sequence that will return; it can then also find its private blocks."""
        if self.caches and seq in self._known:
            known = self._known[seq]
            if known.own != NOBODY and known.full > known.shareable:
                known.rest = self._left_over.setdefault(known.own, known.rest)
                self._texts.lengthen(known.rest, known.full)
                self._enter(seq, known.shareable, known.full)
            self._leave(seq)
        else:
            self.release(seq)

    def release(self, seq: int) -> None:
        if not self.caches:
            super().release(seq)
            return
        table, known = self._table[seq], self._known[seq]
        self._enter_for_nobody(table[known.shareable : known.full])
        rest = self._left_over.pop(known.own, None)
        if rest:
            keys = chain.from_iterable(range(key, key + count) for key, count in rest)
            self._enter_for_nobody([block for key in keys for block in self.prefixes.known.get(key, ())])
            self._texts.give_back(rest)
        self._leave(seq)

    def _enter_for_nobody(self, blocks: Sequence[int]) -> None:
        """Cache the rest although no request will ask for its text again."""
        self.prefixes.enter(blocks, [-1 - block for block in blocks])

    def _enter(self, seq: int, start: int, stop: int) -> None:
        """Let look-ups find blocks `start` up to `stop` (exclusive) of a sequence."""
        for at, key, count in self._known[seq].pieces(start, stop):
            self.prefixes.enter(self._table[seq][at : at + count], range(key, key + count))

    def _leave(self, seq: int) -> None:
        table, counts = self._table[seq], self.prefixes.counts
        del self._table[seq], self._known[seq]
        alone = sum(counts[block] == 1 for block in table)
        self.shared_tokens -= (len(table) - alone) * self._block
        self._allocated -= alone
        self.prefixes.give_back(table[::-1])
        self._count()

    def _allocate(self, count: int) -> list[int]:
        """Allocate blocks, given room; if blocks straddle pages, kvcached counts more than there are."""
        if not self.caches:
            return super()._allocate(count)
        pool = self.prefixes
        while (blocks := pool.allocate(count)) is None:
            oldest = list(islice(pool.evictable, 1))
            if not oldest:
                raise InvariantError(f"{count} blocks were promised, {self._allocated} are allocated")
            pool.drop(oldest)
        self._allocated += count
        self._count()
        return blocks

    def _count(self) -> None:
        super()._count()
        self.cached_slots = len(self.prefixes.evictable) * self._block
