"""Load, replicas and attainment on one time axis: what scaling is judged by.

Each part of the run tells when it begins, how many requests came per second, how many replicas cost something
in the mean, and which share of the requests that came met the limits.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from kvsim.sim.workload import PS_PER_S, Int64Column

PARTS = 24
"""Equal parts of a run."""


def over_time(
    arrival_ps: Int64Column,
    good: npt.NDArray[np.bool_] | None,
    alive_ps: Callable[[int], int],
    end_ps: int,
) -> list[dict[str, float | None]]:
    """A row for each part; none of a run that took no time.

    Parameters
    ----------
    arrival_ps : int64 array, shape (n,)
        When each request came.
    good : bool array, shape (n,), or None
        Which met the limits; None: there are none.
    alive_ps : callable
        For how long all replicas together cost something, up to a time in ps.
    """
    if end_ps < PARTS:
        return []
    edges = [end_ps * each // PARTS for each in range(PARTS + 1)]
    parts = np.clip(np.searchsorted(edges, arrival_ps, side="right") - 1, 0, PARTS - 1)
    counts = np.bincount(parts, minlength=PARTS).tolist()
    met = counts if good is None else np.bincount(parts[good], minlength=PARTS).tolist()
    found: list[dict[str, float | None]] = []
    for begin_ps, until_ps, count, many in zip(edges, edges[1:], counts, met, strict=False):
        width_ps = until_ps - begin_ps
        found.append(
            {
                "time_s": begin_ps / PS_PER_S,
                "requests_per_s": count * PS_PER_S / width_ps,
                "replicas": (alive_ps(until_ps) - alive_ps(begin_ps)) / width_ps,
                "attained_share": None if good is None or not count else many / count,
            }
        )
    return found
