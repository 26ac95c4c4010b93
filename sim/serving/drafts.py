"""Speculative decoding as in vLLM V1: a token and its drafts for each that decodes, in order of admission.

    held        S drafts were proposed for a sequence of n tokens, of which C = n - 1 are computed
    scheduled   1 + S tokens of the step's budget; room for the proposals behind them, too
    verified    a of them are right: a + 1 tokens more, C goes back by S - a; the blocks stay

With asynchronous scheduling a step is decided before it is known what the one before accepted: C counts all
of its drafts, and as many placeholders stand for its tokens. Who has finished meanwhile may be computed once
more, in vain; near the longest sequence there may be no room for what is not known to be rejected, and no
token.

What an engine knows of a request therefore stands apart from what is true of it: `Seen` is the engine's view,
`Request` and the progress of its batch hold what is true. The rules are those of 0.33.0, as recorded.
"""

from typing import NamedTuple

from mypy_extensions import mypyc_attr

from kvsim.sim.serving.acceptance import Acceptance
from kvsim.sim.serving.batch import Within
from kvsim.sim.serving.draft_batch import DraftBatch
from kvsim.sim.serving.draft_spans import (
    HORIZON,
    Need,
    Run,
    foreseen,
    grow,
    known_after,
    may_span,
    steps_with_room,
    tokens_in,
)
from kvsim.sim.serving.request import Request, State
from kvsim.sim.serving.server import Server
from kvsim.sim.serving.steps import Limits, Steps
from kvsim.sim.serving.totals import DraftTotals


class DraftRules(NamedTuple):
    """What the proposer asks of the scheduler.

    Attributes
    ----------
    most : int
        Drafts proposed at a time.
    lookahead : int
        Slots for the proposals behind a step's tokens.
    kept_back : int
        Known tokens that a piece of a prompt leaves, at least, unless it is the last.
    hash_lookahead : int
        Tokens behind a block that its hash covers.
    slots : int
        Of the budget, what a separate draft model takes for each request.
    to_the_end : bool
        Whether it proposes nothing beyond the longest sequence.
    by_batch : tuple of int
        Drafts proposed at a time, by the number of requests in a step; empty: always `most`.
    """

    most: int
    lookahead: int = 0
    kept_back: int = 0
    hash_lookahead: int = 0
    slots: int = 0
    to_the_end: bool = False
    by_batch: tuple[int, ...] = ()


class Seen:
    """A request as its scheduler sees it.

    Attributes
    ----------
    tokens, computed, drafts : int
        Known; computed, drafts that are not verified included; proposals that it holds.
    placeholders, in_flight : int
        Tokens that a step under way will give, at most; those it computes.
    in_prompt : bool
        Whether its last step left some of the prompt.
    capacity, published : int
        Tokens for which its table has room; of them, those that were said to be found.
    events, valid : int
        Steps that gave it tokens; drafts that were proposed in the last of them.
    """

    __slots__ = (
        "capacity",
        "computed",
        "drafts",
        "events",
        "in_flight",
        "in_prompt",
        "placeholders",
        "published",
        "tokens",
        "valid",
    )

    def __init__(self) -> None:
        self.tokens = self.computed = self.drafts = 0
        self.placeholders = self.in_flight = 0
        self.in_prompt = False
        self.events = self.valid = self.capacity = self.published = 0


class Taken:
    """What a step computes of one request, and what comes of it.

    Attributes
    ----------
    start, tokens, drafts : int
        Tokens computed before, as far as the engine knows; scheduled; drafts among them.
    ends : bool
        Whether it gives the last token even if all drafts are rejected.
    accepted, returned, kept : int
        Drafts that are right; tokens that it gives; those of them before the end of the answer.
    """

    __slots__ = (
        "accepted",
        "drafts",
        "ends",
        "in_prompt",
        "kept",
        "padded",
        "request",
        "returned",
        "seen",
        "seq",
        "start",
        "tokens",
    )

    def __init__(self, request: Request, seen: Seen, tokens: int, drafts: int, padded: bool = False) -> None:
        self.request, self.seen, self.seq = request, seen, request.seq
        self.start, self.tokens, self.drafts, self.padded = seen.computed, tokens, drafts, padded
        self.accepted = self.returned = self.kept = 0
        certain, placeholders = seen.computed + tokens - drafts + 1, seen.placeholders
        if placeholders > 1:
            certain -= placeholders - 1
        self.ends, self.in_prompt = certain > request.final_tokens, False


