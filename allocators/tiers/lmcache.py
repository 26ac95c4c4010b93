"""LMCache's host memory: whole chunks by key, evicted one at a time, except those held by a look-up.

    look up    the chunks of a text from its start, up to the first missing one; those found are held
    store      room is made for every chunk, even for one already there; one that finds none, and all after
               it, are left out; then they enter, and duplicates are dropped

Order of eviction: `lru`; `mru`, the one used last; `fifo`; `lfu`, of those with the fewest uses the one that
reached that count first. A look-up uses what it finds, the end of a text first.

Source: LMCache 0.5.6, `v1/storage_backend/local_cpu_backend.py`, `cache_policy/`, `v1/cache_engine.py`.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Final

from kvsim.allocators.records import InvariantError


class Order:
    """The present chunks, in eviction order."""

    def __init__(self, held: dict[int, int]) -> None:
        self._held = held  # key -> number of look-ups that hold it

    @abstractmethod
    def enter(self, key: int) -> None:
        """Add a chunk."""

    @abstractmethod
    def use(self, key: int) -> None:
        """Record that a look-up found a chunk."""

    @abstractmethod
    def take(self) -> int | None:
        """Remove the next chunk to evict, skipping those held by a look-up; None: all are held."""


class InLine(Order):
    """A single queue; `moves`: a used chunk moves to its end; `last`: the end is evicted first."""

    moves, last = False, False

    def __init__(self, held: dict[int, int]) -> None:
        super().__init__(held)
        self._line: dict[int, None] = {}

    def enter(self, key: int) -> None:
        self._line[key] = None

    def use(self, key: int) -> None:
        if self.moves:
            del self._line[key]
            self._line[key] = None

    def take(self) -> int | None:
        line, held = self._line, self._held
        for key in reversed(line) if self.last else line:
            if not held[key]:
                del line[key]
                return key
        return None


class Lru(InLine):
    """Evicts the chunk unused for longest."""

    moves = True


class Mru(InLine):
    """Evicts the chunk used last."""

    moves = last = True


class Lfu(Order):
    """Evicts by number of uses; ties go to the chunk that reached the count first."""

    def __init__(self, held: dict[int, int]) -> None:
        super().__init__(held)
        self._uses: dict[int, int] = {}
        self._lines: dict[int, dict[int, None]] = {}

    def enter(self, key: int) -> None:
        self._put(key, 1)

    def use(self, key: int) -> None:
        uses = self._uses[key]
        self._leave(key)
        self._put(key, uses + 1)

    def _put(self, key: int, uses: int) -> None:
        self._uses[key] = uses
        self._lines.setdefault(uses, {})[key] = None

    def _leave(self, key: int) -> None:
        line = self._lines[uses := self._uses.pop(key)]
        del line[key]
        if not line:
            del self._lines[uses]

    def take(self) -> int | None:
        for uses in sorted(self._lines):
            for key in self._lines[uses]:
                if not self._held[key]:
                    self._leave(key)
                    return key
        return None


ORDERS: Final[dict[str, type[Order]]] = {"lru": Lru, "mru": Mru, "fifo": InLine, "lfu": Lfu}


class LmcacheMemory:
    """The chunks on the host.

    Parameters
    ----------
    capacity : int
        Number of chunks, at least 1.
    policy : str
        One of `ORDERS`.

    Attributes
    ----------
    evicted, refused : int
        Chunks evicted; stores that were cut short.
    """

    def __init__(self, capacity: int, policy: str = "lru") -> None:
        self.capacity = capacity
        self._held: dict[int, int] = {}
        self._order = ORDERS[policy](self._held)
        self.evicted = self.refused = 0

    def __len__(self) -> int:
        return len(self._held)

    def find(self, keys: Sequence[int]) -> int:
        """The number of leading keys that are present."""
        held = self._held
        return next((place for place, key in enumerate(keys) if key not in held), len(keys))

    def hold(self, keys: Sequence[int]) -> int:
        """Like `find`, but the chunks found count as used and are held until `let_go`."""
        found = self.find(keys)
        for key in keys[:found]:
            self._held[key] += 1
        for key in reversed(keys[:found]):
            self._order.use(key)
        return found

    def let_go(self, keys: Sequence[int]) -> None:
        """Release chunks held by a look-up."""
        for key in keys:
            if self._held[key] < 1:
                raise InvariantError(f"nobody holds chunk {key}")
            self._held[key] -= 1

    def store(self, keys: Sequence[int]) -> int:
        """Store chunks; returns how many leading ones found room."""
        taken = 0
        for _ in keys:
            if len(self._held) + taken >= self.capacity and not self._evict():
                self.refused += 1
                break
            taken += 1
        for key in keys[:taken]:
            if key not in self._held:
                self._held[key] = 0
                self._order.enter(key)
        return taken

    def _evict(self) -> bool:
        key = self._order.take()
        if key is None:
            return False
        del self._held[key]
        self.evicted += 1
        return True
