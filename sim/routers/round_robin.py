"""Round robin: one replica after another, whatever their load; request i goes to replica i mod N."""

from collections.abc import Mapping, Sequence

import numpy as np

from kvsim.sim.routers.base import Router, Seen
from kvsim.sim.serving.request import Request


class RoundRobin(Router):
    """Chooses each replica in turn."""

    def __init__(self, argument: str, rng: np.random.Generator, options: Mapping[str, object]) -> None:
        super().__init__(argument, rng, options)
        self._turn = -1

    def choose(self, request: Request, replicas: Sequence[Seen]) -> int:
        """The next replica."""
        self._turn = (self._turn + 1) % len(replicas)
        return self._turn
