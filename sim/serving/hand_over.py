"""Disaggregated prefill: one replica computes a prompt, another reads its KV and computes the answer.

    arrival -> router -> prefill replica, its prompt alone -> LATENCY_PS -> router -> decode replica
               blocks are held there ............................................ read, then freed

The second router is separate, over the decode replicas, and asked when the proxy has the prefill's answer.
"""

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

import numpy as np

from kvsim.sim.serving.arrivals import NOT_NOW, NOWHERE
from kvsim.sim.serving.dispatcher import Dispatcher
from kvsim.sim.serving.held import HoldingServer
from kvsim.sim.serving.link import Link, Way
from kvsim.sim.serving.lives import Run
from kvsim.sim.serving.mixed_pool import MixedPool
from kvsim.sim.serving.reading import Reads
from kvsim.sim.serving.replica import Replica
from kvsim.sim.serving.request import Request, prefix_of
from kvsim.sim.serving.server import Server
from kvsim.sim.serving.tier_jobs import Job
from kvsim.sim.workload import Int64Column

STAGES: Final = ("prompt_computed_ps", "read_begin_ps", "read_end_ps", "held_until_ps")
"""Recorded times of each request; the last is when its blocks were free again."""

LATENCY_PS: Final = 1_000_000_000
"""From a prefill's answer to the decode replica, through the proxy: 1 ms, an assumption."""


class Pull(Link):
    """The link of a decode replica, and what went over it.

    A read takes its own link and the outgoing link of the prefill replica, one prompt at a time on either:
    it begins when both are free, and takes as long as the slower of the two.

    Parameters
    ----------
    way : Way
    block_bytes : int
        Bytes per block on each GPU.
    way_out : callable
        The link of the prefill replica that holds a request's prompt, by the request's name.

    Attributes
    ----------
    reads : list of (int, int, int)
        For each read the row of its request, its begin and its end.
    blocks : int
        Blocks of all reads.
    """

    blocks = 0

    def __init__(self, way: Way, block_bytes: int, way_out: Callable[[int], Link]) -> None:
        super().__init__(way, way, block_bytes)
        self._way_out = way_out
        self.reads: list[tuple[int, int, int]] = []

    def end_of(self, job: Job, now_ps: int) -> int:
        """When a read that is queued now ends."""
        out, blocks = self._way_out(job.owner.number), len(job.blocks)
        begin_ps = max(now_ps, self.free_ps[True], out.free_ps[False])
        ends_ps = max(self.copied_ps(True, blocks, begin_ps), out.copied_ps(False, blocks, begin_ps))
        self.free_ps[True] = out.free_ps[False] = ends_ps
        return ends_ps

    def begin(self, job: Job, now_ps: int) -> None:
        """Queue a read."""
        super().begin(job, now_ps)
        self.reads.append((job.owner.request.index, now_ps, job.ends_ps))
        self.blocks += len(job.blocks)


class Prompts(deque[Request]):
    """A queue that turns each arrival into a request for its prompt alone.

    `comes` gets the original, and says whether this is so.
    """

    def __init__(self, comes: Callable[[Request], bool]) -> None:
        super().__init__()
        self._comes = comes

    def append(self, request: Request, /) -> None:
        """Queue a request."""
        if not self._comes(request):
            super().append(request)
            return
        prompt = Request(request.index, request.prompt_tokens, 1)
        prompt.own, prompt.arrival_ps, prompt.priority = request.own, request.arrival_ps, request.priority
        prompt.facts, prompt.content = request.facts, prefix_of(request.content, request.prompt_tokens)
        super().append(prompt)


class Totals(NamedTuple):
    """Totals of a run; bytes are those of all GPUs of a replica."""

    requests: int
    read_bytes: int
    transfer_ps: int
    held_ps: int
    peak_held_share: float


