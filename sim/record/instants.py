"""The timeline: what the memory holds and which requests run and wait, at instants of a run.

At first every step has a row. Whenever there are `most_rows`, every other row is dropped and the spacing
doubles. So a run of any length keeps between half of `most_rows` and all of them.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from kvsim.sim.serving.memory import Level
from kvsim.sim.workload import Int64Column

TIMELINE_ROWS: Final = 1024
FEWEST_ROWS: Final = 2
"""For runs whose timeline nobody reads: each row ends a span."""


class Instant(NamedTuple):
    """A row of the timeline: what the memory holds, and what runs and waits."""

    time_ps: int
    token: int
    reserved: int
    internal: int
    cached: int
    external: int
    free: int
    running: int
    waiting: int
    largest_free_extent: int
    preemptions: int
    idle: int = 0
    held: int = 0
    tier_held_bytes: int = 0
    tier_loaded_bytes: int = 0
    tier_stored_bytes: int = 0


TIMELINE_COLUMNS = Instant._fields


class Timeline:
    """The instants of one replica.

    Parameters
    ----------
    most_rows : int
        At most this many instants are kept.
    stack : sequence of Level
        Tiers whose contents are also recorded.

    Attributes
    ----------
    next_ps : int
        When the next instant is due.
    """

    def __init__(self, most_rows: int = TIMELINE_ROWS, stack: Sequence[Level] = ()) -> None:
        self.most_rows, self.stack = most_rows, stack
        self.next_ps = self._spacing_ps = 0
        self._rows: list[Instant] = []
        self._held_below: list[list[int]] = []  # a row per instant, if there is a stack

    def add(self, row: Instant) -> None:
        """Add an instant, or replace the last one if no time has passed; thin them out if they are full."""
        now_ps = row.time_ps
        again = bool(self._rows) and self._rows[-1].time_ps == now_ps
        if self.stack:
            if again:
                self._held_below.pop()
            self._held_below.append([each.held_bytes for each in self.stack])
        if again:
            self._rows[-1] = row
            return
        self._rows.append(row)
        if len(self._rows) >= self.most_rows:
            del self._rows[1::2]
            del self._held_below[1::2]
            self._spacing_ps = max(2 * self._spacing_ps, 2 * now_ps // self.most_rows)
        self.next_ps = now_ps + self._spacing_ps

    def rows(self) -> list[Instant]:
        """The complete rows so far; may be called from another thread."""
        return self._rows[:]

    def columns(self, wanted: Callable[[str], bool]) -> dict[str, Int64Column]:
        """The instants by column: the `wanted` columns of `Instant`, and one for each tier."""
        table = np.array(self._rows, dtype=np.int64).reshape(-1, len(TIMELINE_COLUMNS))
        below = np.array(self._held_below, dtype=np.int64).reshape(len(self._held_below), len(self.stack))
        return {
            name: column for name, column in zip(TIMELINE_COLUMNS, table.T, strict=True) if wanted(name)
        } | {each.column: below[:, place] for place, each in enumerate(self.stack)}
