"""Common to policies by predicted length that displace: marks of running requests (running.py).

A request gets its mark when it decodes as others do; while it computes its prompt, or is promoted, it is
checked individually.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from mypy_extensions import mypyc_attr

from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.policies.predicted import Predicting
from kvsim.sim.policies.running import Running
from kvsim.sim.serving.request import Request


@mypyc_attr(allow_interpreted_subclasses=True)
class Displacing(Predicting):
    """Knows the largest key among running requests."""

    preempts: ClassVar[bool] = True

    def __init__(self, config: EngineConfig, max_model_len: int) -> None:
        super().__init__(config, max_model_len)
        self.unlike: dict[Request, int] = {}  # running request without a mark -> number of its admission
        self._running, self._admissions = Running(), 0

    @abstractmethod
    def mark(self, request: Request) -> int | None:
        """The constant part of a running request's key; None: nothing yet."""

    @abstractmethod
    def marked_key(self, mark: int) -> Any:  # noqa: ANN401 - as `key`
        """The current key of a request with this mark."""

    def waits(self, request: Request) -> None:
        self._leave(request)

    def entered(self, request: Request) -> None:
        self._admissions += 1
        self.unlike[request] = self._admissions

    def finished(self, request: Request) -> None:
        super().finished(request)
        self._leave(request)

    def _leave(self, request: Request) -> None:
        if self.unlike.pop(request, None) is None:
            self._running.take_out(request)

    def rivals(self, least: Any, now_ps: int) -> Iterable[Request]:  # noqa: ANN401
        if self.predictor.moves:
            return super().rivals(least, now_ps)
        for request in list(self.unlike):
            mark = self.mark(request)
            if mark is not None:
                self._running.add(mark, self.unlike.pop(request), request)
            elif least < self.key(request, now_ps) and self._may_give_way(request):
                return super().rivals(least, now_ps)
        return self._marked_above(least)

    def _marked_above(self, least: Any) -> Iterator[Request]:  # noqa: ANN401
        for mark, _, request in reversed(self._running.entries):
            if not least < self.marked_key(mark):
                return
            if self._may_give_way(request):
                yield request
