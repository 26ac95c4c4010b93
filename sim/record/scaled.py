"""Load, replicas and attainment over time, to judge scaling.

Each part of the run has its start, arrivals per second, the mean number of billed replicas (also by pool),
and the share of its arrivals that met the limits.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from kvsim.sim.workload import PS_PER_S, Int64Column

PARTS = 24
"""Number of equal parts of a run."""


def over_time(
    arrival_ps: Int64Column,
    good: npt.NDArray[np.bool_] | None,
    alive_ps: Sequence[Callable[[int], int]],
    end_ps: int,
) -> list[dict[str, float | list[float] | None]]:
    """One row per part; none if no time passed.

    Parameters
    ----------
    arrival_ps : int64 array, shape (n,)
        Arrival of each request.
    good : bool array, shape (n,), or None
        Which requests met the limits; None: there are no limits.
    alive_ps : sequence of callable
        For each pool, gives the total billed time of its replicas up to a time in ps.
    """
    if end_ps < PARTS:
        return []
    edges = [end_ps * each // PARTS for each in range(PARTS + 1)]
    parts = np.clip(np.searchsorted(edges, arrival_ps, side="right") - 1, 0, PARTS - 1)
    counts = np.bincount(parts, minlength=PARTS).tolist()
    met = counts if good is None else np.bincount(parts[good], minlength=PARTS).tolist()
    found: list[dict[str, float | list[float] | None]] = []
    for begin_ps, until_ps, count, many in zip(edges, edges[1:], counts, met, strict=False):
        width_ps = until_ps - begin_ps
        alive = [upto(until_ps) - upto(begin_ps) for upto in alive_ps]
        by_pool = [each / width_ps for each in alive]
        found.append(
            {
                "time_s": begin_ps / PS_PER_S,
                "requests_per_s": count * PS_PER_S / width_ps,
                "replicas": sum(alive) / width_ps,
                **({"replicas_by_pool": by_pool} if len(alive_ps) > 1 else {}),
                "attained_share": None if good is None or not count else many / count,
            }
        )
    return found
