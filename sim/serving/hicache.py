"""Host memory below the GPU's as SGLang's HiCache uses it, on the clock.

    step s     texts are entered: copies to the host are queued (allocators/sglang/host_tree.py)
    its end    they begin, as one job
    later      it ends: known from the next decision on, the pages may be evicted
    entering   the host's part of a prompt, from 10 tokens on, gets pages immediately; loads of all that enter
               are one job, layer by layer: the step computes a layer as soon as it has arrived

No request waits for a load outside of a step. With `write_back` an eviction copies first, node by node, and
the step begins when that is over; the loads of the same step go on meanwhile.

Follows SGLang 0.5.23 (`managers/cache_controller.py`, `managers/scheduler.py`, `schedule_policy.py`), without
overlap scheduling.
"""

from collections import deque
from typing import Final

from kvsim.allocators.base import Match
from kvsim.allocators.runs import text_of
from kvsim.allocators.sglang.cached import SglangCached
from kvsim.allocators.sglang.host_tree import HostTree
from kvsim.allocators.sglang.nodes import HostNode
from kvsim.allocators.sglang.rows import SglangMatch
from kvsim.sim.serving.decision import LayerLoad
from kvsim.sim.serving.hicache_storage import NoStorage
from kvsim.sim.serving.link import Link
from kvsim.sim.serving.request import Request
from kvsim.sim.serving.server import Server
from kvsim.sim.serving.sglang_parts import Below
from kvsim.sim.serving.totals import TierTotals

LEAST_LOADED: Final = 10
"""Tokens below which a load is not worthwhile."""


