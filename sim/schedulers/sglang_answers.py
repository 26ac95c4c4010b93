"""SGLang on a decode server: room is reserved for a prompt before it is computed, and answers are computed.

    retracted   come back first; while any of them finds no room, nothing else happens
    waiting     in order of arrival: room for the prompt is reserved, if `num_reserved_decode_tokens` are left
                for each request that is here, and enough for the longest answer
    arrived     decode as soon as there is a seat, from the next step on: their first token came with them
    running     if memory is short, some are retracted: their keys and values go to the host, and come back
                when their tokens and `num_reserved_decode_tokens` more fit

There is no prefix cache, unless `disaggregation_decode_enable_radix_cache`: then only what it lacks is sent.

Follows sgl-project/sglang, python/sglang/srt/disaggregation/decode.py: `pop_preallocated`,
`_allocatable_token_budgets`, `resume_retracted_reqs`, `process_decode_queue`, `get_new_prebuilt_batch`; and
`DecodeReqToTokenPool`, for how many requests there is room besides the running ones.
"""

from dataclasses import replace
from typing import Final

from kvsim.allocators.sglang.rows import SglangMatch
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.errors import KvsimError
from kvsim.sim.record.events import NO_ROOM
from kvsim.sim.schedulers.sglang import Sglang
from kvsim.sim.serving.decision import NEVER_PS
from kvsim.sim.serving.link import Way
from kvsim.sim.serving.pushing import Pushes
from kvsim.sim.serving.receiving import ReceivingServer, Reservations
from kvsim.sim.serving.request import Request
from kvsim.sim.serving.server import Rules, Server

FEW_SEATS: Final = 32
"""Up to so many, there is room for twice as many requests besides; else for none."""


