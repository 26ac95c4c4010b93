"""A user's policies: one with constant keys, one that displaces, one that turns, one with moving keys."""

from kvsim.sim.policies.base import Policy


class Mine(Policy):
    """Orders requests by scrambled numbers."""

    def key(self, request, now_ps):
        return request.index * 37 % 11


class Displacing(Mine):
    """Waiting requests displace running ones."""

    preempts = True


class Turning(Displacing):
    """One second after its arrival, a request goes before all others."""

    def key(self, request, now_ps):
        return super().key(request, now_ps) - 100 * (now_ps >= request.arrival_ps + 10**12)

    def turns_ps(self, request):
        return request.arrival_ps + 10**12


class Restless(Mine):
    """Keys change with the clock; no request is displaced."""

    moves = True

    def key(self, request, now_ps):
        return (super().key(request, now_ps) + now_ps // 10**11) % 11
