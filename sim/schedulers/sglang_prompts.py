"""SGLang on a prefill server: prompts are computed, and sent to the decode server that has room for them.

A request waits until the decode server has reserved room; then prompts go in the order in which that was
known here. A request whose prompt is on its way keeps its seat and its memory until all of it has arrived.
At most twice as many requests as there are seats are queued or on their way. Nothing decodes here.

Follows sgl-project/sglang, python/sglang/srt/disaggregation/prefill.py: `PrefillBootstrapQueue`,
`get_next_disagg_prefill_batch_to_run`, `process_disagg_prefill_inflight_queue`; without overlap scheduling.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.record.events import RESERVATION
from kvsim.sim.schedulers.sglang import Sglang
from kvsim.sim.schedulers.sglang_budget import FixedAnswers
from kvsim.sim.schedulers.sglang_lengths import AnswerLengths
from kvsim.sim.serving.decision import NEVER_PS
from kvsim.sim.serving.held import HoldingServer, Leases
from kvsim.sim.serving.pushing import Bootstrap, Pushes
from kvsim.sim.serving.request import Request, State
from kvsim.sim.serving.server import Rules, Server

BUFFERS: Final = 2
"""Buffers for what goes with a prompt, per seat."""


class FirstTokens(AnswerLengths):
    """Only the first token of an answer is generated here."""

    def most_new(self, request: Request) -> int:
        """That token."""
        return 1


class SglangPrompts(Sglang):
    """Serves prompts and sends them."""

    lengths_of = FirstTokens

    def __init__(self, config: EngineConfig, max_model_len: int, hand_over: Pushes) -> None:
        super().__init__(config, max_model_len)
        self._hand_over = hand_over
        self.ends_steps = True

    def _new_queue(self) -> Bootstrap:
        self._prompts = Bootstrap()
        return self._prompts

    def _server_of(self, rules: Rules) -> Server:
        leases = Leases(NEVER_PS, 0)  # it sends by itself, so it knows when it is done
        self._server = server = HoldingServer(self._batch, rules, leases, _nobody)
        server.hand_over = partial(self._hand_over.computed, server)
        server.waiting = self._prompts
        server.wakes.beside = server.wakes.polls = server.wakes.outside = True
        self._hand_over.prefills(server)
        return server

    # -- lengths ------------------------------------------------------------------------------

    def longest_answer(self, server: Server, prompt: int, longest: int) -> int:
        """An answer is truncated by the decode memory."""
        return self._hand_over.longest_answer(prompt, longest)

    def refusal(self, server: Server, request: Request, sequences: int) -> str:
        """Its prompt must be admitted to the empty memory here, and all of it fit there."""
        lengths, prompt = self.lengths, request.prompt_tokens
        budget, most_new = self._budget((lengths.capacity, 0), 0, 0), lengths.most_new(request)
        if lengths.fixed and self.cache is None:
            answers = FixedAnswers(())
            answers.add(most_new, prompt)
            admitted = budget.admit_fixed(prompt, most_new, answers)
        else:
            admitted = budget.admit(0, prompt, most_new)
        if admitted is None:
            return f"does not fit an empty arena of {lengths.capacity:,} slots"
        return self._hand_over.refusal(request)

    # -- a step -------------------------------------------------------------------------------

    def schedule(self, server: Server) -> None:
        """Free what has arrived, and compute prompts for which there is room."""
        held, queue = self._server, self._prompts
        held.settle(server.now_ps)
        held.free_settled()
        queue.take(max(0, BUFFERS * self.config.max_num_seqs - len(held.held) - len(queue.ready())))
        self._batch.full.now = False
        super().schedule(server)
        if (next_ps := held.leases.next_ps()) < NEVER_PS:
            server.hold_until(next_ps)

    def _seated(self, server: Server) -> int:
        return len(self._server.held)

    def held_back(self, server: Server) -> str:
        """Why the head of the queue was not admitted."""
        return super().held_back(server) if self._prompts.ready() else RESERVATION

    def end_step(self, server: Server) -> None:
        """The pages of a cut prompt are sent."""
        for request in server.step.chunks:
            if request.state == State.PREFILL:
                self._hand_over.piece(self._server, request)

    def start_decode(self, server: Server, request: Request) -> Sequence[Request]:
        """The prompt is computed: it is answered elsewhere."""
        server.end_prefill(request)
        request.move(State.FINISHED)
        self._forget(request)
        server.finish(request)
        return ()


def _nobody(_: Request, __: tuple[int, ...]) -> None:
    raise AssertionError
