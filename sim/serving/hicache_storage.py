"""Storage below HiCache's host: copies on the host go on to it, and prompts are prefetched from it.

    copied to the host   goes on to the storage, one job at a time; it stays on the host until then
    a request comes      what neither memory has of its prompt is asked for, from 256 tokens on
    the answer           if 256 are there, the host makes room; they are read in turn, 128 pages at a time
    its turn to enter    it waits, or the read stops; what was read by then is on the host, and is loaded

    best_effort      stops as soon as the request could enter
    timeout          ... 1 s, and 0.25 s for each 1,024 tokens asked for, after that
    wait_complete    never

Others may enter before a waiting request. None asks while half of the host is asked for. Asking takes the
latency of the link. Who gets nothing asks again later (hicache_retries.py).

Follows SGLang 0.5.23 (`mem_cache/unified_radix_cache.py`, `managers/cache_controller.py`).
"""

from collections import deque
from collections.abc import Iterable
from typing import Final

from kvsim.allocators.base import Run
from kvsim.allocators.eviction.base import Chain
from kvsim.allocators.runs import cut, text_of
from kvsim.allocators.sglang.cached import SglangCached
from kvsim.allocators.sglang.host_tree import HostTree
from kvsim.allocators.sglang.nodes import HostNode
from kvsim.allocators.texts import Texts, pieces
from kvsim.allocators.tiers.pieces import Piece, before, keys_of, size
from kvsim.sim.serving.hicache_retries import Retries
from kvsim.sim.serving.request import Request
from kvsim.sim.serving.secondary import Secondary
from kvsim.sim.serving.server import Server
from kvsim.sim.serving.sglang_parts import WaitingList
from kvsim.sim.serving.totals import TierTotals
from kvsim.sim.workload import PS_PER_S

BATCH_PAGES: Final = 128
"""Pages read at a time."""


class Fetch:
    """Part of a prompt that a request asked for.

    Attributes
    ----------
    anchor, start : HostNode, int
        The node that it follows, which stays on the host: see `HostTree.hold_on_host`.
    text : list of Run
        Text of the whole prompt.
    tokens : int
        Tokens asked for.
    pages, read, unread : int
        Pages to read, 0 until the answer is known; those read so far; those it stopped before.
    known_ps, stopped_ps, since_ps : int or None
        When the answer comes; when it was no longer wanted; since when its request waits.
    """

    __slots__ = (
        *("anchor", "known_ps", "pages", "read", "request", "since_ps", "start", "stopped_ps", "text"),
        *("tokens", "unread", "wanted"),
    )

    def __init__(self, request: Request, anchor: HostNode, start: int, text: list[Run], tokens: int) -> None:
        self.request, self.anchor, self.start, self.text, self.tokens = request, anchor, start, text, tokens
        self.known_ps = 0
        self.wanted: list[Piece] = []
        self.pages = self.read = self.unread = 0
        self.stopped_ps: int | None = None
        self.since_ps: int | None = None


class Reader:
    """Reads fetches in turn, `BATCH_PAGES` at a time; a stopped fetch ends with its current batch."""

    def __init__(self, store: Secondary) -> None:
        self.link, self.way = store.link, store.link.lanes[True].way
        self.page_bytes = store.link.block_bytes
        self.free_ps = 0
        self._queue: deque[Fetch] = deque()

    def _batch_ps(self, fetch: Fetch) -> tuple[int, int]:
        count = min(BATCH_PAGES, fetch.pages - fetch.read)
        return count, self.way.duration_ps(count, count * self.page_bytes)

    def put(self, fetch: Fetch, now_ps: int) -> None:
        """Queue a fetch behind all others."""
        if not self._queue:
            self.free_ps = max(self.free_ps, now_ps)
        self._queue.append(fetch)

    def advance(self, by_ps: int) -> list[Fetch]:
        """Read until then; returns the fetches that are over."""
        over: list[Fetch] = []
        while self._queue:
            fetch = self._queue[0]
            stopped = fetch.stopped_ps is not None and fetch.stopped_ps <= self.free_ps
            if stopped or fetch.read == fetch.pages:
                over.append(self._queue.popleft())
                continue
            count, duration = self._batch_ps(fetch)
            if self.free_ps + duration > by_ps:
                break
            self.free_ps += duration
            self.link.add_busy(True, duration)
            fetch.read += count
        return over

    def next_ps(self) -> int | None:
        """When the first fetch is over; None: there is none."""
        if not self._queue:
            return None
        fetch = self._queue[0]
        if fetch.stopped_ps is not None:
            return self.free_ps + self._batch_ps(fetch)[1]
        whole, rest = divmod(fetch.pages - fetch.read, BATCH_PAGES)
        each = self.way.duration_ps(BATCH_PAGES, BATCH_PAGES * self.page_bytes)
        return (
            self.free_ps + whole * each + (self.way.duration_ps(rest, rest * self.page_bytes) if rest else 0)
        )


