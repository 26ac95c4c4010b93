"""vLLM's LRU of chunks: all chunks of a request count as used together, when it finishes, the head last.

    groups     [ request 4, done | request 2, done | request 7 | request 9 ]     the first is evicted first
    of each    head ... tail                                                     its tail is evicted first

The group of a running request is as old as its first use of the tier; when it finishes, everything it used
becomes a new group. So the tail of a chain is evicted first, and the rest can be found from its first token
on. Reading pins a chunk and does not move it. If a user's pieces do not give their depths, each of its
chunks is a group of its own from the time it is added.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from kvsim.allocators.tiers.chunks import ABSENT, IDLE, Chunks
from kvsim.allocators.tiers.order import EvictionOrder
from kvsim.allocators.tiers.pieces import Piece, by_depth, joined, keys_of, split


class VllmLru(EvictionOrder):
    """Evicts from the oldest group.

    Attributes
    ----------
    group : list of int
        Group by key; 0: not present.
    """

    def __init__(self, chunks: Chunks) -> None:
        super().__init__(chunks)
        self.group: list[int] = []
        self._next = 0
        self._pieces: dict[int, list[Piece]] = {}  # by group, oldest first; keys that moved elsewhere stay
        self._running: set[int] = set()  # groups of running users
        self._unsorted: set[int] = set()  # running groups that have grown since they were sorted
        self._own: dict[int, int] = {}  # by user
        self._used: dict[int, list[Piece]] = {}  # by user, in the order of use

    def know(self, keys: int) -> None:
        self.group += [0] * (keys - len(self.group))

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
        if groups.count(groups[0]) == count:  # usually
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
            self.group[key : key + count] = [0] * count

    def choose(self, count: int) -> list[range] | None:
        chosen: list[tuple[int, list[range]]] = []
        for group, pieces in self._pieces.items():
            if group in self._unsorted:
                self._unsorted.discard(group)
                pieces[:] = by_depth(pieces, larger_first=True)
            found = self._last_idle(group, pieces, count)
            chosen.append((group, found))
            count -= sum(map(len, found))
            if not count:
                break
        else:
            return None
        for group, found in chosen:
            for keys in found:
                self.group[keys[-1] : keys[0] + 1] = [0] * len(keys)
            self._shorten(group, found)
        return chosen[0][1] if len(chosen) == 1 else [keys for _, found in chosen for keys in found]

    def _shorten(self, group: int, left: Sequence[range]) -> None:
        """Drop the last keys of a group, which have left it."""
        pieces = self._pieces[group]
        for keys in left:
            at, key, count = pieces[-1]
            if keys[0] != key + count - 1 or keys[-1] < key:
                break
            if keys[-1] > key:
                pieces[-1] = at, key, keys[-1] - key
                break
            pieces.pop()
            if not pieces:
                break
        self._forget_gone(group)

    def _last_idle(self, group: int, pieces: list[Piece], most: int) -> list[range]:
        """The last idle keys of a group, the last first."""
        of, state, found = self.group, self.chunks.state, []
        for _, key, count in reversed(pieces):
            end = key + count
            first = end - min(count, most)
            if of[first:end].count(group) == end - first == state.count(IDLE, first, end):
                found.append(range(end - 1, first - 1, -1))  # usually
                most -= end - first
            elif group in of[key:end]:  # otherwise all of it moved elsewhere
                for keys in self._idle_runs(group, key, end):
                    taken = keys[:most]
                    most -= len(taken)
                    if found and found[-1][-1] == taken[0] + 1:
                        found[-1] = range(found[-1][0], taken[-1] - 1, -1)
                    else:
                        found.append(taken)
                    if not most:
                        break
            if not most:
                break
        return found

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

    def _forget_gone(self, group: int) -> None:
        """Drop trailing keys of a group that have left it."""
        pieces = self._pieces[group]
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
        if group not in self._running:
            del self._pieces[group]

    def leave(self, user: int) -> None:
        own = self._own.pop(user, -1)
        self._running.discard(own)
        self._unsorted.discard(own)
        self._pieces.pop(own, None)  # all that is in it is used, and renewed
        self._renew(self.head_first(user, self._used.pop(user, ())))

    def clear(self) -> None:
        self.group[:] = [0] * len(self.group)
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
        there = joined([part for piece in pieces for part in split(state, piece, ABSENT)[1]])
        if there:
            self._put(self._new_group(), there)

    def _put(self, group: int, pieces: Sequence[Piece]) -> None:
        self._pieces[group] += pieces
        if group in self._running:
            self._unsorted.add(group)
        for _, key, count in pieces:
            self.group[key : key + count] = [group] * count
