"""vLLM's LRU of chunks: all chunks of a request count as used together, when it finishes, the head last.

    groups     [ request 4, done | request 2, done | request 7 | request 9 ]     the first is evicted first
    of each    head ... tail                                                     its tail is evicted first

The group of a running request is as old as its first use of the tier; when it finishes, everything it used
becomes a new group. So the tail of a chain is evicted first, and the rest can be found from its first token
on. Reading pins a chunk and does not move it. If a user's pieces do not give their depths, each of its
chunks is a group of its own from the time it is added.

A group is a few runs of consecutive keys. One sorted list has all runs by key, to find the runs of given keys
and to cut them where these begin and end; mostly they are just one run, which a dict finds sooner.
"""

from bisect import bisect_left
from collections import OrderedDict

from kvsim.allocators.records import InvariantError
from kvsim.allocators.tiers.chunks import IDLE, Chunks
from kvsim.allocators.tiers.order import EvictionOrder
from kvsim.allocators.tiers.pieces import Piece, by_depth, join, joined


class Run:
    """Chunks of one group, consecutive in a text and with consecutive keys, like a piece."""

    __slots__ = ("at", "count", "group", "key")

    def __init__(self, at: int, key: int, count: int, group: "Group") -> None:
        self.at, self.key, self.count, self.group = at, key, count, group


class Group:
    """Chunks of one age.

    Attributes
    ----------
    age : int
        Older groups have smaller ages.
    runs : list of Run
        The last is evicted first.
    running : bool
        Whether it is the group of a running user.
    unsorted : bool
        Whether runs were added since the last sort by depth.
    used : list of Piece
        What its running user has used, in order.
    """

    __slots__ = ("age", "running", "runs", "unsorted", "used")

    def __init__(self, age: int, running: bool) -> None:
        self.age, self.running, self.unsorted = age, running, False
        self.runs: list[Run] = []
        self.used: list[Piece] = []

    def lengthen(self, at: int, key: int, count: int) -> bool:
        """Add these chunks to the last run, if they continue it."""
        if self.runs:
            last = self.runs[-1]
            if last.key + last.count == key and last.at + last.count == at:
                last.count += count
                return True
        return False

    def append(self, run: Run) -> None:
        """Add a run."""
        run.group = self
        self.unsorted = self.running
        self.runs.append(run)


