"""The common part of allocators for hybrid layers: groups of equal layers, each with its own block table.

    hybrid   one pool of pages of equal bytes                          groups.py
    jenga    large pages, cut into small ones for each kind            kinds.py
    split    a separate pool for each kind                             kinds.py

Tokens behind a window, or of an earlier chunk, are freed, even by a growth that is then refused, as in vLLM;
freed tokens are *expired*. States count as `state_slots`. Prefixes are kept in all
groups, and hit where all groups hold them (cache.py).

    tokens of a sequence    |################|################|#####
    full, blocks of 16       [ page ][ page ][ page ]               3 pages
    window of 20             [ gone ][ page ][ page ]               2, and a page's tokens are expired
    state                                     [ state ]             1, however many tokens

A sequence fits if every group finds its pages at the sequence's largest moment, hits included. It grows when
its tables may change, at the ends of blocks, windows and chunks; in between it stays within its `capacity`.
Nothing is promised: that takes a run without prefixes (uncached.py).
"""

from collections.abc import Iterator, Sequence

from kvsim.allocators.base import Content, Holdings, InvariantError, Match, Region
from kvsim.allocators.hybrid.cache import Hit, HybridCache
from kvsim.allocators.hybrid.counts import CountedGroups
from kvsim.allocators.hybrid.memory import Memory
from kvsim.allocators.hybrid.regions import regions
from kvsim.allocators.hybrid.specs import GroupSpec, specs
from kvsim.allocators.hybrid.text import Text, TextKeys
from kvsim.allocators.options import Hybrid as Layers
from kvsim.allocators.texts import Texts

NOT_PLACED = -1


class HybridMatch(Match):
    """The part of a text that each group holds."""

    __slots__ = ("hit", "text")

    def __init__(self, hit: Hit, text: Text, woken_slots: int) -> None:
        super().__init__(hit.tokens, woken_slots)
        self.hit, self.text = hit, text


class Holding:
    """A sequence: its text, its tokens, its capacity, and the start of its last chunk."""

    __slots__ = ("capacity", "decoded", "start", "text", "tokens")

    def __init__(self, text: Text) -> None:
        self.text = text
        self.tokens = self.capacity = self.start = self.decoded = 0

    def __repr__(self) -> str:
        return f"{self.tokens} tokens"


