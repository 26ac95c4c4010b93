"""Prompts are pulled, as vLLM does with its NIXL connector: the decode replica reads what is held for it.

    arrival -> router -> prefill replica, its prompt alone -> LATENCY_PS -> router -> decode replica
               blocks are held there ............................................ read, then freed

The second router is separate, over the decode replicas, and asked when the proxy has the prefill's answer.
"""

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import Final

from kvsim.sim.serving.dispatcher import Dispatcher
from kvsim.sim.serving.hand_over import HandOver, Read, prompt_of
from kvsim.sim.serving.held import HoldingServer
from kvsim.sim.serving.intake import NOT_NOW, NOWHERE
from kvsim.sim.serving.link import Link, Way
from kvsim.sim.serving.lives import Run
from kvsim.sim.serving.mixed_pool import MixedPool
from kvsim.sim.serving.reading import Reads
from kvsim.sim.serving.replica import Replica
from kvsim.sim.serving.request import Request
from kvsim.sim.serving.server import Server
from kvsim.sim.serving.tier_jobs import Job

LATENCY_PS: Final = 1_000_000_000
"""From a prefill's answer to the decode replica, through the proxy: 1 ms, an assumption."""


class Pull(Link):
    """The link of a decode replica, and what went over it.

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
        self.reads: list[Read] = []

    def end_of(self, job: Job, now_ps: int) -> int:
        """When a read that is queued now ends."""
        return self.copied_from_ps(self._way_out(job.owner.number), len(job.blocks), now_ps)

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
        super().append(prompt_of(request))


class Pulls(HandOver):
    """Takes computed prompts from prefill to decode replicas, and says when their blocks were read.

    Parameters
    ----------
    direct_tokens : int
        A prompt is computed on a decode replica whose prefix cache lacks at most this many of its tokens.
    mixed_tokens : int
        A prefill queue of more pending tokens is long, see mixed_pool.py; 0: there is no mixed pool.
    """

    def __init__(self, direct_tokens: int = 0, mixed_tokens: int = 0) -> None:
        super().__init__()
        self._direct_tokens = direct_tokens
        self.mixed = MixedPool(mixed_tokens, self.whole) if mixed_tokens else None
        self._prompt_at: dict[int, HoldingServer] = {}  # by name, for requests in `whole`
        self._answer_at: dict[int, Server] = {}  # by row, for delivered requests
        self._parked: list[tuple[int, int, tuple[int, ...]]] = []  # due while no decode server was alive
        self._due: list[tuple[int, int, tuple[int, ...]]] = []
        self._decode: list[tuple[Reads, Pull, int]] = []
        self._reads: dict[int, Reads] = {}
        self._waited: set[int] = set()  # names of those in `_parked`

    # -- putting it together ------------------------------------------------------------------

    def way_out(self, name: int) -> Link:
        """The link of the server that holds the prompt of a request."""
        return self._ways_out[id(self._prompt_at[name])]

    def decodes(self, reads: Reads, pull: Pull, gpus: int) -> None:
        """Register what a decode server of `gpus` GPUs reads with."""
        self._decode.append((reads, pull, gpus))
        self._reads[id(reads.server)] = reads

    def begin(self, run: Run, replicas: Sequence[Replica], dispatcher: Dispatcher) -> None:
        """The run begins; the dispatcher knows the decode replicas."""
        super().begin(run, replicas, dispatcher)
        if self.mixed is not None:
            self.mixed.begin(run.log, replicas)

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
        self._computed(prompt)
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
        server.leases.let_go(name, at_ps, read)
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
                replica.input_queue.remove(whole)
                replica.look_at_next()  # those behind it may enter
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

    def reads(self) -> list[Read]:
        """The prompts that were read."""
        return [read for _, pull, _ in self._decode for read in pull.reads]

    def copied_bytes(self) -> int:
        """Bytes that were read."""
        return sum(pull.blocks * pull.block_bytes * gpus for _, pull, gpus in self._decode)
