"""The memory map for the page: `map.parquet` as columns; replaying them gives the arena at every instant.

Each recorded instant holds the ranges that changed; they fully cover every older range they touch. The page
tracks the covering row of each *cell* (the largest unit that divides every range).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from kvsim.reports import palette
from kvsim.reports.arrays import Bools, Int64
from kvsim.reports.html.packing import Pack
from kvsim.reports.memory_map import MemoryMap, owners_of


@dataclass(frozen=True)
class Arena:
    """A recorded map whose rows are grouped by instant and sorted by address.

    The first of its owners stands for no owner. `recorded` is the number of instants before any were dropped.
    """

    map: MemoryMap
    recorded: int
    layers: str
    """The share that each kind of layer holds, in words."""
    pools: Sequence[tuple[str, int, int]]
    """(layers, start, end) of each part that only some layers use; empty if all share the arena."""

    @property
    def unit(self) -> int:
        """Slots per cell."""
        return int(np.gcd.reduce(np.concatenate([self.map.rows.start, self.map.rows.size])))

    def halved(self) -> "Arena":
        """Drop every other instant, keeping the last, and the rows that are then never visible."""
        times_s, offsets, rows = self.map.instants, self.map.offsets, self.map.rows
        count = len(times_s)
        odd = count % 2
        kept = np.ones(len(rows.start), bool)
        for later in range(1 + odd, count, 2):
            kept[offsets[later - 1] : offsets[later]] = ~self._replaced(later)
        group = (np.repeat(np.arange(count), np.diff(offsets)) + odd) // 2
        order = np.lexsort((rows.start, group))
        order = order[kept[order]]
        offsets = np.searchsorted(group[order], np.arange((count + odd) // 2 + 1))
        return replace(self, map=MemoryMap(times_s[1 - odd :: 2], offsets, rows.taken(order)))

    def _replaced(self, later: int) -> Bools:
        """Which rows of the instant before are covered by those of a later one."""
        first, begin, end = self.map.offsets[later - 1 : later + 2]
        start, size = self.map.rows.start, self.map.rows.size
        at = np.searchsorted(start[begin:end], start[first:begin], side="right") - 1
        ends = np.append(start[begin:end] + size[begin:end], 0)
        return (at >= 0) & (start[first:begin] < ends[np.maximum(at, 0)])

    def packed(self) -> tuple[Pack, dict[str, Any]]:
        """The columns for the page, and the metadata needed to read them."""
        rows, unit = self.map.rows, self.unit
        ends = rows.start + rows.size
        pack = Pack()
        pack.add("gap", (rows.start - np.concatenate([[0], ends[:-1]])) // unit % 2**32)
        pack.add("size", rows.size // unit)
        used, owner = np.unique(np.concatenate([[0], rows.owner]), return_inverse=True)
        pack.add("owner", owner[1:])
        pack.add("empty", np.where(rows.owner > 0, rows.size - rows.filled, 0))
        for name in ("cached", "idle", "held"):
            if name == "cached" or getattr(rows, name).any():
                pack.add(name, getattr(rows, name).astype(np.int64))
        pack.add("rows", np.diff(self.map.offsets))
        members, samples, counts = _members([rows.owners[code] for code in used])
        pack.add("setSize", counts)
        pack.add("member", members)
        pack.add("sample", samples)
        about = {"slots": self.map.slots, "unit": unit, "recorded": self.recorded, "layers": self.layers}
        about["pools"] = [dict(zip(("name", "start", "end"), pool, strict=True)) for pool in self.pools]
        return pack, about | {"times": [round(float(time), 9) for time in self.map.instants]}


def read_arena(path: Path, replica: int | None = None) -> Arena | None:
    """Read the map of a run or a replica; None if it is empty, KvsimError if it is damaged."""
    recorded = MemoryMap.read(path, replica)
    if not len(recorded.instants):
        return None
    rows, offsets = recorded.rows, recorded.offsets
    instant = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    ordered = rows.taken(np.lexsort((rows.start, instant)))
    owner, owners = _by_first_appearance(ordered.owner, rows.owners)
    ordered = MemoryMap(recorded.instants, offsets, ordered._replace(owner=owner, owners=owners))
    pools = recorded.pools if len(recorded.pools) > 1 else ()
    return Arena(ordered, len(recorded.instants), _layers(recorded), pools)


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
