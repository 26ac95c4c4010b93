"""vLLM V0: a step is prompts only or decodes only; samples of a prompt fork, and are swapped together.

1. Unless a group is swapped out, whole prompts enter from the head of the queue, as many as fit in the token
   budget, the seats and the memory minus a watermark. If any did, the step computes them.
2. Otherwise the step decodes. A group must find as many free blocks as it has sequences, even if it needs
   none; otherwise the latest arrival is evicted: a single sequence is recomputed from the head of the queue,
   several are swapped out.
3. Then, if nothing was evicted, swapped groups come back, earliest arrival first.

With chunked prefill: decodes and chunks of running prompts first, then swapped groups, then new prompts,
all under one token budget; a prompt has the memory of all its tokens from the start.

With the prefix cache, equal blocks are shared, but a cached prompt still counts in full against the budget.
A recomputation that is longer than a step can be, or that would leave less than the watermark of an empty
pool, is dropped and counted as rejected, as is a group for which the host pool has no room.

Versions: 0.1.0, as in the PagedAttention paper: prompts join the step of the decodes (decodes first, then
swapped-out groups, then, if none is left there and nothing was evicted, whole prompts, under one token
budget); 0.1.7: prompts separate; neither has chunked prefill or a prefix cache; 0.4.2, the default.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from mypy_extensions import mypyc_attr

from kvsim.allocators.abilities import Abilities
from kvsim.allocators.base import Allocator
from kvsim.allocators.options import CacheRules, Order
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.errors import KvsimError
from kvsim.sim.record.events import NO_ROOM
from kvsim.sim.schedulers.base import Scheduler
from kvsim.sim.schedulers.vllm_options import VllmV0Options
from kvsim.sim.serving.beam import Survivors
from kvsim.sim.serving.beam_batch import BeamBatch
from kvsim.sim.serving.beam_search import Search
from kvsim.sim.serving.beams import Beams
from kvsim.sim.serving.group_batch import GroupBatch
from kvsim.sim.serving.groups import Groups, urgency_of
from kvsim.sim.serving.memory import KvMemory
from kvsim.sim.serving.request import Group, Request, State
from kvsim.sim.serving.server import Rules, Server
from kvsim.sim.workload import Beam

EARLY = ("0.1.0", "0.1.7")


@mypyc_attr(allow_interpreted_subclasses=True)
class VllmV0(Scheduler):
    """Prompts before decodes, fork and copy-on-write, recomputation and swapping."""

    family: ClassVar[str] = "by turns"
    idea: ClassVar[str] = (
        "as many whole prompts as fit, otherwise all decode; groups are swapped or recomputed"
    )
    VERSIONS: ClassVar[tuple[str, ...]] = ("0.1.0", "0.1.7", "0.4.2")
    serves_in_turn: ClassVar[tuple[str, ...]] = ("fcfs",)
    declares: ClassVar[type] = VllmV0Options
    caches: ClassVar[bool] = True
    forks: ClassVar[bool] = True

    @classmethod
    def defaults(cls, version: str, max_model_len: int) -> Mapping[str, object]:
        """Prompts are not cut, so a step must have room for the longest."""
        budget = 2560 if version in EARLY else max(max_model_len, 2048)
        return {"enable_chunked_prefill": False, "max_num_batched_tokens": budget}

    def __init__(self, config: EngineConfig, max_model_len: int) -> None:
        super().__init__(config, max_model_len)
        if self.version in EARLY:
            for name in ("enable_chunked_prefill", "enable_prefix_caching"):
                if getattr(config, name):
                    raise KvsimError(
                        f"{name} must be off for scheduler vllm-v0@{self.version}, which lacks it"
                    )
        if config.enable_chunked_prefill and config.enable_prefix_caching:
            raise KvsimError("enable_prefix_caching must be off for scheduler vllm-v0 with chunked prefill")
        own = self.own(VllmV0Options)
        self.watermark, self.host_blocks = own.watermark, own.num_cpu_blocks
        self.hides_host = False
        self._swaps = own.preemption == "swap"
        self._chunked = config.enable_chunked_prefill
        self._longest_prompt = max_model_len
        if not self._chunked:
            self._longest_prompt = min(max_model_len, config.max_num_batched_tokens)
        if config.enable_prefix_caching:
            self.cache, self.order = CacheRules(), Order.QUEUE
        self._survivors: Survivors | None = None
        self._evicted: list[Request] = []  # cut in this step, with chunked prefill; requeued at its end

    def new_server(self, allocator: Allocator, bound: Callable[[Request], int]) -> Server:
        """A server whose requests may consist of several sequences."""
        abilities = Abilities.of(allocator)
        if abilities.branches is None or abilities.swaps is None:
            name = self.config.allocator
            raise KvsimError(f"allocator must be paged for scheduler vllm-v0, got {name}")
        self.unit = allocator.growth_unit
        blocks = allocator.capacity_slots // self.unit
        self.watermark_slots = int(self.watermark * blocks) * self.unit
        memory, policy = KvMemory(allocator), self.config.policy
        beams = None
        if self._survivors:
            beams = BeamBatch(memory, Search(self._survivors), urgency_of(policy))
        batch = beams or GroupBatch(memory)
        server = Server(batch, Rules(bound, policy, self.publishes_late))
        self._groups = Groups(server, batch)
        self._beams = Beams(self._groups, beams) if beams else None
        return server

    def search(self, beam: Beam) -> None:
        """Prepare for beam search."""
        self._survivors = Survivors(beam)

    # -- the step -----------------------------------------------------------------------------

    def schedule(self, server: Server) -> None:
        """Prompts, else decodes and returning groups."""
        if self._chunked:
            self._schedule_chunked(server)
        elif self.version == "0.1.0":
            self._schedule_together(server)
        else:
            self._schedule_apart(server)
        if self._beams:
            self._beams.look_ahead()

    def _schedule_apart(self, server: Server) -> None:
        budget = self.config.max_num_batched_tokens
        if not self._groups.swapped:
            self._admit(server, budget)
            if server.step.chunks:
                server.pause()
                return
        self._decode(server, budget)
        if self._groups.swapped and not server.step.preemptions:
            self._swap_in(server, budget - server.decoding)

    def _schedule_together(self, server: Server) -> None:
        budget = self._decode(server, self.config.max_num_batched_tokens)
        if self._groups.swapped and not server.step.preemptions:
            budget -= self._swap_in(server, budget)
        if not self._groups.swapped and not server.step.preemptions:
            self._admit(server, budget)

    def _schedule_chunked(self, server: Server) -> None:
        budget = self._decode(server, self.config.max_num_batched_tokens)
        if self._groups.swapped and not server.step.preemptions:
            budget -= self._swap_in(server, budget)
        self._admit(server, budget)
        for request in self._evicted:
            server.waiting.appendleft(request)
        self._evicted.clear()

    def _admit(self, server: Server, budget: int) -> None:
        waiting, allocator = server.waiting, server.allocator
        seats = None
        while waiting:
            head = waiting[0]
            known = head.known_tokens
            tokens = min(known, budget) if self._chunked else known
            reason = self._never(server, known, tokens)
            if reason:
                server.drop_head(reason)
                continue
            if allocator.free_slots - allocator.slots_needed(known, known) < self.watermark_slots:
                return
            if seats is None:
                seats = self.config.max_num_seqs - sum(group.seats for group in self._groups.running)
            needed = head.its_group.seats
            if not 0 < tokens <= budget or needed > seats:
                return
            self._enter(server, head, tokens)
            budget -= tokens
            seats -= needed

    def _enter(self, server: Server, head: Request, tokens: int) -> None:
        match = server.match_head(whole=True)
        if match is None:
            server.admit_head(head.known_tokens, None, tokens)
        else:
            last = head.known_tokens - 1 - (head.known_tokens - 1) % self.unit  # its block is recomputed
            cached = min(match.tokens, last, tokens - 1)
            server.admit_head(head.known_tokens, match, tokens - cached, cached, charged=cached)
        self._groups.enter(head)

    def _never(self, server: Server, known: int, tokens: int) -> str:
        """Why a prompt or recomputation of `known` tokens can never be computed; "" if it can."""
        if tokens > self._longest_prompt:
            return f"prompt or recomputation is longer than the {self._longest_prompt:,} tokens of a step"
        allocator = server.allocator
        least = self.watermark_slots
        if known > self.config.max_num_batched_tokens:  # every chunk after the first needs a free block
            least = max(least, self.unit)
        if allocator.capacity_slots - allocator.slots_needed(known, known) < least:
            return "does not fit an empty arena above the watermark"
        return ""

    def held_back(self, server: Server) -> str:
        """Swapped-out groups come first; a group needs seats for all its sequences.

        If both are short, the answer is the token budget, which stays short while decodes take more memory.
        """
        head = server.waiting[0]
        if self._groups.swapped and not self._chunked:
            return "swapped"
        if server.step.preemptions:
            return "eviction"
        seats = sum(group.seats for group in self._groups.running) + head.its_group.seats
        if seats > self.config.max_num_seqs:
            return "seats"
        allocator, known = server.allocator, head.known_tokens
        apart = not self._chunked and self.version != "0.1.0"  # decodes take none of the prompts' budget
        spent = server.step.budget_spent + (0 if apart else server.decoding)
        if spent + (1 if self._chunked else known) > self.config.max_num_batched_tokens:
            return "token budget"
        room = allocator.free_slots - allocator.slots_needed(known, known)
        return "watermark" if room >= 0 else NO_ROOM

    def refusal(self, server: Server, request: Request, sequences: int) -> str:
        """Why a request with this many sequences (samples or candidates) can never be served, or ""."""
        seats = self.config.max_num_seqs
        if sequences > seats:
            return f"more answers or candidates than the {seats:,} sequences that may run"
        prompt = request.prompt_tokens
        tokens = min(prompt, self.config.max_num_batched_tokens) if self._chunked else prompt
        return super().refusal(server, request, sequences) or self._never(server, prompt, tokens)

    # -- decoding -----------------------------------------------------------------------------

    def _decode(self, server: Server, budget: int) -> int:
        """Allocate this step's memory for all running requests; returns the token budget left."""
        if not self._groups.grow_freely():
            self._decode_by_group(server)
        budget -= server.decoding
        if self._chunked and server.prefill_held:
            for group in list(self._groups.running):
                request = group.sequences[0]
                chunk = min(request.known_tokens - request.computed, budget)
                if request.state == State.PREFILL and chunk > 0:
                    server.continue_prefill(request, chunk)
                    budget -= chunk
        return budget

    def _decode_by_group(self, server: Server) -> None:
        allocator = server.allocator
        groups = sorted(self._groups.running, key=self._groups.urgency)
        while groups:
            group = groups.pop(0)
            while allocator.free_slots < len(group.sequences) * self.unit:
                victim = groups.pop() if groups else group
                self._preempt(server, victim, group.sequences[0])
                if victim is group:
                    break
            else:
                for request in group.sequences:
                    if request.state == State.DECODE:
                        self._groups.write(request)
        self._groups.batch.written(server.step)

    def _preempt(self, server: Server, group: Group, by: Request) -> None:
        first = group.sequences[0]
        alone = group.seats == 1 and not self._swaps
        if alone or first.state == State.PREFILL:
            self._groups.preempt(first, not self._chunked, by)
            if self._chunked:
                self._evicted.append(first)
        elif not self._groups.swap_out(group, by):
            self._groups.drop_running(
                group, f"no room in the host pool of {self._groups.swaps.host_capacity_slots:,} slots"
            )

    def _swap_in(self, server: Server, budget: int) -> int:
        """Bring swapped groups back; returns the tokens that they decode in this step."""
        allocator, tokens = server.allocator, 0
        seats = self.config.max_num_seqs - sum(group.seats for group in self._groups.running)
        for group in sorted(self._groups.swapped, key=self._groups.urgency):
            seqs = [request.seq for request in group.sequences]
            needed = self._groups.swaps.slots_held(seqs) + len(seqs) * self.unit
            never = allocator.capacity_slots < needed
            if never or (not server.running and allocator.capacity_slots - needed < self.watermark_slots):
                self._groups.drop_swapped(group, "does not fit an empty arena above the watermark")
                continue
            if allocator.free_slots - needed < self.watermark_slots:
                break
            if tokens + len(seqs) > budget or group.seats > seats:
                break
            self._groups.swap_in(group)
            for request in group.sequences:
                self._groups.write(request)
            tokens += len(seqs)
            seats -= group.seats
        return tokens

    # -- samples and beams --------------------------------------------------------------------

    def start_decode(self, server: Server, request: Request) -> Sequence[Request]:
        """The prompt is computed: the other samples fork."""
        group = request.its_group
        if group.seats == 1 or not group.lengths:  # alone, or a recomputation
            group.lengths = []
            return super().start_decode(server, request)
        self._groups.start(request)
        return [sequence for sequence in group.sequences if sequence.state == State.PREFILL]

    def choose_beams(self, server: Server) -> None:
        """Draw the survivors of groups that decoded."""
        if self._beams:
            self._beams.drop_candidates()

    def finish(self, server: Server, request: Request) -> None:
        """A sequence has its last token."""
        self._groups.leave(request)
