"""Hybrid: the memory of a model with unlike layers, in groups over one pool of pages, as vLLM keeps it.

    pages of one size    |f|w|w|f|s|w| |f| | |c|      f: full, w: window, s: state, c: cached, nobody's
    a page               block_size tokens of one attention group, or one state of a group of recurrent layers

All groups take pages of the same bytes from one pool; a group whose tokens are smaller has longer blocks. A
slot is the smallest piece that divides the tokens of all groups:

    page_slots = lcm(block sizes of the attention groups)      a token of group g: page_slots / block_size_g

What is behind a window, or of an earlier chunk, is freed, also by a growth that is refused then, as the
engine does it; tokens that were freed are *expired*. States count as `state_slots`. Prefixes are kept in all
groups, and hit where all groups hold them (cache.py).

A sequence comes back when something may happen to its tables: at the ends of blocks, windows and chunks. In
between its `capacity` is not reached. Nothing is promised: that takes a run without prefixes (uncached.py).
"""

from collections.abc import Hashable, Iterator, Sequence
from math import lcm
from typing import overload

from kvsim.allocators.base import Allocator, Content, Holdings, InvariantError, Match, Region
from kvsim.allocators.hybrid.cache import GroupSpec, Hit, HybridCache
from kvsim.allocators.hybrid.pool import NULL
from kvsim.allocators.hybrid.tables import Text
from kvsim.allocators.hybrid.uncached import Uncached
from kvsim.allocators.options import Hybrid as Layers
from kvsim.allocators.options import LayerGroup, Options
from kvsim.allocators.texts import Keys, Texts

NOT_PLACED = -1


class TextKeys(Sequence[Hashable]):
    """The keys of a text's hash blocks, as far as its tokens are known.

    Numbers for what others may have too; for the rest the sequence's own name and the place.
    """

    def __init__(self, ranges: Sequence[Keys], own: int, hash_size: int) -> None:
        self._ranges, self._own, self._size = ranges, own, hash_size
        self._shareable = sum(count for _, count in ranges)
        self.known_tokens = 0

    def __len__(self) -> int:
        return self.known_tokens // self._size

    @overload
    def __getitem__(self, place: int) -> Hashable: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Hashable]: ...
    def __getitem__(self, place: int | slice) -> Hashable | Sequence[Hashable]:
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
        if place >= self._shareable:
            return (self._own, place)
        left = place
        for first, count in self._ranges:
            if left < count:
                return first + left
            left -= count
        raise IndexError(place)


class HybridMatch(Match):
    """What every group holds of a text."""

    __slots__ = ("hit", "text")

    def __init__(self, hit: Hit, text: Text, woken_slots: int) -> None:
        super().__init__(hit.tokens, woken_slots)
        self.hit, self.text = hit, text


class Holding:
    """A sequence: its text, its capacity, and where its last two pieces began."""

    __slots__ = ("capacity", "decoded", "expired", "pages", "start", "text", "tokens")

    def __init__(self, text: Text) -> None:
        self.text = text
        self.tokens = self.capacity = self.start = self.decoded = 0
        self.expired = self.pages = 0

    def __repr__(self) -> str:
        return f"{self.tokens} tokens in {self.pages} pages"


