"""A workload on its replicas: everything runs on one SimPy clock that counts whole picoseconds.

`Arrivals` brings the requests (arrivals.py), a router may spread them (fleet.py), each `Replica` serves the
requests that it gets (replica.py).
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import simpy

from kvsim.sim.record.fleet_result import in_turn, together, without
from kvsim.sim.record.recorder import Result
from kvsim.sim.record.request_log import RequestLog
from kvsim.sim.routers.base import Router
from kvsim.sim.serving.absences import Absences, Times
from kvsim.sim.serving.alarm import Process
from kvsim.sim.serving.arrivals import Arrivals
from kvsim.sim.serving.deaths import Deaths
from kvsim.sim.serving.decision import NEVER_PS
from kvsim.sim.serving.dispatcher import Dispatcher, sessions_of
from kvsim.sim.serving.faults import Fault
from kvsim.sim.serving.gates import Gates
from kvsim.sim.serving.hand_over import HandOver
from kvsim.sim.serving.intake import Door
from kvsim.sim.serving.lives import Lives
from kvsim.sim.serving.migration import Migrations
from kvsim.sim.serving.observers import Pace
from kvsim.sim.serving.replica import Replica
from kvsim.sim.serving.scale_groups import Scaled
from kvsim.sim.serving.scaler import Scaler
from kvsim.sim.workload import Workload

UNLIMITED = 1 << 40


@contextmanager
def no_cycle_collection() -> Iterator[None]:
    """Pause the search for reference cycles: a run makes none, and the search would take 10% of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Engine:
    """One or several replicas under one workload.

    Parameters
    ----------
    log : RequestLog
        The log that the replicas write to.
    max_model_len : int or sequence of int
        Tokens of the longest sequence, per replica or for all; longer answers are cut, and prompts that leave
        no room are refused.
    router : Router or None
        Spreads requests over several replicas.
    pools : sequence of (str, str)
        The name and the role of each replica's pool; empty: all are equal.
    sticky : bool
        Whether the requests of a session all go to the replica of its first.
    faults : sequence of Fault
        Which replicas die, and when.
    scaling : (ScalePolicy, list of int), optional
        How many replicas there are, and how many ps each takes to start.
    make : callable, optional
        Makes a new replica for a place, if replicas die.
    migrations : Migrations, optional
        Moves running requests to other replicas.
    hand_over : (HandOver, Router), optional
        For disaggregated prefill: hands prompts over, and the router that spreads them over decode replicas.
    """

    def __init__(
        self,
        workload: Workload,
        log: RequestLog,
        replicas: list[Replica],
        max_model_len: int | Sequence[int],
        *,
        router: Router | None = None,
        pools: Sequence[tuple[str, str]] = (),
        sticky: bool = False,
        faults: Sequence[Fault] = (),
        scaling: tuple[list[Scaled], list[int]] | None = None,
        make: Callable[[int], Replica] | None = None,
        migrations: Migrations | None = None,
        hand_over: tuple[HandOver, Router] | None = None,
    ) -> None:
        self.env = simpy.Environment(initial_time=0)
        self.workload = workload
        self.log = log
        self.replicas = replicas
        self._dispatcher: Dispatcher | None = None
        if router is not None:
            sessions = sessions_of(log) if sticky else None
            pools = pools or [("", "both")] * len(replicas)
            first = None if hand_over is None else "prefill"
            self._dispatcher = Dispatcher(router, replicas, pools, log, sessions, first)
        self.hand_over: HandOver | None = None
        self._second: Dispatcher | None = None
        if hand_over is not None:
            self.hand_over, second = hand_over
            self._second = Dispatcher(second, replicas, pools, log, sessions, "decode")
        lengths = [max_model_len] * len(replicas) if isinstance(max_model_len, int) else max_model_len
        longest = [
            most if replica.scheduler.limits_length else UNLIMITED
            for most, replica in zip(lengths, replicas, strict=True)
        ]
        self.arrivals = Arrivals(self.env, log, longest)
        self.lives = Lives(replicas, make)
        self.deaths = Deaths(faults, self.lives) if faults else None
        self.scaler = Scaler(*scaling, self.lives) if scaling else None
        self.migrations = migrations

    @property
    def replica(self) -> Replica:
        """The first replica, usually the only one."""
        return self.replicas[0]

    def wait_before_steps(self, wait: Callable[[int], None], max_span: int) -> None:
        """For an observer: call `wait` with the time in ps before each step, or every `max_span` steps."""

        def watch(replica: Replica) -> None:
            replica.observers.append(Pace(replica.server, wait, max_span))

        for replica in self.replicas:
            watch(replica)
        self.lives.watches.append(watch)

    def later(self, at_ps: int, act: Callable[[], None]) -> None:
        """Call `act` at a time."""
        event = self.env.timeout(at_ps - int(self.env.now))
        event.callbacks.append(lambda _: act())

    def _look(self, dispatcher: Dispatcher) -> Process:
        """Let a router with stale views look at the replicas, as long as the run goes on."""
        while self.goes_on():
            dispatcher.look()
            yield self.env.timeout(dispatcher.interval_ps)

    def _meet(self) -> None:
        """A request comes at once after an answer: the steps that end now are over before it comes."""
        for replica in self.replicas:
            replica.meet()

    def serve(self, replica: Replica) -> None:
        """Let a replica start to serve now."""
        replica.wait_until(int(self.env.now))
        replica.begin(self.env, self.arrivals, alone=False)

    def goes_on(self) -> bool:
        """Whether any request is served, waits, or is still to arrive."""
        if self.arrivals.next_ps < NEVER_PS or self.arrivals.intake.held:
            return True
        return any(replica.input_queue.has_requests for replica in self.replicas)

    def _begin_around(self) -> None:
        """Start everything that looks at several replicas, or changes them."""
        dispatchers = [each for each in (self._dispatcher, self._second) if each is not None]
        for each in dispatchers:
            if each.interval_ps:
                self.env.process(self._look(each))
        if self.hand_over is not None and self._second is not None:
            self.hand_over.begin(self, self.replicas, self._second)
            self.lives.watches.append(self.hand_over.follow)
        if self.migrations is not None:
            self.lives.watches.append(self.migrations.follow)
        gates = Gates(self, dispatchers, self.hand_over, self.migrations)
        if self.deaths is not None:
            self.deaths.begin(gates, self.scaler)
        if self.scaler is not None:
            self.scaler.begin(gates)
        if self._dispatcher is not None and self.migrations is not None:
            draining = (lambda: ()) if self.scaler is None else self.scaler.draining
            self.migrations.begin(self, self.replicas, self._dispatcher, draining)

    def absences(self) -> Absences:
        """When replicas were dead or off; called when the run is over."""
        times: list[list[Times]] = []
        for place in range(len(self.replicas)):
            dead = [] if self.deaths is None else self.deaths.dead_times(place)
            times.append(dead + ([] if self.scaler is None else self.scaler.off_times(place)))
        return Absences(times)

    def run(self) -> Result:
        """Serve every request and return the result; for a fleet, of all replicas together."""
        place = self._dispatcher.place if self._dispatcher else None
        doors: Sequence[Door] = self.replicas
        if self._dispatcher is not None and self.hand_over is not None:
            place = partial(self.hand_over.place, first=self._dispatcher)
            doors = self.hand_over.doors(self.replicas)
        self.arrivals.begin(doors, place, self._meet if len(self.replicas) > 1 else None)
        self._begin_around()
        for index, replica in enumerate(self.replicas):
            if self.scaler is None or self.scaler.serves(index):
                replica.begin(self.env, self.arrivals, alone=len(self.replicas) == 1)
            else:
                replica.note_empty()
        with no_cycle_collection():
            self.env.run()
        for replica in self.lives.every:
            replica.end()
        self.arrivals.end()
        end_ps = max(replica.recorder.end_ps for replica in self.lives.every)
        if self.deaths is not None:
            self.deaths.end(end_ps)
        if self.scaler is not None:
            self.scaler.end(end_ps)
        told = [[(life, life.result()) for life in lives] for lives in self.lives.lives]
        whole = [in_turn([life.upto(result, end_ps) for life, result in its]) for its in told]
        self.results = whole
        if len(whole) == 1:
            return whole[0]
        absences = self.absences()
        found = together(whole, [replica.server for replica in self.replicas], absences)
        ends_ps = [result.end_ps for result in whole]
        alone = [
            in_turn([life.upto(result, ps) for life, result in its])
            for its, ps in zip(told, ends_ps, strict=True)
        ]
        self.results = [without(result, absences, place) for place, result in enumerate(alone)]
        if self.migrations is not None:
            found = replace(found, stages=self.migrations.stages(len(self.workload)))
        if self.hand_over is not None:
            found = replace(found, stages=self.hand_over.stages(len(self.workload)))
        return found
