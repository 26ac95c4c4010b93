"""Live migration: a request keeps decoding while its blocks are copied to another replica, then moves there.

    source   ... decodes ................................ | stops |
    link         | stage 1: all blocks but its last one | |2: rest|
    target   room for those                              and those| decodes ...

Each stage copies what was computed meanwhile; the last one, when few blocks are left, copies the rest while
the request is stopped. Before each stage the target allocates the blocks; if it has no room, or the request
was preempted or has finished meanwhile, the migration is given up. llumnix.py says which request moves and
when, mover.py what happens in the two memories. Follows Llumnix (OSDI '24) and its code.

A replica takes part in one migration at a time: copies never wait for each other. If the source dies, its
requests are sent again and the target frees the blocks; if the target dies or is switched off before the last
stage, the request stays.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from kvsim.sim.serving.dispatcher import Dispatcher
from kvsim.sim.serving.link import Way
from kvsim.sim.serving.lives import Run
from kvsim.sim.serving.llumnix import Llumnix
from kvsim.sim.serving.mover import Mover
from kvsim.sim.serving.replica import Replica
from kvsim.sim.serving.request import Request, State
from kvsim.sim.workload import PS_PER_S, Int64Column

STAGES: Final = ("migration_begin_ps", "migration_stop_ps", "migration_end_ps")
"""Times of a request's last migration: it begins, the request stops, its blocks have arrived."""
FINISHED, PREEMPTED = "finished", "preempted"
NO_ROOM, STAGES_SPENT = "no room", "stages"
DIED, DRAINS = "died", "drains"
"""Why a migration was given up: what happened to the request, to the room at the target, or to a replica."""


@dataclass
class Move:
    """One migration.

    Attributes
    ----------
    source, target : int
        Places of the replicas.
    seq : int
        The request's sequence id at the source.
    guest : Request or None
        Holds its blocks at the target.
    copied, stages, last : int
        Blocks copied, or being copied; number of stages; blocks of the last stage.
    begin_ps, stop_ps, end_ps : int
        When it began, when the request stopped, and when its blocks had arrived; 0: never.
    given_up : str
        Why it was given up; empty: it was not.
    asked : bool
        Whether its source is to stop the request at its next boundary.
    undone : bool
        Whether a replica died later with the request, which started over.
    """

    request: Request
    source: int
    target: int
    seq: int
    begin_ps: int
    guest: Request | None = None
    copied: int = 0
    stages: int = 0
    last: int = 0
    stop_ps: int = 0
    end_ps: int = 0
    given_up: str = ""
    asked: bool = False
    undone: bool = False

    def fate(self) -> str:
        """Why it cannot go on, if the request has left the batch of its source; empty: it has not."""
        request = self.request
        if request.state == State.FINISHED:
            return FINISHED
        return "" if request.state == State.DECODE and request.seq == self.seq else PREEMPTED


class Totals(NamedTuple):
    """Totals of a run; bytes are those of all GPUs that have a part of a block."""

    migrations: int
    requests: int
    given_up: dict[str, int]
    copied_bytes: int
    stages: int
    downtime_ps: int
    duration_ps: int


