"""LMCache below a vLLM server, in its process: the step waits for its loads and for its stores.

    looked up     at the head of the queue: the whole chunks of its text, once until it is admitted
    step          |load, request by request|compute|store, chunk by chunk|
    stored        the whole chunks of a prompt that the step completes, from where the last store ended;
                  nothing of an answer

A hit is loaded after what the GPU has. If that is the whole prompt, the last token is computed.
A request is not stored any further once it decodes, nor after a one-token piece of its prompt (as in
LMCache, which takes that for a decode).

Follows LMCache 0.5.6 (`integration/vllm/vllm_v1_adapter.py`, `v1/gpu_connector/gpu_connectors.py`) with
`local_cpu`, `save_unfull_chunk` and `save_decode_cache` off, not layer by layer.
"""

from kvsim.allocators.texts import Texts
from kvsim.allocators.tiers.lmcache import LmcacheMemory
from kvsim.sim.serving.connector import Connector
from kvsim.sim.serving.link import Link
from kvsim.sim.serving.offload import whole_text
from kvsim.sim.serving.request import Request
from kvsim.sim.serving.server import Server
from kvsim.sim.serving.tier_jobs import User
from kvsim.sim.serving.totals import TierTotals


class Stored(User):
    """What LMCache's connector knows about a request.

    Attributes
    ----------
    keys : list of int
        Keys of the chunks of its text.
    found, held : int or None, int
        Chunks that its look-up found, until it is admitted; how many of them it holds.
    start, tokens, saved : int
        Tokens of its text that it begins with, that were scheduled, that are stored.
    answered : int
        Answer tokens that it had when it last computed a piece of its prompt.
    is_new, decodes : bool
        Whether it never ran; whether nothing more of it will be stored.
    """

    __slots__ = ("answered", "decodes", "found", "held", "is_new", "keys", "saved", "start", "tokens")

    def __init__(self, request: Request, keys: list[int]) -> None:
        super().__init__(request, request.own)
        self.keys = keys
        self.found: int | None = None
        self.held = self.start = self.tokens = self.saved = self.answered = 0
        self.is_new, self.decodes = True, False


