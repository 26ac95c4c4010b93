"""Switches replicas on and off as their policies (scaling.py) decide.

    off -> starting -> on -> draining -> off

Starting takes `startup_ps`, then requests are sent there; a replica begins empty each time. A draining one
gets no more requests, and is off when its last is answered or has migrated, or, on the prefill side, when all
that it holds was read; until then it may be switched on again. It costs from the start of starting until it
is off. The last to be switched on is the first to go.

Replicas may die (faults.py). One that comes back stays wanted and costs meanwhile, unless it is switched off:
dead ones go first. For one that does not, another is started at once. Dead ones cannot be started. Where
nothing scales, dead ones cost as well.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from kvsim.sim.serving.absences import Times
from kvsim.sim.serving.decision import NEVER_PS
from kvsim.sim.serving.gates import Gates
from kvsim.sim.serving.lives import Lives
from kvsim.sim.serving.scale_groups import Scaled
from kvsim.sim.serving.scale_policy import ScalePolicy
from kvsim.sim.workload import PS_PER_S

OFF, STARTING, ON, DRAINING = "off", "starting", "on", "draining"


class Change(NamedTuple):
    """A place is in this state from this time on."""

    at_ps: int
    place: int
    state: str


class Group:
    """Replicas that one policy scales.

    Attributes
    ----------
    count : int
        How many the policy wants.
    order : list of int
        Places of those that are wanted, in the order of switching on.
    """

    def __init__(self, policy: ScalePolicy, places: Sequence[int]) -> None:
        self.policy, self.places, self.count = policy, places, policy.first
        self.order = list(places[: policy.first])


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

    def __init__(self, scaled: Sequence[Scaled], startup_ps: list[int], lives: Lives) -> None:
        self._startup_ps, self._lives = startup_ps, lives
        self._groups = [Group(each.policy, each.places) for each in scaled]
        rests = {place for group in self._groups for place in group.places if place not in group.order}
        self._states = [OFF if place in rests else ON for place in range(len(startup_ps))]
        self._since_ps = [0] * len(startup_ps)  # when each began to drain, or to start
        self._dead: set[int] = set()
        self.changes = [Change(0, place, state) for place, state in enumerate(self._states)]

    def begin(self, gates: Gates) -> None:
        """Put the policies' decisions on the clock."""
        self._run, self._gates = gates.run, gates
        for place, state in enumerate(self._states):
            if state == OFF:
                gates.shut(place)
        for group in self._groups:
            for at_s in group.policy.times_s:
                at_ps = round(at_s * PS_PER_S)
                self._run.later(at_ps, partial(self._decide, group, at_ps))
            if group.policy.every_s:
                every_ps = round(group.policy.every_s * PS_PER_S)
                self._run.later(every_ps, partial(self._look, group, every_ps, every_ps))

    def _look(self, group: Group, now_ps: int, every_ps: int) -> None:
        self._decide(group, now_ps)
        if self._run.goes_on():
            self._run.later(now_ps + every_ps, partial(self._look, group, now_ps + every_ps, every_ps))

    def _decide(self, group: Group, now_ps: int) -> None:
        """Switch replicas on or off to reach the policy's target."""
        if not self._run.goes_on():
            return
        self._note_drained()
        order, seen = group.order, self._gates.seen(group.places)
        group.count = group.policy.target(now_ps / PS_PER_S, seen, len(order))
        self._fill(group, now_ps)
        while len(order) > group.count:
            place = next((place for place in reversed(order) if place in self._dead), order[-1])
            order.remove(place)
            self._switch_off(now_ps, place)

    def _fill(self, group: Group, now_ps: int) -> None:
        """Switch on as many as are wanted, if there are so many."""
        while len(group.order) < group.count:
            place = self._best(group)
            if place is None:
                return
            group.order.append(place)
            self._switch_on(now_ps, place)

    def _best(self, group: Group) -> int | None:
        """Which replica to switch on: one that drains is still there, with its contents; None: all are on."""
        for state in (DRAINING, OFF):
            for place in group.places:
                if self._states[place] == state and place not in self._dead:
                    return place
        return None

    def _switch_on(self, now_ps: int, place: int) -> None:
        if self._states[place] == DRAINING:
            self._move(now_ps, place, ON)
            self._gates.open(place, now_ps)
            return
        self._since_ps[place] = now_ps
        self._move(now_ps, place, STARTING)
        ready_ps = now_ps + self._startup_ps[place]
        self._run.later(ready_ps, partial(self._ready, ready_ps, place, now_ps))

    def _ready(self, now_ps: int, place: int, since_ps: int) -> None:
        """It has started, unless it was switched off meanwhile."""
        if self._states[place] != STARTING or self._since_ps[place] != since_ps or not self._run.goes_on():
            return
        self._run.serve(self._lives.replicas[place])
        self._move(now_ps, place, ON)
        self._gates.open(place, now_ps)

    def _switch_off(self, now_ps: int, place: int) -> None:
        if self._states[place] == STARTING or place in self._dead:
            self._move(now_ps, place, OFF)
            return
        self._since_ps[place] = now_ps
        self._move(now_ps, place, DRAINING)
        self._gates.shut(place)

    def _note_drained(self) -> None:
        """Draining replicas with no request left have been off since they were done: empty ones follow."""
        for place, state in enumerate(self._states):
            replica = self._lives.replicas[place]
            if state == DRAINING and not replica.input_queue.has_requests:
                done_ps = max(replica.recorder.end_ps, self._gates.left_ps(replica))
                off_ps = max(done_ps, self._since_ps[place])
                self._move(off_ps, place, OFF)
                after, _ = self._lives.renew(place, off_ps)
                self._gates.show(place, after)

    def _move(self, at_ps: int, place: int, state: str) -> None:
        self._states[place] = state
        self.changes.append(Change(at_ps, place, state))

    def draining(self) -> list[int]:
        """The replicas that drain, by place."""
        return [place for place, state in enumerate(self._states) if state == DRAINING]

    # -- replicas that die and come back --------------------------------------------------------------

    def serves(self, place: int) -> bool:
        """Whether a replica serves requests: one that is off or starting has nothing to lose."""
        self._note_drained()
        return self._states[place] in {ON, DRAINING}

    def died(self, now_ps: int, place: int, comes_back: bool) -> None:
        """A replica that served is gone."""
        self._dead.add(place)
        scaled = any(place in group.places for group in self._groups)
        if self._states[place] == ON and (comes_back or not scaled):
            return
        self._move(now_ps, place, OFF)
        for group in self._groups:
            if place in group.order:
                group.order.remove(place)
                self._fill(group, now_ps)

    def came_back(self, now_ps: int, place: int) -> bool:
        """A replica is alive again; returns whether it serves."""
        self._dead.discard(place)
        for group in self._groups:
            self._fill(group, now_ps)
        return self._states[place] == ON

    # -- the end --------------------------------------------------------------------------------------

    def end(self, end_ps: int) -> None:
        """The last answer is complete."""
        self._note_drained()
        self.changes = sorted(
            (each for each in self.changes if each.at_ps <= end_ps), key=lambda each: each.at_ps
        )

    def off_times(self, place: int) -> list[Times]:
        """From when to when a replica cost nothing; called when the run is over."""
        found: list[Times] = []
        since_ps = NEVER_PS
        for change in self.changes:
            if change.place == place and change.state == OFF:
                since_ps = min(since_ps, change.at_ps)
            elif change.place == place and since_ps < NEVER_PS:
                found.append((since_ps, change.at_ps))
                since_ps = NEVER_PS
        return [*found, (since_ps, NEVER_PS)] if since_ps < NEVER_PS else found

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
