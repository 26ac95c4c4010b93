"""The requests that represent a run's steady state, and whether there is one.

    |<- 3 E ->|<------- window -------->|<- E ->|          E: the mean end-to-end time of the run
    arrivals: warm-up, judged requests, requests served while the server empties

A short run is long enough if its arrivals last at least 10 E and 200 requests are in the window; a long run,
which confirms an answer, must also determine how many requests are late (`tells`). A run is steady if the
server is not overloaded (sim/record/load.py) and requests in the window's second half take on average at most
1.2 times as long as in the first.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

WARM_UP, COOL_DOWN, LEAST_SPAN = 3.0, 1.0, 10.0
LEAST_REQUESTS = 200
MOST_GROWTH = 1.2
BATCHES = 20
MOST_ERROR, CERTAIN = 0.25, 4.0
"""For the share beyond a limit: its largest relative standard error, and how many of them count as certain.
"""

JUDGED = (
    "Judged are requests that arrive after a warm-up of 3 mean end-to-end times, and before the last 1. "
    "They must be steady: the server keeps up, and the second half takes at most 1.2 times as long as the "
    "first"
)
JUDGED_WHOLE = "A trace with its own arrival times is sped up, and judged whole, as in sim run"

Table = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Window:
    """The requests that are judged.

    Attributes
    ----------
    rows : bool array
        Which rows of the request table are in it.
    long_enough : bool
        Whether arrivals lasted long enough.
    growth : float
        Mean time of requests in the second half over the first; 1 if nothing finished.
    """

    rows: npt.NDArray[np.bool_]
    long_enough: bool
    growth: float

    @property
    def grows(self) -> bool:
        """Whether requests keep taking longer."""
        return self.growth > MOST_GROWTH


def tells(latency_s: npt.NDArray[Any], quantile: float, limit_s: float) -> bool:
    """Whether a window determines how many requests exceed a limit, or at least that too many do.

    Near saturation long waits come in clusters, so a hundred requests beyond the quantile may be just three
    busy hours. The uncertainty of their share is therefore estimated from BATCHES parts in order of arrival.
    """
    values_s, allowed = np.asarray(latency_s, dtype=np.float64), 1 - quantile
    share, error = _share(~(values_s <= limit_s))
    if share > allowed + CERTAIN * error:
        return True
    at_s = np.nanquantile(values_s, quantile)
    beyond = ~(values_s <= at_s)
    beyond = beyond if beyond.mean() > allowed / 2 else ~(values_s < at_s)  # many values are equal
    return _share(beyond)[1] <= MOST_ERROR * allowed


def _share(beyond: npt.NDArray[np.bool_]) -> tuple[float, float]:
    """A share, and its standard error."""
    parts = [float(part.mean()) for part in np.array_split(beyond, BATCHES) if len(part)]
    error = float(np.std(parts, ddof=1)) / len(parts) ** 0.5 if len(parts) > 1 else np.inf
    return float(beyond.mean()), error


def everything(table: Table) -> Window:
    """The whole run, for a trace with its own arrival times; its length and steadiness are not checked."""
    return Window(np.ones(len(table["arrival_s"]), dtype=bool), True, 1.0)


def window(table: Table) -> Window:
    """The steady part of a run, from its request table."""
    arrival_s, e2e_s = (np.asarray(table[name], dtype=np.float64) for name in ("arrival_s", "e2e_s"))
    known = np.isfinite(e2e_s)
    if not known.any():
        return Window(np.ones(len(arrival_s), dtype=bool), True, 1.0)
    mean_s = float(e2e_s[known].mean())
    first, last = float(arrival_s.min()), float(arrival_s.max())
    rows = (arrival_s >= first + WARM_UP * mean_s) & (arrival_s <= last - COOL_DOWN * mean_s)
    long_enough = last - first >= LEAST_SPAN * mean_s and int(rows.sum()) >= LEAST_REQUESTS
    return Window(
        rows if rows.any() else np.ones_like(rows), long_enough, _growth(arrival_s, e2e_s, rows & known)
    )


def _growth(
    arrival_s: npt.NDArray[np.float64], e2e_s: npt.NDArray[np.float64], rows: npt.NDArray[np.bool_]
) -> float:
    if rows.sum() < 2:
        return 1.0
    middle_s = np.median(arrival_s[rows])
    early, late = e2e_s[rows & (arrival_s <= middle_s)], e2e_s[rows & (arrival_s > middle_s)]
    return float(late.mean() / early.mean()) if len(early) and len(late) and early.mean() else 1.0
