"""Sequences with drafts by the clock: while they decode regularly, none is visited individually.

    accepted    a sequence's draws are known, so is what each step adds to it: 3, 1, 4, 2, ... to its end
    scheduled   per step 1 + K tokens of each, if the budget has them and none is near the longest sequence
    grown       a table takes a block when tokens, drafts and lookahead need it: also known at its begin

All of this is in calendars: a step looks up which sequences grow in it and which end. Let T be the tokens of
a sequence before a step. What its scheduler knows when the step is decided:

    synchronous   C = T - 1, then T + K                          room for T + K + lookahead
    asynchronous  C = T' + K of the previous step, then T + K    room for T' + 2 K + 1 + lookahead

Anything else is irregular: prompts and requests behind them, short memory, another K. The regular sequences
are the first in order of admission; if that does not hold, or one of them must be visited, all are `settled`:
their records are brought up to date, and drafts.py serves them one by one.
"""

from mypy_extensions import i64

from kvsim.allocators.records import InvariantError
from kvsim.sim.serving.acceptance import Acceptance
from kvsim.sim.serving.courses import Course, Ruled
from kvsim.sim.serving.draft_batch import Drafted, Run
from kvsim.sim.serving.draft_records import DraftRules, Seen, Taken
from kvsim.sim.serving.growth import MANY, SOON_PS, Grown
from kvsim.sim.serving.memory import KvMemory
from kvsim.sim.serving.progress import NEVER
from kvsim.sim.serving.request import Request
from kvsim.sim.serving.server import Server
from kvsim.sim.serving.steps import Limits

RESTS = 4
"""Steps without runs after the memory was short."""


def counts_blocks(memory: KvMemory) -> bool:
    """Whether growth of sequences is just a matter of counting blocks."""
    allocator = memory.allocator
    return (
        allocator.growth_unit > 0
        and allocator.growth_slots == allocator.growth_unit * allocator.slots_per_token
        and not (allocator.windows or memory.abilities.after_steps or allocator.reserves)
    )


