"""vLLM's LRU of chunks: a request's chunks are used together, when it has finished, its head last.

    groups     [ request 4, done | request 2, done | request 7 | request 9 ]     the first is evicted first
    of each    head ... tail                                                     its tail leaves first

The group of a request that runs is as old as its first use of the tier; when it has finished, all that it
used is a new group. So in a chain the tail leaves first, and what remains can be found from its first token
on. Reading pins a chunk and leaves it where it is. Where a user's positions are not known, each of its chunks
is a group of its own from when it comes in.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import islice

from kvsim.allocators.tiers.chunks import Chunks
from kvsim.allocators.tiers.order import EvictionOrder, by_depth

MANY = 256
"""Keys that are dropped at once."""


class VllmLru(EvictionOrder):
    """Evicts from the oldest group.

    Attributes
    ----------
    group : dict of int
        By key.
    """

    def __init__(self, chunks: Chunks) -> None:
        super().__init__(chunks)
        self.group: dict[int, int] = {}
        self._next = 0
        self._keys: dict[int, list[int]] = {}  # by group, oldest first; keys that went elsewhere stay
        self._unsorted: dict[int, Mapping[int, int]] = {}  # groups of those that run: their positions
        self._own: dict[int, int] = {}  # by user
        self._used: dict[int, dict[int, None]] = {}  # by user, in the order of first use

    def offer(self, user: int, missing: Sequence[int], usable: Sequence[int]) -> None:
        self.use(user, usable)

    def insert(self, user: int, keys: Sequence[int]) -> None:
        if not keys:
            return
        own = self._own_group(user)
        if own is not None:
            self._put(own, keys)
            return
        for key in keys:
            self._put(self._new_group(), [key])

    def use(self, user: int, keys: Sequence[int]) -> None:
        if not keys:
            return
        self._used.setdefault(user, {}).update(dict.fromkeys(keys))
        own = self._own_group(user)
        if own is not None:
            of = self.group
            self._put(own, [key for key in keys if of.get(key, own) < own])

    def touch(self, user: int, keys: Sequence[int]) -> None:
        self._renew([key for key in keys if key in self.group])

    def remove(self, keys: Sequence[int]) -> None:
        for key in keys:
            del self.group[key]

    def choose(self, count: int, kept: Set[int]) -> list[int] | None:
        chosen: list[int] = []
        seen: list[int] = []
        for group, keys in self._keys.items():
            seen.append(group)
            if group in self._unsorted:
                keys[:] = by_depth(keys, self._unsorted[group], larger_first=True)
            chosen += self._last_idle(group, keys, count - len(chosen), kept)
            if len(chosen) == count:
                break
        else:
            return None
        deque(map(self.group.pop, chosen), maxlen=0)
        for group in seen:
            self._forget_gone(group)
        return chosen

    def _last_idle(self, group: int, keys: list[int], most: int, kept: Set[int]) -> Iterable[int]:
        """The last keys of a group that are idle and not kept, the last first."""
        of, references = self.group, self.chunks.references
        last = keys[-most:]
        last.reverse()
        if (
            list(map(of.get, last)).count(group) == len(last)
            and not any(map(references.get, last))
            and kept.isdisjoint(last)
            and len(set(last)) == len(last)
        ):  # most often
            return last
        found = dict.fromkeys(
            key for key in reversed(keys) if of.get(key) == group and not references[key] and key not in kept
        )
        return islice(found, most)

    def _forget_gone(self, group: int) -> None:
        """Drop the last keys of a group as far as they left it."""
        of, keys = self.group, self._keys[group]
        while keys and of.get(keys[-1]) != group:
            if of.keys().isdisjoint(keys[-MANY:]):
                del keys[-MANY:]
            else:
                keys.pop()
        if not keys and group not in self._unsorted:
            del self._keys[group]

    def least_first(self) -> list[int]:
        """All keys in the order in which they would leave."""
        found: list[int] = []
        for group, keys in self._keys.items():
            ordered = (
                by_depth(keys, self._unsorted[group], larger_first=True) if group in self._unsorted else keys
            )
            found += dict.fromkeys(key for key in reversed(ordered) if self.group.get(key) == group)
        return found

    def leave(self, user: int) -> None:
        own = self._own.pop(user, -1)
        self._unsorted.pop(own, None)
        self._keys.pop(own, None)  # all that is in it is used, and renewed
        keys = self.head_first(user, list(self._used.pop(user, ())))
        self._renew([key for key in keys if key in self.group])

    def clear(self) -> None:
        for of in (self.group, self._keys, self._unsorted, self._own, self._used):
            of.clear()

    def _new_group(self) -> int:
        self._next += 1
        self._keys[self._next] = []
        return self._next

    def _own_group(self, user: int) -> int | None:
        """The group of a user that runs; None: its positions are not known."""
        positions = self._positions.get(user)
        if not positions:
            return None
        if user not in self._own:
            self._own[user] = self._new_group()
            self._unsorted[self._own[user]] = positions
        return self._own[user]

    def _renew(self, keys: list[int]) -> None:
        if keys:
            self._put(self._new_group(), keys)

    def _put(self, group: int, keys: Sequence[int]) -> None:
        self._keys[group] += keys
        self.group.update(dict.fromkeys(keys, group))
