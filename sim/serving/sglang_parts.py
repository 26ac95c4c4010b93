"""Parts of SGLang's server: a waiting list, its way to enter prefixes, its batch and whether that is full.

The waiting list is sorted again whenever the scheduler may admit; ties stay in order of arrival, and
retracted requests come at the end. A finished request leaves its whole text in the cache, a retracted one
only what was entered before.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kvsim.allocators.base import Allocator, Match
from kvsim.allocators.sglang.cached import SglangCached
from kvsim.allocators.sglang.windowed import SglangWindowed
from kvsim.sim.serving.batch import Batch
from kvsim.sim.serving.decision import Decision
from kvsim.sim.serving.memory import KvMemory
from kvsim.sim.serving.request import Request


class WaitingList:
    """Requests in the order in which they came, or came back, until they are sorted differently."""

    def __init__(self) -> None:
        self.missing: dict[Request, int] = {}  # tokens to compute of each, when it was last considered
        self._waiting: deque[Request] = deque()
        self._came: dict[Request, int] = {}
        self._number = 0

    def append(self, request: Request) -> None:
        """Put a request at the end."""
        self._number += 1
        self._came[request] = self._number
        self._waiting.append(request)

    appendleft = append

    def popleft(self) -> Request:
        """Take the head."""
        return self._waiting.popleft()

    def remove(self, request: Request) -> None:
        """Remove a request, wherever it is."""
        self._waiting.remove(request)

    def came(self, request: Request) -> int:
        """When a request came, or last came back, as a sequence number."""
        return self._came[request]

    def forget(self, request: Request) -> None:
        """Forget a finished request."""
        del self._came[request]
        self.missing.pop(request, None)

    def ready(self) -> list[Request]:
        """Those that may enter, in order."""
        return list(self._waiting)

    @property
    def number(self) -> int:
        """How often a request came, or came back."""
        return self._number

    def since(self, number: int) -> list[Request]:
        """Requests that came, or came back, after sequence number `number`, in order."""
        if number == self._number:
            return []
        return sorted([one for one in self._waiting if self._came[one] > number], key=self._came.__getitem__)

    def arrange(self, requests: Iterable[Request]) -> None:
        """The same requests in another order."""
        self._waiting = deque(requests)

    def __getitem__(self, index: int) -> Request:
        return self._waiting[index]

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._waiting)


class Below:
    """SGLang's interface to the memory below the GPU's; here there is none (hicache.py)."""

    def begin_step(self) -> None:
        """A step is about to be decided, or no requests are left: copies begin, and some have ended."""

    def ready(self, request: Request) -> bool:
        """Whether a request may enter now; if not, others may go ahead of it."""
        return True

    def on_host(self, match: Match | None) -> int:
        """Tokens that the host has after a match."""
        return 0

    def load(self, request: Request, match: Match | None) -> int:
        """Let the step being decided load them, all or none; returns the tokens added to the match."""
        return 0

    def start_loading(self) -> None:
        """All requests that enter are chosen: their loads begin."""

    def end_step(self) -> None:
        """A step is decided."""


class SglangMemory(KvMemory):
    """Enters prefixes when they are computed, or when the next piece is decided.

    Attributes
    ----------
    cached, windowed : SglangCached or None, SglangWindowed or None
        The allocator, if it is SGLang's own; if it has a pool for windowed layers.
    hicache : Below
        What is below the GPU's memory.
    """

    def __init__(self, allocator: Allocator) -> None:
        super().__init__(allocator)
        self.cached = allocator if isinstance(allocator, SglangCached) else None
        self.windowed = allocator if isinstance(allocator, SglangWindowed) else None
        self.hicache = Below()
        self._entered: Decision | None = None  # the step whose prompts are entered already

    def make_room(self, slots: int) -> bool:
        """Evict cached pages until so many slots are free; False if that is impossible."""
        return slots <= self.allocator.free_slots if self.cached is None else self.cached.make_room(slots)

    def look(self, request: Request, most: int) -> Match:
        """Match of a request's first `most` tokens; it counts as used if the memory is SGLang's."""
        if self.cached is not None:
            return self.cached.look(request.content, request.own, most)
        assert self.prefixes is not None
        return self.prefixes.match(request.content, request.own, most)

    def enter(self, request: Request, ends: bool = False) -> None:
        """From now on a request's computed tokens can be hit; `ends`: it is finished."""
        if self.prefixes is None:
            return
        if self.cached is None:
            self.prefixes.fill(request.seq, request.computed)
            return
        self.cached.fill(request.seq, request.computed, ends)
        self.cached.part(request.seq, request.prompt_tokens)

    def publish(self, request: Request, step: Decision) -> None:
        """A prompt is computed; a piece is entered when the next one is decided (`enter`)."""
        if request.computed >= request.known_tokens and self._entered is not step:
            self.enter(request)

    def publish_all(self, step: Decision) -> None:
        """All prompts of a step are computed."""
        for request in step.chunks:
            self.publish(request, step)
        self._entered = step

    def free(self, request: Request, comes_back: bool = False, unknown: int = 0) -> None:
        """Free a request's memory; one that will come back enters nothing more."""
        if comes_back:
            self.allocator.evict(request.seq)
        else:
            self.enter(request, ends=True)
            self.allocator.release(request.seq)
        self.internal -= request.internal
        request.internal = 0

    def free_tokens(self) -> tuple[int, int]:
        """Tokens that free and cached memory can take; the same for windowed layers."""
        if self.windowed is not None:
            return self.windowed.free_tokens, self.windowed.free_windowed
        return self.allocator.free_slots, 0


