"""Seats of decoding sequences: seats that finished sequences keep, and requests that wait for one.

A static batch computes on the seats of finished sequences until its longest one is done (padding). Other
engines prefill more prompts than may decode simultaneously; seats go to the first in line.
"""

from kvsim.sim.serving.request import Request
from kvsim.sim.serving.spread import Contexts


class Seats:
    """Finished sequences whose seats still compute; each context grows by one token per decode step.

    Attributes
    ----------
    count : int
        Finished sequences that keep a seat.
    waiting : dict of Request
        By id, requests whose prompts are computed and that wait for a seat.
    """

    def __init__(self) -> None:
        self.count = 0
        self.waiting: dict[int, Request] = {}
        self._base_sum = 0
        self._bases: list[int] = []

    def add(self, tokens: int, clock: int, spread: Contexts | None) -> None:
        """A sequence of this many tokens is finished."""
        base = tokens - clock
        self.count += 1
        self._base_sum += base
        self._bases.append(base)
        if spread is not None:
            spread.add(base)

    def contexts(self, clock: int) -> int:
        """The sum of their contexts in the decode step at that clock."""
        return self._base_sum + self.count * (clock + 1)

    def clear(self, spread: Contexts | None) -> None:
        """The batch is over."""
        for base in self._bases:
            if spread is not None:
                spread.remove(base)
        self._bases.clear()
        self.count = self._base_sum = 0
