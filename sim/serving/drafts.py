"""Speculative decoding as in vLLM V1: a token and its drafts per decoding request, in order of admission.

    held        S drafts were proposed for a sequence of n tokens, of which C = n - 1 are computed
    scheduled   1 + S tokens of the step's budget; also room for the proposals after them
    verified    a of them are right: a + 1 tokens more, C goes back by S - a; the blocks stay

With asynchronous scheduling a step is decided before it is known what the previous step accepted: C counts
all of its drafts, and as many placeholders stand for its tokens. A request that finished meanwhile may be
computed once more, in vain; near the longest sequence there may be no room for drafts not known to be
rejected, and no token.

What an engine knows of a request is therefore kept apart from the truth: `Seen` is the engine's view,
`Request` and the progress of its batch hold the truth. The rules are those of 0.33.0, as recorded.
"""

from mypy_extensions import mypyc_attr

from kvsim.allocators.base import Match
from kvsim.sim.serving.acceptance import Acceptance
from kvsim.sim.serving.decision import DraftWork
from kvsim.sim.serving.draft_batch import DraftBatch
from kvsim.sim.serving.draft_budget import Budget
from kvsim.sim.serving.draft_clock import Regular, counts_blocks
from kvsim.sim.serving.draft_outcome import Outcome
from kvsim.sim.serving.draft_records import DraftRules, Seen, Taken
from kvsim.sim.serving.draft_text import VerifiedText
from kvsim.sim.serving.request import Request, State
from kvsim.sim.serving.server import Server
from kvsim.sim.serving.steps import Limits, Steps
from kvsim.sim.serving.totals import DraftTotals

PADDED = "has all but one token cached, is padded with drafts, and never fits in the"