class SglangAnswers(Sglang):
    """Reserves room, takes prompts and answers them."""

    def __init__(self, config: EngineConfig, max_model_len: int, hand_over: Pushes) -> None:
        options = config.options
        caches = bool(options.get("disaggregation_decode_enable_radix_cache"))
        super().__init__(replace(config, enable_prefix_caching=caches), max_model_len)
        self._hand_over = hand_over
        self._way: Way | None = None
        hand_over.answers(self)

    def _new_queue(self) -> Reservations:
        self._queue = Reservations()
        return self._queue

    def _server_of(self, rules: Rules) -> Server:
        self._server = ReceivingServer(self._batch, rules, self._queue)
        return self._server

    def copies_over(self, way: Way, block_bytes: int) -> None:
        """How retracted requests go to the host and come back."""
        self._way, self._block_bytes = way, block_bytes

    # -- lengths ------------------------------------------------------------------------------

    def longest_here(self, prompt: int, longest: int) -> int:
        """Tokens at which an answer is truncated."""
        return super().longest_answer(self._server, prompt, longest)

    def never_fits(self, request: Request) -> str:
        """Why a request can never be answered here, or ""."""
        needs = self._needs(request, self._paged(request.prompt_tokens), 0, 0)
        if max(needs, request.final_tokens) <= self.lengths.capacity:
            return ""
        return f"does not fit an empty arena of {self.lengths.capacity:,} slots"

    def _paged(self, tokens: int) -> int:
        """The tokens that a prompt takes: whole pages, if there is a prefix cache."""
        page = self.lengths.page
        return -(-tokens // page) * page if self.cache is not None else tokens

    def _needs(self, request: Request, tokens: int, cached: int, retractable: int) -> int:
        """Tokens that must be allocatable before a prompt gets `tokens` of them, besides `cached` ones."""
        beside = request.prompt_tokens - cached + self.lengths.estimated(request) - retractable
        return max(tokens + self.options.num_reserved_decode_tokens, beside)

    # -- a step -------------------------------------------------------------------------------

    def schedule(self, server: Server) -> None:
        """Let retracted requests come back, reserve room, take what has arrived, decode."""
        here = self._server
        self._catch_up(server)
        self._restore()
        if not self._queue.retracted:
            self._reserve()
            here.settle()
        finished = self._enter_landed()
        self._decode(server)
        server.wakes.passed_over = len(here.landed)
        if finished:
            server.hold_until(server.now_ps)
        elif not self._queue.retracted and (next_ps := here.next_arrival_ps()) < NEVER_PS:
            server.hold_until(next_ps)
        if self._queue.retracted and not (here.running or here.landed):
            self._give_up(self._queue.retracted[0])

    def _give_up(self, request: Request) -> None:
        """Nothing runs, and a retracted request finds no room: only prompts on their way could leave."""
        if self._server.arriving:
            raise KvsimError(
                f"request {request.index} would wait forever, as in SGLang: it was retracted, and prompts "
                "that arrive hold the memory it needs; use a higher num_reserved_decode_tokens"
            )
        self._server.refuse_head()

    def _allocatable(self, single: int, woken: int = 0) -> int:
        """Tokens that may be allocated now, if running requests keep what they may need.

        `single`: what the longest of them may still need.
        """
        here = self._server
        active = here.decoding + len(here.batch.loading)
        kept = max(self.options.num_reserved_decode_tokens * active, single)
        return self._memory.free_tokens()[0] - woken - kept

    def _restore(self) -> None:
        """Bring retracted requests back while they fit."""
        here, queue, reserved = self._server, self._queue.retracted, self.options.num_reserved_decode_tokens
        left = self._allocatable(0) if queue else 0
        while queue and self._has_place():
            needs = queue[0].known_tokens - 1 + reserved
            if needs > left:
                self._batch.full.why = NO_ROOM
                break
            left -= needs
            tokens = here.restore_head()
            if not tokens:
                break
            self._copy(tokens)

    def _has_place(self) -> bool:
        """Whether another request may hold memory."""
        seats = self.config.max_num_seqs
        most = 3 * seats if seats <= FEW_SEATS else seats
        return self._server.decoding + len(self._server.batch.loading) < most

    def _reserve(self) -> None:
        """Reserve room for the prompts that come first, while it is there."""
        here = self._server
        if not here.waiting:
            return
        running = [r for r in here.running.values() if r.is_decoding]
        retractable = sum([r.prompt_tokens + self._batch.generated(r) for r in running])
        single = max([self.lengths.estimated(r) + r.prompt_tokens for r in running], default=retractable)
        while here.waiting:
            if not self._has_place() or len(here.arriving) >= 2 * self.config.max_num_seqs:
                self._batch.full.why = "seats"
                return
            if not self._reserve_head(here.waiting[0], retractable, single - retractable):
                return

    def _reserve_head(self, request: Request, retractable: int, single: int) -> bool:
        here, tokens = self._server, request.prompt_tokens
        match: SglangMatch | None = None
        cached = woken = 0
        if here.allocator.caches:
            found = self._memory.look(request, tokens)
            assert isinstance(found, SglangMatch)
            match, cached, woken = found, found.tokens, found.woken_slots
            tokens = self._paged(tokens) - cached
        needs = self._needs(request, tokens, cached, retractable)
        if needs > self._allocatable(single, woken) or not here.reserve_head(match):
            self._batch.full.why = NO_ROOM
            here.refuse_head()
            if tokens + self.options.num_reserved_decode_tokens <= self._allocatable(0, woken):
                here.ask_again()  # what running requests may still need shrinks while they decode
            return False
        self._hand_over.reserved(request, cached, here.now_ps)
        return True

    def _enter_landed(self) -> bool:
        """Requests that are all here decode from this step on; a first token came with its prompt.

        Returns whether that was all of any answer.
        """
        here, finished = self._server, False
        while here.landed and here.decoding < self.config.max_num_seqs:
            request = here.landed.popleft()
            here.enter(request)
            self._memory.enter(request)
            if request.generated:
                if here.events:
                    here.events.returned(request, here.now_ps, here.steps)
                here.start_decode(request)
            else:
                if here.events:
                    here.events.admitted(request, here.now_ps, here.steps, request.computed, 0)
                self._hand_over.first_token(here, request)
                finished = finished or not request.is_decoding
        return finished

    def _send_back(self, server: Server, request: Request) -> None:
        """A request is retracted: it goes to the host."""
        self._copy(self._server.offload(request))

    def _copy(self, tokens: int) -> None:
        """The step waits while a request's tokens are copied."""
        assert self._way is not None
        blocks = -(-tokens // self.lengths.page)
        self._server.step.of_moves().delay_ps += self._way.duration_ps(blocks, blocks * self._block_bytes)

    def head(self, server: Server) -> Request | None:
        """Of those that are here, the first that waits for a seat; its prefill server tells of others."""
        return next((request for request in self._server.landed if not request.generated), None)

    def held_back(self, server: Server) -> str:
        """Why no more requests enter."""
        return "seats" if self._server.landed else self._batch.full.why
