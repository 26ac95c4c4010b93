"""A server as SGLang keeps it: evicted requests wait at the end, prefixes are entered when they are computed.

What waits is a list that its scheduler sorts anew whenever it may admit; ties stay as they came. A finished
request leaves its whole text to be found, one that was evicted only what was entered before.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from kvsim.allocators.base import Allocator
from kvsim.allocators.sglang.cached import SglangCached
from kvsim.allocators.sglang.windowed import SglangWindowed
from kvsim.sim.serving.request import Request
from kvsim.sim.serving.server import Server


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

    def arrange(self, requests: Iterable[Request]) -> None:
        """The same requests in another order."""
        self._waiting = deque(requests)

    def __getitem__(self, index: int) -> Request:
        return self._waiting[index]

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._waiting)


class SglangServer(Server):
    """What SGLang's scheduler needs beyond a Server.

    Attributes
    ----------
    memory, windowed : SglangCached or None, SglangWindowed or None
        The allocator, if it is SGLang's own; and if it has a pool for windowed layers.
    was_idle : bool
        Whether there was nothing to do since the scheduler asked last.
    """

    waiting: WaitingList

    may_work_in_spans = False

    def __init__(self, allocator: Allocator, bound: Callable[[Request], int]) -> None:
        super().__init__(allocator, bound, publishes_late=True)
        self.waiting = WaitingList()
        self.memory = allocator if isinstance(allocator, SglangCached) else None
        self.windowed = allocator if isinstance(allocator, SglangWindowed) else None
        self.was_idle = True
        self._places: dict[Request, int] = {}  # in the batch, if that is not in order of admission
        self._entered_at = -1  # the step whose prompts are entered already

    def wait(self, until_ps: int) -> None:
        super().wait(until_ps)
        self.was_idle = True

    def publish(self, request: Request) -> None:
        """A prompt is computed; a piece of one is entered when the next is decided (`enter`)."""
        if request.computed >= request.known_tokens and self._entered_at != self.steps:
            self.enter(request)

    def enter(self, request: Request, ends: bool = False) -> None:
        """From now on what is computed of a request can be found; `ends`: it is finished."""
        allocator = self.allocator
        if not allocator.caches:
            return
        if self.memory is None:
            allocator.fill(request.seq, request.computed)
            return
        self.memory.fill(request.seq, request.computed, ends)
        self.memory.part(request.seq, request.prompt_tokens)

    def release(self, request: Request, comes_back: bool = False, unknown: int = 0) -> None:
        """Take back a request's memory; one that will come back enters nothing more."""
        if comes_back:
            self.allocator.evict(request.seq)
        else:
            self.enter(request, ends=True)
            self.allocator.release(request.seq)
        del self.running[request.seq]
        self.internal -= request.internal
        request.internal = 0

    def generated(self, request: Request) -> int:
        """Tokens of its answer that a request has."""
        return self.progress.generated(request) if request.is_decoding else request.generated

    def growing(self) -> int:
        """Sequences that need another unit of memory in this step; 0 where that is not known."""
        if self._growth.unit:
            return len(self._growth.due(self.progress.clock))
        if self.windowed is None:
            return 0
        page, stored = self.windowed.page_size, self.progress.stored
        return sum([not stored(request) % page for request in self.batch()])

    def free(self) -> tuple[int, int]:
        """Tokens for which there is memory, free or cached; and of that for windowed layers."""
        if self.windowed is not None:
            return self.windowed.free_tokens, self.windowed.free_windowed
        return self.allocator.free_slots, 0

    def slide(self) -> None:
        """Those who decode give back what their windows have left."""
        if self.windowed is not None:
            for request in self.batch():
                self.windowed.slide(request.seq, self.progress.stored(request))

    def guaranteed_steps(self, at_most: int, keeping_cached: bool = False) -> int:
        """As in the base; one only, if the next evicts something to have its margin."""
        memory = self.windowed
        margin = self.margin * memory.page_size if memory is not None and memory.cached_slots else 0
        if margin and memory is not None and memory.pairs.available < margin:
            return 1
        return super().guaranteed_steps(at_most, keeping_cached)

    def pop_finished(self) -> list[Request]:
        """In the order of the batch; the prompts of the same step come before them."""
        if self.step.chunks and not self.step.paused:
            for request in self.step.chunks:
                self.publish(request)
            self._entered_at = self.steps
        finished = super().pop_finished()
        if self._places and len(finished) > 1:
            finished.sort(key=self._place)
        return finished

    # -- the batch ----------------------------------------------------------------------------

    def batch(self) -> list[Request]:
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
        return sorted(self.batch(), key=lambda r: (generated(r), -r.prompt_tokens), reverse=True)

    def _victim(self) -> Request:
        order = self.retraction_order()
        return order[-1] if order else next(reversed(self.running.values()))