class Hybrid(Allocator):
    """Groups of unlike layers over one pool of pages.

    Parameters
    ----------
    capacity_slots : int
        Size of the arena: pages of `page_slots`; what does not fill a page is left out.
    layers : Layers
        The groups, and how the engine settles and keeps what it computes.
    caching : bool
        Whether prefixes are kept.
    max_model_len : int
        Tokens of the longest sequence.
    """

    family = "layers"
    idea = "a table for each group of alike layers, over one pool of equal pages"
    wastes = "less than a block in each group; padding of pages and groups"
    used_by = "vLLM"
    source = "vllm/v1/core/kv_cache_utils.py, 0.33.0"

    windows = True
    keeps_prefixes = True
    pages = True
    has_blocks = True
    frees_when_refused = True
    knows_prompts = True
    keeps_groups = True

    @classmethod
    def from_options(cls, capacity_slots: int, options: Options) -> Allocator:
        size = options.block_size
        layers = options.hybrid or Layers(
            (LayerGroup("full", size), LayerGroup("window", size, 2 * size)), options.max_model_len
        )
        if options.cache is None and Uncached.serves(layers):
            return Uncached(capacity_slots, layers, options.max_model_len)
        return cls(capacity_slots, layers, options.cache is not None, options.max_model_len)

    def __init__(self, capacity_slots: int, layers: Layers, caching: bool, max_model_len: int) -> None:
        self.groups = [
            GroupSpec(kind=kind, block_size=size, reach=reach, checkpoint_grid=grid)
            for kind, size, reach, grid in layers.groups
        ]
        attention = [group.block_size for group in self.groups if group.kind != "state"]
        self.page_slots = lcm(*attention) if attention else 1
        if capacity_slots < len(self.groups) * self.page_slots:
            raise ValueError(
                f"capacity_slots must hold a page of {self.page_slots} for each of {len(self.groups)} "
                f"groups, got {capacity_slots}"
            )
        pages = capacity_slots // self.page_slots
        super().__init__(pages * self.page_slots)
        self.cache = HybridCache(
            pages,
            self.groups,
            caching=caching,
            max_model_len=max_model_len,
            in_flight_tokens=layers.in_flight_tokens,
            retention=layers.retention,
            match_tokens=layers.match_tokens,
        )
        self.caches, self.late = caching, layers.late
        self.ends_pieces = caching and any(group.kind == "state" for group in self.groups)
        self.slots_per_token = sum(self.page_slots // size for size in attention)
        self._attention = [at for at, group in enumerate(self.groups) if group.kind != "state"]
        self._texts = Texts(self.cache.hash_size)
        self._prompts: dict[int, int] = {}
        self._held: Holdings[Holding] = Holdings()
        self._entries = 0

    @property
    def block_slots(self) -> int:
        return self.page_slots

    # -- placing ------------------------------------------------------------------------------

    def slots_needed(self, tokens: int, bound: int) -> int:
        return sum(-(-tokens // group.block_size) for group in self._kept()) * self.page_slots

    def peak_slots(self, tokens: int, bound: int) -> int:
        return self._whole(Text(NOT_PLACED, tokens, tokens), tokens, None) * self.page_slots

    def leaves(self, match: Match | None, tokens: int, bound: int) -> int:
        """Free slots that admitting a sequence would leave, all of it placed."""
        text = match.text if isinstance(match, HybridMatch) else Text(NOT_PLACED, tokens, tokens)
        return self.free_slots - self._whole(text, tokens, match) * self.page_slots

    def _kept(self) -> list[GroupSpec]:
        return [group for group in self.groups if group.kind != "state" or not self.caches]

    def _whole(self, text: Text, tokens: int, match: Match | None) -> int:
        """Pages that all of a new sequence takes at its largest moment."""
        hits: Sequence[Sequence[int]] = [()] * len(self.groups)
        if isinstance(match, HybridMatch):
            hits = match.hit.blocks
        computed = match.tokens if match else 0
        return sum(
            tables.needed(text, tokens, each, computed, whole=True)
            for tables, each in zip(self.cache.groups, hits, strict=True)
        )

    def can_admit(self, tokens: int, bound: int) -> bool:
        text = Text(NOT_PLACED, tokens, tokens)
        return self._first(text, tokens, None) <= self.cache.pool.free

    def can_hold(self, tokens: int, bound: int) -> bool:
        return self.peak_slots(tokens, bound) <= self.free_slots

    def can_admit_after(self, match: Match, tokens: int, bound: int) -> bool:
        if not isinstance(match, HybridMatch):
            raise InvariantError(f"the match of another allocator: {match}")
        return self._whole(match.text, tokens, match) <= self.cache.pool.free

    def _first(self, text: Text, tokens: int, match: HybridMatch | None) -> int:
        """Pages that a new sequence takes for its first piece; what is looked at is left as it was."""
        hits = match.hit.blocks if match else [()] * len(self.groups)
        return sum(
            tables.needed(text, tokens, each, match.tokens if match else 0, whole=True)
            if group.kind == "state"
            else tables.needed(text, tokens, each, match.tokens if match else 0)
            for group, tables, each in zip(self.groups, self.cache.groups, hits, strict=True)
        )

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
        if not self.cache.place(text, computed, tokens - computed, hit=hit):
            return False
        held = self._held[seq] = Holding(text)
        self._settle(held, computed, tokens)
        held.capacity = tokens
        return True

    # -- growing ------------------------------------------------------------------------------

    def capacity(self, seq: int) -> int:
        return self._held[seq].capacity

    def surplus(self, seq: int, tokens: int) -> int:
        tables = self.cache.groups
        return sum(
            (len(tables[at].tables[seq]) * tables[at].block_size - tokens)
            * (self.page_slots // tables[at].block_size)
            for at in self._attention
        )

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
            nulls = table.count(NULL)
            expired += nulls
            entries += len(table) - nulls
        self._count(held, expired, entries)
        held.start, held.tokens = start, tokens

    def _count(self, held: Holding, expired: int, entries: int) -> None:
        self._entries += entries - held.pages
        self.expired_slots += (expired - held.expired) * self.page_slots
        held.expired, held.pages = expired, entries
        self._recount()

    def _recount(self) -> None:
        """Take over the pool's numbers."""
        pool = self.cache.pool
        self.used_slots = (pool.blocks - pool.free) * self.page_slots
        self.state_slots = pool.states * self.page_slots
        self.shared_tokens = (self._entries - (pool.blocks - pool.free - pool.states)) * self.page_slots
        self.cached_slots = pool.cached * self.page_slots

    def _next_event(self, tokens: int) -> int:
        """The next number of tokens at which a table may change, or a page become known."""
        at = tokens + 1
        while not any(self._may_change(group, at) for group in self.groups):
            at += 1
        return at

    def _may_change(self, group: GroupSpec, tokens: int) -> bool:
        place = tokens % group.block_size
        if place == 1 or group.block_size == 1 or (self.caches and place <= 1 + self.late):
            return True
        settled = tokens - 1 - self.late
        if group.kind == "state":
            return place in (0, 2, 2 + self.late)
        if group.reach is None:
            return False
        if group.kind == "window":
            return (settled - group.reach + 1) % group.block_size == 0
        return settled % group.reach == 0

    # -- leaving ------------------------------------------------------------------------------

    def release(self, seq: int) -> None:
        held = self._held.pop(seq, None)
        if held is None:
            raise self._held.holds_nothing(seq)
        self.cache.release(seq)
        self._count(held, 0, 0)

    def retire(self, seq: int) -> int:
        held = self._held[seq]
        pages = held.pages
        self.expired_slots -= held.expired * self.page_slots
        held.expired = 0
        return pages * self.page_slots

    # -- keeping prefixes ---------------------------------------------------------------------

    def introduce(self, own: int, prompt_tokens: int) -> None:
        self._prompts[own] = prompt_tokens

    def new_step(self) -> None:
        self.cache.new_step()

    def decided(self) -> None:
        copies = self.cache.take_copies()
        if copies:
            self.cow_copies += len(copies)
            self.copied_slots += len(copies) * self.page_slots
            self._recount()

    def match(self, content: Content, own: int, most: int) -> HybridMatch:
        ranges = self._texts.keys(content)
        keys = TextKeys(ranges, own, self.cache.hash_size)
        text = Text(NOT_PLACED, self._prompts.get(own, most + 1), most + 1, keys)
        keys.known_tokens = most + 1
        hit = self.cache.lookup(text)
        text.junction = hit.junction
        woken = sum(self.cache.pool.evictable(blocks) for blocks in hit.blocks)
        return HybridMatch(hit, text, woken * self.page_slots)

    def fill(self, seq: int, tokens: int) -> None:
        """Tokens that were computed before they were known are remembered now."""
        text = self._held[seq].text
        if self.late and self.caches:
            self._know(text, max(text.tokens, tokens))
            self.cache.remember(text, tokens)

    def piece(self, match: Match | None, seq: int, start: int, tokens: int, most: int) -> int:
        text = match.text if isinstance(match, HybridMatch) else self._held[seq].text
        return self.cache.piece(text, start, tokens, most_tokens=most)

    # -- looking ------------------------------------------------------------------------------

    def logical_slots(self) -> int:
        return self._entries * self.page_slots + self.state_slots

    def free_queue(self) -> tuple[int, ...]:
        """The free pages in the order in which they will be lent; numbered from 1."""
        return tuple(self.cache.pool.queue())

    def block_tables(self, seq: int) -> list[list[int]]:
        """The pages of a sequence in each group, numbered from 1; 0 for what is not kept."""
        self._held[seq]
        return self.cache.tables(seq)

    def regions(self) -> Iterator[Region]:
        owners: dict[int, list[int]] = {}
        places: dict[int, tuple[int, int]] = {}
        for tables in self.cache.groups:
            size, state = tables.block_size, tables.of_state
            for seq, table in tables.tables.items():
                for at, page in enumerate(table):
                    if page != NULL:
                        owners.setdefault(page, []).append(seq)
                        places[page] = (0, self.page_slots) if state else (at * size, self.page_slots // size)
        for page in range(1, self.cache.pool.blocks + 1):
            first, per_token = places.get(page, (0, 1))
            cached = self.cache.pool.is_cached(page)
            seqs = tuple(owners.get(page, ()))
            start = (page - 1) * self.page_slots
            yield Region(start, self.page_slots, seqs, first, cached=cached, per_token=per_token)
