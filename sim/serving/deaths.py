"""Carries out what faults.py describes: replicas fail, others replace them, requests are sent again.

at     old replica: its last whole step is recorded, then it is dropped
       new replica: empty, in the same place, asleep; routers pass over it
       its requests: sent again immediately, in the order in which they came
back   the new replica serves, and requests that waited while no replica was alive are served
"""

from collections.abc import Sequence
from functools import partial

from kvsim.sim.serving.dispatcher import Dispatcher
from kvsim.sim.serving.faults import Fault, Lost
from kvsim.sim.serving.hand_over import HandOver
from kvsim.sim.serving.lives import Lives, Run


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

    def begin(self, run: Run, dispatchers: Sequence[Dispatcher], hand_over: HandOver | None) -> None:
        """Put all faults on the clock; one of the dispatchers knows which requests were sent to a replica."""
        self._run, self._dispatchers, self._hand_over = run, dispatchers, hand_over
        if hand_over is not None:
            self._lives.watches.append(hand_over.follow)
        for each in dispatchers:
            each.remember()
        for fault in self._faults:
            run.later(fault.at_ps, partial(self._die, fault))

    def _die(self, fault: Fault) -> None:
        """A replica is gone; an empty one takes its place."""
        if not self._run.goes_on():
            return
        place, log, lost = fault.replica, self._run.log, self.lost
        before = self._lives.replicas[place]
        after, held = self._lives.renew(place)
        lost.kv_tokens += held
        self.died.append(fault)
        dispatcher = self._sends_to(place)
        alike = [each for each in self.died if dispatcher.sends_to(each.replica)]
        returns = [each.back_ps for each in alike if each.back_ps is not None]
        rows = dispatcher.lose(place, max(returns, default=0) > fault.at_ps)
        if self._hand_over is not None:
            rows = self._hand_over.lose(before, fault.at_ps)
        dispatcher.show(place, after)
        if fault.back_ps is not None:
            self._run.later(fault.back_ps, partial(self._come_back, fault))
        lost.deaths += 1
        lost.resent += len(rows)
        for row in rows:
            if log.output_tokens[row] < log.workload.output_tokens[row]:
                before.recorder.truncated -= 1  # its answer is cut again where it goes next
            log.send_again(row)
        for row in rows:
            self._run.arrivals.again(row)

    def _come_back(self, fault: Fault) -> None:
        """A replica that died serves again."""
        if not self._run.goes_on():
            return
        place = fault.replica
        self._run.serve(self._lives.replicas[place])
        self._sends_to(place).open(place)
        self._run.arrivals.opened()
        if self._hand_over is not None and fault.back_ps is not None:
            self._hand_over.opened(fault.back_ps)

    def _sends_to(self, place: int) -> Dispatcher:
        return next(each for each in self._dispatchers if each.sends_to(place))

    def end(self, end_ps: int) -> None:
        """The last answer is complete."""
        for fault in self.died:
            back_ps = end_ps if fault.back_ps is None else min(fault.back_ps, end_ps)
            self.lost.down_ps += max(back_ps - fault.at_ps, 0)