class StopPolicy:
    """When a request that could enter no longer waits for its fetch.

    Parameters
    ----------
    name : str

    Attributes
    ----------
    until_ps : dict of int
        Request -> how long it waits in all, from its first wait on.
    over : set of Request
        Those whose wait has timed out.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.until_ps: dict[Request, int] = {}
        self.over: set[Request] = set()

    def forget(self, request: Request) -> None:
        """It comes, or comes back."""
        self.until_ps.pop(request, None)
        self.over.discard(request)

    def waits(self, request: Request, tokens: int, now_ps: int) -> bool:
        """Whether a request that could enter waits for the `tokens` tokens that it asked for."""
        if self.name != "timeout":
            return self.name == "wait_complete"
        until_ps = self.until_ps.setdefault(request, now_ps + PS_PER_S + tokens * PS_PER_S // 4096)
        if now_ps > until_ps:
            self.over.add(request)
        return now_ps <= until_ps


class NoStorage:
    """Nothing below the host."""

    def meet(self) -> None:
        """Ask for the prompts of new arrivals."""

    def store(self, node: HostNode, tokens: int) -> None:
        """The last `tokens` tokens of a path were copied to the host: they go on."""

    def settle(self) -> None:
        """Jobs that ended by now are known."""

    def ready(self, request: Request) -> bool:
        """Whether a request may enter now."""
        return True

    def next_ps(self) -> int | None:
        """When something ends next; None: never."""
        return None

    def passes_left(self) -> int:
        """Passes of the scheduler until a request asks again; 0: none does."""
        return 0


class Storage(NoStorage):
    """A storage below the host of one server.

    Parameters
    ----------
    waiting : WaitingList
        The server's queue.
    store : Secondary
        Its contents; its link's blocks are pages, of all GPUs together.
    stop : StopPolicy
    least : int
        Tokens below which nothing is asked for or read.
    retries : Retries
        Who asks again.
    """

    def __init__(  # noqa: PLR0917 - what a storage is
        self,
        server: Server,
        waiting: WaitingList,
        cached: SglangCached,
        tree: HostTree,
        store: Secondary,
        stop: StopPolicy,
        least: int,
        retries: Retries,
        totals: TierTotals,
    ) -> None:
        self.server, self.waiting = server, waiting
        self.cached, self.tree, self._store = cached, tree, store
        self.stop, self.least, self.retries, self.totals = stop, least, retries, totals
        self._texts = Texts(tree.page_size)
        self._reader = Reader(store)
        server.memory.below.links.append(store)
        self._met = 0
        self._fetches: dict[Request, Fetch] = {}
        self._writes: deque[tuple[int, HostNode, int]] = deque()

    # -- writing ------------------------------------------------------------------------------

    def store(self, node: HostNode, tokens: int) -> None:
        """Those of the last `tokens` tokens of a path that the storage lacks go on to it."""
        new = self._store.take(self.server, self._pieces(_path(node), node.end - tokens, node.end))
        if new:
            start = self.tree.hold_on_host(node)
            ends_ps = self._store.write(new, self.server.now_ps)
            self.totals.cascaded_bytes += size(new) * self._store.link.block_bytes
            self._writes.append((ends_ps, node, start))

    def _pieces(self, text: list[Run], first: int, end: int) -> list[Piece]:
        keys, page = self._texts.keys(tuple(_joined(cut(text, 0, end)))), self.tree.page_size
        return list(pieces(keys, first // page, end // page))

    # -- fetching -----------------------------------------------------------------------------

    def meet(self) -> None:
        """Ask for the prompts of new arrivals."""
        for request in self.waiting.since(self._met):
            if self._store.policy.informed:
                prompt = self._pieces(
                    text_of(request.content, request.own, request.prompt_tokens), 0, request.prompt_tokens
                )
                self._store.policy.meet(
                    Chain(list(keys_of(prompt)), self.tree.page_size, 0, self.server.now_ps // 10**9)
                )
            self.retries.forget(request)
            self.stop.forget(request)
            self._ask(request)
        self._met = self.waiting.number

    @property
    def _pass(self) -> int:
        """The number of the scheduler's pass: one each step, and each wait without one."""
        return self.server.steps + self.server.wakes.waits

    def _ask(self, request: Request, hit_end: int | None = None) -> None:
        """Ask for the rest of a prompt; up to `hit_end` it is known to be there, and nothing is looked up."""
        tree, most = self.tree, request.known_tokens - 1
        match = self.cached.look(request.content, request.own, most)
        anchor = match.below
        assert isinstance(anchor, HostNode)
        self.retries.asks(request, anchor.end)
        known = hit_end is not None and anchor.end < hit_end <= most
        tokens = (hit_end if known and hit_end else most) - anchor.end
        tokens -= tokens % tree.page_size
        if request in self.stop.over or tokens < self.least or not anchor.on_host:
            return
        if sum([fetch.tokens for fetch in self._fetches.values()]) * 2 >= tree.capacity:
            self.retries.missed(request, self._pass, hit_end)
            return
        text = text_of(request.content, request.own, most)
        fetch = Fetch(request, anchor, tree.hold_on_host(anchor), text, tokens)
        fetch.known_ps = self.server.now_ps + (0 if known else self._reader.way.latency_ps)
        fetch.wanted = self._pieces(text, anchor.end, anchor.end + tokens)
        self._fetches[request] = fetch
        if self.server.events:
            self.server.events.asks(request, self.server.now_ps, self.server.steps, tokens)

    def settle(self) -> None:
        """Reads, writes and answers that ended by now are known."""
        now_ps, tree = self.server.now_ps, self.tree
        for fetch in self._reader.advance(now_ps):
            if fetch.stopped_ps is None:
                self._receive(fetch)
            tree.room += fetch.unread * tree.page_size
        for fetch in list(self._fetches.values()):
            if not fetch.pages and fetch.known_ps <= now_ps:
                self._begin(fetch)
        while self._writes and self._writes[0][0] <= now_ps:
            _, node, start = self._writes.popleft()
            tree.let_go(node, start)
        for request, hit_end in self.retries.take(list(self.waiting), self._pass):
            self.retries.count(request)
            self._ask(request, hit_end)

    def _begin(self, fetch: Fetch) -> None:
        """The answer is known: make room on the host, and begin to read."""
        tree, now_ps = self.tree, self.server.now_ps
        there = self._store.has(fetch.wanted, fetch.known_ps)
        stored = tokens = size(there) * tree.page_size
        if tokens >= self.least and tokens > tree.room:
            tree.evict_host(tokens)
        tokens = min(tokens, tree.room)
        if tokens < self.least:
            known = fetch.anchor.end + stored if stored >= self.least else None
            self._forget(fetch, 0)
            self.retries.missed(fetch.request, self._pass, known)
            return
        tree.room -= tokens
        fetch.pages = tokens // tree.page_size
        fetch.wanted = before(there, fetch.pages)
        self._store.use(self.server, fetch.wanted)
        self._reader.put(fetch, now_ps)

    def _receive(self, fetch: Fetch) -> None:
        """What was read so far goes to the host; the room for the rest is free when the read is over."""
        tree, read = self.tree, fetch.read * self.tree.page_size
        fetch.unread = fetch.pages - fetch.read
        there = tree.insert_below(fetch.anchor, fetch.text, read) if read else 0
        self.totals.promoted_tokens += read - there
        self.totals.promoted_bytes += fetch.read * self._store.link.block_bytes
        self._forget(fetch, read)

    def _forget(self, fetch: Fetch, read: int) -> None:
        """A fetch is over, with `read` tokens."""
        server = self.server
        del self._fetches[fetch.request]
        if fetch.since_ps is not None:
            self.totals.waited_requests += 1
            self.totals.waited_ps += server.now_ps - fetch.since_ps
        if server.events:
            server.events.fetched(fetch.request, server.now_ps, server.steps, read)
        self.tree.let_go(fetch.anchor, fetch.start)

    def ready(self, request: Request) -> bool:
        """Whether a request may enter now; if it no longer waits, its read stops."""
        fetch, now_ps = self._fetches.get(request), self.server.now_ps
        if fetch is None:
            return not self._lost_what_it_found(request)
        if self.stop.waits(request, fetch.tokens, now_ps):
            if fetch.since_ps is None:
                fetch.since_ps = now_ps
            return False
        fetch.stopped_ps = now_ps
        if fetch.pages:
            self._receive(fetch)
        else:
            self._forget(fetch, 0)
            if request not in self.stop.over:
                self.retries.missed(request, self._pass)
        return not self._lost_what_it_found(request)

    def _lost_what_it_found(self, request: Request) -> bool:
        """Whether the memories have less of it than when it asked; then it asks again, and enters later."""
        if not self.retries.found.get(request):
            return False
        most = request.known_tokens - 1
        here = self.tree.reach(text_of(request.content, request.own, most), most)
        loses = self.retries.loses(request, here)
        if loses:
            self._ask(request)
        return loses

    def passes_left(self) -> int:
        """Passes of the scheduler until a request asks again; 0: none does."""
        return self.retries.passes_left(self._pass)

    def next_ps(self) -> int | None:
        """When something ends next; None: never."""
        now_ps, until_ps = self.server.now_ps, self.stop.until_ps
        if self.retries.lost:
            return now_ps
        ends = [fetch.known_ps for fetch in self._fetches.values() if not fetch.pages]
        ends += [until_ps[each] + 1 for each in self._fetches if until_ps.get(each, -1) >= now_ps]
        ends += [self._writes[0][0]] if self._writes else []
        reads_ps = self._reader.next_ps()
        return min(ends if reads_ps is None else [*ends, reads_ps], default=None)


def _path(node: HostNode) -> list[Run]:
    """The text from the root to the end of a node."""
    parts = [node.runs]
    while node.parent is not node:
        node = node.parent
        parts.append(node.runs)
    return [run for part in reversed(parts) for run in part]


def _joined(text: Iterable[Run]) -> list[Run]:
    """The same text in as few runs as possible."""
    found: list[Run] = []
    for stream, first, length in text:
        if found and found[-1][0] == stream and found[-1][1] + found[-1][2] == first:
            found[-1] = stream, found[-1][1], found[-1][2] + length
        else:
            found.append((stream, first, length))
    return found
