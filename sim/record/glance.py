"""What can be seen of a run while it goes on, from another thread, at hardly any cost to it.

Nothing is locked. The engine keeps running between two reads, so numbers of one glance may belong to
instants a few steps apart; each by itself is right, and a row of the timeline is of one instant. Tokens
are added up about once in a thousand spans, and the timeline lags behind by its spacing: at most 1/256 of
the run.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvsim.sim.record.recorder import TIMELINE_COLUMNS
from kvsim.sim.serving.engine import Engine
from kvsim.sim.workload import PS_PER_S

LATEST = 1000
"""Requests whose time to first token is told."""


@dataclass(frozen=True)
class Glance:
    """A run at a moment.

    `rows` are those of the timeline so far, see `TIMELINE_COLUMNS`; the last is the state now.
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
        """The last row of the timeline by name; all zeros before the first."""
        last = self.rows[-1] if self.rows else (0,) * len(TIMELINE_COLUMNS)
        return dict(zip(TIMELINE_COLUMNS, last, strict=True))


def glance(engine: Engine) -> Glance:
    """Look at an engine that may be running in another thread; never raises, never changes anything."""
    recorder, server, log = engine.replica.recorder, engine.replica.server, engine.log
    finished, waits_ps = log.finished_count, log.latest_ttft_ps(LATEST)
    first_token_s = None
    if len(waits_ps):
        median, high = np.quantile(waits_ps, [0.5, 0.99]) / PS_PER_S
        first_token_s = (float(median), float(high))
    return Glance(
        simulated_s=server.now_ps / PS_PER_S,
        requests=len(engine.workload),
        finished=finished,
        rejected=sum(list(recorder.rejected.values())),
        tokens=recorder.token_gaps.count + finished,
        preemptions=server.totals.preemptions + server.totals.swap_outs,
        capacity_slots=server.allocator.capacity_slots,
        rows=recorder.rows(),
        first_token_s=first_token_s,
    )
