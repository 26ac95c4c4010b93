"""Prefix: the replica that has cached most of the prompt, unless loads are unbalanced.

As in production routers (SGLang's cache-aware policy), with the same limits. The request goes to the least
loaded replica if the largest load exceeds the smallest by more than `balance_abs_threshold` requests and by
more than the factor `balance_rel_threshold`, or if no replica has cached at least `cache_threshold` of the
prompt. Ties also go to the least loaded replica.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from kvsim.sim.routers.base import Router, Seen
from kvsim.sim.routers.options import Balanced
from kvsim.sim.serving.request import Request


class LongestPrefix(Router):
    """Chooses the longest cached prefix, then the smallest load."""

    declares: ClassVar[type] = Balanced

    def __init__(self, argument: str, rng: np.random.Generator, options: Mapping[str, object]) -> None:
        super().__init__(argument, rng, options)
        limits = self.own(Balanced)
        self._more, self._times = limits.balance_abs_threshold, limits.balance_rel_threshold
        self._share = limits.cache_threshold

    def choose(self, request: Request, replicas: Sequence[Seen]) -> int:
        """The replica that has cached most of the prompt."""
        loads = [replica.requests for replica in replicas]
        least, most = min(loads), max(loads)
        if most - least > self._more and most > self._times * least:
            return loads.index(least)
        cached = [replica.cached_tokens(request) for replica in replicas]
        if max(cached) < self._share * request.prompt_tokens:
            return loads.index(least)
        return min(range(len(replicas)), key=lambda place: (-cached[place], loads[place]))
