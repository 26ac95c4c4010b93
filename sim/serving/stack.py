"""Tiers in a stack below the host's memory, as vLLM's TieringOffloadingManager uses them.

    GPU <--> host <--> ssd          each tier with links of its own, one job at a time each way
                  <--> remote

    cascade    what has been stored on the host goes on to *all* tiers below; it stays on the host until then
    promote    what the host lacks is looked for in the tiers, in their order; the first that has it gives it:
               room on the host is taken at once, and who asked asks again; no room on the host is a miss

While a request is looked up, nothing of its own text leaves the host for the rest of it (vLLM's code protects
each chunk alone, so that a text longer than the host may push itself out for ever).

The host is the only gateway: nothing goes from a tier to the GPU, nor from a tier to another. A tier evicts
by any policy of allocators/eviction; what is there is whole only when it has been written.
"""

from collections.abc import Sequence

from kvsim.allocators.eviction.base import Chain, Eviction
from kvsim.allocators.tiers.base import Found, Tier
from kvsim.allocators.tiers.pieces import Piece, joined, keys_of, one_by_one, size
from kvsim.sim.serving.link import Link
from kvsim.sim.serving.tier_jobs import Job, User
from kvsim.sim.serving.totals import TierTotals


class Secondary:
    """A tier below the host's.

    Attributes
    ----------
    writing : set of int
        Keys that are there, but not yet whole.
    """

    def __init__(self, policy: Eviction, link: Link) -> None:
        self.policy, self.link = policy, link
        self.writing: set[int] = set()

    def has(self, pieces: Sequence[Piece]) -> list[Piece]:
        """What is there of these, up to the first chunk that is not."""
        held, writing, count = self.policy.held, self.writing, 0
        for key in keys_of(pieces):
            if key not in held or key in writing:
                break
            count += 1
        return _before(pieces, count)

    def use(self, pieces: Sequence[Piece]) -> None:
        """They are read."""
        for key in keys_of(pieces):
            self.writing.difference_update(self.policy.touch(key))

    def take(self, pieces: Sequence[Piece]) -> list[Piece]:
        """Begin to write those that are not there, and that the policy takes in."""
        policy, new = self.policy, []
        for piece in one_by_one(pieces):
            key = piece[1]
            if key in policy.held:
                self.writing.difference_update(policy.touch(key))
                continue
            self.writing.difference_update(policy.insert(key))
            if key in policy.held:
                self.writing.add(key)
                new.append(piece)
        return joined(new)


class Stack:
    """The tiers below one host's memory.

    Parameters
    ----------
    host : Tier
        The gateway.
    below : sequence of Secondary
        In the order in which they are asked.
    chunk_tokens, chunk_bytes : int
        Of a chunk, on all GPUs together.
    """

    def __init__(
        self, host: Tier, below: Sequence[Secondary], chunk_tokens: int, chunk_bytes: int, totals: TierTotals
    ) -> None:
        self.host, self.below, self.totals = host, below, totals
        self.chunk_tokens, self.chunk_bytes = chunk_tokens, chunk_bytes
        self._jobs = 0

    def meet(self, user: User, now_ps: int) -> None:
        """Tell the policies that ask for it of a request."""
        for tier in self.below:
            if tier.policy.informed:
                keys = [key for first, count in user.ranges for key in range(first, first + count)]
                prompt = keys[: user.request.prompt_tokens // self.chunk_tokens]
                tier.policy.meet(Chain(prompt, self.chunk_tokens, 0, now_ps // 10**9))

    def promote(self, user: User, pieces: Sequence[Piece], now_ps: int) -> Found:
        """Look for chunks on the host, and where it lacks some, below; those begin to come up."""
        host = self.host
        chosen: list[tuple[Secondary, list[Piece], list[int]]] = []
        hits, written = 0, False
        while rest := _behind(pieces, hits):
            found = host.find(rest)
            hits, written = hits + found.hits, written or found.written
            rest = _behind(pieces, hits)
            lacking = host.lacks(rest)
            tier, there = next(((t, p) for t in self.below if (p := t.has(lacking))), (None, []))
            if tier is None:
                break
            taken, chunks = self._room(user, there, pieces)
            if taken:
                chosen.append((tier, taken, chunks))
                hits, written = hits + size(taken), True
            if size(taken) < size(there):
                break
        for tier in self.below:  # a job for each tier and request
            parts = [(part, chunks) for each, part, chunks in chosen if each is tier]
            if parts:
                moved = [piece for part, _ in parts for piece in part]
                tier.use(moved)
                self._begin(tier, True, user, moved, [at for _, chunks in parts for at in chunks], now_ps)
        return Found(hits, written)

    def _room(self, user: User, pieces: list[Piece], kept: Sequence[Piece]) -> tuple[list[Piece], list[int]]:
        """Take room on the host for as many of these as there is, and where; what is `kept` stays."""
        stored = self.host.store(user.number, pieces, kept)
        if stored is None:
            pieces = _before(pieces, self.host.room([*pieces, *kept]))
            stored = self.host.store(user.number, pieces, kept) if pieces else None
        if stored is None:
            return [], []
        self.totals.evicted_bytes += sum(map(len, stored.evicted)) * self.chunk_bytes
        return pieces, list(stored.chunks)

    def cascade(self, stored: Job) -> None:
        """What was stored on the host goes on, from the moment at which that ended."""
        for tier in self.below:
            new = tier.take(stored.pieces)
            if new:
                chunks = self.host.hold(new)
                self._begin(tier, False, stored.owner, new, chunks, stored.ends_ps)

    def _begin(  # noqa: PLR0917 - what a job is
        self, tier: Secondary, loads: bool, user: User, pieces: list[Piece], chunks: list[int], now_ps: int
    ) -> None:
        self._jobs += 1
        moved = len(chunks) * self.chunk_bytes
        if loads:
            self.totals.promoted_bytes += moved
            self.totals.promoted_tokens += len(chunks) * self.chunk_tokens
        else:
            self.totals.cascaded_bytes += moved
        tier.link.begin(Job(self._jobs, loads, user, pieces, chunks, chunks), now_ps)

    def settle(self, by_ps: int) -> bool:
        """What has ended by then is known from now on; whether anything had."""
        anything = False
        for tier in self.below:
            for job in tier.link.ended(by_ps):
                anything = True
                if job.loads:
                    self.host.stored(job.pieces)
                else:
                    self.host.loaded(job.pieces)
                    tier.writing.difference_update(keys_of(job.pieces))
        return anything

    def next_ps(self) -> int | None:
        """When the next job ends; None: there is none."""
        ends = [tier.link.under_way[0][0] for tier in self.below if tier.link.under_way]
        return min(ends, default=None)


def _behind(pieces: Sequence[Piece], count: int) -> list[Piece]:
    """What follows the first `count` chunks."""
    found: list[Piece] = []
    for at, key, length in pieces:
        skipped = min(count, length)
        count -= skipped
        if skipped < length:
            found.append((at + skipped, key + skipped, length - skipped))
    return found


def _before(pieces: Sequence[Piece], count: int) -> list[Piece]:
    """The first `count` chunks."""
    found: list[Piece] = []
    for at, key, length in pieces:
        if count > 0:
            found.append((at, key, min(count, length)))
        count -= length
    return found
