"""Numbers for the page: integer columns, packed so that a browser unpacks them fast.

A *pack* is a sequence of columns, gzipped, in base64. A column is stored as *byte planes*: the lowest byte of
every number, then the next byte, and so on; small or slowly changing numbers then compress to almost nothing.
`delta` columns hold differences from the previous number, modulo their width.
"""

import base64
import gzip
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[Any]

_LEVEL = 6
NOTHING = 2**32 - 1
"""Stands for null in columns of four bytes."""


@dataclass
class Pack:
    """Named columns; `text` is their encoding in the page, `entries` describes how to decode it."""

    columns: dict[str, Column] = field(default_factory=dict)
    deltas: set[str] = field(default_factory=set)

    def add(self, name: str, column: Column, *, delta: bool = False) -> None:
        """Add non-negative integers in the narrowest width that fits, or float64 unchanged."""
        if column.dtype.kind == "f":
            self.columns[name] = np.ascontiguousarray(column, "<f8")
            return
        largest = int(column.max()) if len(column) else 0
        if len(column) and (largest > NOTHING or int(column.min()) < 0):
            raise ValueError(f"column {name} must lie in 0 .. {NOTHING}, got {column.min()} .. {largest}")
        width = 1 if largest < 1 << 8 else 2 if largest < 1 << 16 else 4
        self.columns[name] = column.astype(f"<u{width}")
        if delta:
            self.deltas.add(name)

    @property
    def entries(self) -> list[dict[str, Any]]:
        """For each column in order: its name, type and length, and whether it holds differences."""
        return [
            {
                "name": name,
                "type": f"{column.dtype.kind}{column.dtype.itemsize}",
                "length": len(column),
                "delta": name in self.deltas,
            }
            for name, column in self.columns.items()
        ]

    def text(self) -> str:
        """All columns in base64."""
        planes = [_planes(column, name in self.deltas) for name, column in self.columns.items()]
        packed = gzip.compress(b"".join(planes), _LEVEL, mtime=0)
        return base64.b64encode(packed).decode()


def unpacked(text: str, entries: list[Mapping[str, Any]]) -> dict[str, Column]:
    """Decode the columns as the page does."""
    data = gzip.decompress(base64.b64decode(text))
    columns, at = {}, 0
    for entry in entries:
        kind = np.dtype(f"<{entry['type']}")
        size = entry["length"] * kind.itemsize
        planes = np.frombuffer(data, np.uint8, size, at).reshape(kind.itemsize, entry["length"])
        column = np.ascontiguousarray(planes.T).view(kind).reshape(-1)
        columns[entry["name"]] = np.cumsum(column, dtype=kind) if entry["delta"] else column
        at += size
    return columns


def _planes(column: Column, delta: bool) -> bytes:
    width = column.dtype.itemsize
    if delta and len(column):
        column = np.concatenate([column[:1], column[1:] - column[:-1]])  # wraps around, as in the page
    return np.ascontiguousarray(column.view(np.uint8).reshape(-1, width).T).tobytes()