@dataclass
class BatchIsFull:
    """Whether a batch is known to be full, and why no more requests enter."""

    lasts: bool  # until a request leaves; else waiting requests are considered in every step
    now: bool = False
    why: str = "seats"
    stale: bool = False  # a request left, a prompt was cut or a batch began, since the last decision

    def catch_up(self, decoding: int) -> None:
        """A decision begins: the batch may no longer be full."""
        if self.stale or not self.lasts or not decoding:
            self.now = self.stale = False


class SglangBatch(Batch):
    """Decoding sequences, in the order that the scheduler gives them."""

    memory: SglangMemory
    may_work_in_spans = False

    def __init__(self, memory: SglangMemory, preempts: bool = False) -> None:
        super().__init__(memory)
        self._windowed = memory.windowed
        self.full = BatchIsFull(lasts=not preempts and memory.windowed is None)
        self._places: dict[Request, int] = {}  # in the batch, if not in order of admission

    def generated(self, request: Request) -> int:
        """Tokens of its answer that a request has so far."""
        return self.progress.generated(request) if request.is_decoding else request.generated

    def growing(self) -> int:
        """Sequences that need another unit of memory in this step; 0 if unknown."""
        if self.growth.unit:
            return self.growth.many_due(self.progress.clock)
        if self._windowed is None:
            return 0
        page, stored = self._windowed.page_size, self.progress.stored
        return sum([not stored(request) % page for request in self.requests()])

    def check_decode_mem(self) -> bool:
        """Whether they all can get it, evicting cached pages if necessary."""
        return self.memory.make_room(self.growing() * self.allocator.block_slots)

    def prepare_for_decode(self) -> None:
        """Free what has left the windows; with pages of several tokens, evict as if each needed a page."""
        if self._windowed is not None:
            for request in self.requests():
                self._windowed.slide(request.seq, self.progress.stored(request))
        page, decoding = self.allocator.block_slots, self.progress.size
        if self.memory.cached is not None and page > 1:
            self.memory.make_room(decoding * page)
            self.growth.margin = decoding

    def guaranteed_steps(
        self, at_most: int, keeping_cached: bool = False, anybody_waits: bool = False
    ) -> int:
        """As in the base; only one if the next must evict something for its margin."""
        memory = self._windowed
        margin = self.growth.margin * memory.page_size if memory is not None and memory.cached_slots else 0
        if margin and memory is not None and memory.pairs.available < margin:
            return 1
        return super().guaranteed_steps(at_most, keeping_cached, anybody_waits)

    def finished(self, step: Decision) -> list[Request]:
        """Finished requests in the order of the batch; prompts of the same step are published first."""
        if step.chunks and not step.paused:
            self.memory.publish_all(step)
        finished = super().finished(step)
        if self._places and len(finished) > 1:
            finished.sort(key=self._place)
        return finished

    # -- the batch ----------------------------------------------------------------------------

    def requests(self) -> list[Request]:
        """Decoding requests, in order of admission unless it was changed."""
        decoding = [request for request in self.running.values() if request.is_decoding]
        return sorted(decoding, key=self._place) if self._places else decoding

    def arrange(self, requests: Iterable[Request]) -> None:
        """Set the order of the batch; requests that join come after these."""
        self._places = {request: place - (1 << 40) for place, request in enumerate(requests)}

    def _place(self, request: Request) -> int:
        return self._places.get(request, request.seq)

    def retraction_order(self) -> list[Request]:
        """Decoding requests, longest to be kept first: longest answer, then shortest prompt."""
        generated = self.progress.generated
        return sorted(self.requests(), key=lambda r: (generated(r), -r.prompt_tokens), reverse=True)

    def victim(self, policy: str) -> Request:
        """As in retraction: the shortest answer."""
        order = self.retraction_order()
        return order[-1] if order else next(reversed(self.running.values()))
