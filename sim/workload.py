"""What arrives at the server: one row per request, as numpy columns.

A workload knows nothing of the engine. It lives here, and not in `workloads/`, because the engine
reads it and imports go one way.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sim.errors import KvsimError

Int64Column = npt.NDArray[np.int64]

PS_PER_S = 1_000_000_000_000
"""Picoseconds in a second: the engine's clock counts whole picoseconds."""

LATEST_ARRIVAL_S = 2**62 / PS_PER_S
"""Arrivals later than this (about 53 days) do not fit the clock's 64-bit columns with room to spare."""


@dataclass(frozen=True)
class Workload:
    """Requests in order of arrival.

    Attributes
    ----------
    name : str
        What the user asked for, e.g. `sharegpt`.
    arrival_ps : int64 array, shape (n,)
        Arrival in picoseconds from the start; never decreasing.
    prompt_tokens, output_tokens : int64 arrays, shape (n,)
        Lengths in tokens, each at least 1.
    notes : tuple of str
        Sentences a reader should know (source, sampling), printed with every result.
    """

    name: str
    arrival_ps: Int64Column
    prompt_tokens: Int64Column
    output_tokens: Int64Column
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        n = len(self.arrival_ps)
        for column in ("prompt_tokens", "output_tokens"):
            values = getattr(self, column)
            if len(values) != n:
                raise KvsimError(f"{column} has {len(values)} rows, arrival_ps has {n}")
            if not np.issubdtype(values.dtype, np.integer):
                broken = np.flatnonzero(~np.isfinite(values) | (np.floor(values) != values))
                found = (
                    f"{values[broken[0]]} in row {broken[0]}" if len(broken) else f"{values.dtype} numbers"
                )
                raise KvsimError(f"{column} must be whole numbers, got {found}")
            if n and values.min() < 1:
                raise KvsimError(f"{column} must be at least 1, got {values.min()} in row {values.argmin()}")
        if n and (self.arrival_ps[0] < 0 or (np.diff(self.arrival_ps) < 0).any()):
            raise KvsimError("arrival_ps must be non-negative and never decrease")

    def __len__(self) -> int:
        return len(self.arrival_ps)
