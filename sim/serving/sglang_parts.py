"""What SGLang's server is made of: a waiting list, its way to enter prefixes, and the order of its batch.

What waits is a list that the scheduler sorts anew whenever it may admit; ties stay as they came, and
retracted requests come at the end. A finished request leaves its whole text to be found, one that was
retracted only what was entered before.
"""

from collections import deque
from collections.abc import Iterable, Iterator

from kvsim.allocators.base import Allocator, Match
from kvsim.allocators.sglang.cached import SglangCached
from kvsim.allocators.sglang.windowed import SglangWindowed
from kvsim.sim.serving.batch import Batch
from kvsim.sim.serving.decision import Decision
from kvsim.sim.serving.memory import KvMemory
from kvsim.sim.serving.request import Request


class WaitingList:
    """Requests in the order in which they came, or came back, until they are sorted otherwise."""

    def __init__(self) -> None:
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
        """Take a request out, wherever it stands."""
        self._waiting.remove(request)

    def came(self, request: Request) -> int:
        """When a request came, or came back last, as a number that only orders."""
        return self._came[request]

    def forget(self, request: Request) -> None:
        """It is finished."""
        del self._came[request]

    @property
    def number(self) -> int:
        """How often somebody came, or came back."""
        return self._number

    def since(self, number: int) -> list[Request]:
        """Those who came after so many, or came back, in that order."""
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
    """What SGLang's scheduler asks of the memory below the GPU's: here there is none (hicache.py)."""

    def begin_step(self) -> None:
        """A step is to be decided, or nobody is left: copies begin, and some have ended."""

    def ready(self, request: Request) -> bool:
        """Whether a request may enter now; else others may go ahead of it."""
        return True

    def on_host(self, match: Match | None) -> int:
        """Tokens that the host has behind a match."""
        return 0

    def load(self, request: Request, match: Match | None) -> int:
        """Let the step that is decided load them, all or none: the match is longer by so many tokens then."""
        return 0

    def start_loading(self) -> None:
        """All who enter are chosen: their loads begin."""

    def end_step(self) -> None:
        """A step is decided."""


class SglangMemory(KvMemory):
    """Prefixes are entered when they are computed, or when the next piece is decided.

    Attributes
    ----------
    cached, windowed : SglangCached or None, SglangWindowed or None
        The allocator, if it is SGLang's own; and if it has a pool for windowed layers.
    """

    def __init__(self, allocator: Allocator) -> None:
        super().__init__(allocator)
        self.cached = allocator if isinstance(allocator, SglangCached) else None
        self.windowed = allocator if isinstance(allocator, SglangWindowed) else None
        self._entered: Decision | None = None  # the step whose prompts are entered already

    def look(self, request: Request, most: int) -> Match:
        """What of a request's first `most` tokens is cached; it counts as used, where memory is SGLang's."""
        if self.cached is not None:
            return self.cached.look(request.content, request.own, most)
        assert self.prefixes is not None
        return self.prefixes.match(request.content, request.own, most)

    def enter(self, request: Request, ends: bool = False) -> None:
        """From now on what is computed of a request can be found; `ends`: it is finished."""
        if self.prefixes is None:
            return
        if self.cached is None:
            self.prefixes.fill(request.seq, request.computed)
            return
        self.cached.fill(request.seq, request.computed, ends)
        self.cached.part(request.seq, request.prompt_tokens)

    def publish(self, request: Request, step: Decision) -> None:
        """A prompt is computed; a piece of one is entered when the next is decided (`enter`)."""
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
        """Tokens for which there is memory, free or cached; and of that for windowed layers."""
        if self.windowed is not None:
            return self.windowed.free_tokens, self.windowed.free_windowed
        return self.allocator.free_slots, 0


class SglangBatch(Batch):
    """Who decodes, in the order that the scheduler gives them."""

    may_work_in_spans = False

    def __init__(self, memory: SglangMemory) -> None:
        super().__init__(memory)
        self._cached, self._windowed = memory.cached, memory.windowed
        self._publish_all = memory.publish_all
        self._places: dict[Request, int] = {}  # in the batch, if that is not in order of admission

    def generated(self, request: Request) -> int:
        """Tokens of its answer that a request has."""
        return self.progress.generated(request) if request.is_decoding else request.generated

    def growing(self) -> int:
        """Sequences that need another unit of memory in this step; 0 where that is not known."""
        if self.growth.unit:
            return self.growth.many_due(self.progress.clock)
        if self._windowed is None:
            return 0
        page, stored = self._windowed.page_size, self.progress.stored
        return sum([not stored(request) % page for request in self.requests()])

    def slide(self) -> None:
        """Those who decode give back what their windows have left."""
        if self._windowed is not None:
            for request in self.requests():
                self._windowed.slide(request.seq, self.progress.stored(request))

    def guaranteed_steps(
        self, at_most: int, keeping_cached: bool = False, anybody_waits: bool = False
    ) -> int:
        """As in the base; one only, if the next evicts something to have its margin."""
        memory = self._windowed
        margin = self.growth.margin * memory.page_size if memory is not None and memory.cached_slots else 0
        if margin and memory is not None and memory.pairs.available < margin:
            return 1
        return super().guaranteed_steps(at_most, keeping_cached, anybody_waits)

    def finished(self, step: Decision) -> list[Request]:
        """In the order of the batch; the prompts of the same step come before them."""
        if step.chunks and not step.paused:
            self._publish_all(step)
        finished = super().finished(step)
        if self._places and len(finished) > 1:
            finished.sort(key=self._place)
        return finished

    # -- the batch ----------------------------------------------------------------------------

    def requests(self) -> list[Request]:
        """Who decodes, in order of admission, unless it was changed."""
        decoding = [request for request in self.running.values() if request.is_decoding]
        return sorted(decoding, key=self._place) if self._places else decoding

    def arrange(self, requests: Iterable[Request]) -> None:
        """The order of the batch from now on; who joins comes after them."""
        self._places = {request: place - (1 << 40) for place, request in enumerate(requests)}

    def _place(self, request: Request) -> int:
        return self._places.get(request, request.seq)

    def retraction_order(self) -> list[Request]:
        """Who decodes, the one to keep longest first: with the longest answer, then the shortest prompt."""
        generated = self.progress.generated
        return sorted(self.requests(), key=lambda r: (generated(r), -r.prompt_tokens), reverse=True)

    def victim(self, policy: str) -> Request:
        """As when it retracts: the shortest answer."""
        order = self.retraction_order()
        return order[-1] if order else next(reversed(self.running.values()))
