"""How requests reach a scheduler's queue; some wait in an input queue first (vLLM's EngineCoreProc has one).

    synchronous     a step is decided when the previous one ends: requests that came by then are in the queue
    asynchronous    it is decided when the previous one begins: requests that come in between are queued for
                    the step after it; if nothing is computed, immediately

Only on a clock of measured times; on others an asynchronous engine hears like a synchronous one. Requests
that come during a step wait here, so that none enters a step that began before it came.
"""

from bisect import bisect_right
from collections.abc import Callable

from kvsim.sim.serving.arrivals import Arrivals, Promise
from kvsim.sim.serving.request import Request
from kvsim.sim.serving.server import Server


class InputQueue:
    """The input queue of one server.

    Attributes
    ----------
    late : bool
        Whether a step is decided when the previous one begins.
    requests : list of Request
        Requests that came while a step was under way, in order.
    hear : callable
        Called for each of them in turn: it enters the server's queue, unless it comes for something else
        (mover.py).
    decided_ps : int
        When the step last carried out was decided, or, if nothing was computed, when that ended.
    fetches : bool
        Whether the replica takes all requests of the workload from its columns itself (`Arrivals.bring`).
    meets : bool
        Whether an answer of another replica may bring a request here at once.
    ahead : Promise
        Nothing else comes before its `next_ps`: until then the replica may act ahead of the clock.
    coming : Promise
        No request comes before its `next_ps`, except such as cut the plan of a sleeping replica.
    """

    def __init__(self, server: Server, late: bool) -> None:
        self.late, self._server = late, server
        self.requests: list[Request] = []
        self.hear: Callable[[Request], None] = server.waiting.append
        self._came_ps: list[int] = []  # when each of them came here, which may be long after it arrived
        self.decided_ps = 0

    def begin(self, arrivals: Arrivals, alone: bool) -> None:
        """Requests will come; `alone`: all of them come here."""
        self.arrivals, self.fetches = arrivals, alone and not arrivals.wait_for_answers
        self.meets = arrivals.wait_for_answers and not alone
        self.coming = arrivals if alone else Promise()
        self.ahead = Promise() if self.fetches else arrivals if alone else Promise(0)

    @property
    def has_requests(self) -> bool:
        """Whether any request runs, loads, moves or waits, here or in the server."""
        server, batch = self._server, self._server.batch
        held = server.running or batch.loading or server.swapped or server.waiting
        return bool(held or self.requests or batch.moving)

    def known_ps(self) -> int:
        """The next decision knows of requests that came by this time."""
        server = self._server
        late = self.late and (server.running or server.anybody_waits or server.batch.loading)
        return self.decided_ps if late else server.now_ps

    def put(self, request: Request, came_ps: int) -> None:
        """A request arrives while a step is under way."""
        self.requests.append(request)
        self._came_ps.append(came_ps)

    def take(self) -> None:
        """Queue the requests that the next decision knows of."""
        known = bisect_right(self._came_ps, self.known_ps())
        for request in self.requests[:known]:
            self.hear(request)
        del self.requests[:known], self._came_ps[:known]

    def remove(self, request: Request) -> None:
        """A request leaves before anything was computed for it: from here, or from the server's queue."""
        if request in self.requests:
            place = self.requests.index(request)
            del self.requests[place], self._came_ps[place]
        else:
            self._server.waiting.remove(request)

    def carried_out(self, ends: list[int]) -> None:
        """Steps that ended at these ps after the server's time are over."""
        self.decided_ps = self._server.now_ps + (ends[-2] if len(ends) > 1 else 0)
