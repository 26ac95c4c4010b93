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
        self.counts_offers = store_threshold > 1
        self._offers: OrderedDict[int, int] = OrderedDict()

    @property
    def held(self) -> int:
        return len(self.chunks.references)

    def introduce(self, user: int, positions: Mapping[int, int]) -> None:
        self.order.introduce(user, positions)

    def find(self, keys: Sequence[int]) -> Found:
        references = self.chunks.references
        hits, written = 0, False
        for key in keys:
            count = references.get(key)
            if count is None:
                break
            hits += 1
            written = written or count == WRITTEN
        return Found(hits, written)

    def load(self, user: int, keys: Sequence[int]) -> list[int]:
        numbers = self.chunks.read(keys)
        self.order.use(user, keys)
        return numbers

    def loaded(self, keys: Sequence[int]) -> None:
        self.chunks.was_read(keys)

    def store(self, user: int, keys: Sequence[int]) -> Stored | None:
        wanted = self._counted(keys) if self.counts_offers else keys
        chunks, order, references = self.chunks, self.order, self.chunks.references
        missing = [key for key in wanted if key not in references]
        order.offer(user, missing, [key for key in wanted if references.get(key) != WRITTEN])
        evicted: list[int] = []
        short = len(missing) - chunks.free
        if short > 0:
            chosen = order.choose(short, set(keys)) if short <= chunks.idle else None
            if chosen is None:
                return None
            evicted = chosen
            chunks.evict(evicted)
        numbers = chunks.allocate(missing)
        order.insert(user, missing)
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
        if failed:
            self.chunks.discard(keys)
            self.order.remove(keys)
        else:
            self.chunks.written(keys)

    def touch(self, user: int, keys: Sequence[int]) -> None:
        """A user says that it uses keys now."""
        self.order.touch(user, keys)

    def leave(self, user: int) -> None:
        self.order.leave(user)

    def clear(self) -> None:
        """Drop everything: nothing may be under way."""
        self.chunks.clear()
        self.order.clear()
