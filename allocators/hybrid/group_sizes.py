"""What groups of unlike layers come to in slots: pages wanted, pages there, and what is counted of them.

    tokens of a sequence    |################|################|#####
    full, blocks of 16       [ page ][ page ][ page ]               3 pages
    window of 20             [ gone ][ page ][ page ]               2, and a page's tokens are expired
    state                                     [ state ]             1, however many tokens

A sequence fits if every group finds its pages at the sequence's largest moment, hits included. What is done
with the pages stands in grouped.py.
"""

from collections.abc import Iterator, Sequence

from kvsim.allocators.base import Allocator, Holdings, InvariantError, Match
from kvsim.allocators.hybrid.cache import HybridCache
from kvsim.allocators.hybrid.memory import Memory
from kvsim.allocators.hybrid.pool import NULL
from kvsim.allocators.hybrid.specs import GroupSpec, specs
from kvsim.allocators.hybrid.tables import Text
from kvsim.allocators.hybrid.texts import NOT_PLACED, Holding, HybridMatch
from kvsim.allocators.options import Hybrid as Layers
from kvsim.allocators.texts import Texts


class GroupSizes(Allocator):
    """Groups of unlike layers over some memory: what they take, and what fits.

    Parameters
    ----------
    layers : Layers
        The groups, and how the engine settles and keeps what it computes.
    memory : int or Memory
        Pages of one pool, or the pools.
    sizes : sequence of int
        Slots of a page of each group.
    capacity_slots : int
    caching : bool
        Whether prefixes are kept.
    max_model_len : int
        Tokens of the longest sequence.

    Attributes
    ----------
    sizes, token_slots : list of int
        Slots of a page of each group, and of a token there; a state has no tokens.
    """

    windows = True
    keeps_prefixes = True
    pages = True
    has_blocks = True
    frees_when_refused = True
    knows_prompts = True
    keeps_groups = True

    def __init__(
        self,
        layers: Layers,
        memory: int | Memory,
        sizes: Sequence[int],
        *,
        capacity_slots: int,
        caching: bool,
        max_model_len: int,
    ) -> None:
        super().__init__(capacity_slots)
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
        self.memory = self.cache.memory
        self.caches, self.late = caching, layers.late
        self.ends_pieces = caching and any(group.kind == "state" for group in self.groups)
        self.sizes = list(sizes)
        self.token_slots = [
            0 if group.kind == "state" else size // group.block_size
            for group, size in zip(self.groups, sizes, strict=True)
        ]
        self.slots_per_token = sum(self.token_slots)
        self._attention = [at for at, group in enumerate(self.groups) if group.kind != "state"]
        self._texts = Texts(self.cache.hash_size)
        self._prompts: dict[int, int] = {}
        self._held: Holdings[Holding] = Holdings()
        self._entries = 0
        self._events = sorted({event for group in self.groups for event in self._events_of(group)})
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
        """Free slots that admitting a sequence would leave, all of it placed."""
        text = match.text if isinstance(match, HybridMatch) else Text(NOT_PLACED, tokens, tokens)
        needed = self._whole(text, tokens, match)
        left = self.free_slots - self._slots(needed)
        return left if left < 0 or self._room(needed, match) else -1

    def _slots(self, pages: Sequence[int]) -> int:
        """Slots of so many pages of each group."""
        return sum(count * size for count, size in zip(pages, self.sizes, strict=True))

    def _hits(self, match: Match | None) -> Sequence[Sequence[int]]:
        """The pages that each group hits."""
        return match.hit.blocks if isinstance(match, HybridMatch) else [()] * len(self.groups)

    def _room(self, pages: Sequence[int], match: Match | None) -> bool:
        """Whether there are so many pages of each group, those hit included."""
        hits = self.cache.seen(self._hits(match), match.tokens if match else 0)
        return self.memory.room(pages, hits)

    def _whole(self, text: Text, tokens: int, match: Match | None) -> list[int]:
        """Pages of each group that all of a new sequence takes at its largest moment."""
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
        """Pages that a new sequence takes for its first piece; what is looked at is left as it was."""
        return [
            tables.needed(text, tokens, (), 0, whole=group.kind == "state")
            for group, tables in zip(self.groups, self.cache.groups, strict=True)
        ]

    # -- counting -----------------------------------------------------------------------------

    def surplus(self, seq: int, tokens: int) -> int:
        tables = self.cache.groups
        return sum(
            (len(tables[at].tables[seq]) * tables[at].block_size - tokens) * self.token_slots[at]
            for at in self._attention
        )

    def _count(self, held: Holding, expired: int, entries: int) -> None:
        self._entries += entries - held.pages
        self.expired_slots += expired - held.expired
        held.expired, held.pages = expired, entries
        self._recount()

    def _recount(self) -> None:
        """Take over the pools' numbers."""
        used = states = cached = 0
        for pool, size in self._pools:
            used += pool.in_use * size
            states += pool.states * size
            cached += pool.cached * size
        self.used_slots, self.state_slots, self.cached_slots = used, states, cached
        self.shared_tokens = self._entries - (used - states)

    def _events_of(self, group: GroupSpec) -> Iterator[tuple[int, int]]:
        """When a table of the group may change: (every so many tokens, the rest that they leave)."""
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
        """The pages of a sequence in each group, numbered from 1; 0 for what is not kept."""
        self._held[seq]
        return self.cache.tables(seq)

    def owned_pages(self) -> dict[tuple[int, int], tuple[list[int], int, int]]:
        """(pool, page) of each page in use: whose it is, its first token, and slots of a token.

        A state counts as one token that fills its page.
        """
        found: dict[tuple[int, int], tuple[list[int], int, int]] = {}
        one = len(self._pools) == 1
        for at, tables in enumerate(self.cache.groups):
            per_token = self.token_slots[at] or self.sizes[at]
            for seq, table in tables.tables.items():
                for place, page in enumerate(table):
                    if page != NULL:
                        first = 0 if tables.of_state else place * tables.block_size
                        found.setdefault((0 if one else at, page), ([], first, per_token))[0].append(seq)
        return found
