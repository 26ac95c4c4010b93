"""vLLM's LRU of chunks: all chunks of a request count as used together, when it finishes, the head last.

    groups     [ request 4, done | request 2, done | request 7 | request 9 ]     the first is evicted first
    of each    head ... tail                                                     its tail is evicted first

The group of a running request is as old as its first use of the tier; when it finishes, everything it used
becomes a new group. So the tail of a chain is evicted first, and the rest can be found from its first token
on. Reading pins a chunk and does not move it. If a user's pieces do not give their depths, each of its
chunks is a group of its own from the time it is added.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final

from kvsim.allocators.records import InvariantError
from kvsim.allocators.tiers.chunks import ABSENT, IDLE, Chunks
from kvsim.allocators.tiers.order import EvictionOrder
from kvsim.allocators.tiers.pieces import Piece, by_depth, joined, keys_of, split

NO_GROUP: Final = array("q", [0])


class VllmLru(EvictionOrder):
    """Evicts from the oldest group.

    Attributes
    ----------
    group : array of int
        Group by key; 0: not present.
    """

    def __init__(self, chunks: Chunks) -> None:
        super().__init__(chunks)
        self.group = array("q")  # compared and set by runs of keys
        self._next = 0
        self._pieces: dict[int, list[Piece]] = {}  # by group, oldest first; keys that moved elsewhere stay
        self._running: set[int] = set()  # groups of running users
        self._unsorted: set[int] = set()  # running groups that have grown since they were sorted
        self._own: dict[int, int] = {}  # by user
        self._used: dict[int, list[Piece]] = {}  # by user, in the order of use

    def know(self, keys: int) -> None:
        self.group += NO_GROUP * (keys - len(self.group))

    def offer(self, user: int, missing: Sequence[Piece], usable: Sequence[Piece]) -> None:
        if usable != missing:
            self.use(user, usable)
        elif usable:  # most often: none of it is in any group
            self._used.setdefault(user, []).extend(usable)
            self._own_group(user)

    def insert(self, user: int, pieces: Sequence[Piece]) -> None:
        if not pieces:
            return
        own = self._own_group(user)
        if own is not None:
            self._put(own, pieces)
            return
        for key in keys_of(pieces):
            self._put(self._new_group(), [(0, key, 1)])

    def use(self, user: int, pieces: Sequence[Piece]) -> None:
        if not pieces:
            return
        self._used.setdefault(user, []).extend(pieces)
        own = self._own_group(user)
        if own is not None:
            for piece in pieces:
                older = self._older(own, piece)
                if older:
                    self._put(own, older)

    def _older(self, own: int, piece: Piece) -> list[Piece]:
        """The parts of a piece that are in groups before `own`."""
        at, key, count = piece
        groups = self.group[key : key + count]
        if groups == groups[:1] * count:  # usually
            return [piece] if 0 < groups[0] < own else []
        found: list[Piece] = []
        for group, same in groupby(groups):
            length = len(list(same))
            if 0 < group < own:
                found.append((at, key, length))
            at, key = at + length, key + length
        return joined(found)

    def touch(self, user: int, pieces: Sequence[Piece]) -> None:
        self._renew(pieces)

    def remove(self, pieces: Sequence[Piece]) -> None:
        for _, key, count in pieces:
            self.group[key : key + count] = NO_GROUP * count

    def choose(self, count: int) -> list[range]:
        chosen: list[range] = []
        emptied: list[int] = []
        for group, pieces in self._pieces.items():
            if group in self._unsorted:
                self._unsorted.discard(group)
                pieces[:] = by_depth(pieces, larger_first=True)
            count -= self._take_last(group, pieces, count, chosen)
            if not pieces and group not in self._running:
                emptied.append(group)
            if not count:
                break
        else:
            raise InvariantError(f"{count} idle chunks are in no group")
        for group in emptied:
            del self._pieces[group]
        return chosen

    def _take_last(self, group: int, pieces: list[Piece], most: int, taken: list[range]) -> int:
        """Take up to `most` of the last idle keys of a group, the last first; returns how many."""
        of, state, left, alone = self.group, self.chunks.state, most, array("q", [group])
        for place in range(len(pieces) - 1, -1, -1):
            at, key, count = pieces[place]
            end = key + count
            first = end - min(count, left)
            length = end - first
            if of[first:end] == alone * length and state.startswith(IDLE * length, first):  # usually
                taken.append(range(end - 1, first - 1, -1))
                of[first:end] = NO_GROUP * length
                left -= length
                if place == len(pieces) - 1:
                    pieces.pop()
                    if first > key:
                        pieces.append((at, key, first - key))
            elif group in of[key:end]:  # otherwise all of it moved elsewhere
                for run in self._idle_runs(group, key, end):
                    keys = run[:left]
                    taken.append(keys)
                    of[keys[-1] : keys[0] + 1] = NO_GROUP * len(keys)
                    left -= len(keys)
                    if not left:
                        break
            if not left:
                break
        self._forget_gone(group, pieces)
        return most - left

    def _idle_runs(self, group: int, key: int, end: int) -> Iterator[range]:
        """Idle keys of a group from `key` up to `end`, the last first, as descending ranges."""
        state, of = self.chunks.state, self.group[key:end]
        of.reverse()
        for each, same in groupby(of):
            low = end - len(list(same))
            while each == group and (last := state.rfind(IDLE, low, end)) >= 0:
                run = state[low : last + 1]
                first = low + len(run.rstrip(IDLE))
                yield range(last, first - 1, -1)
                end = first
            end = low

    def _forget_gone(self, group: int, pieces: list[Piece]) -> None:
        """Drop trailing keys of a group that have left it."""
        while pieces:
            at, key, count = pieces[-1]
            if self.group[key + count - 1] == group:
                return
            of = self.group[key : key + count]
            pieces.pop()
            if group in of:
                of.reverse()
                pieces.append((at, key, count - of.index(group)))
                return

    def leave(self, user: int) -> None:
        own = self._own.pop(user, -1)
        self._running.discard(own)
        self._unsorted.discard(own)
        self._pieces.pop(own, None)  # all that is in it is used, and renewed
        self._renew(self.head_first(user, self._used.pop(user, ())))

    def clear(self) -> None:
        self.group = NO_GROUP * len(self.group)
        for of in (self._pieces, self._running, self._unsorted, self._own, self._used):
            of.clear()

    def _new_group(self) -> int:
        self._next += 1
        self._pieces[self._next] = []
        return self._next

    def _own_group(self, user: int) -> int | None:
        """The group of a running user; None: the depth of its chunks is unknown."""
        own = self._own.get(user)
        if own is None and user in self._deep:
            own = self._own[user] = self._new_group()
            self._running.add(own)
        return own

    def _renew(self, pieces: Iterable[Piece]) -> None:
        """Make those of these chunks that are present the most recently used."""
        state = self.chunks.state
        there = [part for piece in joined(pieces) for part in split(state, piece, ABSENT)[1]]
        if there:
            self._put(self._new_group(), there)

    def _put(self, group: int, pieces: Sequence[Piece]) -> None:
        self._pieces[group] += pieces
        if group in self._running:
            self._unsorted.add(group)
        alone = array("q", [group])
        for _, key, count in pieces:
            self.group[key : key + count] = alone * count
