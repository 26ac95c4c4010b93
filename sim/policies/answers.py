"""Tokens that each client's requests generated since the last call: by sums, without visiting requests.

    a client's running requests generate a token per step each:  tokens = how many decode x steps since then

A request that has just begun to decode is counted by itself once, then belongs to the sum of its client.
"""

from kvsim.sim.serving.request import Request, State
from kvsim.sim.serving.server import Server


class Answers:
    """How much of each answer has been counted, and how many requests decode.

    Attributes
    ----------
    decoding : dict
        Client -> how many of its requests are in the sum.
    """

    def __init__(self) -> None:
        self.decoding: dict[str, int] = {}
        self._counted: dict[Request, int] = {}  # requests in no sum: tokens
        self._base: dict[Request, int] = {}  # requests in a sum: tokens = base + clock
        self._clock = 0  # of the last call

    def __contains__(self, request: Request) -> bool:
        """Whether the request was ever admitted."""
        return request in self._counted or request in self._base

    def enter(self, request: Request) -> bool:
        """The request was admitted; returns whether for the first time."""
        if request in self._counted or request in self._base:
            return False
        self._counted[request] = 0
        return True

    def rest(self, request: Request, tokens: int) -> int:
        """The request stopped with this many tokens: how many of them were not counted yet."""
        self._take_out(request)
        more = tokens - self._counted[request]
        self._counted[request] = tokens
        return more

    def end(self, request: Request, tokens: int) -> int:
        """The request is gone, with this many tokens: how many of them were not counted yet."""
        base = self._base.pop(request, None)
        if base is None:
            return tokens - self._counted.pop(request)
        self.decoding[request.facts.client] -= 1
        return tokens - base - self._clock

    def _take_out(self, request: Request) -> None:
        base = self._base.pop(request, None)
        if base is not None:
            self._counted[request] = base + self._clock
            self.decoding[request.facts.client] -= 1

    def since(self, server: Server) -> dict[str, int]:
        """Client -> tokens of its answers since the last call, except for finished ones."""
        if server.batch.departed:
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
        """Client -> how many of its requests now get a token per step."""
        for request in server.batch.departed.values():
            self._take_out(request)
        rates = self.decoding.copy()
        for request in self._begun():
            rates[request.facts.client] = rates.get(request.facts.client, 0) + 1
        return rates

    def _begun(self) -> list[Request]:
        """Requests in no sum that decode by now."""
        return [request for request in self._counted if request.state is State.DECODE]
