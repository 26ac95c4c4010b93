"""Tiers in a stack below the host's memory, as vLLM's TieringOffloadingManager uses them.

    GPU <--> host <--> ssd          each tier with its own links, one job at a time each way
                  <--> remote

    cascade    chunks stored on the host go on to *all* tiers below; they stay on the host until then
    promote    chunks the host lacks are looked up in the tiers in order; the first tier that has them gives
               them: room on the host is taken immediately, and the request asks again; no room is a miss

While a request is looked up, no part of its own text leaves the host to make room for the rest. vLLM's code
protects each chunk alone, so that a text may evict itself forever. Two waiting requests can still evict each
other's: what they brought up counts as used when they first asked, before all that has finished since.

The host is the only gateway: nothing goes from a tier to the GPU, nor from one tier to another. What a tier
is, and which servers may share one, is defined in sim/serving/secondary.py.
"""

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Final

from kvsim.allocators.eviction.base import Chain
from kvsim.allocators.tiers.base import Tier
from kvsim.allocators.tiers.pieces import Piece, before, overlap, size
from kvsim.sim.serving.secondary import Secondary
from kvsim.sim.serving.server import Server
from kvsim.sim.serving.tier_jobs import Job, User
from kvsim.sim.serving.totals import TierTotals

IN_CIRCLES: Final = (
    "for chunks that others evict from the host before it runs, as in vLLM; a larger host tier "
    "(--kv-offloading-size) or larger chunks (--blocks-per-chunk) may end it"
)


