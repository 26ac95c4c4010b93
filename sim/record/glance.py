"""A view of a run in progress, from another thread, at almost no cost to the run.

Nothing is locked. The engine keeps running between two reads, so the numbers of one glance may be a few steps
apart. Each number is right by itself, and each row of the timeline is from one instant. The timeline lags by
its spacing: at most 1/256 of the run.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvsim.sim.record.instants import TIMELINE_COLUMNS
from kvsim.sim.serving.engine import Engine
from kvsim.sim.workload import PS_PER_S

LATEST = 1000
"""Number of latest requests for times to first token."""


@dataclass(frozen=True)
class Glance:
    """A run at one moment; for a fleet, all replicas together.

    `rows` is the timeline so far, see `TIMELINE_COLUMNS`; the last is the state now.
    `first_token_s` are the median and the 99th percentile of the latest requests, None before the first.
    """

    simulated_s: float
    requests: int
    finished: int
    rejected: int
    tokens: int
    preemptions: int
    capacity_slots: int
    rows: Sequence[tuple[int, ...]]
    first_token_s: tuple[float, float] | None

    @property
    def now(self) -> dict[str, int]:
        """The last row of the timeline, by column; all zeros before the first row."""
        last = self.rows[-1] if self.rows else (0,) * len(TIMELINE_COLUMNS)
        return dict(zip(TIMELINE_COLUMNS, last, strict=True))


def glance(engine: Engine) -> Glance:
    """Look at an engine that may be running in another thread; never raises, changes nothing."""
    replicas, log = engine.replicas, engine.log
    recorders, servers = [each.recorder for each in replicas], [each.server for each in replicas]
    finished, waits_ps = log.finished_count, log.latest_ttft_ps(LATEST)
    first_token_s = None
    if len(waits_ps):
        median, high = np.quantile(waits_ps, [0.5, 0.99]) / PS_PER_S
        first_token_s = (float(median), float(high))
    return Glance(
        simulated_s=max(server.now_ps for server in servers) / PS_PER_S,
        requests=len(engine.workload),
        finished=finished,
        rejected=sum(sum(list(recorder.rejected.values())) for recorder in recorders),
        tokens=sum(recorder.tally.tokens() for recorder in recorders),
        preemptions=sum(server.totals.preemptions + server.totals.swap_outs for server in servers),
        capacity_slots=sum(server.allocator.capacity_slots for server in servers),
        rows=_together([recorder.timeline.rows() for recorder in recorders]),
        first_token_s=first_token_s,
    )


def _together(timelines: Sequence[Sequence[tuple[int, ...]]]) -> Sequence[tuple[int, ...]]:
    """The timeline of a fleet: at the time of each replica's rows, the sum over all replicas."""
    if len(timelines) == 1:
        return timelines[0]
    tables = [np.array(rows, np.int64).reshape(-1, len(TIMELINE_COLUMNS)) for rows in timelines]
    times_ps = np.unique(np.concatenate([table[:, 0] for table in tables]))
    total = np.zeros((len(times_ps), len(TIMELINE_COLUMNS)), np.int64)
    for table in tables:
        held = np.vstack([np.zeros_like(total[:1]), table])  # nothing before its first row
        total += held[np.searchsorted(table[:, 0], times_ps, side="right")]
    total[:, 0] = times_ps
    return list(map(tuple, total.tolist()))
