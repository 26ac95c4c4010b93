"""The queue with a connector: what it finds elsewhere is loaded before the request runs.

    hold       requests whose load is in flight or done, in the order in which it began; examined first
    waiting    the queue of the policy

A loading request holds its blocks, computes nothing, cannot be preempted and takes no seat. A scan of the
queue skips requests whose load is in flight, and requests that must ask again later because a chunk that they
would hit is still being stored, or is being loaded by another. A request that finds no room ends the scan.

The whole prompt may be found; then its last token is recomputed in place.
"""

from collections import deque

from kvsim.allocators.base import Match
from kvsim.sim.record.events import Refusal
from kvsim.sim.serving.connector import Connector
from kvsim.sim.serving.in_flight import UNLIMITED
from kvsim.sim.serving.request import Request, State
from kvsim.sim.serving.server import Server
from kvsim.sim.serving.steps import Limits
from kvsim.sim.serving.tier_jobs import User


def place_head(server: Server, seq: int, tokens: int, match: Match | None) -> bool:
    """Give the head of the queue memory for `tokens` tokens, which others will write; False: no room."""
    request, allocator = server.waiting[0], server.allocator
    bound = server.rules.bound(request)
    if match is None:
        placed = allocator.admit(seq, tokens, bound)
    else:
        placed = server.memory.admit_after(match, seq, tokens, bound)
    if not placed:
        return False
    server.waiting.popleft()
    request.move(State.LOADING)
    request.seq, request.computed = seq, tokens
    server.batch.loading[seq] = request
    server.memory.prefill_held += tokens
    server.memory.set_internal(request, max(0, allocator.surplus(seq, request.final_tokens)))
    server.step.changed = True
    return True


class Loading:
    """Admits from both queues.

    Parameters
    ----------
    connector : Connector
        Looks up and loads.
    limits : Limits
    at_once_bytes : int
        A step waits for loads of up to this many bytes, and computes their requests; 0: none.
    token_bytes : int
        Bytes of a token's keys and values.
    """

    def __init__(self, connector: Connector, limits: Limits, at_once_bytes: int, token_bytes: int) -> None:
        self.connector, self.server = connector, connector.server
        self.hold: deque[Request] = deque()
        self.whole, self.watermark, self.chunked = limits.whole_prompt, limits.watermark, limits.in_pieces
        self.at_once_bytes, self.token_bytes = at_once_bytes, token_bytes
        self.longest = UNLIMITED  # most tokens of one prompt in this step
        self.passes_head = False  # whether the head of the queue asks again later
        self.seats_taken = False  # whether no seat was left, by the engine's own count
        self._names = -2  # ids of loading sequences: below all others

    def admit(self, budget: int, seats: int) -> None:
        """Admit within a token budget and `seats` seats."""
        server, room = self.server, seats - len(self.server.running)
        self.passes_head, self.seats_taken = False, room < 1
        if not (self.hold or server.waiting):
            return
        passed: list[Request] = []
        self._at_once_left = self.at_once_bytes
        while self.hold and budget > 0 and room > 0:
            request = self.hold[0]
            user = self.connector.user(request)
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
        self.passes_head, self.seats_taken = bool(later), room < 1
        while later:
            server.waiting.appendleft(later.pop())
        while passed:
            self.hold.appendleft(passed.pop())

    def first_loaded(self) -> Request | None:
        """The first request that waits although its load is over."""
        if not self.server.wakes.loaded:
            return None
        return next((request for request in self.hold if self.connector.user(request).loaded), None)

    # -- the head of the queue ----------------------------------------------------------------

    def _head(self, request: Request, budget: int) -> int | None:
        """Tokens of the head to compute now; 0: it loads, or asks again later; None: no room."""
        server, user = self.server, self.connector.user(request)
        match = server.match_head() if server.allocator.caches else None
        here = match.tokens if match else 0
        below = self.connector.look_up(user, here)
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
            server.step.of_prompts().hit_tokens -= below
            server.totals.hit_tokens -= below
            self.connector.begin(user, request, here, below, at_once=True)
        return chunk

    def _fits(self, match: Match | None, tokens: int, reserved: int = 0) -> bool:
        """Whether the head fits with `tokens` tokens, and leaves `reserved` slots free."""
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
        unit = self.connector.size
        return int(self.watermark * (server.allocator.capacity_slots // unit + 1)) * unit

    def _reserved(self) -> int:
        """Slots that requests with unfinished prompts will still take."""
        server, size = self.server, self.connector.size
        slots = 0
        for requests in (server.running, server.batch.loading):
            for seq, request in requests.items():
                if request.state in (State.PREFILL, State.LOADING):
                    slots += max(0, -(-request.known_tokens // size) * size - server.allocator.capacity(seq))
        return slots

    def _load(self, request: Request, user: User, match: Match | None, here: int, below: int) -> int | None:
        """Give the head its blocks, and begin its load."""
        server, tokens = self.server, here + below
        if self.whole and not self._fits(match, request.known_tokens):
            return None
        if not self._fits(match, tokens, self._reserved()):
            return None
        if not place_head(server, self._names, tokens, match):
            return None
        self._names -= 1
        server.step.of_prompts().hit_tokens += here
        server.totals.hit_tokens += here
        if server.events:
            server.events.loads(request, server.now_ps, server.steps, below)
        user.loading = below
        self.connector.begin(user, request, here, below)
        return 0

    # -- loaded requests ----------------------------------------------------------------------

    def _promote(self, request: Request, user: User, budget: int) -> int:
        """Let a request run whose load is done; returns the tokens that it computes, 0: no room."""
        server, allocator, seq = self.server, self.server.allocator, request.seq
        if not user.promoted:
            user.promoted = True
            if server.memory.prefixes is not None:
                server.memory.prefixes.fill(seq, request.computed)
            if request.computed == request.known_tokens:
                request.computed -= 1
                server.memory.prefill_held -= 1
        chunk = min(request.known_tokens - request.computed, self.longest)
        if chunk > budget:
            if not self.chunked:
                return 0
            chunk = budget
        tokens = request.known_tokens if self.whole else request.computed + chunk
        missing = max(0, -(-tokens // self.connector.size) * self.connector.size - allocator.capacity(seq))
        short = missing > allocator.free_slots - self._least()
        if short or not allocator.grow_chunk(seq, request.computed, request.computed + chunk):
            server.step.no_room = True
            if server.events and not (short and missing <= allocator.free_slots):  # then it is the watermark
                server.step.of_refusals().head = Refusal(request, missing)
            return 0
        self.connector.runs(user)
        del server.batch.loading[seq]
        server.wakes.loaded -= 1
        request.seq = server.memory.new_seq()
        self.connector.allocator.rename(seq, request.seq)
        server.begin_loaded(request, chunk)
        return chunk
