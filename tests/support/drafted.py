"""The naive reference with drafts: `kvsim.reference.Continuous` with several tokens of a sequence at a time.

    held        S drafts were proposed behind the last step that gave a token; C = n - 1 tokens are computed
    scheduled   1 + S tokens of the budget, trimmed to the rest; room for the lookahead behind them
    kept        the accepted ones, and one more; no more than are missing

That is vLLM's scheduler (`../shared/goldens/spec/README.md`, rules 1 to 15). It decides by its `View` of each
request: an asynchronous one hears of a step's outcome when the next step is decided. A request itself holds
the truth. The accepted drafts are queried event by event.
"""

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from kvsim.reference import Continuous, Request


class DraftRules(NamedTuple):
    """What differs between methods: rules 1, 4, 5, 11 and 16 of the recordings."""

    most: int  # K
    lookahead: int = 0  # LA
    kept_back: int = 0  # PL
    hash_lookahead: int = 0  # HL
    slots: int = 0
    drops_last: bool = False
    to_the_end: bool = False

    @classmethod
    def of(cls, said, caches):
        """The rules of a `speculative_config`."""
        most, method = said["num_speculative_tokens"], said["method"]
        if method.startswith("ngram"):
            return cls(most, to_the_end=True)
        if method == "draft_model":
            return cls(most, lookahead=most, slots=1)
        kept_back = most if said.get("num_nextn_predict_layers", 1) > 1 else 1
        keeps, drops = said.get("disable_eagle_block_drop"), said.get("disable_lookahead_block_hashes")
        hashed = kept_back if caches and not keeps and not drops else 0
        return cls(most, most, kept_back, hashed, drops_last=bool(drops and not keeps))


@dataclass
class View:
    """What the scheduler knows of a request."""

    tokens: int  # n
    computed: int = 0  # C
    drafts: int = 0  # S
    placeholders: int = 0  # P
    in_flight: int = 0  # F
    chunk: bool = False  # whether its last step gives no token
    valid: int = 0  # drafts that were in truth proposed behind the event before
    event: int = 0


class Taken(NamedTuple):
    """What a step computes of a request; a piece of a prompt gives no token, nor does work in vain."""

    request: Request
    tokens: int
    drafts: int = 0
    kept: int = 0  # the accepted drafts and one more, up to the end of the answer


