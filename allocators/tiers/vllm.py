"""vLLM's CPU tier: chunks that are written through once, and evicted in the order of LRU or ARC.

Follows CPUOffloadingManager of vLLM 0.33.0 (v1/kv_offload/cpu). A store takes all of its keys that are
missing, or nothing: where too few chunks can be evicted it is refused as a whole.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final

from kvsim.allocators.tiers.base import Found, Stored, Tier
from kvsim.allocators.tiers.chunks import WRITTEN, Chunks
from kvsim.allocators.tiers.order import EvictionOrder
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
        Chunks, at least 1.
    policy : str
        lru or arc.
    store_threshold : int
        A key is taken when it is offered for the so many-th time; below 2: at once.
    """

    def __init__(self, capacity: int, policy: str = "lru", store_threshold: int = 0) -> None:
        self.capacity = capacity
        self.chunks = Chunks(capacity)
        self.order = ORDERS[policy](self.chunks)
        self._threshold = store_threshold
        self._offers: OrderedDict[int, int] = OrderedDict()

    @property
    def held(self) -> int:
        return len(self.chunks.of)

    def introduce(self, user: int, positions: Mapping[int, int]) -> None:
        self.order.introduce(user, positions)

    def find(self, keys: Sequence[int]) -> Found:
        hits, written = 0, False
        for key in keys:
            chunk = self.chunks.of.get(key)
            if chunk is None:
                break
            hits += 1
            written = written or chunk.references == WRITTEN
        return Found(hits, written)

    def load(self, user: int, keys: Sequence[int]) -> list[int]:
        numbers = [self.chunks.read(key) for key in keys]
        for key in keys:
            self.order.use(user, key)
        return numbers

    def loaded(self, keys: Sequence[int]) -> None:
        for key in keys:
            if self.chunks.was_read(key):
                self.order.released(key)

    def store(self, user: int, keys: Sequence[int]) -> Stored | None:
        wanted = self._counted(keys) if self._threshold > 1 else keys
        chunks, order, of = self.chunks, self.order, self.chunks.of
        missing = [key for key in wanted if key not in of]
        usable = [key for key in wanted if key not in of or of[key].references != WRITTEN]
        order.offer(user, missing, usable)
        evicted: list[int] = []
        short = len(missing) - chunks.free
        if short > 0:
            if short > chunks.idle:
                return None
            chosen = order.choose(short, set(keys))
            if chosen is None:
                return None
            evicted = chosen
            for key in evicted:
                chunks.evict(key)
        numbers = [chunks.allocate(key) for key in missing]
        for key in missing:
            order.insert(user, key)
        return Stored(missing, numbers, evicted)

    def _counted(self, keys: Sequence[int]) -> list[int]:
        """Those that were offered often enough, this time included."""
        offers = self._offers
        for key in keys:
            if key not in offers and len(offers) >= MOST_COUNTED:
                offers.popitem(last=False)
            offers[key] = offers.get(key, 0) + 1
            offers.move_to_end(key)
        return [key for key in keys if offers[key] >= self._threshold]

    def stored(self, keys: Sequence[int], failed: bool = False) -> None:
        for key in keys:
            if failed:
                self.chunks.discard(key)
                self.order.remove(key)
            else:
                self.chunks.written(key)
                self.order.released(key)

    def touch(self, user: int, keys: Sequence[int]) -> None:
        """A user says that it uses keys now."""
        for key in reversed(keys):
            self.order.touch(user, key)

    def leave(self, user: int) -> None:
        self.order.leave(user)

    def clear(self) -> None:
        """Drop everything: nothing may be under way."""
        self.chunks.clear()
        self.order.clear()
