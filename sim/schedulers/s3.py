"""S3: first fit decreasing (NeurIPS'23): any request that fits enters, the largest reservation first.

    waiting, by reservation         |######  |####  |###  |##  |#  |     free memory  |.......|
    enter                            ######                     #        one bin, refilled in each step

A request's size is what the allocator would give it: its reservation, the prompt plus a predictor's estimate
of the answer (`--reserve predicted:MODEL`); for an allocator that grows, what it has so far. At every step
the pool is scanned from the largest to the smallest request, and each one that fits enters. Steps are as in
Orca, except that a request that does not fit blocks no others. A request whose answer outgrows its
reservation leaves, and returns to the pool with twice as much (sim/serving/reservation.py).

If no request arrives and none ends early, the batches are the bins of first-fit decreasing: at most 11/9 of
the fewest possible, plus 6/9. A small request may wait as long as larger ones arrive: nothing prevents that.

Source: Jin et al., S3: Increasing GPU utilization during generative inference for higher throughput, section
on the length-aware sequence scheduler. Left out: the predictor's retraining.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from typing import ClassVar

from kvsim.allocators.base import Allocator
from kvsim.sim.record.events import NO_ROOM
from kvsim.sim.schedulers.base import Scheduler
from kvsim.sim.serving.request import Request
from kvsim.sim.serving.server import Server


class Pool:
    """Waiting requests, largest first; ties: the earliest arrival.

    Attributes
    ----------
    passed : int
        Requests at the start that are too large; the head is the first one after them.
    """

    def __init__(self, size: Callable[[Request], int]) -> None:
        self._size = size
        self._sorted: list[tuple[int, int, int, Request]] = []
        self.passed = 0

    def append(self, request: Request) -> None:
        """Insert a request in order."""
        insort(self._sorted, (-self._size(request), request.index, request.sample, request))

    appendleft = append

    def pass_larger(self, slots: int) -> None:
        """Make the head the first request, of those not passed, that takes at most `slots` slots."""
        self.passed = bisect_left(self._sorted, (-slots,), lo=self.passed)

    def popleft(self) -> Request:
        """Take the head."""
        return self._sorted.pop(self.passed)[-1]

    def remove(self, request: Request) -> None:
        """Remove a request, wherever it is."""
        del self._sorted[next(place for place, entry in enumerate(self._sorted) if entry[-1] is request)]

    def __getitem__(self, index: int) -> Request:
        return self._sorted[self.passed + index][-1]

    def __len__(self) -> int:
        return len(self._sorted) - self.passed

    def __iter__(self) -> Iterator[Request]:
        return (entry[-1] for entry in self._sorted[self.passed :])


class S3(Scheduler):
    """Admits any request that fits, the largest first."""

    family: ClassVar[str] = "whole prompts"
    idea: ClassVar[str] = (
        "as Orca over reservations of predicted length; a request that outgrows it comes back"
    )
    policies: ClassVar[tuple[str, ...]] = ("fcfs",)

    def new_server(self, allocator: Allocator, bound: Callable[[Request], int]) -> Server:
        """A server with a pool as its queue."""
        server = super().new_server(allocator, bound)
        server.waiting = Pool(lambda request: allocator.slots_needed(request.known_tokens, bound(request)))
        return server

    def schedule(self, server: Server) -> None:
        """Admit the requests that fit, from the largest to the smallest."""
        server.grow_due()
        if server.step.preemptions:
            return
        pool, allocator = server.waiting, server.allocator
        assert isinstance(pool, Pool)
        seats = self.config.max_num_seqs - len(server.running)
        while pool and seats > 0:
            if server.admit_head(pool[0].known_tokens):
                seats -= 1
            else:
                pool.passed += 1
            pool.pass_larger(allocator.largest_free_extent())
        pool.passed = 0

    def held_back(self, server: Server) -> str:
        """There is no token budget: either a request was evicted, or seats or memory are short."""
        if server.step.preemptions:
            return "eviction"
        return "seats" if len(server.running) >= self.config.max_num_seqs else NO_ROOM