class Hicache(Below):
    """A host's memory below a server's.

    Parameters
    ----------
    link : Link
        The link of each GPU; its blocks are tokens.
    layers : int
        Layers whose keys and values arrive one after another.
    token_bytes : int
        Bytes per token, on all GPUs together.

    Attributes
    ----------
    storage : NoStorage
        What is below the host.
    """

    def __init__(  # noqa: PLR0917 - what a host is
        self, server: Server, cached: SglangCached, tree: HostTree, link: Link, layers: int, token_bytes: int
    ) -> None:
        self.server, self.cached, self.tree = server, cached, tree
        self.link, self.layers, self.token_bytes = link, layers, token_bytes
        self._writes: deque[tuple[int, list[HostNode]]] = deque()  # under way: when each ends, and its nodes
        self._loads: list[HostNode] = []  # nodes where the loads of the last step end
        self._loading: list[tuple[Request, int]] = []  # requests, and how many tokens each loads
        self._delay_ps = 0
        self.storage = NoStorage()
        self.totals = TierTotals(tree.capacity * token_bytes)
        server.totals.tier, server.memory.below.find = self.totals, self.below
        server.wakes.beside = server.wakes.polls = True

    def below(self, request: Request, here: int) -> int:
        """Tokens of a prompt that the host has after the first `here`; also for requests elsewhere."""
        most = request.prompt_tokens - 1
        return max(0, self.tree.reach(text_of(request.content, request.own, most), most) - here)

    # -- a decision ---------------------------------------------------------------------------

    def begin_step(self) -> None:
        """Start the queued copies to the host; copies that ended by now are known."""
        now_ps, totals = self.server.now_ps, self.totals
        totals.count(totals.held_bytes, now_ps)
        self._delay_ps = 0
        self.storage.meet()
        self._write(now_ps)
        written: list[HostNode] = []
        while self._writes and self._writes[0][0] <= now_ps:
            written += self._writes.popleft()[1]
        loaded, self._loads = self._loads, []
        if written or loaded:
            for node in self.cached.end_copies(written, loaded):
                self.storage.store(node, node.tokens)
        self.storage.settle()
        self._count()

    def _write(self, now_ps: int) -> None:
        """Start the queued copies to the host, as one job."""
        nodes, self.tree.queued = self.tree.queued, []
        if nodes:
            self._writes.append((self._copy(loads=False, tokens=_tokens(nodes), now_ps=now_ps), nodes))

    def _copy(self, loads: bool, tokens: int, now_ps: int) -> int:
        """Queue a job; returns when it ends."""
        totals, moved = self.totals, tokens * self.token_bytes
        if loads:
            totals.loaded_bytes += moved
        else:
            totals.stored_bytes += moved
        ends_ps = self.link.copied_ps(loads, tokens, now_ps)
        self.link.tell(totals)
        return ends_ps

    def end_step(self) -> None:
        """The step waits for what was evicted for it; the next decision may differ when a copy ends.

        The last request to finish leaves something to copy: so an empty decision follows it.
        """
        server = self.server
        self._wait_for_evicted()
        self.storage.meet()
        self.totals.steps_waited_ps += self._delay_ps
        server.step.of_moves().delay_ps += self._delay_ps
        self._count()
        anybody = len(server.running) > 0 or len(server.waiting) > 0
        server.wakes.works = anybody or len(self._writes) > 0
        ends = [self._writes[0][0]] if self._writes else []
        passes = self.storage.passes_left()
        if passes:
            server.hold_for(passes)
        if anybody and (stored_ps := self.storage.next_ps()) is not None:
            ends.append(stored_ps)
        if ends or not anybody:
            server.hold_until(max(min(ends, default=0), server.now_ps))

    def _wait_for_evicted(self) -> None:
        """Delay the step until what was evicted so far is copied, node by node."""
        now_ps = self.server.now_ps
        waited, self.tree.waited = self.tree.waited, []
        for node, tokens in waited:
            self.storage.store(node, tokens)
            self._delay_ps = self._copy(loads=False, tokens=tokens, now_ps=now_ps + self._delay_ps) - now_ps

    def _count(self) -> None:
        totals, tree = self.totals, self.tree
        totals.held_bytes = (tree.capacity - tree.room) * self.token_bytes
        totals.peak_bytes = max(totals.peak_bytes, totals.held_bytes)
        totals.refused_stores, totals.evicted_bytes = tree.refused, tree.forgotten * self.token_bytes

    def ready(self, request: Request) -> bool:
        """Whether a request may enter now: its fetch is done, or is not waited for."""
        return self.storage.ready(request)

    # -- loads --------------------------------------------------------------------------------

    def on_host(self, match: Match | None) -> int:
        """Tokens that the host has after a match."""
        if match is None:
            return 0
        assert isinstance(match, SglangMatch)
        return match.below.end - match.tokens

    def load(self, request: Request, match: Match | None) -> int:
        """Let the step load them, all or none; returns the tokens by which the match is then longer."""
        if self.on_host(match) < LEAST_LOADED:
            return 0
        assert isinstance(match, SglangMatch) and isinstance(match.below, HostNode)
        here, server = match.tokens, self.server
        tokens = self.cached.load(match)
        if tokens:
            self._loads.append(match.below)
            self._loading.append((request, tokens))
            self.totals.hit(here, tokens)
            # an entering request counts all that it does not compute
            server.step.of_prompts().hit_tokens -= tokens
            server.totals.hit_tokens -= tokens
            if server.events:
                server.events.loads_beside(request, server.now_ps, server.steps, tokens)
        return tokens

    def start_loading(self) -> None:
        """The loads of all entering requests are one job; it begins when earlier jobs have made room."""
        loading, self._loading = self._loading, []
        if not loading:
            return
        tokens, server = sum([tokens for _, tokens in loading]), self.server
        self._wait_for_evicted()
        now_ps, way = server.now_ps, self.link.lanes[True].way
        begins_ps = now_ps + self._delay_ps
        ends_ps = self._copy(loads=True, tokens=tokens, now_ps=begins_ps)
        first_bytes = -(-tokens * self.link.block_bytes // self.layers)
        first_ps = ends_ps - way.duration_ps(tokens, tokens * self.link.block_bytes)
        first_ps += way.duration_ps(0, first_bytes)
        server.step.of_moves().load = LayerLoad(first_ps - now_ps, ends_ps - now_ps, self.layers)
        if server.events:
            for request, each in loading:
                server.events.loaded(request, ends_ps, server.steps, each)


def _tokens(nodes: list[HostNode]) -> int:
    return sum([node.tokens for node in nodes])
