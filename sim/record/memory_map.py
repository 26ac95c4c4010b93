"""The map of the KV memory: what lies where in the arena at chosen instants, recorded on request.

    instant 0   | 17 ..... | 17 ..... | 4 ...... | free               |     the whole arena
    instant 1              | 9 ...... |          | 17 ..... |               what changed

Instants are spread evenly over the computed tokens, so that a busy minute may get as many as an idle hour.
There are about as many as requested: fewer if prefixes are cached, more if requests are recomputed. Each is
at the start of a step, with the step's memory allocated and its tokens counted as present.

A row tells which request holds a range of slots from then on. The ranges of an instant fully cover everything
they touch of the previous one: to replay, drop every range that overlaps a new one, then add the new ones.
Neighbours that are free, or cached, form one range. If layers are kept in groups, a range names its layers.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvsim.allocators.base import Allocator, Layout
from kvsim.sim.record.events import Texts
from kvsim.sim.serving.request import Request
from kvsim.sim.workload import Int64Column

COLUMNS = ("start", "size", "owners", "filled", "cached", "idle", "held", "layers")
"""The last three are left out of the table if they carry no information."""


_REGIONS = 1 << 18
"""Number of pending regions, roughly, that one numpy call converts to columns."""


class MemoryMap:
    """Collects the map.

    Parameters
    ----------
    tokens : int
        Tokens that the run will compute, as far as known beforehand.
    instants : int
        Approximate number of instants.
    idles : bool
        Whether slots may be idle.
    holds : bool
        Whether slots may be held for another server to read.
    """

    def __init__(self, tokens: int, instants: int, idles: bool = False, holds: bool = False) -> None:
        self._idles, self._holds = idles, holds
        self.every_tokens = max(1, -(-tokens // instants))
        self._computed = 0
        self._next = 0
        self._drawn: list[_Drawn] = []  # pending instants
        self._waiting = 0  # their regions
        self._last = np.empty((len(COLUMNS), 0), dtype=np.int64)  # all ranges of the previous instant
        self._changes: list[Int64Column] = []  # columns x ranges
        self._times_ps: list[Int64Column] = []  # instants of these ranges
        self._names: dict[str, int] = {"": 0}  # numbers of owners
        self._layers: dict[str, int] = {"": 0}

    @property
    def due(self) -> bool:
        """Whether the next instant is reached."""
        return self._computed >= self._next

    def steps(self, decoding: int) -> int:
        """Number of decode steps until the next instant, at least one."""
        return max(1, -(-(self._next - self._computed) // max(decoding, 1)))

    def passed(self, tokens: int) -> None:
        """`tokens` tokens were computed."""
        self._computed += tokens

    def draw(
        self,
        now_ps: int,
        allocator: Allocator,
        owners: Mapping[int, Request],
        lengths: Mapping[int, int],
        held: Container[int] = (),
    ) -> None:
        """Record the map of an instant.

        `owners` maps sequences to requests, `lengths` gives the tokens of living sequences; `held` are
        sequences that only wait for another server to read them.
        """
        self._next = self._computed + self.every_tokens
        layout, numbers = allocator.layout(), self._names
        names = [" ".join([_name(owners[seq]) for seq in seqs]) for seqs in layout.owners]
        codes = [numbers.setdefault(name, len(numbers)) for name in names]
        longest = [max([lengths.get(seq, 0) for seq in seqs], default=0) for seqs in layout.owners]
        kinds = self._layers
        for name in dict.fromkeys(layout.layers):
            kinds.setdefault(name, len(kinds))
        layers = [kinds[name] for name in layout.layers]
        waits = [int(all([seq in held for seq in seqs])) for seqs in layout.owners] if held else []
        waits[:1] = [0] if waits else []  # the empty owner comes first
        self._drawn.append(_Drawn(now_ps, layout, codes, longest, layers, waits))
        self._waiting += len(layout.starts)
        if self._waiting >= _REGIONS:
            self._settle()

    def table(self) -> tuple[dict[str, Int64Column], dict[str, Texts]]:
        """The columns so far by time, then by address: numbers, and texts."""
        self._settle()
        columns = dict(zip(COLUMNS, np.hstack([self._last[:, :0], *self._changes]), strict=True))
        texts = {"owners": Texts(columns.pop("owners"), list(self._names))}
        layers = Texts(columns.pop("layers"), list(self._layers))
        if len(self._layers) > 1:
            texts["layers"] = layers
        if not self._idles:
            del columns["idle"]
        if not self._holds:
            del columns["held"]
        times_ps = np.concatenate([np.empty(0, dtype=np.int64), *self._times_ps])
        return {"time_ps": times_ps, **columns}, texts

    def _settle(self) -> None:
        """Reduce pending instants to what changed from each one to the next."""
        if not self._drawn:
            return
        drawn, self._drawn, self._waiting = self._drawn, [], 0
        ranges, instant = _ranges(drawn)
        before = self._last.shape[1]
        ranges = np.hstack([self._last, ranges])
        instant = np.append(np.zeros(before, dtype=np.int64), instant)
        changed = before + np.flatnonzero(_changed(ranges, instant, before))
        self._changes.append(ranges[:, changed])
        self._times_ps.append(_column([each.time_ps for each in drawn])[instant[changed] - 1])
        self._last = ranges[:, instant == len(drawn)]


class _Drawn(NamedTuple):
    """A recorded instant."""

    time_ps: int
    layout: Layout
    codes: list[int]
    """names of the layout's owners"""
    longest: list[int]
    """length in tokens of the longest sequence of each owner"""
    layers: list[int]
    """layers of each region, as codes; empty: all layers"""
    held: list[int]
    """1 or 0 for each owner; empty: none is held"""