@mypyc_attr(allow_interpreted_subclasses=True)
class Drafts(Steps):
    """Decides the steps of a server that speculates.

    Attributes
    ----------
    seen : dict
        The engine's view of each request that came so far and has not finished, as far as it knows.
    taken : list of Taken
        What the step decided last computes, in the order of admission.
    proposed : int
        Drafts proposed behind that step, at most.
    """

    def __init__(
        self, server: Server, batch: DraftBatch, rules: DraftRules, limits: Limits, acceptance: Acceptance
    ) -> None:
        super().__init__(server)
        self.batch, self.progress = batch, batch.drafted
        self.ends_steps = True
        self.rules, self.limits, self.acceptance = rules, limits, acceptance
        self.seen: dict[Request, Seen] = {}
        self.taken: list[Taken] = []
        self.proposed = rules.most
        self.passed_over: dict[int, Request] = {}
        self._late = server.rules.known_late
        self.progress.most_added = rules.most + 1
        self.totals = server.totals.drafts = DraftTotals()
        self._budget = self._input = 0
        self._runs: list[Run] = []
        self._need = Need(0, 0)
        self._horizon = HORIZON
        allocator = server.allocator
        self._caches, self._counts = allocator.caches, may_span(allocator)
        self._block = allocator.growth_unit if self._counts else 1
        self._late_hashes = max(rules.kept_back - 1, 0)  # of what is computed, the last tokens
        if acceptance.steady and may_span(server.allocator):
            batch.ahead = self

    # -- deciding -----------------------------------------------------------------------------

    def decide(self) -> None:
        """Serve those that run, then the queue; with asynchronous scheduling, hear of the step before."""
        server = self.server
        before, self.taken = self.taken, []
        self._budget = self._input = self.limits.budget
        self._run_on()
        continued = len(self.taken)
        if not server.step.preemptions:
            self._admit()
        self._compute(continued)
        server.step.changed = not self._is_steady(continued)
        if self._late:
            self._hear(before)
            if not (self.progress.size or server.step.chunks):
                server.step.spent = len(server.running) > len(self.batch.departed)
            self._leave()

    def end_step(self) -> None:
        """A step is over: without asynchronous scheduling, all of it is known before the next is decided."""
        if not self._late:
            self._hear(self.taken)
            for taken in self.taken:
                if not taken.in_prompt:
                    taken.seen.drafts = taken.seen.valid
            self._leave()

    @property
    def skips_drafts(self) -> bool:
        """Whether nobody in the step gets a token that is not his last: then nothing is proposed."""
        return bool(self.taken) and all(taken.in_prompt or taken.ends for taken in self.taken)

    def finish(self, request: Request) -> None:
        """A request has its last token, as its engine does not know yet."""
        self.batch.departed[request.seq] = request

    def _leave(self) -> None:
        """Those go of whom it is known now that they have finished, in the order of admission."""
        departed = self.batch.departed
        if departed:
            last = list(departed.items())
            departed.clear()
            departed.update(sorted(last, key=lambda each: each[0]))
            self.server.release_departed()

    def _most(self) -> int:
        """Tokens that a request may take of the budgets."""
        return min(self._budget, self._input - self.rules.slots)

    def _share(self) -> int:
        """Tokens that one request may have of a step."""
        server, threshold = self.server, self.limits.threshold
        several = len(server.running) + len(server.waiting) > 1
        return threshold if threshold and several else self.limits.budget

    def _keep_back(self, left: int, tokens: int) -> int:
        """Of `left` known tokens, as many as may be computed now, of `tokens` at most."""
        kept_back = self.rules.kept_back
        return max(left - kept_back, 0) if 0 < left - tokens < kept_back else tokens

    def _run_on(self) -> None:
        longest, slots, lookahead = self.limits.longest, self.rules.slots, self.rules.lookahead
        alive, told, counts, share = self.server.running, self.seen, self._counts, self._share()
        running = list(alive.values())
        for request in running:
            most = min(self._budget, self._input - slots, share)
            if most <= 0:
                return
            if request.seq not in alive:
                continue
            seen = told[request]
            unknown, computed = seen.placeholders, seen.computed
            if unknown and computed + 2 - unknown > request.final_tokens:
                continue  # its last token is under way even if all drafts are rejected
            left = seen.tokens - computed
            tokens = left + seen.drafts + unknown
            if tokens > most:
                tokens = most
            if tokens >= longest - computed:
                tokens = longest - computed - 1
            if left > tokens:
                tokens = self._keep_back(left, tokens)
            if tokens < 1:
                continue
            room = computed + tokens + lookahead
            if room > longest:
                room = longest
            if (room > seen.capacity or not counts) and not self._make_room(request, seen, room, running):
                return
            drafts = tokens - left - unknown
            if drafts > seen.drafts:
                drafts = seen.drafts
            seen.drafts = 0
            self._take(Taken(request, seen, tokens, drafts if drafts > 0 else 0))

    def _make_room(self, request: Request, seen: Seen, room: int, running: list[Request]) -> bool:
        """Grow a table, at the cost of others; False: its own."""
        server, preempted = self.server, self.server.step.preemptions
        found = server.make_room(request, room, None if request.state is State.DECODE else request.computed)
        if server.step.preemptions != preempted:
            self._forget_preempted(running)
        if found:
            seen.capacity = server.allocator.capacity(request.seq)
            if request.state is State.DECODE or request.seq in self.passed_over:
                surplus = server.allocator.surplus(request.seq, request.final_tokens)
                if surplus > 0 or request.internal:
                    server.memory.set_internal(request, max(0, surplus))
        return found

    def _take(self, taken: Taken) -> None:
        self.taken.append(taken)
        self._budget -= taken.tokens
        self._input -= taken.tokens + self.rules.slots
        if self._caches:
            self._publish(taken, taken.start + taken.tokens)

    def _publish(self, taken: Taken, computed: int) -> None:
        """Let those blocks be found whose tokens are verified, as are those behind that their hash covers."""
        seen = taken.seen
        tokens = seen.tokens
        full = (tokens if computed > tokens else computed) - self._late_hashes
        if full > tokens - self.rules.hash_lookahead:
            full = tokens - self.rules.hash_lookahead
        if full >= seen.published:
            seen.published = full - full % self._block + self._block
            prefixes = self.server.memory.prefixes
            if prefixes is not None:
                prefixes.fill(taken.seq, full)

    def _forget_preempted(self, before: list[Request]) -> None:
        """Some of those who ran before were preempted: what was scheduled for them is given back."""
        running = self.server.running
        for request in before:
            if request.seq not in running:
                seen = self.seen[request]
                seen.computed = seen.drafts = seen.placeholders = 0
        gone = [taken for taken in self.taken if taken.seq not in running]
        for taken in gone:
            self.taken.remove(taken)
            self._budget += taken.tokens
            self._input += taken.tokens + self.rules.slots

    # -- admitting ----------------------------------------------------------------------------

    def _admit(self) -> None:
        server, limits, waiting = self.server, self.limits, self.server.waiting
        kept: list[Request] = []
        share = self._share()
        ran = bool(self.taken)
        pads = self.rules.most > 0 and not self.rules.by_batch
        pads = pads and not any(taken.seen.in_prompt for taken in self.taken)
        while waiting and self._most() > 0 and len(server.running) < limits.seats:
            request = waiting[0]
            match = server.match_head()
            hits, known, most = match.tokens if match else 0, request.known_tokens, self._most()
            left = tokens = known - hits
            tokens = min(tokens, share)
            padded = pads and left == 1 and (ran or hits > 0) and hits + self.rules.most + 2 <= limits.longest
            if padded:
                tokens += self.rules.most
            if tokens > most:
                if padded or not limits.in_pieces:
                    break
                tokens = most
            if not padded:
                tokens = self._keep_back(left, tokens)
            if tokens < 1:
                kept.append(waiting.popleft())
                continue
            room = min(hits + tokens + self.rules.lookahead, limits.longest)
            if limits.whole_prompt and not server.head_fits(known, match):
                break
            if limits.watermark and not (
                (not limits.whole_prompt or server.head_leaves(known, match, limits.watermark))
                and server.head_leaves(room, match, limits.watermark)
            ):
                break
            if not server.admit_head(room, match, left if padded else tokens):
                break
            seen = self.seen.setdefault(request, Seen())
            seen.tokens, seen.computed = known, hits
            seen.drafts = seen.placeholders = seen.in_flight = 0
            seen.in_prompt = False
            seen.capacity, seen.published = server.allocator.capacity(request.seq), 1
            self._take(Taken(request, seen, tokens, tokens - left if padded else 0, padded))
        for request in reversed(kept):
            waiting.appendleft(request)

    # -- computing ----------------------------------------------------------------------------

    def _compute(self, continued: int) -> None:
        """Enter what the step computes, and what comes of it."""
        server, taken, rules = self.server, self.taken, self.rules
        self.proposed = rules.by_batch[len(taken)] if rules.by_batch and taken else rules.most
        for each in taken[:continued]:
            request = each.request
            if request.state is State.DECODE:
                continue
            if request.seq in self.passed_over:
                del self.passed_over[request.seq]
                server.start_decode(request)
            elif request.state is State.PREFILL:
                server.compute(request, each.tokens)
        self._pass_over()
        adds: dict[int, int] = {}
        decode, finished, late, proposed = State.DECODE, State.FINISHED, self._late, self.proposed
        drafts = vain = 0
        ends = False
        for each in taken:
            seen, request, tokens = each.seen, each.request, each.tokens
            seen.computed += tokens
            seen.in_flight += tokens
            if request.state is finished:
                drafts += tokens
                vain += tokens
            else:
                drafts += each.drafts
                if each.padded:
                    vain += each.drafts
            each.in_prompt = seen.in_prompt = seen.computed < seen.tokens + seen.placeholders
            if seen.in_prompt:
                continue
            if late:
                seen.placeholders += 1 + each.drafts
                seen.drafts = proposed
            if request.state is finished:
                continue
            last = self._verify(each)
            if request.state is decode:
                adds[each.seq] = each.kept
                ends = ends or last
        self.progress.will_add(adds, ends)
        step = server.step
        step.draft_tokens = drafts
        self.totals.vain += vain
        step.draft_passes = int(bool(step.chunks)) if self.skips_drafts else proposed

    def _verify(self, taken: Taken) -> bool:
        """What comes of a sequence's drafts: whether its last token is there."""
        seen, request, drafts = taken.seen, taken.request, taken.drafts
        if request.state is State.DECODE:
            missing = request.final_tokens - self.progress.stored(request)
        else:
            missing = request.output_tokens - request.generated
        proposed, accepted = self.acceptance.event(request, seen.events)
        if accepted > drafts:
            accepted = drafts
        if accepted > seen.valid:
            accepted = seen.valid
        if taken.padded:
            accepted = 0
        elif drafts:
            self.totals.count(request.index, drafts, accepted)
        kept = accepted + 1
        taken.accepted, taken.returned = accepted, kept
        if kept > missing:
            kept = missing
        taken.kept = kept
        seen.events += 1
        seen.valid = proposed if proposed < self.proposed else self.proposed
        if self.rules.to_the_end:
            after = request.final_tokens + 1 - missing + kept
            seen.valid = max(min(seen.valid, self.limits.longest - after), 0)
        return kept == missing

    def _pass_over(self) -> None:
        """Who decodes, but was not reached, gets no token in this step."""
        decode = State.DECODE
        reached = {each.seq for each in self.taken if each.request.state is decode}
        if len(reached) == self.progress.size:
            return
        for request in list(self.server.running.values()):
            if request.state is decode and request.seq not in reached:
                self.batch.leave(request)
                request.move(State.PREFILL)
                self.server.memory.prefill_held += request.computed
                self.passed_over[request.seq] = request

    # -- many steps at a time -----------------------------------------------------------------

    def _is_steady(self, continued: int) -> bool:
        """Whether the next steps will be like this one, as long as nobody ends or comes."""
        server, taken, drafts = self.server, self.taken, self.proposed
        count = len(taken)
        if self.batch.ahead is None or server.step.preemptions or server.step.chunks:
            return False
        if not count == continued == self.progress.size == len(server.running):
            return False
        refused = server.step.no_room and not server.allocator.caches
        if server.waiting and not refused and len(server.running) < self.limits.seats and self._most() > 0:
            return False
        return all(
            [each.drafts == drafts == each.seen.valid and each.request.open_stream is None for each in taken]
        )

    def foresee(self, at_most: int) -> int:
        """As in `Ahead`."""
        drafts, lookahead, longest = self.proposed, self.rules.lookahead, self.limits.longest
        beyond = 2 * (drafts + 1) + lookahead
        first = max([each.seen.tokens for each in self.taken])
        steps = min(at_most, self._horizon, max((longest - beyond - first) // (drafts + 1), 1))
        steps = min(steps, *[each.request.final_tokens + 1 - each.seen.tokens for each in self.taken])
        self._horizon = 4
        if steps <= 1:
            return 1
        ahead, whole = self.acceptance.ahead, drafts == self.rules.most
        runs: list[Run] = []
        for each in self.taken:
            seen, request = each.seen, each.request
            rest = ahead(request, seen.events, steps - 1)
            accepted = [each.accepted, *(rest if whole else [min(right, drafts) for right in rest])]
            known = known_after(seen.tokens, accepted, request.final_tokens)
            runs.append(Run(request, known, accepted, seen.capacity))
        steps = foreseen(runs, steps)
        if steps > 1 and all(self._ends(run, steps - 1) for run in runs):
            steps -= 1  # nothing is proposed behind the last step of all
        self._need = Need(1, 2 * drafts + 1 + lookahead) if self._late else Need(0, drafts + lookahead)
        if steps > 1:
            steps = steps_with_room(self.server.allocator, runs, self._need, steps)
        self._runs = runs
        self.progress.look_ahead(tokens_in(runs, steps))
        return steps

    def _ends(self, run: Run, step: int) -> bool:
        """Whether the last token of a sequence is sure to come in a step, as in `Taken`."""
        certain = run.known[step - 1] + 2 if self._late else run.known[step] + 1
        return certain > run.request.final_tokens

    def carry_out(self, steps: int) -> list[Within]:
        """As in `Ahead`."""
        server, drafts, last = self.server, self.proposed, steps - 1
        self._horizon = min(2 * steps + 2, HORIZON)
        watched = server.memory.abilities.rests
        within = grow(server, self._runs, self._need, steps, watched)
        adds: dict[int, int] = {}
        ends = False
        for each, run in zip(self.taken, self._runs, strict=True):
            seen, request, known, accepted = each.seen, each.request, run.known, run.accepted
            if drafts:
                self.totals.count(request.index, drafts * last, sum(accepted[1:steps]), last)
            seen.events += last
            seen.tokens, seen.computed = known[last], known[last] + drafts
            each.start = known[last - 1] + drafts if self._late else known[last] - 1
            each.accepted, each.returned = accepted[last], accepted[last] + 1
            each.kept = known[steps] - known[last]
            if self._caches:
                self._publish(each, known[last] - 1 if self._late else known[last])
            seen.capacity = run.capacity
            adds[each.seq] = known[steps] - known[0]
            ends = ends or known[steps] > request.final_tokens
        self.progress.will_add(adds, ends)
        self.progress.will_end(steps)
        return within

    # -- hearing ------------------------------------------------------------------------------

    def _hear(self, taken: list[Taken]) -> None:
        """Now the engine knows what came of a step."""
        running = self.server.running
        for each in taken:
            seen, request = each.seen, each.request
            if request not in self.seen:
                continue  # it had finished before
            seen.in_flight -= each.tokens
            if not each.returned:
                continue
            seen.tokens += each.kept
            if each.seq in running:
                rejected = each.drafts - each.accepted
                seen.computed -= rejected + each.returned - each.kept
                if self._late:
                    seen.placeholders -= rejected + each.returned
                if self._caches:
                    self._publish(each, seen.computed - seen.in_flight)
            if seen.tokens > request.final_tokens:
                del self.seen[request]
