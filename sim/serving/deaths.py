"""Carries out what faults.py describes: replicas fail, others replace them, requests are sent again.

at     old replica: its last whole step is recorded, then it is dropped
       new replica: empty, in the same place, asleep; routers pass over it
       its requests: sent again immediately, in the order in which they came
back   the new replica serves, and requests that waited while no replica was alive are served
"""

from collections.abc import Sequence
from functools import partial

from kvsim.sim.serving.absences import Times
from kvsim.sim.serving.decision import NEVER_PS
from kvsim.sim.serving.faults import Fault, Lost
from kvsim.sim.serving.gates import Gates
from kvsim.sim.serving.lives import Lives
from kvsim.sim.serving.replica import Replica
from kvsim.sim.serving.scaler import Scaler


class Deaths:
    """The faults of a run.

    Attributes
    ----------
    lost : Lost
        What was lost so far.
    """

    def __init__(self, faults: Sequence[Fault], lives: Lives) -> None:
        self._faults, self._lives = faults, lives
        self.lost = Lost()
        self.died: list[Fault] = []  # those that happened
        self._gone: set[int] = set()  # places that stay dead

    def begin(self, gates: Gates, scaler: Scaler | None) -> None:
        """Put all faults on the clock."""
        self._run, self._gates, self._scaler = gates.run, gates, scaler
        for each in gates.dispatchers:
            each.remember()
        for fault in self._faults:
            self._run.later(fault.at_ps, partial(self._die, fault))

    def _die(self, fault: Fault) -> None:
        """A replica is gone; an empty one takes its place."""
        place, log, lost = fault.replica, self._run.log, self.lost
        if not self._run.goes_on() or not (self._scaler is None or self._scaler.serves(place)):
            return
        before = self._lives.replicas[place]
        after, held = self._lives.renew(place, fault.at_ps)
        lost.kv_tokens += held
        self.died.append(fault)
        if fault.back_ps is None:
            self._gone.add(place)
        rows = self._gates.rows_of(before, place, self._some_serve(place), fault.at_ps)
        self._gates.show(place, after)
        if fault.back_ps is not None:
            self._run.later(fault.back_ps, partial(self._come_back, fault, fault.back_ps))
        lost.deaths += 1
        lost.resent += len(rows)
        self._tell(rows, before, fault)
        for row in rows:
            if log.output_tokens[row] < log.workload.output_tokens[row]:
                before.recorder.truncated -= 1  # its answer is cut again where it goes next
            log.send_again(row)
        if self._scaler is not None:
            self._scaler.died(fault.at_ps, place, fault.back_ps is not None)
        for row in rows:
            self._run.arrivals.again(row)

    def _tell(self, rows: Sequence[int], dead: Replica, fault: Fault) -> None:
        """Record of each row, where it is, that it starts over."""
        if dead.server.events is None:
            return
        held = dead.lost_tokens()
        for row in rows:
            place = self._run.log.place_of(row)
            there = dead if place == fault.replica else self._lives.replicas[place]
            if (events := there.server.events) is not None:
                reason = f"replica {fault.replica}"
                events.lost(row, fault.at_ps, there.next_step, held.get(row, 0), reason)

    def _some_serve(self, place: int) -> bool:
        """Whether a replica that gets the same requests serves now, or will."""
        alike = self._gates.dispatcher(place).sends_to
        return any(alike(other) for other in range(len(self._lives.replicas)) if other not in self._gone)

    def _come_back(self, fault: Fault, now_ps: int) -> None:
        """A replica that died serves again, unless it was switched off."""
        place = fault.replica
        if self._run.goes_on() and (self._scaler is None or self._scaler.came_back(now_ps, place)):
            self._run.serve(self._lives.replicas[place])
            self._gates.open(place, now_ps)

    def dead_times(self, place: int) -> list[Times]:
        """From when to when a replica was dead."""
        return [
            (fault.at_ps, NEVER_PS if fault.back_ps is None else fault.back_ps)
            for fault in self.died
            if fault.replica == place
        ]

    def end(self, end_ps: int) -> None:
        """The last answer is complete."""
        for fault in self.died:
            back_ps = end_ps if fault.back_ps is None else min(fault.back_ps, end_ps)
            self.lost.down_ps += max(back_ps - fault.at_ps, 0)
