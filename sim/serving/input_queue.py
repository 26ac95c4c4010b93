"""Who has come to a server and is not in its scheduler's queue yet (vLLM's EngineCoreProc has one, too).

    synchronous     a step is decided when the one before it ends: whoever has come by then is in the queue
    asynchronous    it is decided when the one before it begins: who comes in between is in the queue for the
                    step behind it; where nothing is computed, at once

Only on a clock of measured times; on others an asynchronous engine hears as a synchronous one. While a step
is under way, whoever comes waits here, so that nobody enters a step that began before they came.
"""

from bisect import bisect_right
from collections.abc import Callable

from kvsim.sim.serving.request import Request
from kvsim.sim.serving.server import Server


class InputQueue:
    """In front of one server.

    Attributes
    ----------
    late : bool
        Whether a step is decided when the one before it begins.
    requests : list of Request
        Who came while a step was under way, in order.
    hear : callable
        What is done with each of them in its turn: it enters the server's queue, unless it comes for
        something else (mover.py).
    decided_ps : int
        When the step was decided that was carried out last, or, where nothing was computed, when that ended.
    """

    def __init__(self, server: Server, late: bool) -> None:
        self.late, self._server = late, server
        self.requests: list[Request] = []
        self.hear: Callable[[Request], None] = server.waiting.append
        self._came_ps: list[int] = []  # when each of them came here, which may be long after it arrived
        self.decided_ps = 0

    def known_ps(self) -> int:
        """Who has come by then is known of in the decision that follows."""
        server = self._server
        late = self.late and (server.running or server.anybody_waits or server.batch.loading)
        return self.decided_ps if late else server.now_ps

    def put(self, request: Request, came_ps: int) -> None:
        """A request comes while a step is under way."""
        self.requests.append(request)
        self._came_ps.append(came_ps)

    def take(self) -> None:
        """Queue those of whom the decision that follows knows."""
        known = bisect_right(self._came_ps, self.known_ps())
        for request in self.requests[:known]:
            self.hear(request)
        del self.requests[:known], self._came_ps[:known]

    def remove(self, request: Request) -> None:
        """A request goes before anything was computed for it: out of here, or of the server's queue."""
        if request in self.requests:
            place = self.requests.index(request)
            del self.requests[place], self._came_ps[place]
        else:
            self._server.waiting.remove(request)

    def carried_out(self, ends: list[int]) -> None:
        """Steps are over that ended so many ps after the server's time."""
        self.decided_ps = self._server.now_ps + (ends[-2] if len(ends) > 1 else 0)
