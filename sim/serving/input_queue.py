"""Who has come to a server and is not in its scheduler's queue yet (vLLM's EngineCoreProc has one, too).

    synchronous     a step is decided when the one before it ends: whoever has come by then is in the queue
    asynchronous    it is decided when the one before it begins: who comes in between is here meanwhile, and
                    in the queue for the step behind it; where nothing is computed, at once

Only on a clock of measured times; on others an asynchronous engine hears as a synchronous one.
"""

from kvsim.sim.serving.request import Request
from kvsim.sim.serving.server import Server


class InputQueue:
    """In front of one server.

    Attributes
    ----------
    late : bool
        Whether a step is decided when the one before it begins.
    requests : list of Request
        Who came too late for the step that is decided, in order.
    decided_ps : int
        When the step was decided that was carried out last, or, where nothing was computed, when that ended.
    """

    def __init__(self, server: Server, late: bool) -> None:
        self.late, self._server = late, server
        self.requests: list[Request] = []
        self.decided_ps = 0

    def known_ps(self) -> int:
        """Who has come by then is known of in the decision that follows."""
        server = self._server
        late = self.late and (server.running or server.anybody_waits or server.batch.loading)
        return self.decided_ps if late else server.now_ps

    def put(self, request: Request, at_once: bool) -> None:
        """A request comes; `at_once`: no step is under way, or it is known of."""
        if at_once or not self.late:
            self._server.waiting.append(request)
        else:
            self.requests.append(request)

    def take(self) -> None:
        """Queue those of whom the decision that follows knows."""
        until_ps, waiting, requests = self.known_ps(), self._server.waiting, self.requests
        while requests and requests[0].arrival_ps <= until_ps:
            waiting.append(requests.pop(0))

    def carried_out(self, ends: list[int]) -> None:
        """Steps are over that ended so many ps after the server's time."""
        self.decided_ps = self._server.now_ps + (ends[-2] if len(ends) > 1 else 0)
