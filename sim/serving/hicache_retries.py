"""When a waiting request asks HiCache's storage again for what it did not get.

    miss     less than the threshold was there, the host had no room, or half of it was asked for already:
             8 passes of the scheduler later, in the order of the queue
    loss     what it had found when it asked has been evicted since: when it could enter, which waits
    head     the first of the queue does not ask again after a miss, nor does one whose wait has timed out

Each request asks again 8 times at most, until it is retracted.

Follows SGLang 0.5.23 (`mem_cache/storage_prefetch.py`, `managers/scheduler.py`: `_retry_storage_prefetch`,
`_prefetch_after_device_hit_loss`).
"""

from collections.abc import Sequence
from typing import NamedTuple

from kvsim.sim.serving.request import Request


class Due(NamedTuple):
    """A request asks again in this pass; up to `hit_end` tokens are known to be stored, None: unknown."""

    number: int
    hit_end: int | None


class Retries:
    """What is known of the requests that may ask again.

    Parameters
    ----------
    interval : int
        Passes from a miss to the next attempt; 0: no attempt after a miss.
    most : int
        Attempts of each request, the first not counted.

    Attributes
    ----------
    found : dict of int
        Request -> tokens that the memories had when it last asked.
    lost : bool
        Whether a request asked again in this pass instead of entering.
    """

    def __init__(self, interval: int, most: int) -> None:
        self.interval, self.most = interval, most
        self.found: dict[Request, int] = {}
        self.lost = False
        self._attempts: dict[Request, int] = {}
        self._due: dict[Request, Due] = {}
        self._passed = -1  # the latest pass

    def forget(self, request: Request) -> None:
        """It comes, or comes back."""
        for known in (self.found, self._attempts, self._due):
            known.pop(request, None)

    def may(self, request: Request) -> bool:
        """Whether it may ask again."""
        return self._attempts.get(request, 0) < self.most

    def count(self, request: Request) -> None:
        """It asks again."""
        self._attempts[request] = self._attempts.get(request, 0) + 1

    def missed(self, request: Request, number: int, hit_end: int | None = None) -> None:
        """It got nothing, in pass `number`."""
        if self.interval and self.may(request):
            self._due[request] = Due(max(number, self._passed + 1) + self.interval, hit_end)

    def loses(self, request: Request, here: int) -> bool:
        """The memories have `here` tokens of one that could enter; whether it asks again instead."""
        if here >= self.found[request]:
            return False
        if not self.may(request):
            self.found[request] = here
            return False
        self.count(request)
        self.lost = True
        return True

    def asks(self, request: Request, found: int) -> None:
        """It asks now, or is not to ask; the memories have `found` tokens."""
        self.found[request] = found
        self._due.pop(request, None)

    def take(self, waiting: Sequence[Request], number: int) -> list[tuple[Request, int | None]]:
        """Pass `number` begins: the requests that ask again, in order; others that entered are forgotten."""
        self._passed, self.lost = number, False
        if not self._due:
            return []
        self._due = {request: self._due[request] for request in waiting[1:] if request in self._due}
        ready = [(request, due.hit_end) for request, due in self._due.items() if due.number <= number]
        for request, _ in ready:
            del self._due[request]
        return ready

    def passes_left(self, number: int) -> int:
        """Passes from pass `number` to the next attempt; 0: there is none."""
        return max(1, min([due.number for due in self._due.values()]) - number) if self._due else 0
