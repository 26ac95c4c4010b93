"""Seats of decoding sequences: those that finished ones keep, and who waits for one.

A static batch computes on the seats of finished sequences until its longest is done: padding. Other engines
prefill more prompts than may decode at once: the first come sits down first.
"""

from kvsim.sim.serving.request import Request
from kvsim.sim.serving.spread import Contexts


class Seats:
    """Finished sequences whose seats still compute; a context grows by one token a decode step.

    Attributes
    ----------
    count : int
        How many there are.
    waiting : dict of Request
        By id, those whose prompts are computed, and who wait for a seat.
    """

    def __init__(self) -> None:
        self.count = 0
        self.waiting: dict[int, Request] = {}
        self._base_sum = 0
        self._bases: list[int] = []

    def add(self, tokens: int, clock: int, spread: Contexts | None) -> None:
        """A sequence of so many tokens is finished."""
        base = tokens - clock
        self.count += 1
        self._base_sum += base
        self._bases.append(base)
        if spread is not None:
            spread.add(base)

    def contexts(self, clock: int) -> int:
        """The sum of their contexts in the decode step of that clock."""
        return self._base_sum + self.count * (clock + 1)

    def clear(self, spread: Contexts | None) -> None:
        """The batch is over."""
        for base in self._bases:
            if spread is not None:
                spread.remove(base)
        self._bases.clear()
        self.count = self._base_sum = 0
