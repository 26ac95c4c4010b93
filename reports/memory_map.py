"""Read a recorded memory map: which request held which slots of the arena at any instant.

    instant 0   | 17 ..... | 17 ..... | 4 ...... | free               |     the whole arena
    instant 1              | 9 ...... |          | 17 ..... |               the changes

At each instant `map.parquet` holds only the ranges that changed; they fully cover the earlier ranges they
touch. So a range lives until a later one covers its first slot, and the arena at a given time consists of the
ranges recorded by then that are still alive.
"""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from kvsim.reports.arrays import Floats, Int64
from kvsim.reports.rundir.formats import check_range, check_type
from kvsim.sim.errors import KvsimError
from kvsim.sim.files.reading import understood
from kvsim.sim.files.tables import as_numpy, read_table

FILE = "map.parquet"
_NUMBERS = ("time_s", "start", "size", "filled", "cached")
_MARKS = ("idle", "held")  # only servers that may have such slots have these columns
_LAYERS = "layers"  # this column exists only if layers are kept in groups
_REPLICA = "replica"


class Arena(NamedTuple):
    """All ranges at one instant as columns, by address; they cover the arena without gap or overlap.

    `owner` indexes `owners`, strings as in the file, "" for none. `layer` indexes `layers`: the layers whose
    tokens a range may hold, "" for any. A range is `held` if it only waits for another server to read it.
    """

    start: Int64
    size: Int64
    owner: Int64
    filled: Int64
    cached: npt.NDArray[np.bool_]
    idle: npt.NDArray[np.bool_]
    held: npt.NDArray[np.bool_]
    layer: Int64
    owners: list[str]
    layers: list[str]

    @property
    def allocated(self) -> npt.NDArray[np.bool_]:
        """Which ranges have an owner."""
        somebody = np.array([owners != "" for owners in self.owners], bool)
        return np.asarray(somebody[self.owner])

    def taken(self, rows: npt.NDArray[Any]) -> Self:
        """Some of the ranges, by their places or marked, in this order."""
        return type(self)(*(column[rows] for column in self[:8]), self.owners, self.layers)

    def between(self, start: int, end: int) -> Self:
        """The ranges of a part of the arena, with addresses relative to its start."""
        inside = self.taken((self.start >= start) & (self.start < end))
        return inside._replace(start=inside.start - start)


@dataclass(frozen=True)
class MemoryMap:
    """The rows of the file in order of time, with their instants.

    Rows `offsets[i] : offsets[i + 1]` are those that changed at `instants[i]` (seconds).
    """

    instants: Floats
    offsets: Int64
    rows: Arena

    @classmethod
    def read(cls, path: Path, replica: int | None = None) -> Self:
        """Read the map of a run, or of one replica of a fleet; KvsimError if it is missing or damaged."""
        if not path.is_file():
            raise KvsimError(f"{path} is missing: record it with --record-map")
        time_s, rows = _read_rows(path, replica)
        new = np.concatenate([[True], time_s[1:] != time_s[:-1]]) if len(time_s) else np.zeros(0, bool)
        offsets = np.append(np.flatnonzero(new), len(time_s))
        found = cls(time_s[offsets[:-1]], offsets, rows)
        found._check(path, time_s)
        return found

    @property
    def slots(self) -> int:
        """The size of the arena; 0 if nothing was recorded."""
        first = self.rows.taken(self._first)
        return int((first.start + first.size).max(initial=0))

    @property
    def _first(self) -> slice:
        """The rows of the first instant, which are the whole arena."""
        return slice(0, int(self.offsets[1]) if len(self.instants) else 0)

    @cached_property
    def pools(self) -> list[tuple[str, int, int]]:
        """(layers, start, end) of each part of the arena that only some layers use; empty if all share it.

        At the last instant no request is left, so free ranges show which layers they are for.
        """
        last = self.at(np.inf)
        if not len(last.start) or any(last.layers[code] == "" for code in np.unique(last.layer).tolist()):
            return []
        first = np.flatnonzero(np.append(True, last.layer[1:] != last.layer[:-1]))
        starts = last.start[first].tolist()
        names = [last.layers[code] for code in last.layer[first].tolist()]
        return list(zip(names, starts, [*starts[1:], self.slots], strict=True))

    def at(self, time_s: float) -> Arena:
        """The arena at a time, as of the latest instant; before the first one it is all free."""
        instant = int(np.searchsorted(self.instants, time_s, side="right")) - 1
        if instant < 0:
            some = min(self.slots, 1)
            ints = np.zeros(some, np.int64)
            no = ints.astype(bool)
            return Arena(ints, ints + self.slots, ints, ints, no, no, no, ints, [""], [""])
        until = int(self.offsets[instant + 1])
        alive = np.flatnonzero(self._last_instants[:until] >= instant)
        return self.rows.taken(alive[np.argsort(self.rows.start[alive])])

    def allocated_slots(self) -> Int64:
        """The number of allocated slots at each instant."""
        return self._at_instants(self.rows.allocated * self.rows.size)

    def allocated_by_layers(self) -> dict[str, Floats]:
        """Per cent allocated at each instant, per kind of layer: of its pool or, if shared, of the arena."""
        pools = Counter[str]()
        for layers, start, end in self.pools:
            pools[layers] += end - start
        slots = self.rows.allocated * self.rows.size
        return {
            layers: 100 * self._at_instants(slots * (self.rows.layer == code)) / (pools[layers] or self.slots)
            for code, layers in enumerate(self.rows.layers)
            if layers
        }

    def mean(self, values: Floats) -> float:
        """The time average of values that hold from each instant to the next."""
        lasts = np.diff(self.instants)
        return float(values[:-1] @ lasts / lasts.sum()) if lasts.any() else float(values[-1])

    def _at_instants(self, slots: Int64) -> Int64:
        """Sums over the rows alive at each instant."""
        count = len(self.instants)
        born = np.repeat(np.arange(count), np.diff(self.offsets))
        gained = np.bincount(born, slots, count + 1)
        lost = np.bincount(self._last_instants + 1, slots, count + 1)
        return np.cumsum(gained - lost)[:count].astype(np.int64)

    @cached_property
    def _last_instants(self) -> Int64:
        """The last instant of each row, before other rows cover it."""
        start, size = self.rows.start, self.rows.size
        last = np.full(len(start), max(len(self.instants) - 1, 0), np.int64)
        alive = np.zeros(0, np.int64)  # rows, by address
        for instant, (first, end) in enumerate(zip(self.offsets, self.offsets[1:], strict=False)):
            new = np.arange(first, end)
            new = new[np.argsort(start[new])]
            above = np.searchsorted(start[new], start[alive], side="right") - 1
            ends = start[new] + size[new]
            covered = (above >= 0) & (start[alive] < ends[np.maximum(above, 0)])
            last[alive[covered]] = instant - 1
            kept = alive[~covered]
            alive = np.insert(kept, np.searchsorted(start[kept], start[new]), new)
        return last

    def _check(self, path: Path, time_s: Floats) -> None:
        rows, slots = self.rows, self.slots
        starts = np.sort(rows.start[self._first])
        ends = np.sort((rows.start + rows.size)[self._first])
        wrong = {
            "times must not fall": bool((np.diff(time_s) < 0).any()),
            "ranges must have a size": bool((rows.size < 1).any()),
            "ranges must lie in the arena": bool(
                (rows.start < 0).any() or (rows.start + rows.size > slots).any()
            ),
            "a range must not hold more tokens than slots": bool(
                ((rows.filled < 0) | (rows.filled > rows.size)).any()
            ),
            "the first instant must hold the whole arena": bool((starts != np.append(0, ends)[:-1]).any()),
        }
        for rule, broken in wrong.items():
            if broken:
                raise KvsimError(f"{path} is damaged: {rule}")