class Speculative(Continuous):
    """Serves requests with drafts.

    Parameters
    ----------
    memory : CachedPages
    rules : DraftRules
    late : bool
        Whether scheduling is asynchronous.
    events : callable
        (request, event) -> (drafts proposed behind it, drafts accepted in it).
    texts : list of tuple
        The tokens of each request and its answer. What a request has alone begins with ("own", its index).
    longest : int
        Length of the longest sequence in tokens.
    watermark : int
        Blocks that an admission leaves free, unless nothing runs.
    """

    def __init__(self, requests, memory, cost, *, rules, late, events, texts, longest, watermark, **more):
        super().__init__(requests, memory, cost, **more)
        self.rules, self.late, self.events, self.texts = rules, late, events, texts
        self.longest, self.watermark, self.hit_tokens, self.running_ps = longest, watermark, 0, 0
        self.views = {request: View(request.prompt) for request in requests}
        self.told = {request.index: (0, 0, 0) for request in requests}

    def run(self):
        """As in the base class; an asynchronous scheduler hears of a step once the next is decided."""
        now_ps, coming, before = 0, deque(self.requests), []
        while coming or self.waiting or self.running:
            while coming and coming[0].arrival_ps <= now_ps:
                self.waiting.append(coming.popleft())
            if not self.waiting and not self.running:
                self.count(coming[0].arrival_ps - now_ps)
                now_ps = coming[0].arrival_ps
                continue
            preemptions, work = self.preemptions, self.schedule()
            if self.late:
                self.hear(before)
            before = self.taken
            self.max_running = max(self.max_running, len(self.running))
            if not (work or self.waiting or self.running or self.preemptions > preemptions):
                continue  # all had ended
            duration_ps = self.cost(self.shape(work, 0))
            for request, tokens in work.items():
                request.computed += tokens
            self.count(duration_ps)
            self.running_ps += len(self.running) * duration_ps
            now_ps += duration_ps
            self.steps += bool(work)
            for each in self.taken:
                each.request.decoding |= each.kept > 0
                each.request.token_ps += [now_ps] * each.kept
            if not self.late:
                self.hear(self.taken)
        return self

    def schedule(self):
        """Running requests, each with its drafts; then waiting ones."""
        work, preemptions = {}, self.preemptions
        self.taken, self.left, self.chunked, self.goes_on = [], [self.budget, self.budget], False, False
        for request in list(self.running):
            if request not in self.running:
                continue
            view, most = self.views[request], self.most()
            if most <= 0:
                break
            if view.placeholders and view.computed + 2 - view.placeholders >= request.prompt + request.output:
                continue  # its last token is under way
            missing = view.tokens - view.computed
            tokens = min(missing + view.drafts + view.placeholders, most, self.longest - view.computed - 1)
            tokens = self.kept_back(missing, tokens)
            if tokens < 1:
                continue
            room = min(view.computed + tokens + self.rules.lookahead, self.longest)
            while request in self.running and not self.memory.grow(request.seq, room):
                self.preempt(self.running[-1])
            if request not in self.running:
                break
            self.chunked |= view.chunk
            drafts = min(view.drafts, max(tokens - missing - view.placeholders, 0))
            self.take(work, request, tokens, drafts)
        if self.preemptions == preemptions:
            self.admit(work, 0)
        return work

    def most(self):
        """Tokens that the next request may have."""
        return min(self.left[0], self.left[1] - self.rules.slots)

    def kept_back(self, missing, tokens):
        """A piece of a prompt leaves at least `kept_back` tokens, unless it is the last."""
        kept_back = self.rules.kept_back
        return max(missing - kept_back, 0) if 0 < missing - tokens < kept_back else tokens

    def take(self, work, request, tokens, drafts, padded=False):
        """Charge the budgets, and query the outcome of the drafts."""
        view = self.views[request]
        self.left[0] -= tokens
        self.left[1] -= tokens + self.rules.slots
        view.computed += tokens
        view.in_flight += tokens
        view.drafts = 0
        self.memory.fill(request.seq, view.computed, self.text(request))
        view.chunk = view.computed < view.tokens + view.placeholders
        if view.chunk:
            work[request] = tokens
            self.taken.append(Taken(request, tokens))
            return
        least = view.tokens + (view.placeholders > 0) + 1  # known for certain when the step has ended
        self.goes_on |= least < request.prompt + request.output
        if self.late:
            view.placeholders += 1 + drafts
            view.drafts = self.rules.most
        if request.done:  # in vain
            self.taken.append(Taken(request, tokens))
            return
        proposed, accepted = self.events(request, view.event)
        accepted = 0 if padded else min(accepted, drafts, view.valid)
        if drafts and not padded:
            before = self.told[request.index]
            self.told[request.index] = before[0] + 1, before[1] + drafts, before[2] + accepted
        kept = min(accepted + 1, request.output - len(request.token_ps))
        view.event += 1
        view.valid = min(proposed, self.proposals(request, kept))
        work[request] = request.known - request.computed + kept - 1
        self.taken.append(Taken(request, tokens, drafts, kept))

    def proposals(self, request, kept):
        """The most drafts proposed behind a step that gives `kept` tokens."""
        if not self.rules.to_the_end:
            return self.rules.most
        return max(min(self.rules.most, self.longest - request.known - kept), 0)

    def text(self, request):
        """The tokens that the scheduler knows."""
        return self.texts[request.index][: self.views[request].tokens]

    def admit(self, work, budget):
        """First come, first served, whole; a request with one token left is padded with empty drafts."""
        ran, passed_over = bool(self.taken), []
        while self.waiting and len(self.running) < self.seats:
            request, most = self.waiting[0], self.most()
            if most <= 0:
                break
            view, hits = self.views[request], self.memory.hit(self.text(request))
            there = len(hits) * self.memory.size
            missing = tokens = view.tokens - there
            padded = missing == 1 and (ran or there > 0) and not self.chunked
            padded = padded and there + self.rules.most + 2 <= self.longest
            tokens += self.rules.most if padded else 0
            if tokens > most and padded:
                break
            tokens = min(tokens, most)
            tokens = tokens if padded else self.kept_back(missing, tokens)
            if not tokens:
                passed_over.append(self.waiting.popleft())
                continue
            room = min(there + tokens + self.rules.lookahead, self.longest)
            spare = self.watermark if self.running else 0
            if not all(self.memory.fits(each, hits, spare) for each in (view.tokens, room)):
                break
            self.memory.enter(self.entered, room, hits)
            request.seq, request.computed, view.computed = self.entered, there, there
            self.hit_tokens += there
            self.entered += 1
            if request.first_step < 0:
                request.first_step = self.steps
            self.running.append(self.waiting.popleft())
            self.take(work, request, tokens, tokens - missing if padded else 0, padded)
        self.waiting.extendleft(reversed(passed_over))

    def preempt(self, request):
        """As in the base class; its drafts are dropped."""
        super().preempt(request)
        view = self.views[request]
        view.computed = view.drafts = view.placeholders = view.in_flight = 0

    def shape(self, work, copied):
        """As in the base class, with the verified drafts and the passes behind the step."""
        shape = super().shape(work, copied)
        drafts = sum(each.drafts if each.request in work else each.tokens for each in self.taken)
        passes = self.rules.most if self.goes_on else int(shape.prefill_seqs > 0)  # else nothing is proposed
        return shape._replace(draft_tokens=drafts, draft_passes=passes)

    def hear(self, taken):
        """The outcome of a step; that of a request preempted meanwhile changes only its text."""
        for request, tokens, drafts, kept in taken:
            view, whole = self.views[request], request.prompt + request.output
            if view.tokens == whole:
                continue
            view.tokens += kept
            if request in self.running:
                view.in_flight -= tokens
                view.computed -= drafts + 1 - kept if kept else 0  # rejected, or behind the end of the answer
                view.placeholders -= drafts + 1 if kept and self.late else 0
                self.memory.fill(request.seq, view.computed - view.in_flight, self.text(request))
                if kept and not self.late:
                    view.drafts = view.valid
            if view.tokens == whole:
                self.leave(request)

    def leave(self, request):
        """The answer is known to be complete, and nobody else has the end of its text."""
        if request in self.waiting:
            self.waiting.remove(request)
        else:
            super().leave(request)
        self.memory.forget(("own", request.index))
