"""The memory map for the page: `map.parquet` as columns; replaying them gives the arena at every instant.

Each recorded instant holds the ranges that changed; they fully cover every older range they touch. The page
tracks the covering row of each *cell* (the largest unit that divides every range).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kvsim.reports import palette
from kvsim.reports.html.packing import Pack
from kvsim.reports.memory_map import MemoryMap, owners_of

Int64 = npt.NDArray[np.int64]
_COLUMNS = ("start", "size", "owner", "filled", "cached", "idle", "held")
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Arena:
    """Rows of ranges, grouped by instant and sorted by address.

    Rows `offsets[i] : offsets[i + 1]` belong to instant `i`. `owner` indexes `names`, the owners as strings;
    the first one stands for no owner. `recorded` is the number of instants before any were dropped.
    """

    times_s: npt.NDArray[np.float64]
    offsets: Int64
    start: Int64
    size: Int64
    owner: Int64
    filled: Int64
    cached: Int64
    idle: Int64
    held: Int64
    names: list[str]
    recorded: int
    layers: str = ""
    """The share that each kind of layer holds, in words."""
    pools: tuple[tuple[str, int, int], ...] = ()
    """(layers, start, end) of each part that only some layers use; empty if all share the arena."""

    @property
    def slots(self) -> int:
        """The size of the arena."""
        first = self._rows(0)
        return int((self.start[first] + self.size[first]).max())

    @property
    def unit(self) -> int:
        """Slots per cell."""
        return int(np.gcd.reduce(np.concatenate([self.start, self.size])))

    def halved(self) -> "Arena":
        """Drop every other instant, keeping the last, and the rows that are then never visible."""
        count = len(self.times_s)
        odd = count % 2
        kept = np.ones(len(self.start), bool)
        for later in range(1 + odd, count, 2):
            kept[self._rows(later - 1)] = ~self._replaced(later - 1, later)
        group = (np.repeat(np.arange(count), np.diff(self.offsets)) + odd) // 2
        order = np.lexsort((self.start, group))
        order = order[kept[order]]
        groups = (count + odd) // 2
        return Arena(
            times_s=self.times_s[1 - odd :: 2],
            offsets=np.searchsorted(group[order], np.arange(groups + 1)),
            **{name: getattr(self, name)[order] for name in _COLUMNS},
            names=self.names,
            recorded=self.recorded,
            layers=self.layers,
            pools=self.pools,
        )

    def _rows(self, instant: int) -> slice:
        return slice(int(self.offsets[instant]), int(self.offsets[instant + 1]))

    def _replaced(self, earlier: int, later: int) -> Bools:
        """Which rows of one instant are covered by those of a later one."""
        first, above = self.start[self._rows(earlier)], self._rows(later)
        if above.start == above.stop:
            return np.zeros(len(first), bool)
        at = np.searchsorted(self.start[above], first, side="right") - 1
        ends = self.start[above] + self.size[above]
        return (at >= 0) & (first < ends[np.maximum(at, 0)])

    def packed(self) -> tuple[Pack, dict[str, Any]]:
        """The columns for the page, and the metadata needed to read them."""
        unit = self.unit
        ends = self.start + self.size
        pack = Pack()
        pack.add("gap", (self.start - np.concatenate([[0], ends[:-1]])) // unit % 2**32)
        pack.add("size", self.size // unit)
        used, owner = np.unique(np.concatenate([[0], self.owner]), return_inverse=True)
        pack.add("owner", owner[1:])
        pack.add("empty", np.where(self.owner > 0, self.size - self.filled, 0))
        pack.add("cached", self.cached)
        for name in ("idle", "held"):
            if getattr(self, name).any():
                pack.add(name, getattr(self, name))
        pack.add("rows", np.diff(self.offsets))
        members, samples, counts = _members([self.names[code] for code in used])
        pack.add("setSize", counts)
        pack.add("member", members)
        pack.add("sample", samples)
        about = {"slots": self.slots, "unit": unit, "recorded": self.recorded, "layers": self.layers}
        about["pools"] = [dict(zip(("name", "start", "end"), pool, strict=True)) for pool in self.pools]
        return pack, about | {"times": [round(float(time), 9) for time in self.times_s]}


def read_arena(path: Path, replica: int | None = None) -> Arena | None:
    """Read the map of a run or a replica; None if it is empty, KvsimError if it is damaged."""
    recorded = MemoryMap.read(path, replica)
    if not len(recorded.instants):
        return None
    rows, offsets = recorded.rows, recorded.offsets
    instant = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    order = np.lexsort((rows.start, instant))
    owner, names = _by_first_appearance(rows.owner[order], rows.owners)
    start, size, *rest = (
        column[order].astype(np.int64)
        for column in (rows.start, rows.size, rows.filled, rows.cached, rows.idle, rows.held)
    )
    return Arena(
        *(recorded.instants, offsets, start, size, owner, *rest, names),
        recorded=len(recorded.instants),
        layers=_layers(recorded),
        pools=tuple(recorded.pools) if len(recorded.pools) > 1 else (),
    )


def _layers(recorded: MemoryMap) -> str:
    if len(recorded.rows.layers) == 1:
        return ""
    fullest = int(np.argmax(recorded.allocated_slots()))
    shares = recorded.allocated_by_layers()
    on_average = ", ".join(f"{name} {recorded.mean(each):.1f} %" for name, each in shares.items())
    most = ", ".join(f"{name} {each[fullest]:.1f} %" for name, each in shares.items())
    whole = "their pools" if recorded.pools else "the memory"
    fullest_s = palette.seconds(float(recorded.instants[fullest]))
    return f"on average {on_average} of {whole}; fullest after {fullest_s}: {most}"


def _by_first_appearance(codes: Int64, texts: list[str]) -> tuple[Int64, list[str]]:
    """Renumber owners by first appearance, no owner first: owners close in time get close numbers."""
    used, first = np.unique(codes, return_index=True)
    order = used[np.argsort(first)]
    order = sorted(order.tolist(), key=lambda code: texts[code] != "")  # a stable sort
    if not order or texts[order[0]]:
        order.insert(0, len(texts))
    rank = np.zeros(len(texts) + 1, np.int64)
    rank[order] = np.arange(len(order))
    return rank[codes], [texts[code] if code < len(texts) else "" for code in order]


def _members(names: list[str]) -> tuple[Int64, Int64, Int64]:
    """For all owners: requests, samples, and the number of members of each set."""
    owners = [owners_of(name) for name in names]
    members = np.array([member for each in owners for member in each], np.int64).reshape(-1, 2)
    return members[:, 0], members[:, 1], np.array(list(map(len, owners)), np.int64)