class Regular:
    """The calendars of the sequences that decode regularly.

    Attributes
    ----------
    runs : dict of Run
        These sequences: the runs of the progress.
    drafts, most_runs : int
        K, the same for all of them; how many a step has room for, including those that have ended.
    ended : list of Run
        Those that have their last token, which their scheduler does not know yet.
    vain : int
        How many of those the step computes once more.
    """

    def __init__(
        self,
        server: Server,
        progress: Drafted,
        rules: DraftRules,
        limits: Limits,
        acceptance: Acceptance,
    ) -> None:
        self._server, self._progress, self._late = server, progress, server.rules.known_late
        self._rules, self._limits, self._acceptance = rules, limits, acceptance
        self.runs, self.drafts, self.most_runs = progress.runs, -1, 0
        self._spare: dict[int, list[tuple[Request, int]]] = {}  # by clock: slots that stay unused from then
        self.ended: list[Run] = []
        self.vain = 0
        self._until = NEVER  # the clock from which one of them is near the longest sequence
        self._resting = 0  # steps without runs that are left

    @classmethod
    def may_serve(cls, server: Server, rules: DraftRules, acceptance: Acceptance) -> bool:
        """Whether draws, growth and the victim of a preemption (the last request) can be foreseen."""
        allocator, abilities = server.allocator, server.memory.abilities
        finds_early = not allocator.caches or rules.hash_lookahead > 0 or rules.kept_back <= 1
        return (
            acceptance.steady
            and counts_blocks(server.memory)
            and allocator.slots_per_token == 1
            and rules.most < allocator.growth_unit
            and not abilities.external_slots
            and server.rules.policy != "priority"
            and finds_early
        )

    # -- in and out ---------------------------------------------------------------------------

    def take_in(self, others: list[Request], told: dict[Request, Seen], proposed: int) -> list[Request]:
        """Take in `others` in order of admission, up to the first that is not regular; returns the rest."""
        if self._resting:
            self._resting -= 1
            return others
        if not self.runs and proposed != self.drafts:
            self.drafts, self.most_runs = proposed, self._most_of(proposed)
        regular: list[tuple[Request, int]] = []
        for request in others:
            seen = told[request]
            if not request.is_decoding or not self._is_regular(request, seen):
                break
            regular.append((request, seen.events))
        if not regular:
            return others
        drafts, unit = self.drafts, self._server.allocator.growth_unit
        beyond = drafts + self._rules.lookahead + self._late * (drafts + 1)
        courses = self._acceptance.ahead(regular, Ruled(drafts, unit, beyond))
        if len(courses) != len(regular):
            raise InvariantError(f"{len(regular)} requests were foreseen, and {len(courses)} courses came")
        for at, course in enumerate(courses):  # the requests taken in are the first ones
            request = others[at]
            self._begin(request, told[request], course)
        return others[len(courses) :]

    @property
    def _near(self) -> int:
        """From so many tokens on, a sequence is near the longest."""
        return self._limits.longest - 2 * (self.drafts + 1) - self._rules.lookahead

    def _is_regular(self, request: Request, seen: Seen) -> bool:
        """Whether a sequence decodes regularly from the step being decided on."""
        drafts = self.drafts
        return (
            seen.drafts == drafts
            and seen.valid == drafts
            and seen.computed == seen.tokens + seen.placeholders - 1
            and not seen.in_prompt
            and request.open_stream is None
            and request.base < self._near
            and not seen.capacity % self._server.allocator.growth_unit
        )

    def _begin(self, request: Request, seen: Seen, course: Course) -> None:
        """A sequence decodes by the clock, from the step being decided on."""
        certain = seen.computed + 2 - max(seen.placeholders - 1, 0)
        run, progress = Run(request, course, certain), self._progress
        if request.final_tokens >= (near := self._near):
            self._until = min(self._until, progress.clock + int(course.after().searchsorted(near)) + 1)
        progress.start(run)
        self._plan_growth(run, seen)

    def _plan_growth(self, run: Run, seen: Seen) -> None:
        """Note when its table takes blocks, up to its last step; if late, that one is in vain."""
        request, progress, unit = run.request, self._progress, self._server.allocator.growth_unit
        steps, earlier = run.steps, int(self._late)
        seq, final, clock, capacity = request.seq, request.final_tokens, progress.clock, seen.capacity
        last = (steps if earlier and run.last_known < final else steps - 1) - earlier
        if seen.computed + 1 + self.drafts + self._rules.lookahead > capacity:
            progress.add_due(clock, seq)
            capacity += unit
            if capacity > final and steps:
                self._spare.setdefault(clock, []).append((request, capacity - final))
        due, course, clock = progress.due, run.course, clock + earlier
        sooner, begin = capacity // unit - course.filled - 1, course.first
        places = course.fills[sooner:] if sooner >= 0 else [begin] * -sooner + course.fills
        while places and places[-1] - begin > last:
            places.pop()
        first = clock - progress.first - begin
        for place in places:
            who = due[first + place]
            if who is None:
                due[first + place] = [seq]
            else:
                who.append(seq)
        left = max((final - capacity) // unit, 0)  # the first growth that leaves a spare slot
        for growths, place in enumerate(places[left:], left + 1):
            if place - begin + earlier < steps:
                spare = request, capacity + growths * unit - final
                self._spare.setdefault(clock + place - begin, []).append(spare)

    def end(self, seq: int) -> None:
        """A sequence has its last token, but its scheduler does not know it yet."""
        run = self.runs.pop(seq, None)
        if run is not None:
            self._count(run, run.steps)
            self.ended.append(run)

    def settle(self, told: dict[Request, Seen], proposed: int) -> list[Taken]:
        """No sequence decodes by the clock any more: returns what the scheduler has not heard of yet."""
        clock, ended, found = self._progress.clock, self.ended, []
        self.ended = []
        for run in [*ended, *self._progress.stop()]:
            step, seen = clock - run.since, told[run.request]
            if not step:
                continue
            if run.request.is_decoding:
                self._count(run, step)
            self._write_back(run, seen, step, proposed)
            found.append(self._last(run, seen, step))
            if not self._late:
                seen.computed, seen.in_flight = run.stored(step), 0
                seen.tokens = seen.computed + 1
        self._spare.clear()
        self._until, self.vain = NEVER, 0
        return found

    def _count(self, run: Run, steps: int) -> None:
        """Count the drafts of the first `steps` steps of a sequence."""
        totals = self._server.totals.drafts
        if self.drafts and totals is not None:
            accepted = run.stored(steps) - run.stored(0) - steps
            if steps == run.steps:
                accepted += run.course.over
            totals.count(run.request.index, self.drafts * steps, accepted, steps)

    def _write_back(self, run: Run, seen: Seen, steps: int, proposed: int) -> None:
        """Write what its scheduler knows after `steps` steps, the last of which it has not heard of."""
        drafts = self.drafts
        seen.tokens = run.known(steps - 1)
        seen.computed, seen.in_flight = seen.tokens + drafts, drafts + 1
        seen.placeholders = drafts + 1 if self._late else 0
        seen.drafts = seen.valid = proposed
        seen.events += steps
        seen.capacity = self._server.allocator.capacity(run.request.seq)

    def _last(self, run: Run, seen: Seen, steps: int) -> Taken:
        """What the last of `steps` steps computed, and gave."""
        taken = Taken(run.request, seen, self.drafts + 1, self.drafts)
        taken.returned = run.given(steps - 1)
        taken.accepted, taken.kept = taken.returned - 1, run.stored(steps) - run.stored(steps - 1)
        return taken

    # -- a step -------------------------------------------------------------------------------

    def fits(self, others: int, drafts: int) -> bool:
        """Whether the budgets allow `drafts` drafts for all regular sequences and `others` more."""
        most = self.most_runs if drafts == self.drafts else self._most_of(drafts)
        return len(self.runs) + len(self.ended) + others <= most

    def _most_of(self, drafts: int) -> int:
        """How many sequences with `drafts` drafts each fit in the budgets."""
        limits, each = self._limits, drafts + 1
        if limits.threshold and each > limits.threshold:
            return 0
        return limits.budget // (each + self._rules.slots)

    def grow(self) -> bool:
        """Give blocks to the sequences that need any in the step being decided; False: not possible."""
        clock, progress, allocator = self._progress.clock, self._progress, self._server.allocator
        if clock >= self._until:
            return False
        if (who := progress.due[clock - progress.first]) is not None:
            if len(who) > allocator.growth_budget():
                self._resting = RESTS
                return False
            progress.due[clock - progress.first] = None
            allocator.grow_many(who)
            if clock in self._spare:
                self._leave_spare(clock)
        self.vain = 0
        if self.ended:
            self.vain = sum([run.last_known < run.request.final_tokens for run in self.ended])
        return True

    def _leave_spare(self, clock: int) -> int:
        """Some have slots from this clock on that they will never write: returns how many more."""
        memory, before = self._server.memory, self._server.memory.internal
        for request, slots in self._spare.pop(clock):
            memory.set_internal(request, slots)
        return memory.internal - before

    def all_end(self, clock: int) -> bool:
        """Whether it is certain that all have their last token after the step at that clock."""
        progress = self._progress
        if progress.next_finish > clock + 1 or len(progress.ending(clock + 1)) < len(self.runs):
            return False
        certain = [(run, self._certain(run, clock - run.since)) for run in self.runs.values()]
        certain += [(run, run.last_known + 2) for run in self.ended]
        return all(tokens > run.request.final_tokens for run, tokens in certain)

    def _certain(self, run: Run, step: int) -> int:
        """Tokens of a sequence after a step, even if all drafts with unknown outcome are rejected."""
        if not step:
            return run.certain
        return run.known(step - 1) + 2 if self._late else run.known(step) + 1

    # -- many steps at a time -----------------------------------------------------------------

    def foresee(self, at_most: int) -> int:
        """See `Ahead`; only if all sequences are regular."""
        clock = self._progress.clock
        finish = self._progress.next_finish
        steps = (finish if finish < self._until else self._until) - clock
        if steps > at_most:
            steps = at_most
        if steps == 1:
            return 1
        if clock + steps == finish and len(self._progress.ending(finish)) == len(self.runs):
            steps -= self.all_end(finish - 1)  # nothing is proposed after the last step of all
        if steps > 1:
            allocator = self._server.allocator
            budget = allocator.growth_budget()
            if len(self.runs) * ((steps - 1) * (self.drafts + 1) // allocator.growth_unit + 1) > budget:
                progress = self._progress
                for step in range(1, steps):
                    budget -= len(progress.due[clock - progress.first + step] or ())
                    if budget < 0:
                        return step
        return steps

    def carry_out(self, ends: list[int]) -> Grown:
        """See `Ahead`."""
        progress, spare, allocator = self._progress, self._spare, self._server.allocator
        grown: list[int] = []
        lefts: list[tuple[int, int]] | None = [] if allocator.cached_slots else None  # who grow, time left
        due, at, internal, total = progress.due, self._progress.clock - progress.first, 0, ends[-1]
        long = total > SOON_PS or len(self.runs) * len(ends) * allocator.growth_unit > MANY
        long_before = 0  # sum over growths of the time before them, in 64 bits if that is enough
        before: i64 = 0
        count: i64 = 0
        start: i64 = 0
        for end in ends[:-1]:
            at += 1
            who = due[at]
            if who is None:
                continue
            due[at] = None
            grown += who
            if long:
                long_before += len(who) * end
            else:
                count = len(who)
                start = end
                before += count * start
            if lefts is not None:
                lefts.append((len(who), total - end))
            if spare and at + progress.first in spare:
                internal += self._leave_spare(at + progress.first) * (total - end)
        if not grown:
            return 0, 0, 0, None, 0, 0
        allocator.grow_many(grown)
        evicted = 0
        if lefts and allocator.evicted_by:
            each = [left for many, left in lefts for _ in range(many)]
            evicted = sum([each[index] for index in allocator.evicted_by]) * allocator.growth_unit
        if long:
            return (len(grown) * total - long_before) * allocator.growth_unit, internal, evicted, None, 0, 0
        count = len(grown)
        span: i64 = total
        unit: i64 = allocator.growth_unit
        return (count * span - before) * unit, internal, evicted, None, 0, 0