class Lmcache(Connector):
    """Loads and stores for one server.

    Parameters
    ----------
    chunks : LmcacheMemory
        The chunks on the host.
    link : Link
        The link of each GPU, counted in the GPU's blocks.
    chunk_tokens, chunk_bytes : int
        Tokens and bytes of a chunk, on all GPUs together.
    """

    transfers: Link

    def __init__(  # noqa: PLR0917 - what is copied, where to, and when
        self,
        server: Server,
        chunks: LmcacheMemory,
        link: Link,
        chunk_tokens: int,
        chunk_bytes: int,
        late: bool,
    ) -> None:
        super().__init__(server, link, late)
        self.link, self.chunks = link, chunks
        self.chunk_tokens, self.chunk_bytes = chunk_tokens, chunk_bytes
        self.users: dict[int, Stored] = {}
        self._texts = Texts(chunk_tokens)
        self._delay_ps = 0
        self.totals = TierTotals(chunks.capacity * chunk_bytes)
        server.totals.tier, server.memory.below.find = self.totals, self.below

    def user(self, request: Request) -> Stored:
        """What is known about a request."""
        found = self.users.get(request.own)
        if found is None:
            found = self.users[request.own] = Stored(request, self._keys(request))
        return found

    def _keys(self, request: Request) -> list[int]:
        text = whole_text(request, request.prompt_tokens + request.output_tokens)
        return [key for first, count in self._texts.keys(text) for key in range(first, first + count)]

    def below(self, request: Request, here: int) -> int:
        """Tokens of a prompt stored here after the first `here`; for requests elsewhere, too."""
        size = self.chunk_tokens
        found = self.chunks.find(self._keys(request)[: (request.prompt_tokens - 1) // size])
        return max(0, found * size - here)

    # -- loads ----------------------------------------------------------------------------------

    def look_up(self, user: User, here: int) -> int | None:
        """Stored tokens after the first `here`; what was found once is not looked up again."""
        assert isinstance(user, Stored)
        known, size = user.request.known_tokens, self.chunk_tokens
        if user.found is None:
            user.found = user.held = self.chunks.hold(user.keys[: known // size])
        found = user.found * size
        below = max(0, found - here - (found == known))
        user.start = here + below
        return below

    def begin(self, user: User, request: Request, here: int, below: int, at_once: bool = False) -> None:
        """Load what was found: the step waits."""
        assert isinstance(user, Stored) and user.found is not None
        server, tokens = self.server, user.found * self.chunk_tokens - here
        self._let_go(user)
        self.totals.hit(here, below)
        self.totals.loaded_bytes += tokens * self.chunk_bytes // self.chunk_tokens
        self._delay_ps = self._copied_ps(True, -(-tokens // self.size))
        if server.events:
            server.events.loads_first(request, server.now_ps, server.steps, below)
            server.events.loaded(request, server.now_ps + self._delay_ps, server.steps, below)

    def _let_go(self, user: Stored) -> None:
        self.chunks.let_go(user.keys[: user.held])
        user.held = 0

    def _copied_ps(self, loads: bool, blocks: int) -> int:
        """How long the step waits until a copy, queued after all others, is done."""
        now_ps = self.server.now_ps
        return self.link.copied_ps(loads, blocks, now_ps + self._delay_ps) - now_ps

    def runs(self, user: User) -> None:
        """Does nothing: no request waits outside of a step."""

    # -- a decision ---------------------------------------------------------------------------

    def begin_step(self) -> None:
        """A step is about to be decided."""
        self.totals.count(self.totals.held_bytes, self.server.now_ps)
        self._delay_ps = 0

    def end_step(self) -> None:
        """A step is decided: its requests drop what they hold, and what the step computes is stored."""
        step, running = self.server.step, self.server.running
        chosen = [(self.user(request), request) for request in step.chunks if request.seq in running]
        again = [each for each in chosen if not each[0].is_new]
        for user, request in [each for each in chosen if each[0].is_new] + again:
            self._save(user, request)
        totals = self.totals
        totals.held_bytes = len(self.chunks) * self.chunk_bytes
        totals.peak_bytes = max(totals.peak_bytes, totals.held_bytes)
        totals.evicted_bytes = self.chunks.evicted * self.chunk_bytes
        totals.refused_stores = self.chunks.refused
        self.link.tell(totals)
        totals.steps_waited_ps += self._delay_ps
        step.of_moves().delay_ps += self._delay_ps
        self._delay_ps = 0

    def _save(self, user: Stored, request: Request) -> None:
        """Store the chunks that a request completes by this step, from where its last store ended."""
        size, start = self.chunk_tokens, user.tokens
        self._let_go(user)
        if user.found is not None:  # it was admitted
            user.saved, start, user.found = user.found * size, user.start, None
            user.decodes |= request.generated > user.answered + 1 + self.late
        user.decodes |= not user.is_new and request.computed - start == 1
        user.is_new, user.tokens, user.answered = False, request.computed, request.generated
        if user.decodes or (user.saved and user.tokens < (user.saved // size + 1) * size):
            return
        first, user.saved = user.saved // size, user.tokens // size * size
        stored = self.chunks.store(user.keys[first : user.saved // size])
        self.totals.stored_bytes += stored * self.chunk_bytes
        for _ in range(stored):
            self._delay_ps = self._copied_ps(False, size // self.size)

    # -- leaving ------------------------------------------------------------------------------

    def finishes(self, request: Request) -> None:
        """A request has finished: nothing more is stored."""
        self.users.pop(request.own, None)

    def aborts(self, request: Request, tokens: int, table: list[int]) -> None:
        """A request is aborted: it no longer holds anything."""
        user = self.users.pop(request.own, None)
        if user is not None:
            self._let_go(user)

    # -- nothing is in flight between steps -----------------------------------------------------

    def settle(self, by_ps: int) -> bool:
        """All copies end with their step."""
        return False

    def wake(self, again: bool) -> None:
        """Say when the next decision may differ; `again`: immediately."""
        if again:
            self.server.hold_until(self.server.now_ps)
