"""The load on the server, whether the server kept up, and what held requests back (sim/record/limits.py).

A server is overloaded if requests arrive faster than they leave; its queue grows as long as they arrive.
Overload is judged on the second half of the time in which requests arrive; by then a server that lacks
capacity is full. All three must hold:

1. more requests arrive than leave;
2. at every instant, some request waits to be scheduled for the first time;
3. at the last arrival more than 3 * c * sqrt(requests) wait, where c is the coefficient of variation of the
   gaps between arrivals, at least 1: at a load of 1, chance alone hardly ever queues as many.

With separate decode servers, requests also queue for these and for the links: 2 and 3 may instead hold for
requests whose prompt is computed, until their first token. Some are always on their way, so 3 then compares
their number at the last arrival with that at the middle.

A closed loop sends a request only after an answer, so it cannot overload a server. If the last request came
before the first one left, there is no rate to compare; if all arrive at one instant, they are "all at once".
Rejected requests are left out.
"""

from collections.abc import Mapping

import numpy as np

from kvsim.sim.record.limits import LIMITS
from kvsim.sim.record.recorder import Result
from kvsim.sim.workload import PS_PER_S, Int64Column

CHANCE = 3.0
"""Standard deviations within which a queue is assumed only to fluctuate."""

OPEN, AT_ONCE, CLOSED = "open", "all at once", "closed loop"


def load(result: Result) -> dict[str, object]:
    """The section `load` of a summary: rates in requests per second; None if they do not apply."""
    held_ps, whole_ps = result.held_ps, result.recorded_ps
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
    gaps, queues = np.diff(arrival_ps), _queues(result)
    by_chance = CHANCE * max(1.0, float(gaps.std() / gaps.mean())) * len(arrival_ps) ** 0.5
    return found | {
        "overloaded": come > leave and any(queue.grows(middle, last, by_chance) for queue in queues),
        "arriving_requests_per_s": come / seconds,
        "leaving_requests_per_s": leave / seconds,
        "waiting_at_last_arrival": sum(queue.waiting(last) for queue in queues),
    }


class _Queue:
    """When finished requests entered and left a queue; `passing`: some are always in it, on their way."""

    def __init__(self, came_ps: Int64Column, left_ps: Int64Column, passing: bool = False) -> None:
        self._came_ps, self._left_ps, self._passing = np.sort(came_ps), np.sort(left_ps), passing

    def waiting(self, at_ps: int) -> int:
        """Requests in the queue at this instant."""
        return int(self._length(np.array([at_ps]))[0])

    def grows(self, middle: int, last: int, by_chance: float) -> bool:
        """Whether it is never empty from the middle to the last arrival, and long at the end."""
        leaving = self._left_ps[(self._left_ps >= middle) & (self._left_ps <= last)]
        if not self._length(np.append(leaving, middle)).all():
            return False
        return self.waiting(last) - (self.waiting(middle) if self._passing else 0) > by_chance

    def _length(self, at_ps: Int64Column) -> Int64Column:
        came, left = (np.searchsorted(each, at_ps, side="right") for each in (self._came_ps, self._left_ps))
        return (came - left).astype(np.int64)


def _queues(result: Result) -> list[_Queue]:
    """The queue of arrivals, and the one for separate decode servers."""
    done, stages = result.finished, result.stages or {}
    queues = [_Queue(result.arrival_ps[done], result.requests["first_scheduled_ps"][done])]
    if "read_begin_ps" in stages:
        read = done & (stages["read_begin_ps"] > 0)
        first_ps = result.requests["first_token_ps"][read]
        queues.append(_Queue(stages["prompt_computed_ps"][read], first_ps, passing=True))
    return queues


def _within(times_ps: Int64Column, after_ps: int, to_ps: int) -> int:
    """Number of these sorted times in (after_ps, to_ps]."""
    upto = np.searchsorted(times_ps, [after_ps, to_ps], side="right")
    return int(upto[1] - upto[0])