def owners_of(text: str) -> tuple[tuple[int, int], ...]:
    """(request, sample) pairs: `"17 4.2"` is request 17, and sample 2 of request 4."""
    parts = (word.partition(".") for word in text.split())
    return tuple((int(request), int(sample or 0)) for request, _, sample in parts)


def _read_rows(path: Path, replica: int | None = None) -> tuple[Floats, Arena]:
    """The times and the other columns; owners have few distinct values and are read as codes."""
    table = read_table(path, str(path), (*_NUMBERS, "owners"), texts=("owners", _LAYERS))
    if replica is not None and _REPLICA in table.column_names:
        check_type(path, _REPLICA, table[_REPLICA].type, "numbers")
        table = table.filter(as_numpy(table[_REPLICA]) == replica)
    names = (*_NUMBERS, *(name for name in _MARKS if name in table.column_names))
    for name in names:
        must = "numbers or booleans" if name in ("cached", *_MARKS) else "numbers"
        check_type(path, name, table[name].type, must)
    texts = ("owners", _LAYERS) if _LAYERS in table.column_names else ("owners",)
    for name in texts:
        check_type(path, name, table[name].type, "texts")
    with understood(str(path)):
        if any(table[name].null_count for name in (*names, *texts)):
            raise ValueError("a range lacks a number or its owners")
        for name in names:
            check_range(path, name, as_numpy(table[name]))
        time_s = as_numpy(table["time_s"]).astype(np.float64)
        start, size, filled = (as_numpy(table[name]).astype(np.int64) for name in names[1:4])
        known = {name: as_numpy(table[name]).astype(np.int64).astype(bool) for name in names[4:]}
        marks = (known.get(name, np.zeros(len(start), bool)) for name in ("cached", *_MARKS))
        layer, layers = np.zeros(len(start), np.int64), [""]
        owner, owners = _coded(table["owners"])
        for text in owners:
            owners_of(text)
        if _LAYERS in texts:
            layer, layers = _coded(table[_LAYERS])
    return time_s, Arena(start, size, owner, filled, *marks, layer, owners, layers)


def _coded(column: Any) -> tuple[Int64, list[str]]:  # noqa: ANN401 - pyarrow has no types
    """A column with few distinct strings as codes."""
    found = column.unify_dictionaries().combine_chunks()
    return as_numpy(found.indices).astype(np.int64), found.dictionary.to_pylist()
