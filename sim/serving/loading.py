"""The queue where a tier below is asked too: what is found there is loaded before its request runs.

    hold       those whose load is under way or over, in the order in which it began; looked at first
    waiting    the queue of the policy

A request that loads holds its blocks, computes nothing, cannot be preempted and takes no seat. A look at the
queue passes over those whose load is under way, and over those that must ask again later: a chunk that they
would find is still being stored, or another loads it. Whoever finds no room ends the look.

The whole prompt may be found in the tier; then its last token is computed again, in place.
"""

from collections import deque

from kvsim.allocators.base import Match
from kvsim.sim.serving.in_flight import UNLIMITED
from kvsim.sim.serving.request import Request, State
from kvsim.sim.serving.tier_jobs import User


class Loading:
    """Admits from both queues.

    Parameters
    ----------
    whole : bool
        Whether a request enters only when all of its prompt fits.
    chunked : bool
        Whether prompts are split to fit the budget.
    watermark : float
        Share of the memory that an admission leaves free while anything runs.
    at_once_bytes : int
        A step waits for loads of so many bytes in all, whose requests it computes; 0: none.
    token_bytes : int
        Of a token's keys and values.
    """

    def __init__(  # noqa: PLR0917 - the rules of admission
        self,
        offload: "Offload | Reads",
        whole: bool,
        chunked: bool,
        watermark: float,
        at_once_bytes: int,
        token_bytes: int,
    ) -> None:
        self.offload, self.server = offload, offload.server
        self.hold: deque[Request] = deque()
        self.whole, self.chunked, self.watermark = whole, chunked, watermark
        self.at_once_bytes, self.token_bytes = at_once_bytes, token_bytes
        self.longest = UNLIMITED  # tokens of one prompt in this step
        self._names = -2  # of sequences that load: below all others

    def admit(self, budget: int, seats: int) -> None:
        """Admit within a token budget and so many seats."""
        server, passed = self.server, []
        room = seats - len(server.running)
        self._at_once_left = self.at_once_bytes
        while self.hold and budget > 0 and room > 0:
            request = self.hold[0]
            user = self.offload.user(request)
            if not user.loaded:
                passed.append(self.hold.popleft())
                continue
            promoted = self._promote(request, user, budget)
            if not promoted:
                self.hold.extendleft(reversed(passed))
                return
            self.hold.popleft()
            budget -= promoted
            room -= 1
        later: list[Request] = []
        while not self.hold and server.waiting and budget > 0 and room > 0:
            request = server.waiting[0]
            tokens = self._head(request, budget)
            if tokens is None:
                break
            if tokens:
                budget -= tokens
                room -= 1
            elif request.state == State.LOADING:
                passed.append(request)
            else:
                later.append(server.waiting.popleft())
        for request in reversed(later):
            server.waiting.appendleft(request)
        self.hold.extendleft(reversed(passed))

    # -- the head of the queue ----------------------------------------------------------------

    def _head(self, request: Request, budget: int) -> int | None:
        """Tokens of the head that are computed now; 0: it loads, or asks again later; None: no room."""
        server = self.server
        match = server.match_head() if server.allocator.caches else None
        here = match.tokens if match else 0
        user = self.offload.user(request)
        below = self.look_up(user, here)
        if below is None:
            return 0
        known = request.known_tokens
        at_once = 0 < below < known - here and below * self.token_bytes <= self._at_once_left
        if at_once:
            self._at_once_left -= below * self.token_bytes
        elif below:
            return self._load(request, user, match, here, below)
        chunk = min(known - here - below, self.longest)
        if chunk > budget:
            if not self.chunked:
                return None
            chunk = budget
        have = here + below
        if not self._fits(match, known if self.whole else have + chunk):
            return None
        computed = have if at_once else None
        if not server.admit_head(have + chunk, match, chunk, computed):
            return None
        if at_once:
            server.step.hit_tokens -= below
            server.totals.hit_tokens -= below
            self._begin(user, request, here, below, at_once=True)
        return chunk

    def look_up(self, user: User, here: int) -> int | None:
        """Tokens behind the first `here` that the tier has; None: ask again later."""
        offload, request, size = self.offload, user.request, self.offload.rules.chunk_tokens
        user.offered = 0
        user.loaded = user.promoted = False
        if user.stores:
            return None
        known = request.known_tokens
        if known - here < size:
            return 0
        start = here // size
        found = offload.tier.find(user.keys[start : known // size])
        tokens = (start + found.hits) * size - here
        if tokens < size:
            return 0
        if found.written:
            return None
        others = self.server.allocator.caches and offload.loading_keys
        if others and not others.keys().isdisjoint(user.keys[start : start + found.hits]):
            return None
        return tokens

    def _fits(self, match: Match | None, tokens: int, reserved: int = 0) -> bool:
        """Whether the head fits with so many tokens, and leaves what is reserved."""
        server = self.server
        if not server.head_fits(tokens, match):
            return False
        if not (self.watermark or reserved):
            return True
        request, allocator = server.waiting[0], server.allocator
        if allocator.leaves(match, tokens, server.rules.bound(request)) < reserved + self._least():
            server.step.no_room = True
            return False
        return True

    def _least(self) -> int:
        """Slots that the watermark keeps free."""
        server = self.server
        if not (self.watermark and server.running):
            return 0
        unit = self.offload.size
        return int(self.watermark * (server.allocator.capacity_slots // unit + 1)) * unit

    def _reserved(self) -> int:
        """Slots that those will take whose prompts are not computed."""
        server, size = self.server, self.offload.size
        slots = 0
        for requests in (server.running, server.batch.loading):
            for seq, request in requests.items():
                if request.state in (State.PREFILL, State.LOADING):
                    slots += max(0, -(-request.known_tokens // size) * size - server.allocator.capacity(seq))
        return slots

    def _load(self, request: Request, user: User, match: Match | None, here: int, below: int) -> int | None:
        """Give the head its blocks, and begin its load."""
        server, allocator, tokens = self.server, self.server.allocator, here + below
        if self.whole and not self._fits(match, request.known_tokens):
            return None
        if not self._fits(match, tokens, self._reserved()):
            return None
        seq, bound = self._names, server.rules.bound(request)
        placed = (
            allocator.admit_after(match, seq, tokens, bound) if match else allocator.admit(seq, tokens, bound)
        )
        if not placed:
            return None
        self._names -= 1
        server.waiting.popleft()
        request.move(State.LOADING)
        request.seq, request.computed = seq, tokens
        server.batch.loading[seq] = request
        server.memory.prefill_held += tokens
        server.memory.set_internal(request, max(0, allocator.surplus(seq, request.final_tokens)))
        server.step.changed = True
        server.step.hit_tokens += here
        server.totals.hit_tokens += here
        self._begin(user, request, here, below)
        return 0

    def _begin(self, user: User, request: Request, here: int, below: int, at_once: bool = False) -> None:
        offload, size, each = self.offload, self.offload.size, self.offload.blocks_per_chunk
        first, end = -(-here // size), -(-(here + below) // size)
        start, user.offered = first // each, -(-(here + below) // offload.rules.chunk_tokens)
        keys = user.keys[start : user.offered]
        blocks = list(self.offload.allocator.block_table(request.seq)[first:end])
        offload.totals.hit_tokens += below
        user.began_ps = self.server.now_ps
        job = offload.new_job(True, user, keys, offload.tier.load(user.number, keys), blocks)
        if at_once:
            offload.hurry([job])
        else:
            offload.loading_keys.update(keys)
            offload.transfers.begin(job, self.server.now_ps)

    # -- what was loaded ----------------------------------------------------------------------

    def _promote(self, request: Request, user: User, budget: int) -> int:
        """Let a request run whose load is over; returns the tokens that it computes, 0: no room."""
        server, allocator, seq = self.server, self.server.allocator, request.seq
        if not user.promoted:
            user.promoted = True
            if allocator.caches:
                allocator.fill(seq, request.computed)
            if request.computed == request.known_tokens:
                request.computed -= 1
                server.memory.prefill_held -= 1
        chunk = min(request.known_tokens - request.computed, self.longest)
        if chunk > budget:
            if not self.chunked:
                return 0
            chunk = budget
        tokens = request.known_tokens if self.whole else request.computed + chunk
        missing = max(0, -(-tokens // self.offload.size) * self.offload.size - allocator.capacity(seq))
        if missing > allocator.free_slots - self._least() or not allocator.grow_chunk(
            seq, request.computed, request.computed + chunk
        ):
            server.step.no_room = True
            return 0
        self.offload.totals.waited_requests += 1
        self.offload.totals.waited_ps += server.now_ps - user.began_ps
        del server.batch.loading[seq]
        request.seq = server.memory.new_seq()
        self.offload.allocator.rename(seq, request.seq)
        server.begin_loaded(request, chunk)
        return chunk
