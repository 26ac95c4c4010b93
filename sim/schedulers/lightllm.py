"""LightLLM: a request enters if the peak of all running requests, now and later, fits (future_peak.py).

1. Every `router_max_wait_tokens` decode steps, and whenever nothing runs: admit from the head of the queue
   while the future peak stays below the memory, within the seats and the token budget. Admitted requests
   compute their whole prompts in a separate step, in which nothing decodes.
2. Otherwise decode. If there is no room, pause the last admitted request; its text stays in LightLLM's tree.

An answer is expected to reach its maximum length (set by `--reserve`) if memory use is at least
`router_token_ratio`, which by default is always true, so that no request is ever paused. Below this ratio, it
is expected to have `router_max_new_token_len` tokens, or a tenth more than exist.

Router and queue of revision fc72ffab; the rule equals it in every recorded state. Left out: chunked prefill.
LightLLM pauses the request that arrived last, here the latest admission is paused.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from kvsim.allocators.option import option
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.errors import KvsimError
from kvsim.sim.record.events import FUTURE_PEAK
from kvsim.sim.schedulers.base import Scheduler
from kvsim.sim.schedulers.future_peak import Expected, Peak, expected, longest_answer
from kvsim.sim.serving.request import Request, State
from kvsim.sim.serving.server import Server


@dataclass(frozen=True, kw_only=True)
class WaitOptions:
    """When LightLLM's router admits requests."""

    router_max_wait_tokens: int = option("Decode steps between admissions.", default=6, value="N", least=0)


@dataclass(frozen=True, kw_only=True)
class LightLLMOptions(WaitOptions):
    """What LightLLM's router expects of answers."""

    router_token_ratio: float = option(
        "Share of memory in use from which the longest answers are expected.",
        default=0.0,
        value="X",
        least=0,
        shown="0.0: always",
    )
    router_max_new_token_len: int = option(
        "Expected answer below that.",
        default=1024,
        value="N",
        least=0,
        doc="tokens of an expected answer below that share, or a tenth more than it has so far",
    )


class LightLLM(Scheduler):
    """Admission by future peak, prompts in separate steps."""

    family: ClassVar[str] = "by turns"
    idea: ClassVar[str] = "admits while the peak of future memory fits"
    serves_in_turn: ClassVar[tuple[str, ...]] = ("fcfs",)
    declares: ClassVar[type] = LightLLMOptions
    reserves = True

    @classmethod
    def defaults(cls, version: str, max_model_len: int) -> Mapping[str, object]:
        """Prompts are whole, so the longest must fit in a step."""
        return {"enable_chunked_prefill": False, "max_num_batched_tokens": max(2048, max_model_len)}

    def __init__(self, config: EngineConfig, max_model_len: int) -> None:
        super().__init__(config, max_model_len)
        if config.enable_chunked_prefill:
            raise KvsimError(
                f"enable_chunked_prefill must be off for scheduler {config.scheduler}, got on: "
                "prompts in chunks are not simulated"
            )
        if config.max_num_batched_tokens < max_model_len:
            raise KvsimError(
                f"max_num_batched_tokens must be at least max_model_len ({max_model_len}) for scheduler "
                f"{config.scheduler}, which computes whole prompts, got {config.max_num_batched_tokens}"
            )
        own = self.own(LightLLMOptions)
        self.ratio, self.usual_answer = own.router_token_ratio, own.router_max_new_token_len
        self.wait = self.own(WaitOptions).router_max_wait_tokens
        self._period = max(1, self.wait)
        self._turn = 0  # step of the next admission, then every `_period` steps
        self._full = False  # whether seats or budget, not the peak, ended the last admission

    def schedule(self, server: Server) -> None:
        """Admit if it is time, else decode."""
        late = server.steps - self._turn
        if not server.running or (late >= 0 and late % self._period == 0):
            self._admit(server)
        if server.step.chunks:
            server.pause()
            self._turn = server.steps + 1 + self.wait
            return
        server.grow_due()
        if server.step.preemptions:
            self._turn = server.steps + self._period
        if server.waiting:
            late = server.steps - self._turn
            server.hold_for(self._period - late % self._period if late >= 0 else -late)

    def _admit(self, server: Server) -> None:
        waiting, allocator = server.waiting, server.allocator
        capacity, budget = self._capacity(server), self.config.max_num_batched_tokens
        busy = allocator.used_slots / allocator.capacity_slots >= self.ratio
        peak = Peak(self._expected(server, r, busy) for r in server.running.values())
        self._full = False
        while waiting:
            head = waiting[0]
            self._full = len(peak) >= self.config.max_num_seqs or head.known_tokens > budget
            if self._full or peak.add(self._expected(server, head, busy)) >= capacity:
                return
            match = server.match_head()
            if not server.admit_head(head.known_tokens, match):
                return
            budget -= head.known_tokens

    def _capacity(self, server: Server) -> int:
        """Tokens that fit in the memory."""
        return server.allocator.capacity_slots // server.allocator.slots_per_token

    def _expected(self, server: Server, request: Request, busy: bool) -> Expected:
        """Tokens of a request now, and those still to come."""
        generated = request.generated
        if request.state is State.DECODE:
            generated = server.progress.generated(request)
        longest = self.longest(server, request, generated, busy)
        return expected(request.prompt_tokens, generated, 0, longest)

    def longest(self, server: Server, request: Request, generated: int, busy: bool) -> int:
        """Answer tokens to expect in total, of which `generated` exist."""
        most = max(server.rules.bound(request) - request.prompt_tokens, generated)
        return most if busy else longest_answer(most, generated, self.usual_answer)

    def refusal(self, server: Server, request: Request, sequences: int) -> str:
        """As in the base; also refuses requests that might exceed the memory alone."""
        longest = max(1, server.rules.bound(request) - request.prompt_tokens)
        alone = Peak([expected(request.prompt_tokens, 0, 0, longest)]).tokens()
        if alone >= self._capacity(server):
            return f"may need {alone:,} tokens, as many as the memory holds, or more"
        return super().refusal(server, request, sequences)

    def held_back(self, server: Server) -> str:
        """The peak of the running requests and the head would exceed the memory, or it is not yet time."""
        if not self._full:
            return FUTURE_PEAK
        return "seats" if len(server.running) >= self.config.max_num_seqs else "token budget"
