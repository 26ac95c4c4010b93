"""What lies where in the arena, at some instants: the map of the KV memory, recorded on demand.

    instant 0   | 17 ..... | 17 ..... | 4 ...... | free               |     all of the arena
    instant 1              | 9 ...... |          | 17 ..... |               what changed

Instants are spread evenly over the tokens that the run computes, so that a busy minute gets as many as an
idle hour; there are about as many as asked for, fewer where prefixes are cached, more where requests are
computed again. Each lies at the start of a step, its memory lent, its tokens counted as there.

A row says who holds a range of slots from then on. The ranges of an instant cover wholly whatever they
touch of the one before: to replay, drop every range that overlaps a new one, then add the new ones.
Neighbours that are free, or cached, are one range.
"""

from array import array
from collections.abc import Mapping, Sequence

import numpy as np

from kvsim.allocators.base import Allocator, Layout
from kvsim.sim.record.events import Texts
from kvsim.sim.serving.request import Request
from kvsim.sim.workload import Int64Column

COLUMNS = ("start", "size", "owners", "filled", "cached")
"""And `idle`, for allocators that may have such slots."""


class MemoryMap:
    """Collects the map.

    Parameters
    ----------
    tokens : int
        What the run will compute, as far as it is known beforehand.
    instants : int
        How many instants to keep, about.
    idles : bool
        Whether slots may be idle.
    """

    def __init__(self, tokens: int, instants: int, idles: bool = False) -> None:
        self._columns = (*COLUMNS, "idle") if idles else COLUMNS
        self.every_tokens = max(1, -(-tokens // instants))
        self._computed = 0
        self._next = 0
        self._last = np.empty((len(self._columns), 0), dtype=np.int64)  # all ranges of the last instant
        self._changes: list[Int64Column] = []  # an array for each instant: columns x ranges
        self._times_ps = array("q")
        self._names: dict[str, int] = {"": 0}  # of owners, numbered

    @property
    def due(self) -> bool:
        """Whether the next instant is reached."""
        return self._computed >= self._next

    def steps(self, decoding: int) -> int:
        """Decode steps until the next instant, at least one."""
        return max(1, -(-(self._next - self._computed) // max(decoding, 1)))

    def passed(self, tokens: int) -> None:
        """So many tokens were computed."""
        self._computed += tokens

    def draw(
        self, now_ps: int, allocator: Allocator, owners: Mapping[int, Request], lengths: Mapping[int, int]
    ) -> None:
        """Write down what changed since the last instant.

        `owners` says whose each sequence is, `lengths` how many tokens the living ones have.
        """
        self._next = self._computed + self.every_tokens
        now = self._ranges(allocator.layout(), owners, lengths)
        self._changes.append(now[:, _changed(self._last, now)])
        self._times_ps.append(now_ps)
        self._last = now

    def table(self) -> tuple[dict[str, Int64Column], Texts]:
        """The columns so far by time, then by address, and the owners."""
        rows = [part.shape[1] for part in self._changes]
        columns = dict(zip(self._columns, np.hstack([self._last[:, :0], *self._changes]), strict=True))
        owners = Texts(columns.pop("owners"), list(self._names))
        return {"time_ps": np.repeat(np.array(self._times_ps, dtype=np.int64), rows), **columns}, owners

    def _ranges(
        self, layout: Layout, requests: Mapping[int, Request], lengths: Mapping[int, int]
    ) -> Int64Column:
        """The regions as columns, with names for their owners; neighbours without any are joined."""
        names = [" ".join([_name(requests[seq]) for seq in seqs]) for seqs in layout.owners]
        codes = _column([self._names.setdefault(name, len(self._names)) for name in names])
        longest = _column([max([lengths.get(seq, 0) for seq in seqs], default=0) for seqs in layout.owners])
        starts, sizes, which = _column(layout.starts), _column(layout.sizes), _column(layout.which)
        tokens = longest[which] - _column(layout.firsts)
        filled = np.clip(tokens * _column(layout.per_token) if layout.per_token else tokens, 0, sizes)
        marks = [_column(layout.cached)]
        if len(self._columns) > len(COLUMNS):
            marks.append(_column(layout.idle or [0] * len(starts)))
        ranges = np.array((starts, sizes, codes[which], filled, *marks))
        empty, same = which == 0, (ranges[4:, 1:] == ranges[4:, :-1]).all(axis=0)
        goes_on = empty[1:] & empty[:-1] & same
        ranges = ranges[:, np.flatnonzero(np.append(True, ~goes_on))]
        ranges[1] = np.diff(ranges[0], append=starts[-1] + sizes[-1])
        return ranges


def _column(numbers: Sequence[int]) -> Int64Column:
    if isinstance(numbers, range):
        return np.arange(numbers.start, numbers.stop, numbers.step, dtype=np.int64)
    return np.array(numbers, dtype=np.int64)


def _changed(before: Int64Column, now: Int64Column) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Which ranges were not there before, exactly as they are; both by ascending address."""
    if not before.size:
        return np.arange(now.shape[1])
    same_start = np.minimum(np.searchsorted(before[0], now[0]), before.shape[1] - 1)
    return np.flatnonzero(np.any(before[:, same_start] != now, axis=0))


def _name(request: Request) -> str:
    """The request's number in the trace; of a further sample, that too."""
    return f"{request.index}.{request.sample}" if request.sample else str(request.index)