class Stack:
    """The tiers below one host's memory.

    Parameters
    ----------
    server : Server
        The server whose memory is above.
    host : Tier
        The gateway.
    below : sequence of Secondary
        In the order in which they are asked.
    chunk_tokens, chunk_bytes : int
        Tokens and bytes per chunk, on all GPUs together.
    """

    def __init__(  # noqa: PLR0917 - the parts of a stack
        self,
        server: Server,
        host: Tier,
        below: Sequence[Secondary],
        chunk_tokens: int,
        chunk_bytes: int,
        totals: TierTotals,
    ) -> None:
        self.server, self.host, self.below, self.totals = server, host, below, totals
        server.memory.below.stack = below
        server.memory.below.links += below
        server.wakes.in_circles = IN_CIRCLES
        self.chunk_tokens, self.chunk_bytes = chunk_tokens, chunk_bytes
        self.promotes = False  # whether anything began to come up in this decision
        self._under_way: list[tuple[int, int, Job]] = []
        self._jobs = 0
        self._heard_ps = -1  # jobs that ended by then are known
        self._asked_ps = -1  # and were when this decision began, so that its requests may have found them

    @property
    def is_shared(self) -> bool:
        """Whether other servers find what is handed on."""
        return any(tier.is_shared for tier in self.below)

    def begin_step(self) -> None:
        """A step is about to be decided; what is known now is what its requests find."""
        self.promotes = False
        self._asked_ps = self._heard_ps

    def meet(self, user: User, now_ps: int) -> None:
        """Tell the policies that ask for it about a request."""
        for tier in self.below:
            if tier.policy.informed:
                keys = [key for first, count in user.ranges for key in range(first, first + count)]
                prompt = keys[: user.request.prompt_tokens // self.chunk_tokens]
                tier.policy.meet(Chain(prompt, self.chunk_tokens, 0, now_ps // 10**9))

    def promote(self, user: User, pieces: list[Piece], now_ps: int) -> tuple[int, bool]:
        """Look for chunks on the host, and for those it lacks, below; the latter begin to come up."""
        host = self.host
        chosen: list[tuple[Secondary, list[Piece], list[int]]] = []
        hits, written = 0, False
        while rest := _behind(pieces, hits):
            found, waits = host.find(rest)
            hits, written = hits + found, written or waits
            rest = _behind(pieces, hits)
            lacking = host.lacks(rest)
            tier, there = next(
                ((t, p) for t in self.below if (p := t.has(lacking, self._heard_ps))), (None, [])
            )
            if tier is None:
                break
            taken, chunks = self._room(user, there, pieces)
            if taken:
                chosen.append((tier, taken, chunks))
                hits, written = hits + size(taken), True
            if size(taken) < size(there):
                break
        for tier in self.below:  # one job per tier and request
            parts = [(part, chunks) for each, part, chunks in chosen if each is tier]
            if parts:
                self.promotes = True
                moved = [piece for part, _ in parts for piece in part]
                tier.use(self.server, moved)
                self._begin(tier, True, user, moved, [at for _, chunks in parts for at in chunks], now_ps)
        return hits, written

    def wait_for(self, user: User, pieces: list[Piece], now_ps: int) -> None:
        """A request asks again later: count how long what comes up for it, or for others, takes."""
        if user.up_until_ps > now_ps:
            return
        coming = [ends for ends, _, job in self._under_way if job.loads and overlap(job.pieces, pieces)]
        until_ps = max(coming, default=now_ps)
        if until_ps > now_ps:
            user.up_ps, user.up_until_ps = user.up_ps + until_ps - now_ps, until_ps

    def _room(self, user: User, pieces: list[Piece], kept: list[Piece]) -> tuple[list[Piece], list[int]]:
        """Take room on the host for as many of these as fit; returns them and where; `kept` stays."""
        stored = self.host.store(user.number, pieces, kept)
        if stored is None:
            pieces = before(pieces, self.host.room([*pieces, *kept]))
            stored = self.host.store(user.number, pieces, kept) if pieces else None
        if stored is None:
            return [], []
        self.totals.evicted_bytes += sum(count for _, count in stored.evicted) * self.chunk_bytes
        return pieces, list(stored.chunks)

    def cascade(self, stored: Job) -> None:
        """What was stored on the host goes on, from the moment the store ended."""
        for tier in self.below:
            new = tier.take(self.server, stored.pieces)
            if new:
                chunks = self.host.hold(new)
                self._begin(tier, False, stored.owner, new, chunks, stored.ends_ps)

    def _begin(  # noqa: PLR0917 - what a job is
        self,
        tier: Secondary,
        loads: bool,
        user: User,
        pieces: list[Piece],
        chunks: Sequence[int],
        now_ps: int,
    ) -> None:
        moved = len(chunks) * self.chunk_bytes
        if loads:
            self.totals.promoted_bytes += moved
            self.totals.promoted_tokens += len(chunks) * self.chunk_tokens
        else:
            self.totals.cascaded_bytes += moved
        self._jobs += 1
        job = Job(self._jobs, loads, user, pieces, chunks, chunks)
        heappush(self._under_way, (tier.copy(job, now_ps), job.number, job))

    def settle(self, by_ps: int) -> bool:
        """Jobs that ended by then are known from now on; returns whether there were any."""
        self._heard_ps = max(self._heard_ps, by_ps)
        jobs, anything = self._under_way, False
        while jobs and jobs[0][0] <= by_ps:
            anything = True
            job = heappop(jobs)[2]
            if job.loads:
                self.host.stored(job.pieces)
            else:
                self.host.loaded(job.pieces)
        return anything

    def next_ps(self, others: bool) -> int | None:
        """When the next job ends that this decision did not know of; None: there is none.

        With `others` including those of other servers.
        """
        ends = [self._under_way[0][0]] if self._under_way else []
        if others:
            known = [tier.next_ps(self._asked_ps) for tier in self.below if tier.is_shared]
            ends += [each for each in known if each is not None]
        return min(ends, default=None)


def _behind(pieces: list[Piece], count: int) -> list[Piece]:
    """The pieces after the first `count` chunks."""
    found: list[Piece] = []
    for at, key, length in pieces:
        skipped = min(count, length)
        count -= skipped
        if skipped < length:
            found.append((at + skipped, key + skipped, length - skipped))
    return found
