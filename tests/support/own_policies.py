"""Policies of a user: one whose keys stay, one that displaces, one that turns, one whose keys never rest."""

from kvsim.sim.policies.base import Policy


class Mine(Policy):
    """By numbers that follow no order."""

    def key(self, request, now_ps):
        return request.index * 37 % 11


class Displacing(Mine):
    """Who waits displaces who runs."""

    preempts = True


class Turning(Displacing):
    """A second after it came, a request goes before all others."""

    def key(self, request, now_ps):
        return super().key(request, now_ps) - 100 * (now_ps >= request.arrival_ps + 10**12)

    def turns_ps(self, request):
        return request.arrival_ps + 10**12


class Restless(Mine):
    """Keys change with the clock; nobody is displaced."""

    moves = True

    def key(self, request, now_ps):
        return (super().key(request, now_ps) + now_ps // 10**11) % 11
