"""vLLM's ARC of chunks: lists of chunks used once and used again, and a border that adapts.

    B1 ( left T1 )  T1 [ used once ]  |target|  T2 [ used again ]  B2 ( left T2 )

A chunk counts as used again when a request that found it has finished; until then nothing moves. A key that
is offered again after its eviction shows that its list was too small.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from kvsim.allocators.tiers.chunks import IDLE, WRITTEN, Chunks
from kvsim.allocators.tiers.order import EvictionOrder
from kvsim.allocators.tiers.pieces import Piece, keys_of, one_by_one

Keys = OrderedDict[int, None]

OFFERED: Final = 0
OWN: Final = 1
FOUND: Final = 2
"""What a user did with a key: offered it in vain, added it, or found it."""


class VllmArc(EvictionOrder):
    """Evicts from the list that is above its target."""

    def __init__(self, chunks: Chunks) -> None:
        super().__init__(chunks)
        self.once: Keys = OrderedDict()
        self.again: Keys = OrderedDict()
        self.left_once: Keys = OrderedDict()
        self.left_again: Keys = OrderedDict()
        self.target = 0.0
        self._missed: dict[int, set[int]] = {}  # by user
        self._used: dict[int, dict[int, int]] = {}  # by user, in the order of first use
        self._depths: dict[int, dict[int, int]] = {}  # by user

    def offer(self, user: int, missing: list[Piece], usable: list[Piece]) -> None:
        missed = self._missed.setdefault(user, set())
        for key in reversed(list(keys_of(missing))):
            if key not in missed:
                missed.add(key)
                self._learn(key)
        used = self._used_by(user, usable)
        for key in keys_of(usable):
            used.setdefault(key, OFFERED)
            if key in self.once or key in self.again:
                self._found(used, key)

    def _used_by(self, user: int, pieces: list[Piece]) -> dict[int, int]:
        """What a user has used, except these pieces; also records the depths of the pieces."""
        self._depths.setdefault(user, {}).update((key, at) for at, key, _ in one_by_one(pieces))
        return self._used.setdefault(user, {})

    def insert(self, user: int, pieces: list[Piece]) -> None:
        used = self._used_by(user, pieces)
        for key in keys_of(pieces):
            self.once[key] = None
            self.left_once.pop(key, None)
            self.left_again.pop(key, None)
            if used.get(key) != FOUND:
                used[key] = OWN

    def use(self, user: int, pieces: list[Piece]) -> None:
        used = self._used_by(user, pieces)
        for key in keys_of(pieces):
            self._found(used, key)

    @staticmethod
    def _found(used: dict[int, int], key: int) -> None:
        if used.get(key) != OWN:
            used[key] = FOUND

    def touch(self, user: int, pieces: list[Piece]) -> None:
        for key in reversed(list(keys_of(pieces))):
            if key in self.once:
                del self.once[key]
                written = self.chunks.state[key] == WRITTEN[0]
                (self.once if written else self.again)[key] = None
            elif key in self.again:
                self.again.move_to_end(key)
            else:
                self._learn(key)

    def remove(self, pieces: list[Piece]) -> None:
        for key in keys_of(pieces):
            del (self.once if key in self.once else self.again)[key]

    def choose(self, count: int) -> list[tuple[int, int]]:
        once, again = self._idle(self.once), self._idle(self.again)
        size, target = len(self.once), int(self.target)
        chosen: list[tuple[int, bool]] = []
        while len(chosen) < count:
            first, other = (once, again) if size >= target else (again, once)
            key, source = next(first, None), first
            if key is None:
                key, source = next(other), other
            chosen.append((key, source is once))
            size -= source is once
        for key, from_once in chosen:
            del (self.once if from_once else self.again)[key]
            (self.left_once if from_once else self.left_again)[key] = None
        for left in (self.left_once, self.left_again):
            while len(left) > self.chunks.capacity:
                left.popitem(last=False)
        return [(key, 1) for key, _ in chosen]

    def leave(self, user: int) -> None:
        self._missed.pop(user, None)
        used, depths = self._used.pop(user, {}), self._depths.pop(user, {})
        for _, key, _ in reversed(self.head_first(user, [(depths[key], key, 1) for key in used])):
            if used[key] == OFFERED:
                continue
            if key in self.again:
                self.again.move_to_end(key)
            elif key in self.once:
                del self.once[key]
                (self.again if used[key] == FOUND else self.once)[key] = None

    def clear(self) -> None:
        for keys in (self.once, self.again, self.left_once, self.left_again):
            keys.clear()
        self._used.clear()
        self._depths.clear()
        self._missed.clear()
        self.target = 0.0

    def _learn(self, key: int) -> None:
        once, again = self.left_once, self.left_again
        if key in once:
            self.target = min(self.target + max(1, len(again) / len(once)), self.chunks.capacity)
            once.move_to_end(key)
        elif key in again:
            self.target = max(self.target - max(1, len(once) / len(again)), 0)
            again.move_to_end(key)

    def _idle(self, keys: Keys) -> Iterator[int]:
        state = self.chunks.state
        return (key for key in keys if state[key] == IDLE[0])
