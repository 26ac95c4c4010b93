"""How much load the server got, whether it kept up, and what held requests back (sim/record/limits.py).

A server is overloaded if requests arrive faster than they leave; its queue grows as long as they arrive.
Overload is judged on the second half of the time in which requests arrive, when a server that is short of
anything is full. All three must hold:

1. more requests arrive than leave;
2. at every instant, some request waits to be scheduled for the first time;
3. at the last arrival more than 3 * c * sqrt(requests) wait, where c is the coefficient of variation of the
   gaps between arrivals, at least 1: at a load of 1, chance alone hardly ever queues as many.

A closed loop sends a request only after an answer, so it cannot overload a server. If the last request came
before the first one left, there is no rate to compare; if all arrivals share one instant, they are "all at
once". Rejected requests are not counted in any of this.
"""

from collections.abc import Mapping

import numpy as np

from kvsim.sim.record.limits import LIMITS
from kvsim.sim.record.recorder import Result
from kvsim.sim.workload import PS_PER_S, Int64Column

CHANCE = 3.0
"""Standard deviations of a queue that only fluctuates."""

OPEN, AT_ONCE, CLOSED = "open", "all at once", "closed loop"


def load(result: Result) -> dict[str, object]:
    """The section `load` of a summary: rates in requests per second, None if they do not apply."""
    held_ps, whole_ps = result.held_ps, result.saturated.time_ps + result.unsaturated.time_ps
    return {
        **_arrivals(result),
        "held_back_share": {
            name: held_ps[name] / whole_ps if whole_ps else None for name in LIMITS
        },
    }  # fmt: skip


def _arrivals(result: Result) -> Mapping[str, object]:
    done = result.finished
    arrival_ps = np.sort(result.arrival_ps[done])
    finish_ps = np.sort(result.requests["finish_ps"][done])
    scheduled_ps = np.sort(result.requests["first_scheduled_ps"][done])
    kind = OPEN
    if result.workload.waits is not None:
        kind = CLOSED
    elif len(arrival_ps) and arrival_ps[0] == arrival_ps[-1]:
        kind = AT_ONCE
    found = {
        "arrivals": kind,
        "overloaded": False,
        "arriving_requests_per_s": None,
        "leaving_requests_per_s": None,
        "waiting_at_last_arrival": None,
    }
    if kind != OPEN or not len(arrival_ps) or arrival_ps[-1] < finish_ps[0]:
        return found
    first, last = int(arrival_ps[0]), int(arrival_ps[-1])
    middle = first + (last - first) // 2
    come, leave = (_within(column, middle, last) for column in (arrival_ps, finish_ps))
    seconds = (last - middle) / PS_PER_S
    if not seconds:
        return found
    waiting = _waiting(arrival_ps, scheduled_ps, np.array([last]))[0]
    entering = scheduled_ps[(scheduled_ps >= middle) & (scheduled_ps <= last)]
    ever_empty = (_waiting(arrival_ps, scheduled_ps, np.append(entering, middle)) == 0).any()
    gaps = np.diff(arrival_ps)
    by_chance = CHANCE * max(1.0, float(gaps.std() / gaps.mean())) * len(arrival_ps) ** 0.5
    return found | {
        "overloaded": bool(come > leave and not ever_empty and waiting > by_chance),
        "arriving_requests_per_s": come / seconds,
        "leaving_requests_per_s": leave / seconds,
        "waiting_at_last_arrival": int(waiting),
    }


def _within(times_ps: Int64Column, after_ps: int, to_ps: int) -> int:
    """How many of these sorted times lie in (after_ps, to_ps]."""
    upto = np.searchsorted(times_ps, [after_ps, to_ps], side="right")
    return int(upto[1] - upto[0])


def _waiting(arrival_ps: Int64Column, scheduled_ps: Int64Column, at_ps: Int64Column) -> Int64Column:
    """Requests that have arrived but were not yet scheduled, at these instants; both columns sorted."""
    came, entered = (np.searchsorted(column, at_ps, side="right") for column in (arrival_ps, scheduled_ps))
    return (came - entered).astype(np.int64)
