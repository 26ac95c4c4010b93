"""Progress by a number of tokens per step drawn for each sequence, as in speculative decoding."""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import ClassVar

from kvsim.sim.serving.progress import Progress
from kvsim.sim.serving.request import Request


class Counted(Progress):
    """Tokens per step given by `counts` for each sequence, at least one; the last step adds what is missing.

    `counts` yields how many tokens each step adds to a sequence from now on. It is called when the sequence
    joins, for all steps to its end.
    """

    linear: ClassVar[bool] = False

    def __init__(self, counts: Callable[[Request], Iterator[int]]) -> None:
        super().__init__()
        self._counts = counts
        self._after: dict[int, list[int]] = {}  # sequence -> tokens stored after each of its steps

    def stored(self, request: Request) -> int:
        return self._after[request.seq][self.clock - request.base]

    def tokens(self, request: Request) -> int:
        return self._after[request.seq][self.clock - request.base + 1]

    def contexts(self) -> int:
        return self.contexts_later(0)

    def contexts_later(self, steps: int) -> int:
        clock, after = self.clock + 1 + steps, self._after
        return sum([after[seq][clock - request.base] for seq, request in self._members.items()])

    def all_stored(self) -> int:
        return sum([self.stored(request) for request in self._members.values()])

    def generated(self, request: Request) -> int:
        return self.stored(request) - request.prompt_tokens + 1

    def growth_clock(self, request: Request, capacity: int) -> int:
        return request.base + bisect_left(self._after[request.seq], capacity + 1) - 1

    def added(self, steps: int) -> int:
        clock = self.clock
        return sum(
            self._after[seq][clock - r.base + steps] - self._after[seq][clock - r.base]
            for seq, r in self._members.items()
        )

    def _begin(self, request: Request) -> None:
        counts, missing = self._counts(request), request.output_tokens - request.generated
        steps = []
        while missing:
            steps.append(min(next(counts), missing))
            missing -= steps[-1]
        request.base = self.clock
        request.finish_clock = self.clock + len(steps)
        self._after[request.seq] = list(accumulate(steps, initial=request.computed))

    def _remove(self, request: Request) -> None:
        super()._remove(request)
        del self._after[request.seq]