@mypyc_attr(allow_interpreted_subclasses=True)
class Drafts(Steps):
    """Decides the steps of a server that speculates.

    Attributes
    ----------
    seen : dict
        The engine's view of each request that has arrived and, as far as it knows, has not finished.
    taken : list of Taken
        What the latest step computes, in order of admission.
    proposed : int
        Most drafts proposed after that step.
    """

    def __init__(
        self, server: Server, batch: DraftBatch, rules: DraftRules, limits: Limits, acceptance: Acceptance
    ) -> None:
        super().__init__(server)
        self.progress = batch.drafted
        self.ends_steps = not server.rules.known_late
        self.rules, self.limits = rules, limits
        self.seen: dict[Request, Seen] = {}
        self.taken: list[Taken] = []
        self.proposed = rules.most
        self.passed_over: dict[int, Request] = {}
        self.progress.most_added = rules.most + 1
        totals = server.totals.drafts = DraftTotals()
        self._budget = Budget(rules, limits)
        self._outcome = Outcome(batch.drafted, rules, limits.longest, acceptance, totals)
        self._others: list[Request] = []  # running requests that do not decode by the clock
        allocator, prefixes = server.allocator, server.memory.prefixes
        block = allocator.growth_unit if counts_blocks(server.memory) else 1
        self._text: VerifiedText | None = None
        if prefixes is not None and allocator.caches:
            self._text = VerifiedText(prefixes, rules, block)
        self.regular: Regular | None = None
        if Regular.may_serve(server, rules, acceptance):
            self.regular = Regular(server, batch.drafted, rules, limits, acceptance)
            batch.ahead, batch.settle = self.regular, self.settle

    # -- deciding -----------------------------------------------------------------------------

    def decide(self) -> None:
        """Serve running requests, then the queue; if asynchronous, hear of the previous step."""
        server = self.server
        if not server.waiting and self._all_regular() and self._go_on():
            return
        self._budget.begin()
        running = self._one_by_one()
        before, self.taken = self.taken, []
        if running:
            self._run_on(running)
        continued = len(self.taken)
        if server.waiting and not server.step.preemptions:
            self._admit()
        self._compute(continued)
        if len(self.taken) > continued:
            running = running + [taken.request for taken in self.taken[continued:]]
        self._others = running
        server.step.changed = not self._is_steady()
        if self.server.rules.known_late:
            self._hear(before)
            if not (self.progress.size or server.step.chunks):
                server.step.spent = len(server.running) > len(self.server.batch.departed)
            self._leave()

    def _all_regular(self) -> bool:
        """Whether all running requests decode by the clock, some perhaps from this step on."""
        others, regular, alive = self._others, self.regular, self.server.running
        if others and regular is not None and regular.runs and regular.fits(len(others), self.proposed):
            others = [each for each in others if alive.get(each.seq) is each]
            self._others = others = regular.take_in(others, self.seen, self.proposed)
        return not others

    def _go_on(self) -> bool:
        """In the usual case (all decode by the clock, none arrives) decide the step; else False."""
        regular, step, late, before = self.regular, self.server.step, self.server.rules.known_late, self.taken
        if regular is None or not regular.runs or self.proposed != regular.drafts:
            return False
        running, progress = len(regular.runs), self.progress
        if running + len(regular.ended) > regular.most_runs or not regular.grow():
            return False
        drafts, vain = regular.drafts, regular.vain
        if by_batch := self.rules.by_batch:
            self.proposed = by_batch[running + vain]
        drafted = step.of_drafts()
        drafted.tokens = running * drafts
        if vain:
            self._compute_in_vain(drafted)
        last = progress.next_finish == progress.clock + 1 and regular.all_end(progress.clock)
        drafted.passes = 0 if last else self.proposed
        step.changed = self.proposed != drafts or (vain > 0 and not self._goes_on())
        self.taken = []
        if late:
            if before or regular.ended:
                self._hear(before)
            if self.server.batch.departed:
                self._leave()
        return True

    def _one_by_one(self) -> list[Request]:
        """Let regular sequences decode by the clock; returns the others, to serve one by one, in order."""
        alive, regular, others = self.server.running, self.regular, self._others
        if regular is None:
            return list(alive.values())
        if not regular.runs:
            self.settle()
            others = list(alive.values())
        elif others:
            others = [each for each in others if alive.get(each.seq) is each]
        if regular.fits(len(others), self.proposed):
            if others:
                others = regular.take_in(others, self.seen, self.proposed)
            if not regular.runs:
                return others
            if self.proposed == regular.drafts and regular.grow():
                self._budget.take(regular.drafts + 1, len(regular.runs) + regular.vain)
                return others
        self.settle()
        return list(alive.values())

    def end_step(self) -> None:
        """A step is over: unless asynchronous, all of it is known before the next is decided."""
        if not self.server.rules.known_late:
            self._hear(self.taken)
            for taken in self.taken:
                if not taken.in_prompt:
                    taken.seen.drafts = taken.seen.valid
            self._leave()

    @property
    def skips_drafts(self) -> bool:
        """Whether the step gives no request a token other than its last: then nothing is proposed."""
        runs, regular = self.progress.runs, self.regular
        if runs and (regular is None or not regular.all_end(self.progress.clock)):
            return False
        return bool(self.taken or runs) and all(taken.in_prompt or taken.ends for taken in self.taken)

    def finish(self, request: Request) -> None:
        """A request has its last token, which its engine does not know yet."""
        self.server.batch.departed[request.seq] = request
        if self.regular is not None:
            self.regular.end(request.seq)

    def _leave(self) -> None:
        """Release the requests now known to have finished, in order of admission."""
        departed = self.server.batch.departed
        if departed:
            if len(departed) > 1:
                last = sorted(departed.items(), key=lambda each: each[0])
                departed.clear()
                departed.update(last)
            self.server.release_departed()

    def _share(self) -> int:
        """Tokens that one request may have of a step."""
        return self._budget.share(len(self.server.running) + len(self.server.waiting))

    def _run_on(self, running: list[Request]) -> None:
        longest, lookahead, budget = self.limits.longest, self.rules.lookahead, self._budget
        alive, told, share = self.server.running, self.seen, self._share()
        counts = counts_blocks(self.server.memory)
        for request in running:
            most = min(budget.most(), share)
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
                tokens = self._budget.keep_back(left, tokens)
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
        """Grow a table, preempting others if needed; False: it preempted itself."""
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
        self._budget.take(taken.tokens)
        if self._text is not None:
            self._text.publish(taken.seq, taken.seen, taken.start + taken.tokens)

    def _forget_preempted(self, before: list[Request]) -> None:
        """Some running requests were preempted: give back what was scheduled for them."""
        running = self.server.running
        for request in before:
            if request.seq not in running:
                seen = self.seen[request]
                seen.computed = seen.drafts = seen.placeholders = 0
        gone = [taken for taken in self.taken if taken.seq not in running]
        for taken in gone:
            self.taken.remove(taken)
            self._budget.give_back(taken.tokens)

    # -- admitting ----------------------------------------------------------------------------

    def _admit(self) -> None:
        server, limits, rules, waiting = self.server, self.limits, self.rules, self.server.waiting
        kept: list[Request] = []
        share, longest, match, hits = self._share(), limits.longest, None, 0
        ran = bool(self.taken or self.progress.runs)
        pads = rules.most > 0 and not rules.by_batch
        pads = pads and not any([taken.seen.in_prompt for taken in self.taken])
        while waiting and len(server.running) < limits.seats:
            most = self._budget.most()
            if most <= 0:
                break
            request = waiting[0]
            if server.allocator.caches:
                match = server.match_head()
                hits = match.tokens if match else 0
            known = request.known_tokens
            left = tokens = known - hits
            tokens = min(tokens, share)
            padded = pads and left == 1 and (ran or hits > 0) and hits + rules.most + 2 <= longest
            if padded:
                tokens += rules.most
            if tokens > most:
                if padded and not server.running:
                    server.drop_head(f"{PADDED} {limits.budget:,} tokens of a step: vLLM waits forever")
                    continue
                if padded or not limits.in_pieces:
                    break
                tokens = most
            if not padded:
                tokens = self._budget.keep_back(left, tokens)
            if tokens < 1:
                kept.append(waiting.popleft())
                continue
            room = min(hits + tokens + rules.lookahead, longest)
            if not (
                self._leaves_enough(known, room, match)
                and server.admit_head(room, match, left if padded else tokens)
            ):
                break
            self._begin(request, tokens, hits, tokens - left if padded else 0)
        for request in reversed(kept):
            waiting.appendleft(request)

    def _leaves_enough(self, known: int, room: int, match: Match | None) -> bool:
        """Whether the head's whole text fits, and the watermark stays free."""
        server, limits, watermark = self.server, self.limits, self.limits.watermark
        if limits.whole_prompt and not server.head_fits(known, match):
            return False
        if not watermark:
            return True
        whole = not limits.whole_prompt or server.head_leaves(known, match, watermark)
        return whole and server.head_leaves(room, match, watermark)

    def _begin(self, request: Request, tokens: int, hits: int, padding: int) -> None:
        """A request has entered, and computes `tokens` tokens, including `padding`."""
        seen = self.seen.get(request)
        if seen is None:
            seen = self.seen[request] = Seen()
        seen.tokens, seen.computed = request.known_tokens, hits
        seen.drafts = seen.placeholders = seen.in_flight = 0
        seen.in_prompt = False
        seen.capacity, seen.published = self.server.allocator.capacity(request.seq), 1
        self._take(Taken(request, seen, tokens, padding, padding > 0))

    # -- computing ----------------------------------------------------------------------------

    def _compute(self, continued: int) -> None:
        """Enter what the step computes, and the outcome."""
        step, taken, by_batch = self.server.step, self.taken, self.rules.by_batch
        drafted = step.of_drafts()
        computed = drafts = vain = 0
        if (regular := self.regular) is not None:
            computed, drafts = len(regular.runs) + regular.vain, len(regular.runs) * regular.drafts
        computed += len(taken)
        self.proposed = by_batch[computed] if by_batch and computed else self.rules.most
        if taken or self.progress.size > len(self.progress.runs):
            more, more_vain = self._compute_each(continued)
            drafts, vain = drafts + more, vain + more_vain
        drafted.tokens = drafts
        self._outcome.totals.vain += vain
        if regular is not None and regular.vain:
            self._compute_in_vain(drafted)
        drafted.passes = self.proposed if computed and not self.skips_drafts else int(bool(step.chunks))

    def _compute_in_vain(self, drafted: DraftWork) -> None:
        """Enter the tokens of sequences that decoded by the clock and are computed once more."""
        assert self.regular is not None
        drafted.vain_tokens = self.regular.vain * (self.regular.drafts + 1)
        drafted.tokens += drafted.vain_tokens
        self._outcome.totals.vain += drafted.vain_tokens

    def _compute_each(self, continued: int) -> tuple[int, int]:
        """`_compute` for requests served one by one: returns their drafts, and tokens in vain."""
        server, taken = self.server, self.taken
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
        decode, finished, proposed = State.DECODE, State.FINISHED, self.proposed
        late, outcome = self.server.rules.known_late, self._outcome
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
            last = outcome.verify(each, proposed)
            if request.state is decode:
                adds[each.seq] = each.kept
                ends = ends or last
        self.progress.will_add(adds, ends)
        return drafts, vain

    def _pass_over(self) -> None:
        """Decoding requests that were not reached get no token in this step."""
        runs = self.progress.runs
        if len(runs) == self.progress.size:
            return
        decode = State.DECODE
        reached = {each.seq for each in self.taken if each.request.state is decode}
        if len(reached) + len(runs) == self.progress.size:
            return
        for request in list(self.server.running.values()):
            if request.state is decode and request.seq not in reached and request.seq not in runs:
                self.server.batch.leave(request)
                request.move(State.PREFILL)
                self.server.memory.prefill_held += request.computed
                self.passed_over[request.seq] = request

    # -- many steps at a time -----------------------------------------------------------------

    def _is_steady(self) -> bool:
        """Whether the next steps will be like this one, as long as no request ends or arrives."""
        server, regular = self.server, self.regular
        if regular is None or not regular.runs or self._others or server.step.preemptions:
            return False  # others may get tokens in the next step although they got none in this one
        refused = server.step.no_room and not server.allocator.caches
        enters = len(server.running) < self.limits.seats and self._budget.most() > 0
        if server.waiting and not refused and enters:
            return False
        return self._goes_on()

    def _goes_on(self) -> bool:
        """Whether as many drafts are proposed after this step, and the next ones, as are verified in it."""
        regular, by_batch = self.regular, self.rules.by_batch
        assert regular is not None
        if self.proposed != regular.drafts:
            return False
        return not (by_batch and regular.vain) or by_batch[len(regular.runs)] == self.proposed

    def settle(self) -> None:
        """The next step serves all one by one: count what is otherwise counted when a sequence ends."""
        if self.regular is None or not (self.regular.runs or self.regular.ended):
            return
        found = self.regular.settle(self.seen, self.proposed)
        if self._text is not None:
            for taken in found:
                self._text.publish(taken.seq, taken.seen, taken.seen.computed - taken.seen.in_flight)
        if self.server.rules.known_late:
            self.taken += found
            self.taken.sort(key=lambda taken: taken.seq)

    # -- hearing ------------------------------------------------------------------------------

    def _hear(self, taken: list[Taken]) -> None:
        """Now the engine knows the outcome of a step."""
        regular = self.regular
        if regular is not None and regular.ended:
            for run in regular.ended:
                request = run.request
                seen = self.seen.pop(request)
                seen.tokens = request.final_tokens + 1
                if self._text is not None:
                    self._text.publish(request.seq, seen, request.final_tokens)
            regular.ended = []
        if not taken:
            return
        running, runs = self.server.running, self.progress.runs
        for each in taken:
            seen, request = each.seen, each.request
            if request not in self.seen or each.seq in runs:
                continue  # it had finished before, or all of it is known
            seen.in_flight -= each.tokens
            if not each.returned:
                continue
            seen.tokens += each.kept
            if each.seq in running:
                rejected = each.drafts - each.accepted
                seen.computed -= rejected + each.returned - each.kept
                if self.server.rules.known_late:
                    seen.placeholders -= rejected + each.returned
                if self._text is not None:
                    self._text.publish(each.seq, seen, seen.computed - seen.in_flight)
            if seen.tokens > request.final_tokens:
                del self.seen[request]
