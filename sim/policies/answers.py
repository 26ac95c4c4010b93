"""Tokens that the requests of each client have generated since one asked last: by sums, nobody is visited.

    a client's running requests generate a token a step each:  tokens = how many decode x steps since then

Who has just begun to decode is counted by itself once, and then belongs to the sum of its client.
"""

from kvsim.sim.serving.request import Request, State
from kvsim.sim.serving.server import Server


class Answers:
    """What has been counted of each answer, and how many decode.

    Attributes
    ----------
    decoding : dict
        Client -> how many of its requests are in the sum.
    """

    def __init__(self) -> None:
        self.decoding: dict[str, int] = {}
        self._counted: dict[Request, int] = {}  # of those in no sum: tokens
        self._base: dict[Request, int] = {}  # of those in a sum: tokens = base + clock
        self._clock = 0  # when one asked last

    def __contains__(self, request: Request) -> bool:
        """Whether it was admitted once."""
        return request in self._counted or request in self._base

    def enter(self, request: Request) -> None:
        """It was admitted, perhaps again."""
        self._counted.setdefault(request, 0)

    def rest(self, request: Request, tokens: int) -> int:
        """It stands still with so many tokens, or is finished: how many of them were not counted yet."""
        self._take_out(request)
        more = tokens - self._counted[request]
        self._counted[request] = tokens
        return more

    def end(self, request: Request) -> None:
        """It is gone."""
        del self._counted[request]

    def _take_out(self, request: Request) -> None:
        base = self._base.pop(request, None)
        if base is not None:
            self._counted[request] = base + self._clock
            self.decoding[request.facts.client] -= 1

    def since(self, server: Server) -> dict[str, int]:
        """Client -> tokens of its answers since one asked last, but for those that have finished."""
        for request in server.batch.departed.values():
            self._take_out(request)
        clock, generated = server.progress.clock, server.progress.generated
        steps = clock - self._clock
        found = {client: count * steps for client, count in self.decoding.items()} if steps else {}
        self._clock = clock
        for request in self._begun():
            now, client = generated(request), request.facts.client
            found[client] = found.get(client, 0) + now - self._counted.pop(request)
            self._base[request] = now - clock
            self.decoding[client] = self.decoding.get(client, 0) + 1
        return found

    def rates(self, server: Server) -> dict[str, int]:
        """Client -> how many of its requests get a token in a step now."""
        for request in server.batch.departed.values():
            self._take_out(request)
        rates = self.decoding.copy()
        for request in self._begun():
            rates[request.facts.client] = rates.get(request.facts.client, 0) + 1
        return rates

    def _begun(self) -> list[Request]:
        """Those in no sum who decode by now."""
        return [request for request in self._counted if request.state is State.DECODE]
