"""The batch and the memory of a server that speculates: steps give sequences different numbers of tokens.

    stored    tokens of a sequence that were verified when the step began
    tokens    the same plus what the step adds: the drafts that it accepts, and one more

For a sequence that decodes *regularly*, all steps to its last token are foreseen: it has a `Run`, and what a
step adds to all runs is one sum, so that the cost of a step does not depend on how many there are. What it
adds to any other sequence is given step by step (`will_add`). The growth calendar does not know the room that
they take; drafts.py and draft_clock.py do. The code that knows which tokens are verified publishes text.
"""

from array import array
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import ClassVar, Final, Protocol

import numpy as np
from mypy_extensions import mypyc_attr

from kvsim.sim.serving.batch import Batch
from kvsim.sim.serving.courses import Course
from kvsim.sim.serving.decision import Decision
from kvsim.sim.serving.growth import Grown
from kvsim.sim.serving.memory import KvMemory
from kvsim.sim.serving.progress import NEVER, Progress
from kvsim.sim.serving.request import Request, State

STEPS_AHEAD: Final = 1 << 12
"""Fewest steps for which sums are kept."""


class Run:
    """A sequence whose steps are foreseen.

    Attributes
    ----------
    since, steps : int
        The clock of its first step; the number of steps.
    course : Course
        What these steps give.
    certain : int
        Fewest tokens that it has after its first step, as far as its scheduler knows.
    last_known : int
        Tokens that it is known to have before its last step.
    """

    __slots__ = ("certain", "course", "last_known", "request", "since", "steps")

    def __init__(self, request: Request, course: Course, certain: int) -> None:
        self.request, self.course, self.certain = request, course, certain
        self.since, self.steps = 0, course.steps
        self.last_known = course.before_last + 1

    def stored(self, step: int) -> int:
        """Tokens that are stored before this step of it; after the last, all."""
        return self.course.stored(step)

    def known(self, step: int) -> int:
        """`stored` plus the newest token, whose keys and values are not computed yet."""
        return self.course.stored(step) + 1

    def given(self, step: int) -> int:
        """Accepted drafts of a step, plus one; in the last step the answer may end before them."""
        given = self.course.stored(step + 1) - self.course.stored(step)
        return given + self.course.over if step == self.steps - 1 else given


