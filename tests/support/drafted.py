"""The naive reference with drafts: `kvsim.reference.Continuous` with several tokens of a sequence at a time.

    held        S drafts were proposed behind the last step that gave a token; C = n - 1 tokens are computed
    scheduled   1 + S tokens of the budget, trimmed to the rest; room for the lookahead behind them
    kept        the accepted ones, and one more; no more than are missing

That is vLLM's synchronous scheduler (`../shared/goldens/spec/README.md`, rules 1 to 9 and 11 to 14). The
accepted drafts are queried event by event.
"""

from typing import NamedTuple

from kvsim.reference import Continuous


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
        if method == "ngram":
            return cls(most, to_the_end=True)
        if method == "draft_model":
            return cls(most, lookahead=most, slots=1)
        kept_back = most if said.get("num_nextn_predict_layers", 1) > 1 else 1
        keeps, drops = said.get("disable_eagle_block_drop"), said.get("disable_lookahead_block_hashes")
        hashed = kept_back if caches and not keeps and not drops else 0
        return cls(most, most, kept_back, hashed, drops_last=bool(drops and not keeps))


class Speculative(Continuous):
    """Serves requests with drafts.

    Parameters
    ----------
    memory : CachedPages
    rules : DraftRules
    events : callable
        (request, event) -> (drafts proposed behind it, drafts accepted in it).
    texts : list of tuple
        The tokens of each request and its answer. What a request has alone begins with ("own", its index).
    longest : int
        Length of the longest sequence in tokens.
    watermark : int
        Blocks that an admission leaves free, unless nothing runs.
    """

    def __init__(self, requests, memory, cost, *, rules, events, texts, longest, watermark, **more):
        super().__init__(requests, memory, cost, **more)
        self.rules, self.events, self.texts, self.longest = rules, events, texts, longest
        self.watermark, self.hit_tokens = watermark, 0
        self.drafts = dict.fromkeys(requests, 0)  # currently held
        self.valid = dict.fromkeys(requests, 0)  # proposed behind the event before
        self.event = dict.fromkeys(requests, 0)
        self.verified = {}  # in this step: request -> (scheduled, kept)
        self.told = {request.index: (0, 0, 0) for request in requests}

    def schedule(self):
        """Running requests, each with its drafts; then waiting ones."""
        work, preemptions = {}, self.preemptions
        self.verified, self.left, self.chunked = {}, [self.budget, self.budget], False
        for request in list(self.running):
            if request not in self.running:
                continue
            most = min(self.left[0], self.left[1] - self.rules.slots)
            if most <= 0:
                break
            missing = request.known - request.computed
            tokens = min(missing + self.drafts[request], most, self.longest - request.computed - 1)
            tokens = self.kept_back(missing, tokens)
            if tokens < 1:
                continue
            room = min(request.computed + tokens + self.rules.lookahead, self.longest)
            while request in self.running and not self.memory.grow(request.seq, room):
                self.preempt(self.running[-1])
            if request not in self.running:
                break
            drafts = min(self.drafts[request], max(tokens - missing, 0))
            self.chunked |= not request.decoding  # it computed a piece
            self.compute(work, request, tokens, drafts)
        for request in [each for each in work if each not in self.running]:  # preempted after its turn
            del work[request], self.verified[request]
        if self.preemptions == preemptions:
            self.admit(work, 0)
        self.max_running = max(self.max_running, len(self.running))
        return work

    def kept_back(self, missing, tokens):
        """A piece of a prompt leaves at least `kept_back` tokens, unless it is the last."""
        kept_back = self.rules.kept_back
        return max(missing - kept_back, 0) if 0 < missing - tokens < kept_back else tokens

    def compute(self, work, request, tokens, drafts, padded=False):
        """Charge the budgets, and query the outcome of the drafts."""
        self.left[0] -= tokens
        self.left[1] -= tokens + self.rules.slots
        self.drafts[request] = 0
        self.memory.fill(request.seq, request.computed + tokens, self.text(request))
        missing = request.known - request.computed
        if tokens - drafts < missing:  # a piece of a prompt
            work[request] = tokens
            return
        proposed, accepted = self.events(request, self.event[request])
        accepted = 0 if padded else min(accepted, drafts, self.valid[request])
        if drafts and not padded:
            before = self.told[request.index]
            self.told[request.index] = before[0] + 1, before[1] + drafts, before[2] + accepted
        kept = min(accepted + 1, request.output - len(request.token_ps))
        self.event[request] += 1
        self.valid[request] = self.drafts[request] = min(proposed, self.proposals(request, kept))
        self.verified[request] = drafts, kept
        work[request] = missing + kept - 1

    def proposals(self, request, kept):
        """The most drafts proposed behind a step that gives `kept` tokens."""
        if not self.rules.to_the_end:
            return self.rules.most
        return max(min(self.rules.most, self.longest - request.known - kept), 0)

    def text(self, request):
        """Its known tokens."""
        return self.texts[request.index][: request.known]

    def admit(self, work, budget):
        """First come, first served, whole; a request with one token left is padded with empty drafts."""
        ran, passed_over = bool(work), []
        while self.waiting and len(self.running) < self.seats:
            request, most = self.waiting[0], min(self.left[0], self.left[1] - self.rules.slots)
            if most <= 0:
                break
            hits = self.memory.hit(self.text(request))
            there = len(hits) * self.memory.size
            missing = tokens = request.known - there
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
            if not all(self.memory.fits(each, hits, spare) for each in (request.known, room)):
                break
            self.memory.enter(self.entered, room, hits)
            request.seq, request.computed = self.entered, there
            self.hit_tokens += there
            self.entered += 1
            if request.first_step < 0:
                request.first_step = self.steps
            self.running.append(self.waiting.popleft())
            self.compute(work, request, tokens, tokens - missing if padded else 0, padded)
        self.waiting.extendleft(reversed(passed_over))

    def preempt(self, request):
        """As in the base class; its drafts are dropped."""
        super().preempt(request)
        self.drafts[request] = 0

    def shape(self, work, copied):
        """As in the base class, with the verified drafts and the passes behind the step."""
        shape = super().shape(work, copied)
        drafts = sum(drafts for drafts, _ in self.verified.values())
        goes_on = any(each.known + 1 < each.prompt + each.output for each in self.verified)
        passes = self.rules.most if goes_on else int(shape.prefill_seqs > 0)  # else nothing is proposed
        return shape._replace(draft_tokens=drafts, draft_passes=passes)

    def commit(self, request, now_ps):
        """As in the base class; a request without a token in this step gets none."""
        if request in self.verified:
            super().commit(request, now_ps)
            if not request.done:
                self.memory.fill(request.seq, request.computed, self.text(request))

    def leave(self, request):
        """As in the base class; nobody else has the end of its text."""
        self.memory.fill(request.seq, request.computed, self.text(request))
        super().leave(request)
        self.memory.forget(("own", request.index))
