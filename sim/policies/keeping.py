"""A request that gives up its seat keeps its memory: it is set aside with all it holds until it gets a seat.

    seats are short     the running request with the largest key is set aside; nothing is recomputed
    memory is short     the last request in the queue that was set aside is preempted; then running ones

A prompt is computed to its end. All this holds if blocks are allocated one by one; if the place of a sequence
matters, or the allocator works between steps, a displaced request is preempted, as by other policies; a note
of the run says so.
"""

from bisect import bisect_left, insort
from itertools import islice
from typing import Any

from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.policies.base import Policy
from kvsim.sim.serving.request import Request, State
from kvsim.sim.serving.server import Server

Kept = tuple[Any, int, int, Request]
"""(key when it joined the queue, row, sample, request)"""


class Keeping(Policy):
    """Displaced requests keep what they hold, while there is enough memory.

    A subclass calls `keep` when one of them joins the queue, and `forget` when it has a seat again. Keys of
    waiting requests may only fall.
    """

    preempts = True
    displaced = "keep their memory while there is enough, if it is in blocks"

    def __init__(self, config: EngineConfig, max_model_len: int) -> None:
        super().__init__(config, max_model_len)
        self.keeps = True
        self._kept: list[Kept] = []  # requests set aside; the last would be served last
        self._of: dict[Request, tuple[Kept, int]] = {}  # and the slots that they hold
        self._slots_kept = self._tokens_kept = 0

    def begin(self, server: Server) -> None:
        super().begin(server)
        against = _against(server)
        if self.keeps and against:
            self.keeps = False
            self.note = f"Policy {self.config.policy}: displaced requests are recomputed, as {against}."

    def _may_give_way(self, request: Request) -> bool:
        return request.state is State.DECODE if self.keeps else super()._may_give_way(request)

    # -- requests set aside -------------------------------------------------------------------

    def keep(self, request: Request) -> None:
        """A request that was set aside joins the queue."""
        entry: Kept = (self.key(request, self.server.now_ps), request.index, request.sample, request)
        slots = self.server.allocator.slots_needed(request.computed, self.server.rules.bound(request))
        insort(self._kept, entry)
        self._of[request] = entry, slots
        self._slots_kept += slots
        self._tokens_kept += request.computed

    def forget(self, request: Request) -> None:
        """It has a seat again, or lost its memory; other requests are ignored."""
        found = self._of.pop(request, None)
        if found is not None:
            entry, slots = found
            del self._kept[bisect_left(self._kept, entry)]
            self._slots_kept -= slots
            self._tokens_kept -= request.computed

    def _last_kept(self) -> Request:
        """The one of them that would be served last."""
        kept, now_ps = self._kept, self.server.now_ps
        while True:
            before, row, sample, request = kept[-1]
            key = self.key(request, now_ps)
            if key == before:
                return request
            entry: Kept = (key, row, sample, request)
            kept.pop()
            insort(kept, entry)
            self._of[request] = entry, self._of[request][1]

    # -- victims ------------------------------------------------------------------------------

    def victim(self) -> Request:
        self.place()
        if not self._kept:
            return super().victim()
        request = self._last_kept()
        self.forget(request)
        return request

    def _needed(self, head: Request) -> int:
        if head.state is not State.ASIDE:
            return super()._needed(head)
        allocator, bound = self.server.allocator, self.server.rules.bound(head)
        return allocator.slots_needed(head.computed + 1, bound) - self._slots(head)

    def _displace(self, seats: int, budget: int) -> int:
        """Set aside requests with the largest keys for a seat; preempt for memory.

        Does nothing if the head never fits. Returns how many were preempted.
        """
        if not self.keeps:
            return super()._displace(seats, budget)
        server = self.server
        head, running, allocator = server.waiting[0], server.running, server.allocator
        rivals = iter(self.rivals(self.key(head, server.now_ps), server.now_ps))
        aside = list(islice(rivals, max(0, len(running) - seats + 1)))
        prompts = server.memory.prefill_held > self._tokens_kept  # some prompts are under way
        if len(running) - len(aside) >= seats or (prompts and self._prompts_fill(budget)):
            return 0
        free = allocator.free_slots
        grows = head.state is State.ASIDE and free >= allocator.growth_slots  # by one token
        missing = 0 if grows else self._needed(head) - free
        if missing <= 0:
            if not aside:
                self._fitted = head
            self._set_aside(aside, head)
            return 0
        own = self._of[head][1] if head in self._of else 0
        missing -= self._slots_kept - own + sum([self._slots(request) for request in aside])
        lost: list[Request] = []
        while missing > 0:
            rival = next(rivals, None)
            if rival is None:
                return 0 if running else self._empty(head)
            lost.append(rival)
            missing -= self._slots(rival)
        self._set_aside(aside, head)
        return self._free(head, lost)

    def _set_aside(self, requests: list[Request], head: Request) -> None:
        """These give up their seats to the head of the queue."""
        self._put_first(head)
        for request in requests:
            self.server.set_aside(request)

    def _free(self, head: Request, running: list[Request]) -> int:
        """Preempt the last of the queue, then running requests, until the head fits; returns how many."""
        self.place()
        server, needed, freed = self.server, self._needed(head), 0
        while needed > server.allocator.free_slots:
            last = self._last_kept() if self._kept else head
            aside = last is not head
            if not (aside or running):
                break
            request = last if aside else running.pop(0)
            self.forget(request)
            server.preempt(request, by=head if aside else None)
            freed += 1
        return freed

    def _empty(self, head: Request) -> int:
        """None runs, and the head does not fit beside the requests set aside: preempt all of them."""
        freed = len(self._kept)
        for _, _, _, request in tuple(self._kept):
            self.forget(request)
            self.server.preempt(request, by=head)
        return freed


def _against(server: Server) -> str:
    """Why requests without a seat cannot keep their memory on this server; "": they can."""
    allocator, abilities = server.allocator, server.memory.abilities
    if abilities.after_steps is not None or abilities.in_spans is not None:
        return "the allocator works between steps"
    if abilities.in_groups is not None and not allocator.growth_unit:
        return "several kinds of layers share the blocks"
    in_blocks = allocator.growth_unit > 0 and not (allocator.reserves or abilities.external_slots)
    return "" if in_blocks and allocator.most_sequences is None else "memory is not kept in blocks"