def _ranges(drawn: Sequence[_Drawn]) -> tuple[Int64Column, Int64Column]:
    """The regions of instants as columns x ranges, and the instant of each, from 1.

    Neighbours without an owner are joined.
    """
    layouts = [each.layout for each in drawn]
    regions = [len(each.starts) for each in layouts]
    instant = np.repeat(np.arange(1, len(drawn) + 1), regions)
    places = np.cumsum([0, *[len(each.owners) for each in layouts]])
    owner = _joined([each.which for each in layouts]) + places[instant - 1]
    starts, sizes = _joined([each.starts for each in layouts]), _joined([each.sizes for each in layouts])
    filled = _joined([each.longest for each in drawn])[owner] - _joined([each.firsts for each in layouts])
    if any(each.per_token for each in layouts):
        filled *= _joined([each.per_token or [1] * len(each.starts) for each in layouts])
    np.clip(filled, 0, sizes, out=filled)
    codes = _joined([each.codes for each in drawn])[owner]
    marks = [
        _joined([each.cached for each in layouts]),
        _joined([each.idle or [0] * len(each.starts) for each in layouts]),
        _joined([each.held or [0] * len(each.layout.owners) for each in drawn])[owner],
        _joined([each.layers or [0] * len(each.layout.starts) for each in drawn]),
    ]
    ends, empty = (starts + sizes)[np.cumsum(regions) - 1], owner == places[instant - 1]
    goes_on = empty[1:] & empty[:-1]
    for same in (instant, *marks):
        goes_on &= same[1:] == same[:-1]
    kept = np.flatnonzero(np.append(True, ~goes_on))
    instant = instant[kept]
    ranges = np.array([column[kept] for column in (starts, sizes, codes, filled, *marks)])
    ranges[1] = np.append(ranges[0, 1:], 0) - ranges[0]
    last = np.flatnonzero(np.append(instant[1:] != instant[:-1], True))
    ranges[1, last] = ends - ranges[0, last]
    return ranges, instant


def _changed(ranges: Int64Column, instant: Int64Column, first: int) -> npt.NDArray[np.bool_]:
    """Which ranges, starting at `first`, did not exist identically an instant earlier.

    All are ordered by instant, then by address.
    """
    span = int(ranges[0].max()) + 1
    places = instant * span + ranges[0]
    same_start = np.searchsorted(places, places[first:] - span)
    same = places[same_start] == places[first:] - span
    for column in ranges[1:]:
        same &= column[same_start] == column[first:]
    changed: npt.NDArray[np.bool_] = ~same
    return changed


def _joined(columns: Iterable[Sequence[int]]) -> Int64Column:
    return np.concatenate([_column(each) for each in columns])


def _column(numbers: Sequence[int]) -> Int64Column:
    if isinstance(numbers, range):
        return np.arange(numbers.start, numbers.stop, numbers.step, dtype=np.int64)
    return np.array(numbers, dtype=np.int64)


def _name(request: Request) -> str:
    """The request's number in the trace, plus the number of the sample if it is not the first."""
    return f"{request.index}.{request.sample}" if request.sample else str(request.index)