class HandOver:
    """Takes computed prompts from prefill to decode replicas, and says when their blocks were read.

    Parameters
    ----------
    direct_tokens : int
        A prompt is computed on a decode replica whose prefix cache lacks at most this many of its tokens.
    mixed_tokens : int
        A prefill queue of more pending tokens is long, see mixed_pool.py; 0: there is no mixed pool.

    Attributes
    ----------
    whole : dict of Request
        By name, requests whose prompts are waiting, computed or on their way.
    mixed : MixedPool or None
        Replicas that serve requests alone.
    """

    def __init__(self, direct_tokens: int = 0, mixed_tokens: int = 0) -> None:
        self._direct_tokens = direct_tokens
        self.whole: dict[int, Request] = {}
        self.mixed = MixedPool(mixed_tokens, self.whole) if mixed_tokens else None
        self._prompt_at: dict[int, HoldingServer] = {}  # by name, for requests in `whole`
        self._answer_at: dict[int, Server] = {}  # by row, for delivered requests
        self._parked: list[tuple[int, int, tuple[int, ...]]] = []  # due while no decode server was alive
        self._due: list[tuple[int, int, tuple[int, ...]]] = []
        self._prefill: list[HoldingServer] = []
        self._ways_out: dict[int, Link] = {}  # by the identity of a prefill server
        self._decode: list[tuple[Reads, Pull, int]] = []
        self._reads: dict[int, Reads] = {}
        self._waited: set[int] = set()  # names of those in `_parked`
        self._over_ps: dict[int, int] = {}  # by row, when it started over

    # -- putting it together ------------------------------------------------------------------

    def prefills(self, server: HoldingServer) -> None:
        """Register a prefill server."""
        self._prefill.append(server)

    def sends(self, server: Server, link: Link) -> None:
        """Reads from this prefill server go over this link."""
        self._ways_out[id(server)] = link

    def way_out(self, name: int) -> Link:
        """The link of the server that holds the prompt of a request."""
        return self._ways_out[id(self._prompt_at[name])]

    def decodes(self, reads: Reads, pull: Pull, gpus: int) -> None:
        """Register what a decode server of `gpus` GPUs reads with."""
        self._decode.append((reads, pull, gpus))
        self._reads[id(reads.server)] = reads

    def begin(self, run: Run, replicas: Sequence[Replica], dispatcher: Dispatcher) -> None:
        """The run begins; the dispatcher knows the decode replicas."""
        self._run, self._replicas, self._dispatcher = run, replicas, dispatcher
        self._of = {id(replica.server): replica for replica in replicas}
        if self.mixed is not None:
            self.mixed.begin(run.log, replicas)

    def follow(self, replica: Replica) -> None:
        """This replica replaces one that died, or was switched off."""
        self._of[id(replica.server)] = replica

    # -- one request --------------------------------------------------------------------------

    def place(self, request: Request, first: Dispatcher) -> int:
        """The replica for an arrival: for its prompt, or for all of it if the prompt is short or cached."""
        if self._direct_tokens:
            least = request.prompt_tokens - self._direct_tokens
            place = self._dispatcher.place(request, lambda seen: seen.cached_tokens(request) >= least)
            if place >= 0:
                self._answer_at[request.index] = self._replicas[place].server
                return place
        return first.place(request) if self.mixed is None else self._place_mixed(self.mixed, request, first)

    def _place_mixed(self, mixed: MixedPool, request: Request, first: Dispatcher) -> int:
        """The replica for an arrival if there is a mixed pool."""
        place, alone = mixed.place(request, first, self._dispatcher, self._run.arrivals.now_ps)
        if alone:
            server = self._replicas[place].server
            self._answer_at[request.index] = server
            if isinstance(server, HoldingServer):
                server.answers.add(request.own)
        return place

    def comes(self, server: HoldingServer, request: Request) -> bool:
        """A request arrives at a prefill server; returns whether its answer is computed elsewhere."""
        if request.own in server.answers:
            return False
        self.whole[request.own], self._prompt_at[request.own] = request, server
        return True

    def refusal(self, request: Request) -> str:
        """Why the smallest decode memory can never hold a request, or ""."""
        smallest = min((reads.allocator for reads, _, _ in self._decode), key=lambda a: a.capacity_slots)
        if smallest.fits(request.final_tokens, request.final_tokens):
            return ""
        return f"does not fit an empty arena of {smallest.capacity_slots:,} slots"

    def computed(self, server: HoldingServer, prompt: Request, blocks: tuple[int, ...]) -> None:
        """A prompt is computed, in these blocks: its request reaches a decode replica a little later."""
        whole = self.whole[prompt.own]
        whole.first_scheduled_ps = prompt.first_scheduled_ps
        whole.first_scheduled_step = prompt.first_scheduled_step
        whole.preemptions = prompt.preemptions
        at_ps = server.now_ps + LATENCY_PS
        heappush(self._due, (at_ps, prompt.own, blocks))
        self._run.later(at_ps, lambda: self._deliver(at_ps))

    def _deliver(self, now_ps: int) -> None:
        """Deliver all that are due, in a fixed order: several servers may have finished at the same time."""
        while self._due and self._due[0][0] <= now_ps:
            due = _, name, blocks = heappop(self._due)
            whole, waited = self.whole[name], name in self._waited
            self._waited.discard(name)
            if self.mixed is None:
                place = self._dispatcher.place(whole)
            else:
                place = self.mixed.deliver(whole, self._dispatcher, now_ps)
            if place == NOT_NOW:
                self._parked.append(due)
                self._waited.add(name)
            elif place == NOWHERE:
                self.told(name, now_ps, False)
                self._run.arrivals.turn_away(whole.index)
            else:
                replica = self._replicas[place]
                if self._direct_tokens:  # a direct arrival looks at it later in this step
                    replica.catch_up()
                self._answer_at[whole.index] = replica.server
                if waited:
                    replica.comes_late(whole.index)
                self._reads[id(replica.server)].hand_over(whole, blocks)
                replica.join([whole])

    def told(self, name: int, at_ps: int, read: bool) -> None:
        """At `at_ps` a decode server has read what was held for a request, or it never will."""
        del self.whole[name]
        server = self._prompt_at.pop(name)
        server.let_go(name, at_ps, read)
        self._of[id(server)].arrived()

    # -- servers that die and come back -------------------------------------------------------

    def lose(self, dead: Replica, now_ps: int) -> list[int]:
        """A server is gone: returns the rows that start over, in their order.

        For a prefill server these are the rows that it has, or holds unread: a read that has begun ends. For
        a decode server they are all that it has; what is held for them is free after the next step.
        """
        server = dead.server
        del self._of[id(server)]
        if self.mixed is not None:
            self.mixed.lose(dead.place, now_ps)
        names = [name for name, its in self._prompt_at.items() if its is server]
        for name in names:
            whole = self.whole.pop(name)
            del self._prompt_at[name]
            decode = self._answer_at.get(whole.index)
            if decode is not None and name in self._reads[id(decode)].handed:
                replica = self._of[id(decode)]
                replica.catch_up()  # its current step was decided with that request
                self._reads[id(decode)].forget(whole)
                replica.left(whole)
                del self._answer_at[whole.index]
        rows = [row for row, its in self._answer_at.items() if its is server]
        rows = [row for row in rows if not self._run.log.is_over(row)]
        for row in rows:
            del self._answer_at[row]
            self.whole.pop(row, None)
            self._prompt_at.pop(row, None)
            for each in self._prefill:
                if each.forget(row, now_ps) and id(each) in self._of:
                    self._of[id(each)].arrived()
        gone = {*names, *rows, *(request.index for request in dead.input_queue.requests)}
        self._due = [due for due in self._due if due[1] not in gone]
        heapify(self._due)
        self._parked = [due for due in self._parked if due[1] not in gone]
        self._waited -= gone
        self._over_ps |= dict.fromkeys(gone, now_ps)
        return sorted(gone)

    def opened(self, now_ps: int) -> None:
        """A decode server is alive again: deliver requests that waited for one."""
        self._due = [*self._due, *((now_ps, name, blocks) for _, name, blocks in self._parked)]
        heapify(self._due)
        self._parked = []
        self._deliver(now_ps)

    # -- the end ------------------------------------------------------------------------------

    def freed_ps(self, server: Server) -> int:
        """When a server last freed a prompt that it held; 0: never."""
        return next((each.freed[-1][2] for each in self._prefill if each is server and each.freed), 0)

    @property
    def _all_reads(self) -> list[tuple[int, int, int]]:
        return [read for _, pull, _ in self._decode for read in pull.reads]

    @property
    def _all_freed(self) -> list[tuple[int, int, int]]:
        return [freed for server in self._prefill for freed in server.freed]

    def stages(self, rows: int) -> dict[str, Int64Column]:
        """Per request, when each stage was over, the last time that it started over; 0: there was none."""
        found = {name: np.zeros(rows, np.int64) for name in STAGES}
        for row, begun_ps, ended_ps in self._all_reads:
            if begun_ps >= self._over_ps.get(row, 0):
                found["read_begin_ps"][row], found["read_end_ps"][row] = begun_ps, ended_ps
        for row, computed_ps, freed_ps in self._all_freed:
            if computed_ps >= self._over_ps.get(row, 0):
                found["prompt_computed_ps"][row], found["held_until_ps"][row] = computed_ps, freed_ps
        return found

    def totals(self) -> Totals:
        """Totals of the run."""
        reads = self._all_reads
        return Totals(
            requests=len(reads),
            read_bytes=sum(pull.blocks * pull.block_bytes * gpus for _, pull, gpus in self._decode),
            transfer_ps=sum(ended_ps - begun_ps for _, begun_ps, ended_ps in reads),
            held_ps=sum(freed_ps - computed_ps for _, computed_ps, freed_ps in self._all_freed),
            peak_held_share=max(each.peak_held / each.allocator.capacity_slots for each in self._prefill),
        )