class Migrations:
    """The migrations of a run.

    Parameters
    ----------
    way : Way
        The link between two GPUs.
    block_bytes, gpus : int
        Bytes of a block on each GPU that has a part of it; the number of those GPUs.
    seats : sequence of int
        Most requests that each replica serves at once.

    Attributes
    ----------
    moves : list of Move
        In the order in which they began.
    """

    def __init__(self, policy: Llumnix, way: Way, block_bytes: int, gpus: int, seats: Sequence[int]) -> None:
        self._policy, self._way, self._block_bytes, self._gpus = policy, way, block_bytes, gpus
        self._seats, self._every_ps = seats, round(policy.every * PS_PER_S)
        self.moves: list[Move] = []

    def begin(
        self,
        run: Run,
        replicas: Sequence[Replica],
        dispatcher: Dispatcher,
        draining: Callable[[], Collection[int]],
    ) -> None:
        """Schedule the first look; `draining` says which replicas are, by place."""
        self._run, self._dispatcher, self._draining = run, dispatcher, draining
        self._movers = [Mover(replica) for replica in replicas]
        self._moving = [False] * len(replicas)
        self._later(0, self._every_ps, self._look)

    def _later(self, now_ps: int, after_ps: int, act: Callable[[int], None]) -> None:
        at_ps = now_ps + after_ps
        self._run.later(at_ps, lambda: act(at_ps))

    def _look(self, now_ps: int) -> None:
        if not self._run.goes_on():
            return
        movers = self._movers
        for mover in movers:
            mover.replica.catch_up()
        found = self._policy.pairs(
            self._dispatcher.seen,
            self._moving,
            lambda place: movers[place].preempted_waits,
            self._draining(),
        )
        for source, target in found:
            request = movers[source].candidate()
            if request is not None and self._has_seat(target) and movers[target].can_hold(request):
                move = Move(request, source, target, request.seq, now_ps)
                self.moves.append(move)
                self._moving[source] = self._moving[target] = True
                self._stage(move, now_ps)
        self._later(now_ps, self._every_ps, self._look)

    def _has_seat(self, place: int) -> bool:
        """Whether a replica may serve one more; requests on their way have their seat."""
        server = self._movers[place].server
        return len(server.running) + len(server.batch.moving) < self._seats[place]

    # -- one migration ------------------------------------------------------------------------

    def _stage(self, move: Move, now_ps: int) -> None:
        """Copy what was computed meanwhile, except the last block, which is still being written."""
        if move.given_up:
            return
        source, request = self._movers[move.source], move.request
        source.replica.catch_up()
        spent = STAGES_SPENT if move.stages == self._policy.stages else ""
        fate = move.fate() or self._unreachable(move) or spent
        if fate:
            self._give_up(move, fate)
            return
        move.stages += 1
        left = source.blocks(request) - move.copied
        if left <= self._policy.last:
            move.asked = True
            source.at_boundary(request, lambda: self._stop(move))
        elif self._hold(move, (move.copied + left - 1) * source.server.allocator.block_slots):
            move.copied += left - 1
            self._later(now_ps, self._copy_ps(left - 1), lambda at_ps: self._stage(move, at_ps))
        else:
            self._give_up(move, NO_ROOM)

    def _stop(self, move: Move) -> None:
        """The step is over: the request stops, and the rest is copied."""
        source, request, first = self._movers[move.source], move.request, move.target < move.source
        move.asked = False
        if move.given_up:
            self._moving[move.source] = False
            return
        fate, now_ps = move.fate() or self._unreachable(move), source.server.now_ps
        if fate:
            self._give_up(move, fate, first)
            return
        source.stop(request)
        move.last = source.blocks(request) - move.copied
        if self._hold(move, request.computed, first):
            move.copied += move.last
            move.stop_ps = now_ps
            source.tell_stop(request)
            self._later(now_ps, self._copy_ps(move.last), lambda at_ps: self._end(move, at_ps))
        else:
            source.resume(request, now_ps)
            self._give_up(move, NO_ROOM, first)

    def _end(self, move: Move, now_ps: int) -> None:
        """All its blocks have arrived."""
        if move.given_up:
            return
        source, target, request, guest = (
            self._movers[move.source],
            self._movers[move.target],
            move.request,
            move.guest,
        )
        assert guest is not None
        move.end_ps = now_ps
        source.replica.catch_up()
        source.leave(request)
        source.replica.look_at_next()
        self._run.log.send(request.index, move.target)
        self._dispatcher.moved(request.index, move.source, move.target)
        target.at_boundary(request, lambda: target.enter(request, guest, target.replica.clock_ps))
        self._moving[move.source] = self._moving[move.target] = False

    def _hold(self, move: Move, tokens: int, first: bool = False) -> bool:
        """Allocate at the target; `first`: at this instant the target comes before the source."""
        target = self._movers[move.target]
        target.replica.catch_up(first)
        if move.guest is not None:
            fits = target.hold_more(move.guest, tokens)
        else:
            move.guest = target.hold(move.request, tokens) if self._has_seat(move.target) else None
            fits = move.guest is not None
        if fits:
            target.replica.look_at_next()
        return fits

    def _give_up(self, move: Move, why: str, first: bool = False) -> None:
        move.given_up = why
        self._moving[move.source] = self._moving[move.target] = False
        if move.guest is not None:
            target = self._movers[move.target]
            target.replica.catch_up(first)
            target.let_go(move.guest)
            target.replica.look_at_next()

    def _unreachable(self, move: Move) -> str:
        """Why nothing can go to its target; empty: it gets requests."""
        return "" if self._dispatcher.is_open(move.target) else DRAINS

    # -- replicas that die, or begin anew -----------------------------------------------------

    def follow(self, replica: Replica) -> None:
        """This replica replaces one that died, or was switched off."""
        self._movers[replica.place] = Mover(replica)

    def lose(self, place: int, rows: Collection[int]) -> None:
        """A replica is gone, and these rows start over: its migrations are given up."""
        gone = {*rows}
        for move in self.moves:
            move.undone = move.undone or move.request.index in gone
            if place in (move.source, move.target) and not (move.given_up or move.end_ps):
                move.given_up = DIED
                self._moving[move.target] = False
                if place == move.source:
                    self._lose_source(move)
                else:
                    self._lose_target(move)

    def _lose_source(self, move: Move) -> None:
        self._moving[move.source] = False
        if move.guest is not None:
            target = self._movers[move.target]
            target.replica.catch_up()
            target.let_go(move.guest)
            target.replica.look_at_next()

    def _lose_target(self, move: Move) -> None:
        """The request goes on at the source, from the next boundary on if it has stopped."""
        source, request = self._movers[move.source], move.request

        def stay() -> None:
            source.resume(request, source.replica.clock_ps)
            self._moving[move.source] = False

        if move.stop_ps:
            source.at_boundary(request, stay)
        elif not move.asked:
            self._moving[move.source] = False

    def left_ps(self, replica: Replica) -> int:
        """When the last request left a replica for another; 0: never."""
        return max((move.end_ps for move in self.moves if move.source == replica.place), default=0)

    def _copy_ps(self, blocks: int) -> int:
        return self._way.duration_ps(blocks, blocks * self._block_bytes)

    # -- the end ------------------------------------------------------------------------------

    def stages(self, rows: int) -> dict[str, Int64Column]:
        """Per request, the times of its last migration; 0: there was none."""
        found = {name: np.zeros(rows, np.int64) for name in STAGES}
        for move in self.moves:
            if move.end_ps and not move.undone:
                times = move.begin_ps, move.stop_ps, move.end_ps
                for name, at_ps in zip(STAGES, times, strict=True):
                    found[name][move.request.index] = at_ps
        return found

    def totals(self) -> Totals:
        """Totals of the run; bytes include migrations that were given up."""
        done = [move for move in self.moves if not move.given_up]
        reasons = [move.given_up for move in self.moves if move.given_up]
        copied = sum(move.copied for move in self.moves)
        return Totals(
            migrations=len(done),
            requests=len({move.request.index for move in done}),
            given_up={why: reasons.count(why) for why in sorted(set(reasons))},
            copied_bytes=copied * self._block_bytes * self._gpus,
            stages=sum(move.stages for move in done),
            downtime_ps=sum(move.end_ps - move.stop_ps for move in done),
            duration_ps=sum(move.end_ps - move.begin_ps for move in done),
        )
