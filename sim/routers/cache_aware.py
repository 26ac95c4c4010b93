"""Cache-aware: SGLang's router, which remembers what text it sent where and never asks the replicas.

1. Loads (requests sent and not answered) are unbalanced when the largest exceeds the smallest by more than
   `balance_abs_threshold` and is more than `balance_rel_threshold` times it: then the least loaded is chosen.
2. Else the replica to which the longest prefix of this prompt was sent before, the most recent of several, if
   that is more than `cache_threshold` of the prompt.
3. Else the replica to which the fewest tokens of text were sent: its tree is the smallest.

Source: SGLang, sgl-router/src/policies/cache_aware.rs. There the trees hold characters, here blocks of 16
tokens, and nothing is ever evicted from them. The router `prefix` asks the replicas instead.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from kvsim.allocators.texts import Texts
from kvsim.sim.routers.base import Router, Seen
from kvsim.sim.routers.options import Balanced
from kvsim.sim.serving.request import Request

BLOCK = 16
"""Tokens per block of text, the unit of comparison."""


class CacheAware(Router):
    """Chooses the replica that was sent the longest prefix of the prompt."""

    declares: ClassVar[type] = Balanced

    def __init__(self, argument: str, rng: np.random.Generator, options: Mapping[str, object]) -> None:
        super().__init__(argument, rng, options)
        self._limits = self.own(Balanced)
        self._texts = Texts(BLOCK)
        self._sent: dict[int, list[int]] = {}  # block of a text -> replicas it was sent to, the latest last
        self._tokens: dict[int, int] = {}  # replica -> tokens of text sent to it, each counted once

    def choose(self, request: Request, replicas: Sequence[Seen]) -> int:
        """By load if loads are unbalanced, else by text."""
        loads = [replica.requests for replica in replicas]
        least, most, limits = min(loads), max(loads), self._limits
        keys = [
            key for first, count in self._texts.keys(request.content) for key in range(first, first + count)
        ]
        if most - least > limits.balance_abs_threshold and most > limits.balance_rel_threshold * least:
            chosen = loads.index(least)
        else:
            chosen = self._by_text(keys, request.prompt_tokens, [replica.place for replica in replicas])
        self._insert(keys, request.prompt_tokens, replicas[chosen].place)
        return chosen

    def _by_text(self, keys: Sequence[int], prompt_tokens: int, places: Sequence[int]) -> int:
        """The replica with most of the text, if that is enough, else the one with the smallest tree."""
        matched, whose = 0, -1
        for key in keys:
            known = [place for place in self._sent.get(key, ()) if place in places]
            if not known:
                break
            matched, whose = matched + BLOCK, known[-1]
        if matched > self._limits.cache_threshold * prompt_tokens:
            return places.index(whose)
        sizes = [self._tokens.get(place, 0) for place in places]
        return sizes.index(min(sizes))

    def _insert(self, keys: Sequence[int], prompt_tokens: int, place: int) -> None:
        new = prompt_tokens
        for key in keys:
            places = self._sent.setdefault(key, [])
            if place in places:
                places.remove(place)
                new -= BLOCK
            places.append(place)
        self._tokens[place] = self._tokens.get(place, 0) + max(new, 0)