class Grouped(CountedGroups):
    """Groups of unlike layers over some memory.

    Parameters
    ----------
    layers : Layers
        The groups, and how the engine settles and keeps what it computes.
    memory : Memory
        The pools, and where their pages lie.
    caching : bool
        Whether prefixes are kept.
    max_model_len : int
        Tokens of the longest sequence.

    Attributes
    ----------
    groups : list of GroupSpec
    cache : HybridCache
        The block tables of all groups over the memory: what fits, hits, placing.
    late : bool
        Whether a step is decided before the last one has ended.
    """

    windows = True
    keeps_prefixes = True
    pages = True
    has_blocks = True
    frees_when_refused = True
    keeps_groups = True

    def __init__(self, layers: Layers, memory: Memory, caching: bool, max_model_len: int) -> None:
        self.groups = specs(layers)
        self.cache = HybridCache(
            memory,
            self.groups,
            caching=caching,
            max_model_len=max_model_len,
            in_flight_tokens=layers.in_flight_tokens,
            retention=layers.retention,
            match_tokens=layers.match_tokens,
        )
        super().__init__([group.layers for group in self.groups], memory, self.cache.groups)
        self.caches, self.late = caching, layers.late
        self.ends_pieces = caching and bool(self._states)
        self._held: Holdings[Holding] = Holdings()
        self._events = sorted({event for group in self.groups for event in self._events_of(group)})
        self._texts = Texts(self.cache.hash_size)
        self._prompts: dict[int, int] = {}

    # -- what fits ----------------------------------------------------------------------------

    def slots_needed(self, tokens: int, bound: int) -> int:
        return sum(
            -(-tokens // group.block_size) * size
            for group, size in zip(self.groups, self.memory.sizes, strict=True)
            if group.kind != "state" or not self.caches
        )

    def fits(self, tokens: int, bound: int) -> bool:
        return self.memory.fits(self._peak(None, tokens))

    def peak_slots(self, tokens: int, bound: int) -> int:
        return self.memory.slots_of(self._peak(None, tokens))

    def leaves(self, match: Match | None, tokens: int, bound: int) -> int:
        """Free slots left after placing all of a sequence."""
        needed = self._peak(match, tokens)
        left = self.free_slots - self.memory.slots_of(needed)
        return left if left < 0 or self._room(needed, match) else -1

    def _hits(self, match: Match | None) -> Sequence[Sequence[int]]:
        return match.hit.blocks if isinstance(match, HybridMatch) else [()] * len(self.groups)

    def _room(self, pages: Sequence[int], match: Match | None) -> bool:
        """Whether there is room for so many pages of each group, including those hit."""
        hits = self.cache.seen(self._hits(match), match.tokens if match else 0)
        return self.memory.room(pages, hits)

    def _peak(self, match: Match | None, tokens: int) -> list[int]:
        """Most pages of each group that a new sequence takes at any time."""
        text = match.text if isinstance(match, HybridMatch) else Text(NOT_PLACED, tokens, tokens)
        computed = match.tokens if match else 0
        return [
            tables.needed(text, tokens, each, computed, whole=True)
            for tables, each in zip(self.cache.groups, self._hits(match), strict=True)
        ]

    def can_admit(self, tokens: int, bound: int) -> bool:
        """Whether there is room for a first chunk of all these tokens."""
        text = Text(NOT_PLACED, tokens, tokens)  # of states, `whole` needs no more, and prepares nothing
        groups = self.cache.groups
        return self._room([each.needed(text, tokens, (), 0, whole=each.of_state) for each in groups], None)

    def can_hold(self, tokens: int, bound: int) -> bool:
        return self._room(self._peak(None, tokens), None)

    def can_admit_after(self, match: Match, tokens: int, bound: int) -> bool:
        if not isinstance(match, HybridMatch):
            raise InvariantError(f"the match of another allocator: {match}")
        return self._room(self._peak(match, tokens), match)

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
        held.start, held.tokens, held.capacity = computed, tokens, tokens
        self._counts.place(seq)
        self._recount()
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
            text.know(max(text.tokens, tokens - self.late))
        settled = computed
        if self.late:
            settled = held.start if held.tokens == computed else computed - 1
        self.memory.tick()
        placed = self.cache.place(text, computed, tokens - computed, settled=settled)
        if placed:
            held.start, held.tokens = computed, tokens
            held.decoded = held.decoded + 1 if decodes else 0
            held.capacity = tokens if held.decoded <= self.late else self._next_event(tokens) - 1
        self._counts.settle(seq)  # also if refused: what a group no longer sees was freed
        self._recount()
        return placed

    def _next_event(self, tokens: int) -> int:
        """The next token count at which a table may change or a page may get a key."""
        return tokens + 1 + min([(rest - tokens - 1) % every for every, rest in self._events])

    def _events_of(self, group: GroupSpec) -> Iterator[tuple[int, int]]:
        """When a table of the group may change, as (period in tokens, remainder)."""
        size, settled = group.block_size, 1 + self.late
        yield size, 1 % size
        if self.caches:
            yield from ((size, place % size) for place in range(1 + settled))
        if group.kind == "state":
            yield from ((size, place % size) for place in (0, 2, 1 + settled))
        elif group.kind == "window" and group.reach:
            yield size, (group.reach - 1 + settled) % size
        elif group.reach:
            yield group.reach, settled % group.reach

    # -- leaving ------------------------------------------------------------------------------

    def release(self, seq: int) -> None:
        if self._held.pop(seq, None) is None:
            raise self._held.holds_nothing(seq)
        self.memory.tick()
        self.cache.release(seq)
        self._counts.release(seq)
        self._recount()

    # -- keeping prefixes ---------------------------------------------------------------------

    def introduce(self, own: int, prompt_tokens: int) -> None:
        self._prompts[own] = prompt_tokens

    def new_step(self) -> None:
        self.cache.new_step()

    def decided(self) -> None:
        copies = self.cache.take_copies()
        if copies:
            self.cow_copies += len(copies)
            self.copied_slots += len(copies) * self.memory.sizes[0]  # only where all pages are equal
            self._recount()

    def match(self, content: Content, own: int, most: int) -> HybridMatch:
        ranges = self._texts.keys(content)
        keys = TextKeys(ranges, own, self.cache.hash_size)
        text = Text(NOT_PLACED, self._prompts.get(own, most + 1), most + 1, keys)
        keys.known_tokens = most + 1
        hit = self.cache.lookup(text)
        text.junction = hit.junction
        woken = [pool.evictable(blocks) for pool, blocks in zip(self.memory.pools, hit.blocks, strict=True)]
        return HybridMatch(hit, text, self.memory.slots_of(woken))

    def fill(self, seq: int, tokens: int) -> None:
        """Give keys to tokens that were computed before they were known."""
        text = self._held[seq].text
        if self.late and self.caches:
            text.know(max(text.tokens, tokens))
            self.cache.remember(text, tokens)

    def piece(self, match: Match | None, seq: int, start: int, tokens: int, most: int) -> int:
        text = match.text if isinstance(match, HybridMatch) else self._held[seq].text
        return self.cache.piece(text, start, tokens, most_tokens=most)

    # -- looking ------------------------------------------------------------------------------

    def block_tables(self, seq: int) -> list[list[int]]:
        """The pages of a sequence in each group, numbered from 1; 0 for freed ones."""
        self._held[seq]
        return self.cache.tables(seq)

    def regions(self) -> Iterator[Region]:
        return regions(self.groups, self.cache)