@mypyc_attr(allow_interpreted_subclasses=True)
class Drafted(Progress):
    """A step adds as many tokens as drafts are right, plus one.

    Attributes
    ----------
    runs : dict of Run
        By sequence id, in order of admission: sequences that decode regularly.
    due : list of lists of int, or None
        By the clock, less `first`: those of them whose tables take a block in the step, in order.
    """

    linear: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.runs: dict[int, Run] = {}
        self._ending: dict[int, list[Run]] = {}  # by the clock at which they have their last token
        self._ends: list[int] = []  # these clocks, as a heap
        self.first = 0  # the clock of the first sum
        self.due: list[list[int] | None] = [None] * STEPS_AHEAD
        self._sums = array("q", bytes(8 * STEPS_AHEAD))  # by clock: tokens of all runs in the step
        self._view = np.frombuffer(self._sums, np.int64)
        self._runs_stored = 0  # the runs' part of `_base_sum`
        self._adds: dict[int, int] = {}  # by sequence: tokens of the others in the step being decided
        self._added = 0
        self._done: list[Request] = []  # the others that have their last token

    # -- foreseen sequences -------------------------------------------------------------------

    def start(self, run: Run) -> None:
        """A sequence decodes as foreseen, from the step being decided on."""
        run.since = clock = self.clock
        steps = run.steps
        if clock - self.first + steps >= len(self._sums):
            self._look_further(steps)
        at = clock - self.first
        sums = self._view[at : at + steps]
        sums += run.course.after()
        self._runs_stored += run.request.base
        self.runs[run.request.seq] = run
        finish = clock + steps
        if finish in self._ending:
            self._ending[finish].append(run)
        else:
            self._ending[finish] = [run]
            heappush(self._ends, finish)
            if finish < self.next_finish:
                self.next_finish = finish

    def stop(self) -> list[Run]:
        """Nothing is foreseen any more: returns all runs, with the sequences' tokens written back."""
        runs, clock = list(self.runs.values()), self.clock
        for run in runs:
            run.request.base = run.stored(clock - run.since)
        self._runs_stored = 0
        self.runs.clear()
        self._ending.clear()
        self._ends.clear()
        self._view[clock - self.first :] = 0
        self.due[clock - self.first :] = [None] * (len(self.due) - (clock - self.first))
        self.next_finish = NEVER
        return runs

    def ending(self, clock: int) -> list[Run]:
        """Runs that have their last token at this clock."""
        return self._ending.get(clock, [])

    def _look_further(self, steps: int) -> None:
        """Keep sums of at least `steps` steps from now on."""
        left, due = self._sums[self.clock - self.first :], self.due[self.clock - self.first :]
        self.first, more = self.clock, max(steps + 1 - len(left), STEPS_AHEAD)
        self._sums = left + array("q", bytes(8 * more))
        self.due = due + [None] * more
        self._view = np.frombuffer(self._sums, np.int64)

    def add_due(self, clock: int, seq: int) -> None:
        """The table of a sequence that has started takes a block in the step at `clock`."""
        at = clock - self.first
        who = self.due[at]
        if who is None:
            self.due[at] = [seq]
        else:
            who.append(seq)

    # -- other sequences ----------------------------------------------------------------------

    def will_add(self, adds: dict[int, int], ends: bool) -> None:
        """The step being decided adds these tokens to each; `ends`: some sequence gets its last."""
        self._adds, self._added = adds, sum(adds.values())
        if ends:
            self.next_finish = self.clock + 1

    # -- tokens -------------------------------------------------------------------------------

    def stored(self, request: Request) -> int:
        run = self.runs.get(request.seq)
        return request.base if run is None else run.stored(self.clock - run.since)

    def tokens(self, request: Request) -> int:
        run = self.runs.get(request.seq)
        if run is None:
            return request.base + self._adds.get(request.seq, 0)
        return run.stored(self.clock - run.since + 1)

    def contexts(self) -> int:
        return self._base_sum - self._runs_stored + self._added + self._sums[self.clock - self.first]

    def contexts_later(self, steps: int) -> int:
        return self.contexts_ahead(steps + 1)[steps]

    def contexts_ahead(self, steps: int) -> list[int]:
        at, others = self.clock - self.first, self._base_sum - self._runs_stored + self._added
        of_runs = self._sums[at : at + steps].tolist()
        return [others + tokens for tokens in of_runs] if others else of_runs

    def all_stored(self) -> int:
        return self._base_sum

    def generated(self, request: Request) -> int:
        return self.stored(request) - request.prompt_tokens + 1

    def growth_clock(self, request: Request, capacity: int) -> int:
        return NEVER

    def added(self, steps: int) -> int:
        return self._sums[self.clock - self.first + steps - 1] - self._runs_stored + self._added

    # -- in and out ---------------------------------------------------------------------------

    def _begin(self, request: Request) -> None:
        request.base, request.finish_clock = request.computed, NEVER  # its end is known elsewhere

    def leave(self, request: Request) -> None:
        super().leave(request)
        self._added -= self._adds.pop(request.seq, 0)

    def advance(self, steps: int, now_ps: int) -> None:
        at = self.clock - self.first
        stored = self._sums[at + steps - 1]
        self._base_sum += self._added + stored - self._runs_stored
        self._runs_stored = stored
        if self._adds:
            members = self._members
            for seq, tokens in self._adds.items():
                request = members[seq]
                request.base += tokens
                if request.base >= request.final_tokens:
                    self._done.append(request)
            self._adds, self._added = {}, 0
        super().advance(steps, now_ps)
        if at + steps >= len(self._sums):
            self._look_further(0)

    def finished(self) -> list[Request]:
        done, self._done = self._done, []
        ends = self._ends
        if ends and ends[0] == self.clock:
            for run in self._ending.pop(heappop(ends)):
                run.request.base = run.request.final_tokens
                self._runs_stored -= run.request.final_tokens
                done.append(run.request)
        for request in done:
            request.generated = request.output_tokens
            request.computed = request.final_tokens
            self._remove(request)
        if len(done) > 1:
            done.sort(key=lambda request: request.seq)
        self.next_finish = ends[0] if ends else NEVER
        return done

    def authors(self, stream: int) -> Sequence[Request]:
        """None: verified text is published step by step."""
        return ()


class Ahead(Protocol):
    """Knows the steps after the one being decided."""

    def foresee(self, at_most: int) -> int:
        """How many steps, including this one, are like it; changes nothing."""

    def carry_out(self, ends: list[int]) -> Grown:
        """Like `Batch.grow_within`: `len(ends)` of them are over."""


@mypyc_attr(allow_interpreted_subclasses=True)
class DraftBatch(Batch):
    """The batch of a server that speculates; `drafted` is its progress."""

    may_work_in_spans: bool = False

    def __init__(self, memory: KvMemory) -> None:
        self.drafted = Drafted()
        self.ahead: Ahead | None = None
        self.settle: Callable[[], None] | None = None
        super().__init__(memory, self.drafted)

    def join(self, request: Request, now_ps: int) -> None:
        request.move(State.DECODE)
        self.memory.prefill_held -= request.computed
        self.progress.join(request, now_ps)

    def leave(self, request: Request) -> None:
        self.progress.leave(request)

    def guaranteed_steps(
        self, at_most: int, keeping_cached: bool = False, anybody_waits: bool = False
    ) -> int:
        return 1 if self.ahead is None else self.ahead.foresee(at_most)

    def grow_within(self, ends: list[int]) -> Grown:
        return (0, 0, 0, None, 0, 0) if self.ahead is None else self.ahead.carry_out(ends)

    def close(self) -> None:
        if self.settle is not None:
            self.settle()


@mypyc_attr(allow_interpreted_subclasses=True)
class VerifiedMemory(KvMemory):
    """A memory in which only blocks that its owner has named can be found."""

    def publish(self, request: Request, step: Decision) -> None:
        """Does nothing: blocks are published when their tokens are verified."""

    def free(self, request: Request, comes_back: bool = False, unknown: int = 0) -> None:
        if comes_back:
            self.allocator.evict(request.seq)
        else:
            self.allocator.release(request.seq)
        self.internal -= request.internal
        request.internal = 0
