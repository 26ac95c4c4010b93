"""vLLM's CPU tier: chunks are written through once, and evicted by LRU or ARC.

Follows CPUOffloadingManager of vLLM 0.33.0 (v1/kv_offload/cpu). A store takes all of its missing
keys or none: if too few chunks can be evicted, the whole store is refused.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from kvsim.allocators.tiers.base import Stored, Tier
from kvsim.allocators.tiers.chunks import ABSENT, WRITTEN, Chunks
from kvsim.allocators.tiers.numbered import NumberedChunks
from kvsim.allocators.tiers.order import EvictionOrder
from kvsim.allocators.tiers.pieces import Piece, joined, keys_of, one_by_one, size, split
from kvsim.allocators.tiers.vllm_arc import VllmArc
from kvsim.allocators.tiers.vllm_lru import VllmLru

ORDERS: Final[dict[str, type[EvictionOrder]]] = {"lru": VllmLru, "arc": VllmArc}
MOST_COUNTED: Final = 64_000
"""Keys whose offers are counted; the one offered longest ago is forgotten first."""


class VllmTier(Tier):
    """Chunks on the host.

    Parameters
    ----------
    capacity : int
        Number of chunks, at least 1.
    policy : str
        lru or arc.
    store_threshold : int
        A key is stored when it is offered for this many times; below 2: at the first offer.
    numbered : bool
        Whether chunks get vLLM's numbers, on which no decision depends.
    """

    def __init__(
        self, capacity: int, policy: str = "lru", store_threshold: int = 0, numbered: bool = True
    ) -> None:
        self.capacity = capacity
        self.chunks = (NumberedChunks if numbered else Chunks)(capacity)
        self.order = ORDERS[policy](self.chunks)
        self._threshold = store_threshold
        self.counts_offers = store_threshold > 1
        self._offers: OrderedDict[int, int] = OrderedDict()

    @property
    def held(self) -> int:
        return self.chunks.held

    def know(self, keys: int) -> None:
        self.chunks.know(keys)
        self.order.know(keys)

    def introduce(self, user: int) -> None:
        self.order.introduce(user)

    def find(self, pieces: list[Piece]) -> tuple[int, bool]:
        state = self.chunks.state
        hits, written = 0, False
        for _, key, count in pieces:
            end = state.find(ABSENT, key, key + count)
            if end < 0:
                end = key + count
            hits += end - key
            written = written or state.find(WRITTEN, key, end) >= 0
            if end < key + count:
                break
        return hits, written

    def lacks(self, pieces: list[Piece]) -> list[Piece]:
        found: list[Piece] = []
        for at, key, count in pieces:
            states = self.chunks.state[key : key + count]
            absent = count - len(states.lstrip(ABSENT))
            if absent:
                found.append((at, key, absent))
            if absent < count:
                break
        return found

    def load(self, user: int, pieces: list[Piece]) -> Sequence[int]:
        numbers = self.chunks.read(pieces)
        self.order.use(user, pieces)
        return numbers

    def hold(self, pieces: list[Piece]) -> Sequence[int]:
        return self.chunks.read(pieces)

    def loaded(self, pieces: list[Piece]) -> None:
        self.chunks.was_read(pieces)

    def store(self, user: int, pieces: list[Piece], kept: Sequence[Piece] = ()) -> Stored | None:
        wanted = self._counted(pieces) if self.counts_offers else pieces
        chunks, order, state = self.chunks, self.order, self.chunks.state
        missing = usable = wanted  # usually
        for _, key, count in wanted:
            if not state.startswith(ABSENT * count, key):
                missing, usable = self._parts(wanted)
                break
        order.offer(user, missing, usable)
        evicted: list[tuple[int, int]] = []
        short = (missing[0][2] if len(missing) == 1 else size(missing)) + chunks.held - chunks.capacity
        if short > 0:
            guarded = kept if missing is pieces or missing == pieces else [*pieces, *kept]
            stay = chunks.keep(guarded) if guarded else []
            fits = short <= chunks.idle
            if fits:
                evicted = order.choose(short)
                chunks.evict(evicted)
            if stay:
                chunks.let_go(stay)
            if not fits:
                return None
        numbers = chunks.allocate(missing)
        order.insert(user, missing)
        return Stored(missing, numbers, evicted)

    def _parts(self, pieces: list[Piece]) -> tuple[list[Piece], list[Piece]]:
        """The parts that are missing, and those that are not being written."""
        state = self.chunks.state
        missing: list[Piece] = []
        usable: list[Piece] = []
        for piece in pieces:
            missing += split(state, piece, ABSENT)[0]
            usable += split(state, piece, WRITTEN)[1]
        return missing, usable

    def room(self, kept: Sequence[Piece]) -> int:
        chunks = self.chunks
        stay = chunks.keep(kept)
        found = chunks.free + chunks.idle
        chunks.let_go(stay)
        return found

    def _counted(self, pieces: list[Piece]) -> list[Piece]:
        """Keys offered often enough, counting this offer."""
        offers = self._offers
        for key in keys_of(pieces):
            if key not in offers and len(offers) >= MOST_COUNTED:
                offers.popitem(last=False)
            offers[key] = offers.get(key, 0) + 1
            offers.move_to_end(key)
        return joined([piece for piece in one_by_one(pieces) if offers[piece[1]] >= self._threshold])

    def stored(self, pieces: list[Piece], failed: bool = False) -> None:
        if failed:
            self.chunks.discard(pieces)
            self.order.remove(pieces)
        else:
            self.chunks.written(pieces)

    def touch(self, user: int, pieces: list[Piece]) -> None:
        """A user reports that it uses chunks now."""
        self.order.touch(user, pieces)

    def leave(self, user: int) -> None:
        self.order.leave(user)

    def clear(self) -> None:
        """Drop everything; no transfer may be in flight."""
        self.chunks.clear()
        self.order.clear()
