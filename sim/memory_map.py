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
from collections.abc import Iterator, Mapping

import numpy as np

from kvsim.allocators.base import Allocator, Region
from kvsim.sim.events import TextColumn, Texts
from kvsim.sim.request import Request
from kvsim.sim.workload import Int64Column

Range = tuple[int, int, str, int, bool]
"""(start, size, owners, filled, cached)"""


class MemoryMap:
    """Collects the map.

    Parameters
    ----------
    tokens : int
        What the run will compute, as far as it is known beforehand.
    instants : int
        How many instants to keep, about.
    """

    def __init__(self, tokens: int, instants: int) -> None:
        self.every_tokens = max(1, -(-tokens // instants))
        self._computed = 0
        self._next = 0
        self._last: dict[Range, None] = {}
        self._columns = {name: array("q") for name in ("time_ps", "start", "size", "filled", "cached")}
        self._owners = TextColumn()

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
        now = dict.fromkeys(_ranges(allocator.regions(), owners, lengths))
        columns = [self._columns[name] for name in ("start", "size", "filled", "cached")]
        before = len(self._owners)
        for changed in now:  # in order of address: a difference of sets would have the order of hashes
            if changed in self._last:
                continue
            start, size, names, filled, cached = changed
            for column, value in zip(columns, (start, size, filled, cached), strict=True):
                column.append(value)
            self._owners.append(names)
        self._columns["time_ps"].extend([now_ps] * (len(self._owners) - before))
        self._last = now

    def table(self) -> tuple[dict[str, Int64Column], Texts]:
        """The columns so far by time, then by address, and the owners."""
        columns = {name: np.array(column, dtype=np.int64) for name, column in self._columns.items()}
        order = np.lexsort((columns["start"], columns["time_ps"]))
        ordered = {name: column[order] for name, column in columns.items()}
        return ordered, self._owners.texts().in_order(order)


def _ranges(
    regions: Iterator[Region], owners: Mapping[int, Request], lengths: Mapping[int, int]
) -> Iterator[Range]:
    """The regions, with names for their owners; those without any are joined."""
    names: dict[tuple[int, ...], str] = {}
    empty: Range | None = None  # the one that goes on, perhaps
    for region in regions:
        if region.owners:
            if empty:
                yield empty
                empty = None
            name = names.get(region.owners)
            if name is None:
                name = names[region.owners] = " ".join(_name(owners[seq]) for seq in region.owners)
            yield region.start, region.size, name, region.filled(lengths), False
        elif empty and empty[-1] == region.cached:
            empty = (empty[0], empty[1] + region.size, "", 0, region.cached)
        else:
            if empty:
                yield empty
            empty = (region.start, region.size, "", 0, region.cached)
    if empty:
        yield empty


def _name(request: Request) -> str:
    """The request's number in the trace; of a further sample, that too."""
    return f"{request.index}.{request.sample}" if request.sample else str(request.index)
