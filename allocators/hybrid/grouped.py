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

from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import overload

from kvsim.allocators.arena import Slots
from kvsim.allocators.base import Allocator, Content, Holdings, InvariantError, Match, Region
from kvsim.allocators.hybrid.cache import Hit, HybridCache
from kvsim.allocators.hybrid.memory import Memory
from kvsim.allocators.hybrid.pool import NULL
from kvsim.allocators.hybrid.specs import GroupSpec, specs
from kvsim.allocators.hybrid.tables import Text
from kvsim.allocators.options import Hybrid as Layers
from kvsim.allocators.options import kinds_of, layers_named
from kvsim.allocators.texts import Keys, Texts

NOT_PLACED = -1


class TextKeys(Sequence[Hashable]):
    """The keys of a text's hash blocks, up to the last known token.

    Text that others may share has numbers; the rest has the sequence's own name and the position.
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
    """The part of a text that each group holds."""

    __slots__ = ("hit", "text")

    def __init__(self, hit: Hit, text: Text, woken_slots: int) -> None:
        super().__init__(hit.tokens, woken_slots)
        self.hit, self.text = hit, text


class Holding:
    """A sequence: its text, its capacity, the slots of its tables, and the starts of its last two chunks."""

    __slots__ = ("capacity", "decoded", "expired", "pages", "retired", "start", "tables", "text", "tokens")

    def __init__(self, text: Text, groups: int) -> None:
        self.text = text
        self.tables, self.retired = [0] * groups, False
        self.tokens = self.capacity = self.start = self.decoded = 0
        self.expired = self.pages = 0

    def __repr__(self) -> str:
        return f"{self.tokens} tokens in {self.pages} pages"


class Grouped(Allocator):
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
    names : list of str
        Name of each group's layers.
    kinds : list of (str, int)
        The distinct names, with the slots of a token in all layers of that name.
    sizes, token_slots : list of int
        Slots of a page of each group, and of a token there; a state has no tokens.
    """

    windows = True
    keeps_prefixes = True
    pages = True
    has_blocks = True
    frees_when_refused = True
    keeps_groups = True

    def __init__(self, layers: Layers, memory: Memory, caching: bool, max_model_len: int) -> None:
        super().__init__(memory.slots)
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
        self.memory = memory
        self.caches, self.late = caching, layers.late
        self.ends_pieces = caching and any(group.kind == "state" for group in self.groups)
        self.names = [layers_named(group.kind, group.reach) for group in layers.groups]
        self.pools = memory.apart(self.names)
        self.sizes = sizes = memory.sizes
        self.token_slots = [
            0 if group.kind == "state" else size // group.block_size
            for group, size in zip(self.groups, sizes, strict=True)
        ]
        self.slots_per_token = sum(self.token_slots)
        per_token = dict.fromkeys(kinds_of(self.names), 0)
        for name, slots in zip(self.names, self.token_slots, strict=True):
            per_token[name] += slots
        self.kinds = list(per_token.items())
        self._kind = [list(per_token).index(name) for name in self.names]
        self._tables, self._dead = [0] * len(self.groups), [0] * len(self.groups)
        self._attention = [at for at, group in enumerate(self.groups) if group.kind != "state"]
        self._texts = Texts(self.cache.hash_size)
        self._prompts: dict[int, int] = {}
        self._held: Holdings[Holding] = Holdings()
        self._entries = 0
        self._events = sorted({event for group in self.groups for event in self._events_of(group)})
        self._of_state = [at for at, group in enumerate(self.groups) if group.kind == "state"]
        self._one_block = len({self.groups[at].block_size for at in self._attention}) == 1
        self._pools = [(pool, size) for pool, size in zip(self.memory.pools, self.sizes, strict=True)]
        if len({id(pool) for pool in self.memory.pools}) == 1:
            del self._pools[1:]

    # -- what fits ----------------------------------------------------------------------------

    def slots_needed(self, tokens: int, bound: int) -> int:
        return sum(
            -(-tokens // group.block_size) * size
            for group, size in zip(self.groups, self.sizes, strict=True)
            if group.kind != "state" or not self.caches
        )

    def fits(self, tokens: int, bound: int) -> bool:
        return self.memory.fits(self._whole(Text(NOT_PLACED, tokens, tokens), tokens, None))

    def peak_slots(self, tokens: int, bound: int) -> int:
        return self._slots(self._whole(Text(NOT_PLACED, tokens, tokens), tokens, None))

    def leaves(self, match: Match | None, tokens: int, bound: int) -> int:
        """Free slots left after placing all of a sequence."""
        text = match.text if isinstance(match, HybridMatch) else Text(NOT_PLACED, tokens, tokens)
        needed = self._whole(text, tokens, match)
        left = self.free_slots - self._slots(needed)
        return left if left < 0 or self._room(needed, match) else -1

    def _slots(self, pages: Sequence[int]) -> int:
        return sum(count * size for count, size in zip(pages, self.sizes, strict=True))

    def _hits(self, match: Match | None) -> Sequence[Sequence[int]]:
        return match.hit.blocks if isinstance(match, HybridMatch) else [()] * len(self.groups)

    def _room(self, pages: Sequence[int], match: Match | None) -> bool:
        """Whether there is room for so many pages of each group, including those hit."""
        hits = self.cache.seen(self._hits(match), match.tokens if match else 0)
        return self.memory.room(pages, hits)

    def _whole(self, text: Text, tokens: int, match: Match | None) -> list[int]:
        """Most pages of each group that a new sequence takes at any time."""
        computed = match.tokens if match else 0
        return [
            tables.needed(text, tokens, each, computed, whole=True)
            for tables, each in zip(self.cache.groups, self._hits(match), strict=True)
        ]

    def can_admit(self, tokens: int, bound: int) -> bool:
        return self._room(self._first(Text(NOT_PLACED, tokens, tokens), tokens), None)

    def can_hold(self, tokens: int, bound: int) -> bool:
        return self._room(self._whole(Text(NOT_PLACED, tokens, tokens), tokens, None), None)

    def can_admit_after(self, match: Match, tokens: int, bound: int) -> bool:
        if not isinstance(match, HybridMatch):
            raise InvariantError(f"the match of another allocator: {match}")
        return self._room(self._whole(match.text, tokens, match), match)

    def _first(self, text: Text, tokens: int) -> list[int]:
        """Pages that a new sequence takes for its first chunk; changes nothing."""
        return [
            tables.needed(text, tokens, (), 0, whole=group.kind == "state")
            for group, tables in zip(self.groups, self.cache.groups, strict=True)
        ]

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
        held = self._held[seq] = Holding(text, len(self.groups))
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
        """Recount the pages of a sequence that has `tokens` now, its last chunk starting at `start`."""
        expired = entries = 0
        for at in self._attention:
            table = self.cache.groups[at].tables[held.text.sequence]
            nulls, size, slots = table.count(NULL), self.sizes[at], len(table) * self.sizes[at]
            expired += nulls * size
            entries += slots - nulls * size
            if slots != held.tables[at]:
                self._tables[at] += slots - held.tables[at]
                held.tables[at] = slots
        self._count(held, expired, entries)
        held.start, held.tokens = start, tokens

    def _next_event(self, tokens: int) -> int:
        """The next token count at which a table may change or a page may get a key."""
        return tokens + 1 + min([(rest - tokens - 1) % every for every, rest in self._events])

    # -- leaving ------------------------------------------------------------------------------

    def release(self, seq: int) -> None:
        held = self._held.pop(seq, None)
        if held is None:
            raise self._held.holds_nothing(seq)
        self.memory.tick()
        self.cache.release(seq)
        for at, slots in enumerate(held.tables):
            self._tables[at] -= slots
            self._dead[at] -= slots * held.retired
        self._count(held, 0, 0)

    def retire(self, seq: int) -> int:
        """Count only what a finished sequence still holds: its tables lose what was freed."""
        held = self._held[seq]
        self.expired_slots -= held.expired
        held.expired, held.retired = 0, True
        for at in self._attention:
            freed = self.cache.groups[at].tables[seq].count(NULL) * self.sizes[at]
            held.tables[at] -= freed
            self._tables[at] -= freed
            self._dead[at] += held.tables[at]
        return held.pages

    # -- keeping prefixes ---------------------------------------------------------------------

    def introduce(self, own: int, prompt_tokens: int) -> None:
        self._prompts[own] = prompt_tokens

    def new_step(self) -> None:
        self.cache.new_step()

    def decided(self) -> None:
        copies = self.cache.take_copies()
        if copies:
            self.cow_copies += len(copies)
            self.copied_slots += len(copies) * self.sizes[0]  # pages are copied only where all are equal
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
        """Give keys to tokens that were computed before they were known."""
        text = self._held[seq].text
        if self.late and self.caches:
            self._know(text, max(text.tokens, tokens))
            self.cache.remember(text, tokens)

    def piece(self, match: Match | None, seq: int, start: int, tokens: int, most: int) -> int:
        text = match.text if isinstance(match, HybridMatch) else self._held[seq].text
        return self.cache.piece(text, start, tokens, most_tokens=most)

    # -- counting -----------------------------------------------------------------------------

    def surplus(self, seq: int, tokens: int) -> int:
        """Slots beyond `tokens`, over the groups that have any; negative: what all groups lack together."""
        if self._one_block:  # tables of all groups are equally long
            tables = self.cache.groups[self._attention[0]]
            return (len(tables.tables[seq]) * tables.block_size - tokens) * self.slots_per_token
        left = self._surpluses(seq, tokens)
        return sum([each for each in left if each > 0]) or sum(left)

    def _surpluses(self, seq: int, tokens: int) -> list[int]:
        tables, slots = self.cache.groups, self.token_slots
        return [
            (len(tables[at].tables[seq]) * tables[at].block_size - tokens) * slots[at]
            for at in self._attention
        ]

    def kind_counts(
        self, internal: Callable[[], int], finals: Callable[[], Mapping[int, int]]
    ) -> Callable[[], Sequence[int]]:
        return lambda: self._counts_of_kinds(internal(), finals)

    def _counts_of_kinds(self, internal: int, finals: Callable[[], Mapping[int, int]]) -> Sequence[int]:
        """The fields of `Held`, each for all kinds."""
        memory, kinds = self.memory, len(self.kinds)
        used, tables, cached, never, idle = [[0] * kinds for _ in range(5)]
        groups = zip(self._kind, self.sizes, memory.used_by, memory.kept_by, self._tables, strict=True)
        for kind, size, pages, kept, slots in groups:
            used[kind] += pages * size
            cached[kind] += kept * size
            tables[kind] += slots
        if internal:
            for at, slots in enumerate(self._never_written(internal, finals)):
                never[self._kind[at]] += slots
        if self.idles:
            for at, kind in enumerate(self._kind):
                idle[kind] += memory.begun_by(at)
            idle = [each - one - other for each, one, other in zip(idle, used, cached, strict=True)]
        return used + tables + never + cached + idle

    def held_by_kind(self, used: int, internal: int, counts: Sequence[int]) -> Sequence[Slots]:
        """As in the base, from the counts alone."""
        kinds = len(self.kinds)
        held, tables, never, cached, idle = [counts[at * kinds : (at + 1) * kinds] for at in range(5)]
        return list(zip(held, tables, never, cached, idle, strict=True))

    def _never_written(self, internal: int, finals: Callable[[], Mapping[int, int]]) -> Sequence[int]:
        """Slots of each group that will never be written: in finished sequences, or at the ends of tables."""
        never = self._dead
        if self._one_block:  # tables of all groups are equally long
            tokens = (internal - sum(never)) // self.slots_per_token
            return [dead + tokens * slots for dead, slots in zip(never, self.token_slots, strict=True)]
        never = never[:]
        for seq, final in finals().items():
            if not self._held[seq].retired:
                for at, slots in zip(self._attention, self._surpluses(seq, final), strict=True):
                    never[at] += max(0, slots)
        return never

    def _count(self, held: Holding, expired: int, entries: int) -> None:
        self._entries += entries - held.pages
        self.expired_slots += expired - held.expired
        held.expired, held.pages = expired, entries
        self._recount()

    def _recount(self) -> None:
        """Update the counts from the pools."""
        used = states = cached = 0
        for pool, size in self._pools:
            used += pool.in_use * size
            cached += pool.cached * size
        for at in self._of_state:
            states += self.memory.used_by[at] * self.sizes[at]
        self.used_slots, self.state_slots, self.cached_slots = used, states, cached
        self.shared_tokens = self._entries - (used - states)

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

    # -- looking ------------------------------------------------------------------------------

    def logical_slots(self) -> int:
        return self._entries + self.state_slots

    def block_tables(self, seq: int) -> list[list[int]]:
        """The pages of a sequence in each group, numbered from 1; 0 for freed ones."""
        self._held[seq]
        return self.cache.tables(seq)

    def owned_pages(self) -> dict[tuple[int, int], tuple[list[int], int, int, str]]:
        """For (pool, page) of each page in use: its owner, first token, slots per token and layers.

        A state counts as one token that fills its page.
        """
        found: dict[tuple[int, int], tuple[list[int], int, int, str]] = {}
        one = len(self._pools) == 1
        for at, tables in enumerate(self.cache.groups):
            per_token = self.token_slots[at] or self.sizes[at]
            for seq, table in tables.tables.items():
                for place, page in enumerate(table):
                    if page != NULL:
                        first = 0 if tables.of_state else place * tables.block_size
                        new = list[int](), first, per_token, self.names[at]
                        found.setdefault((0 if one else at, page), new)[0].append(seq)
        return found

    def regions(self) -> Iterator[Region]:
        place, sizes = self.memory.place, self.sizes
        found = [
            Region(place(group, page), sizes[group], tuple(seqs), first, per_token=per_token, layers=name)
            for (group, page), (seqs, first, per_token, name) in self.owned_pages().items()
        ]
        for group, (pool, _) in enumerate(self._pools):
            name = self.names[group] if len(self._pools) > 1 else ""
            found += [
                Region(place(group, page), sizes[group], (), cached=True, layers=name)
                for page in pool.cached_pages()
            ]
        parts = list(self._parts())
        at = 0
        for region in sorted(found):
            yield from _empty(at, region.start, parts)
            yield region
            at = region.start + region.size
        yield from _empty(at, self.capacity_slots, parts)

    def _parts(self) -> Iterator[tuple[int, bool, str]]:
        """(end, idle, layers) of the empty slots of each part; idle: inside a large page begun by a kind."""
        end = 0
        for name, slots in self.pools:
            end += slots
            yield end, False, name
        for start, slots in self.memory.begun():
            yield start, False, ""
            yield start + slots, True, ""
        yield self.capacity_slots, False, ""


def _empty(start: int, end: int, parts: list[tuple[int, bool, str]]) -> Iterator[Region]:
    """Slots without an owner between two pages, part by part."""
    at = bisect_right(parts, start, key=itemgetter(0))
    while start < end:
        upto, idle, layers = parts[at]
        if start < upto:
            yield Region(start, min(upto, end) - start, (), idle=idle, layers=layers)
            start = min(upto, end)
        at += 1
