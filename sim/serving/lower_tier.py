"""vLLM's scheduler with a KV connector, such as a tier below the GPU's memory: the parts of one decision.

    ends are known -> running requests -> both queues -> stores -> finished requests, ends (if late)

The running side is vLLM's own or, if steps overlap or long prompts have a threshold, that of
sim/serving/in_flight.py; the queues are those of sim/serving/loading.py.
"""

from kvsim.sim.record.events import TIER
from kvsim.sim.serving.connector import Connector
from kvsim.sim.serving.in_flight import InFlight
from kvsim.sim.serving.loading import Loading
from kvsim.sim.serving.request import Request, State
from kvsim.sim.serving.steps import Limits, Steps


class LowerTier(Steps):
    """Decides the steps of a server that has a connector.

    Parameters
    ----------
    connector : Connector
        Looks up and loads.
    limits : Limits
    at_once_bytes : int
        A step waits for loads of up to this many bytes, and computes their requests; 0: none.
    token_bytes : int
        Bytes of a token's keys and values.
    """

    def __init__(
        self, connector: Connector, limits: Limits, at_once_bytes: int = 0, token_bytes: int = 1
    ) -> None:
        super().__init__(connector.server)
        self.in_turn = False  # a request may be skipped
        self.late, self.offload, self.limits = connector.late, connector, limits
        self.loading = Loading(connector, limits, at_once_bytes, token_bytes)
        threshold = limits.threshold
        self._in_flight = InFlight(self.server, fenced=self.late) if self.late or threshold else None
        self._aborted: list[tuple[Request, int]] = []  # in a step in flight, and their unknown tokens
        self._cut: list[Request] = []  # aborted while loading
        self._first: Request | None = None  # of those whose load was over, if events are recorded

    def decide(self) -> None:
        """Decide the step that starts now."""
        server, offload, budget = self.server, self.offload, self.limits.budget
        offload.begin_step()
        if self._cut:
            self._free_loaded()
        self.loading.longest = longest = self._longest(budget)
        if self._in_flight is not None:
            self._in_flight.longest = longest
            left = self._in_flight.continue_in_order(budget)
            offload.rested = self._in_flight.rested
        else:
            server.grow_due()
            left = budget - server.progress.size
            if server.prefill_held:
                left -= self._continue_last(left)
        if not server.step.preemptions:
            self.loading.admit(left, self.limits.seats)
        server.wakes.passed_over = server.wakes.loaded
        if server.events:
            self._first = self.loading.first_loaded()
        offload.end_step()
        again = self._in_flight is not None and bool(self._in_flight.resting)
        for request, unknown in self._aborted:
            self._free(request, False, unknown)
            again = True
        self._aborted.clear()
        if server.batch.departed:
            for request in server.batch.departed.values():
                offload.finishes(request)
            server.release_departed()
            again = True  # the next step sees them
        if self.late:
            again = offload.settle(server.now_ps) or again
            again = (len(self._cut) > 0 and self._free_loaded()) or again
        offload.wake(again)

    def _longest(self, budget: int) -> int:
        """Most tokens of one prompt in this step."""
        server, threshold = self.server, self.limits.threshold
        if threshold and len(server.running) + len(server.waiting) + len(self.loading.hold) > 1:
            return min(budget, threshold)
        return budget

    def _continue_last(self, budget: int) -> int:
        server = self.server
        if not server.running:
            return 0
        request = next(reversed(server.running.values()))
        tokens = min(request.known_tokens - request.computed, budget)
        if request.state != State.PREFILL or tokens < 1:
            return 0
        return tokens if server.continue_prefill(request, tokens) else 0

    def head(self) -> Request | None:
        """Requests whose load is over come before the queue."""
        return self._first

    def held_back(self) -> str:
        """Whether the head's prefix is on its way between memories, or no seat was left."""
        loading = self.loading
        if self.server.step.preemptions:
            return super().held_back()
        return TIER if loading.passes_head else "seats" if loading.seats_taken else super().held_back()

    def rest(self) -> None:
        """No requests are left: those that finished last offer what they have."""
        self.offload.rest()

    def _free_loaded(self) -> bool:
        """Free the memory of aborted requests whose loads have ended; returns whether there were any."""
        loaded = [request for request in self._cut if not self.offload.loads_for(request)]
        loaded.sort(key=lambda request: -request.seq)  # in the order in which their loads began
        for request in loaded:
            self._free(request, True, 0)
            self._cut.remove(request)
        return bool(loaded)

    # -- leaving ------------------------------------------------------------------------------

    def abort(self, request: Request) -> None:
        """A client leaves between two steps: its request is not computed any further.

        Its memory is freed immediately, or when its load or the step in flight has ended.
        """
        server, offload = self.server, self.offload
        if not self.late:  # what ended with the last step is already known
            offload.settle(server.now_ps)
            if self._cut:
                self._free_loaded()
        if request.state == State.WAITING:
            server.waiting.remove(request)
            offload.aborts(request, 0, [])
        else:
            seq = request.seq
            decodes, loads = request.state == State.DECODE, request.state == State.LOADING
            ended = server.batch.departed.pop(seq, None) is not None  # its last token is in flight
            unknown = server.unknown_tokens(request) if ended else int(decodes)
            if decodes:
                server.batch.leave(request)
            if decodes or ended:
                server.memory.prefill_held += request.computed
            offload.aborts(request, request.computed, list(offload.allocator.block_table(seq)))
            if loads:
                self.loading.hold.remove(request)
                waits = offload.loads_for(request)
            else:
                del server.running[seq]
                server.batch.loading[seq] = request
                waits = self.late and self._in_flight is not None and seq not in self._in_flight.resting
            if not waits:
                server.wakes.loaded -= loads
                self._free(request, loads, 0)
            elif loads:
                self._cut.append(request)
            else:
                self._aborted.append((request, unknown))
        request.state = State.FINISHED

    def _free(self, request: Request, loads: bool, unknown: int) -> None:
        """Free the memory of an aborted request; what was loaded for it cannot be hit."""
        server = self.server
        del server.batch.loading[request.seq]
        server.memory.prefill_held -= request.computed
        if loads:
            request.computed = 0
        server.memory.free(request, unknown=unknown)

    def finish(self, request: Request) -> None:
        """A request has its last token."""
        if self.late:
            self.server.depart_late(request)
        else:
            self.offload.finishes(request)
            self.server.release(request)