class VllmLru(EvictionOrder):
    """Evicts from the oldest group.

    Attributes
    ----------
    groups : dict of Group
        Age -> group, the oldest first.
    """

    def __init__(self, chunks: Chunks) -> None:
        super().__init__(chunks)
        self.groups: OrderedDict[int, Group] = OrderedDict()  # finds the oldest group at once
        self._keys: list[int] = []  # first keys of all runs, for searches
        self._runs: list[Run] = []  # the runs, in the same order
        self._first: dict[int, Run] = {}  # run by first key
        self._age = 0  # age of the newest group
        self._own: dict[int, Group] = {}  # group by user
        self._used: dict[int, list[Piece]] = {}  # the same of users without a group

    def offer(self, user: int, missing: list[Piece], usable: list[Piece]) -> None:
        if usable is not missing and usable != missing:
            self.use(user, usable)
        elif usable:  # usually none of it is in any group
            self._own_group(user, usable)

    def insert(self, user: int, pieces: list[Piece]) -> None:
        own = self._own.get(user)
        for at, key, count in pieces:
            if own is not None:
                self._add(own, at, key, count)
                continue
            for each in range(key, key + count):
                self._add(self._new_group(), 0, each, 1)

    def use(self, user: int, pieces: list[Piece]) -> None:
        if not pieces:
            return
        own = self._own_group(user, pieces)
        if own is not None:
            self._move(own, pieces)

    def touch(self, user: int, pieces: list[Piece]) -> None:
        self._renew(pieces)

    def remove(self, pieces: list[Piece]) -> None:
        for _, key, count in pieces:
            for run in self._within(key, key + count):
                self._shorten(run, run.key)

    def choose(self, count: int) -> list[tuple[int, int]]:
        chosen: list[tuple[int, int]] = []
        emptied: list[int] = []
        for group in self.groups.values():
            if group.unsorted:
                self._sort(group)
            count -= self._take_last(group, count, chosen)
            if not (group.runs or group.running):
                emptied.append(group.age)
            if not count:
                break
        else:
            raise InvariantError(f"{count} idle chunks are in no group")
        for age in emptied:
            del self.groups[age]
        return chosen

    def _sort(self, group: Group) -> None:
        """Sort the runs of a running group by depth."""
        group.unsorted = False
        if len(group.runs) > 1:
            pieces = [(run.at, run.key, run.count) for run in group.runs]
            deep = by_depth(pieces, larger_first=True)
            group.runs = [run for _, key, count in deep for run in self._within(key, key + count)]

    def _take_last(self, group: Group, most: int, taken: list[tuple[int, int]]) -> int:
        """Take up to `most` idle keys from the end of a group, the last first; returns how many."""
        left, state, runs = most, self.chunks.state, group.runs
        place = len(runs)
        while place and left:
            place -= 1
            run = runs[place]
            end = run.key + run.count
            first = end - min(run.count, left)
            if state.startswith(IDLE * (end - first), first):  # usually
                taken.append((first, end - first))
                self._shorten(run, first)
                left -= end - first
            else:
                left -= self._take_idle(run, left, taken)
        return most - left

    def _take_idle(self, run: Run, most: int, taken: list[tuple[int, int]]) -> int:
        """Like `_take_last`, for a run in which not all keys are idle."""
        left, state, key, end = most, self.chunks.state, run.key, run.key + run.count
        while left and (last := state.rfind(IDLE, key, end)) >= 0:
            states = state[max(key, last + 1 - left) : last + 1]
            length = len(states) - len(states.rstrip(IDLE))
            taken.append((last + 1 - length, length))
            left -= length
            if last + 1 < end:
                self._cut(bisect_left(self._keys, key), last + 1)
            end = last + 1 - length
            self._shorten(run, end)
        return most - left

    def leave(self, user: int) -> None:
        own = self._own.pop(user, None)
        used = joined(self.head_first(user, own.used if own is not None else self._used.pop(user, [])))
        if own is not None:
            own.used.clear()
        if own is not None and used == [(run.at, run.key, run.count) for run in own.runs]:  # usually
            if used:
                self._age_now(own)
            else:
                del self.groups[own.age]
            return
        self._renew(used)
        if own is not None and not own.runs:  # all its runs are used up
            del self.groups[own.age]

    def clear(self) -> None:
        self.groups.clear()
        del self._keys[:]
        self._runs.clear()
        self._first.clear()
        self._own.clear()
        self._used.clear()

    # -- groups -------------------------------------------------------------------------------

    def _new_group(self, running: bool = False) -> Group:
        self._age += 1
        group = self.groups[self._age] = Group(self._age, running)
        return group

    def _age_now(self, group: Group) -> None:
        """A group of a running user becomes the newest."""
        del self.groups[group.age]
        self._age += 1
        group.age, group.running, group.unsorted = self._age, False, False
        self.groups[group.age] = group

    def _own_group(self, user: int, used: list[Piece]) -> Group | None:
        """The group of a running user, which becomes current; None: the depth of its chunks is unknown."""
        own = self._own.get(user)
        if own is None and user in self._deep:
            own = self._own[user] = self._new_group(running=True)
            own.used = self._used.pop(user, [])
        join(own.used if own is not None else self._used.setdefault(user, []), used)
        return own

    def _renew(self, pieces: list[Piece]) -> None:
        """Make the present ones of these chunks the most recently used."""
        group = self._new_group()
        self._move(group, joined(pieces))
        if not group.runs:
            del self.groups[group.age]

    def _move(self, group: Group, pieces: list[Piece]) -> None:
        """Move those of these chunks that are in older groups to a group."""
        for at, key, count in pieces:
            for run in self._within(key, key + count):
                if run.group.age < group.age:
                    run.at = at + run.key - key
                    if group.lengthen(run.at, run.key, run.count):
                        self._shorten(run, run.key)
                    else:
                        run.group.runs.remove(run)
                        group.append(run)

    # -- runs by key --------------------------------------------------------------------------

    def _add(self, group: Group, at: int, key: int, count: int) -> None:
        if not group.lengthen(at, key, count):
            run = self._first[key] = Run(at, key, count, group)
            group.append(run)
            place = len(self._keys)
            if place and key < self._keys[-1]:
                place = bisect_left(self._keys, key)
            self._keys.insert(place, key)
            self._runs.insert(place, run)

    def _within(self, key: int, end: int) -> list[Run]:
        """The runs of the keys from `key` up to `end`, cut to this range."""
        run, runs = self._first.get(key), self._runs
        if run is not None and run.count == end - key:  # usually
            return [run]
        if not runs or runs[-1].key + runs[-1].count <= key:
            return []
        place = bisect_left(self._keys, key)
        if place:
            before = runs[place - 1]
            if before.key + before.count > key:
                self._cut(place - 1, key)
        stop = place
        while stop < len(runs) and runs[stop].key < end:
            stop += 1
        if stop > place:
            last = runs[stop - 1]
            if last.key + last.count > end:
                self._cut(stop - 1, end)
        return runs[place:stop]

    def _cut(self, place: int, key: int) -> None:
        """Cut a run in two; the second one starts at `key`."""
        run = self._runs[place]
        kept, runs = key - run.key, run.group.runs
        rest = self._first[key] = Run(run.at + kept, key, run.count - kept, run.group)
        run.count = kept
        self._keys.insert(place + 1, key)
        self._runs.insert(place + 1, rest)
        runs.insert(runs.index(run) + 1, rest)

    def _shorten(self, run: Run, end: int) -> None:
        """Shorten a run so that it ends before this key; remove it if nothing is left."""
        run.count = end - run.key
        if not run.count:
            place = bisect_left(self._keys, run.key)
            del self._keys[place], self._runs[place], self._first[run.key]
            run.group.runs.remove(run)
