"""What allocators of hybrid layers share: groups of alike layers, each with a block table of its own.

    hybrid   one pool of pages of equal bytes                          groups.py
    jenga    large pages, cut into each kind's own small ones          kinds.py
    split    a pool of its own for each kind                           kinds.py

What is behind a window, or of an earlier chunk, is freed, also by a growth that is refused then, as vLLM
does it; tokens that were freed are *expired*. States count as `state_slots`. Prefixes are kept in all
groups, and hit where all groups hold them (cache.py).

A sequence comes back when something may happen to its tables: at the ends of blocks, windows and chunks. In
between its `capacity` is not reached. Nothing is promised: that takes a run without prefixes (uncached.py).
"""

from kvsim.allocators.base import Content, InvariantError, Match
from kvsim.allocators.hybrid.group_sizes import GroupSizes
from kvsim.allocators.hybrid.hits import Hit
from kvsim.allocators.hybrid.pool import NULL
from kvsim.allocators.hybrid.tables import Text
from kvsim.allocators.hybrid.texts import NOT_PLACED, Holding, HybridMatch, TextKeys


class Grouped(GroupSizes):
    """Groups of unlike layers over some memory."""

    # -- placing ------------------------------------------------------------------------------

    def admit(self, seq: int, tokens: int, bound: int) -> bool:
        self._held.expect_new(seq, tokens)
        text = Text(seq, tokens, tokens, TextKeys((), seq, self.cache.hash_size))
        return self._place_new(seq, text, None, tokens)

    def admit_after(self, match: Match, seq: int, tokens: int, bound: int) -> bool:
        self._held.expect_new(seq, tokens)
        if not isinstance(match, HybridMatch):
            raise InvariantError(f"the match of another allocator: {match}")
        match.text.sequence = seq
        return self._place_new(seq, match.text, match.hit, tokens)

    def _place_new(self, seq: int, text: Text, hit: Hit | None, tokens: int) -> bool:
        computed = hit.tokens if hit else 0
        self.memory.tick()
        if not self.cache.place(text, computed, tokens - computed, hit=hit):
            return False
        held = self._held[seq] = Holding(text)
        self._settle(held, computed, tokens)
        held.capacity = tokens
        return True

    # -- growing ------------------------------------------------------------------------------

    def capacity(self, seq: int) -> int:
        return self._held[seq].capacity

    def grow(self, seq: int, tokens: int) -> bool:
        return self._grow(seq, min(tokens - 1, self._held[seq].capacity), tokens, decodes=True)

    def grow_chunk(self, seq: int, computed: int, tokens: int) -> bool:
        return self._grow(seq, computed, tokens, decodes=False)

    def _grow(self, seq: int, computed: int, tokens: int, decodes: bool) -> bool:
        held = self._held[seq]
        if decodes and tokens <= held.capacity:
            return True
        text = held.text
        if decodes:
            self._know(text, max(text.tokens, tokens - self.late))
        settled = computed
        if self.late:
            settled = held.start if held.tokens == computed else computed - 1
        self.memory.tick()
        placed = self.cache.place(text, computed, tokens - computed, settled=settled)
        if placed:
            self._settle(held, computed, tokens)
            held.decoded = held.decoded + 1 if decodes else 0
            held.capacity = tokens if held.decoded <= self.late else self._next_event(tokens) - 1
        else:
            self._settle(held, held.start, held.tokens)
        return placed

    def _know(self, text: Text, tokens: int) -> None:
        text.tokens = tokens
        if isinstance(text.keys, TextKeys):
            text.keys.known_tokens = tokens

    def _settle(self, held: Holding, start: int, tokens: int) -> None:
        """A sequence has so many tokens now, the last piece from `start` on: count its pages anew."""
        expired = entries = 0
        for at in self._attention:
            table = self.cache.groups[at].tables[held.text.sequence]
            nulls, size = table.count(NULL), self.sizes[at]
            expired += nulls * size
            entries += (len(table) - nulls) * size
        self._count(held, expired, entries)
        held.start, held.tokens = start, tokens

    def _next_event(self, tokens: int) -> int:
        """The next number of tokens at which a table may change, or a page become known."""
        return tokens + 1 + min([(rest - tokens - 1) % every for every, rest in self._events])

    # -- leaving ------------------------------------------------------------------------------

    def release(self, seq: int) -> None:
        held = self._held.pop(seq, None)
        if held is None:
            raise self._held.holds_nothing(seq)
        self.memory.tick()
        self.cache.release(seq)
        self._count(held, 0, 0)

    def retire(self, seq: int) -> int:
        held = self._held[seq]
        pages = held.pages
        self.expired_slots -= held.expired
        held.expired = 0
        return pages

    # -- keeping prefixes ---------------------------------------------------------------------

    def introduce(self, own: int, prompt_tokens: int) -> None:
        self._prompts[own] = prompt_tokens

    def new_step(self) -> None:
        self.cache.new_step()

    def decided(self) -> None:
        copies = self.cache.take_copies()
        if copies:
            self.cow_copies += len(copies)
            self.copied_slots += len(copies) * self.sizes[0]  # all pages are equal where blocks are copied
            self._recount()

    def match(self, content: Content, own: int, most: int) -> HybridMatch:
        ranges = self._texts.keys(content)
        keys = TextKeys(ranges, own, self.cache.hash_size)
        text = Text(NOT_PLACED, self._prompts.get(own, most + 1), most + 1, keys)
        keys.known_tokens = most + 1
        hit = self.cache.lookup(text)
        text.junction = hit.junction
        woken = [pool.evictable(blocks) for pool, blocks in zip(self.memory.pools, hit.blocks, strict=True)]
        return HybridMatch(hit, text, self._slots(woken))

    def fill(self, seq: int, tokens: int) -> None:
        """Tokens that were computed before they were known are remembered now."""
        text = self._held[seq].text
        if self.late and self.caches:
            self._know(text, max(text.tokens, tokens))
            self.cache.remember(text, tokens)

    def piece(self, match: Match | None, seq: int, start: int, tokens: int, most: int) -> int:
        text = match.text if isinstance(match, HybridMatch) else self._held[seq].text
        return self.cache.piece(text, start, tokens, most_tokens=most)
