"""Switches the replicas of a fleet on and off as its policy (scaling.py) decides.

    off -> starting -> on -> draining -> off

Starting takes `startup_ps`, then requests are sent there; a replica begins empty each time. A draining one
gets no more requests, and is off when its last is answered; until then it may be switched on again. It costs
from the start of starting until it is off. The last to be switched on is the first to go.
"""

from functools import partial
from typing import NamedTuple

from kvsim.sim.serving.dispatcher import Dispatcher
from kvsim.sim.serving.lives import Lives, Run
from kvsim.sim.serving.scale_policy import ScalePolicy
from kvsim.sim.workload import PS_PER_S

OFF, STARTING, ON, DRAINING = "off", "starting", "on", "draining"


class Change(NamedTuple):
    """A place is in this state from this time on."""

    at_ps: int
    place: int
    state: str


class Scaler:
    """The scaling of a run.

    Parameters
    ----------
    startup_ps : list of int
        By place, the time it takes to start.

    Attributes
    ----------
    changes : list of Change
        What happened, in order.
    """

    def __init__(self, policy: ScalePolicy, startup_ps: list[int], lives: Lives) -> None:
        self._policy, self._startup_ps, self._lives = policy, startup_ps, lives
        self._states = [ON if place < policy.first else OFF for place in range(len(startup_ps))]
        self._order = list(range(policy.first))  # those that are wanted, in the order of switching on
        self._since_ps = [0] * len(startup_ps)  # when each began to drain, or to start
        self.changes = [Change(0, place, state) for place, state in enumerate(self._states)]

    def begin(self, run: Run, dispatcher: Dispatcher) -> None:
        """Put the policy's decisions on the clock."""
        self._run, self._dispatcher = run, dispatcher
        for place, state in enumerate(self._states):
            if state == OFF:
                dispatcher.shut(place)
        for at_s in self._policy.times_s:
            at_ps = round(at_s * PS_PER_S)
            run.later(at_ps, partial(self._decide, at_ps))
        if self._policy.every_s:
            every_ps = round(self._policy.every_s * PS_PER_S)
            run.later(every_ps, partial(self._look, every_ps, every_ps))

    def _look(self, now_ps: int, every_ps: int) -> None:
        self._decide(now_ps)
        if self._run.goes_on():
            self._run.later(now_ps + every_ps, partial(self._look, now_ps + every_ps, every_ps))

    def _decide(self, now_ps: int) -> None:
        """Switch replicas on or off to reach the policy's target."""
        if not self._run.goes_on():
            return
        self._note_drained(now_ps)
        target = self._policy.target(now_ps / PS_PER_S, self._dispatcher.seen, len(self._order))
        while len(self._order) < target:
            self._switch_on(now_ps)
        while len(self._order) > target:
            self._switch_off(now_ps, self._order.pop())

    def _switch_on(self, now_ps: int) -> None:
        draining = [place for place, state in enumerate(self._states) if state == DRAINING]
        if draining:  # it is still there, with its contents
            place = draining[0]
            self._move(now_ps, place, ON)
            self._dispatcher.open(place)
        else:
            place = self._states.index(OFF)
            self._since_ps[place] = now_ps
            self._move(now_ps, place, STARTING)
            ready_ps = now_ps + self._startup_ps[place]
            self._run.later(ready_ps, partial(self._ready, ready_ps, place, now_ps))
        self._order.append(place)

    def _ready(self, now_ps: int, place: int, since_ps: int) -> None:
        """It has started, unless it was switched off meanwhile."""
        if self._states[place] != STARTING or self._since_ps[place] != since_ps or not self._run.goes_on():
            return
        replica, _ = self._lives.renew(place)
        self._dispatcher.show(place, replica)
        self._run.serve(replica)
        self._move(now_ps, place, ON)
        self._dispatcher.open(place)
        self._run.arrivals.opened()

    def _switch_off(self, now_ps: int, place: int) -> None:
        if self._states[place] == STARTING:
            self._move(now_ps, place, OFF)
            return
        self._since_ps[place] = now_ps
        self._move(now_ps, place, DRAINING)
        self._dispatcher.shut(place)

    def _note_drained(self, now_ps: int) -> None:
        """Draining replicas with no request left have been off since their last answer."""
        for place, state in enumerate(self._states):
            replica = self._lives.replicas[place]
            if state == DRAINING and not replica.has_requests:
                self._move(max(replica.recorder.end_ps, self._since_ps[place]), place, OFF)

    def _move(self, at_ps: int, place: int, state: str) -> None:
        self._states[place] = state
        self.changes.append(Change(at_ps, place, state))

    def end(self, end_ps: int) -> None:
        """The last answer is complete."""
        self._note_drained(end_ps)
        self.changes = sorted(
            (each for each in self.changes if each.at_ps <= end_ps), key=lambda each: each.at_ps
        )

    def alive_ps(self, end_ps: int) -> list[int]:
        """By place, how long it cost something up to `end_ps`; called when the run is over."""
        found, since = [0] * len(self._states), [0] * len(self._states)
        states = [OFF] * len(self._states)
        for at_ps, place, state in self.changes:
            if at_ps > end_ps:
                break
            if states[place] == OFF and state != OFF:
                since[place] = at_ps
            elif states[place] != OFF and state == OFF:
                found[place] += at_ps - since[place]
            states[place] = state
        return [
            total + (end_ps - begun if state != OFF else 0)
            for total, begun, state in zip(found, since, states, strict=True)
        ]
