"""The batch and the memory of a server that speculates: every step says how many tokens each sequence gets.

    stored    tokens of a sequence that are verified, when the step began
    tokens    the same with what the step adds: the drafts that it accepts, and one more

How many that are is decided step by step (drafts.py), as is the room that they take: nothing of it stands in
the calendar of growth. What can be found of a text is said by whoever knows which of it is verified.
"""

from collections.abc import Sequence
from typing import ClassVar, Protocol

from mypy_extensions import mypyc_attr

from kvsim.sim.serving.batch import Batch, Within
from kvsim.sim.serving.decision import Decision
from kvsim.sim.serving.growth import Grown
from kvsim.sim.serving.memory import KvMemory
from kvsim.sim.serving.progress import NEVER, Progress
from kvsim.sim.serving.request import Request, State


@mypyc_attr(allow_interpreted_subclasses=True)
class Drafted(Progress):
    """As many tokens as the step says of each sequence (`will_add`)."""

    linear: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self._adds: dict[int, int] = {}  # by sequence: tokens in the step that is being decided
        self._added = 0
        self._ahead: list[int] = []  # tokens of all sequences in each step of a span

    def look_ahead(self, tokens: list[int]) -> None:
        """All sequences have so many tokens in the step that is being decided, and in those behind it."""
        self._ahead = tokens

    def will_end(self, steps: int) -> None:
        """What was said by `will_add` is of so many steps."""
        if self.next_finish < NEVER:
            self.next_finish = self.clock + steps

    def will_add(self, adds: dict[int, int], ends: bool) -> None:
        """The step that is being decided adds so many tokens to each; `ends`: somebody has the last."""
        self._adds, self._added = adds, sum(adds.values())
        if ends:
            self.next_finish = self.clock + 1

    def stored(self, request: Request) -> int:
        return request.base

    def tokens(self, request: Request) -> int:
        return request.base + self._adds.get(request.seq, 0)

    def contexts(self) -> int:
        return self._base_sum + self._added

    def contexts_later(self, steps: int) -> int:
        return self._ahead[steps] if self._ahead else self.contexts()

    def all_stored(self) -> int:
        return self._base_sum

    def generated(self, request: Request) -> int:
        return request.base - request.prompt_tokens + 1

    def growth_clock(self, request: Request, capacity: int) -> int:
        return NEVER

    def added(self, steps: int) -> int:
        return self._ahead[steps - 1] - self._base_sum if self._ahead else self._added

    def _begin(self, request: Request) -> None:
        request.base, request.finish_clock = request.computed, NEVER

    def leave(self, request: Request) -> None:
        super().leave(request)
        self._added -= self._adds.pop(request.seq, 0)

    def advance(self, steps: int, now_ps: int) -> None:
        super().advance(steps, now_ps)
        members = self._members
        for seq, tokens in self._adds.items():
            members[seq].base += tokens
        self._base_sum += self._added
        self._adds, self._added, self._ahead = {}, 0, []

    def finished(self) -> list[Request]:
        done = [each for each in self._members.values() if each.base >= each.final_tokens]
        done.sort(key=lambda request: request.seq)
        for request in done:
            request.generated = request.output_tokens
            request.computed = request.final_tokens
            self._remove(request)
        self.next_finish = NEVER
        return done

    def authors(self, stream: int) -> Sequence[Request]:
        """Nobody: what is verified of a text is said step by step."""
        return ()


class Ahead(Protocol):
    """Who knows the steps behind the one that is decided."""

    def foresee(self, at_most: int) -> int:
        """How many steps, this one included, are like it; nothing is done."""

    def carry_out(self, steps: int) -> list[Within]:
        """So many of them are over: what the memory held in each but the first."""


@mypyc_attr(allow_interpreted_subclasses=True)
class DraftBatch(Batch):
    """Who runs, of a server that speculates; `drafted` is its progress."""

    may_work_in_spans: bool = False

    def __init__(self, memory: KvMemory) -> None:
        self.drafted = Drafted()
        self.ahead: Ahead | None = None
        super().__init__(memory, self.drafted)

    def join(self, request: Request, now_ps: int) -> None:
        request.move(State.DECODE)
        self.memory.prefill_held -= request.computed
        self.progress.join(request, now_ps)

    def leave(self, request: Request) -> None:
        self.progress.leave(request)

    def guaranteed_steps(
        self, at_most: int, keeping_cached: bool = False, anybody_waits: bool = False
    ) -> int:
        return 1 if self.ahead is None else self.ahead.foresee(at_most)

    def grow_within(self, ends: list[int]) -> Grown:
        if self.ahead is not None:
            self.within = self.ahead.carry_out(len(ends))
        return 0, 0, 0, None, 0, 0


@mypyc_attr(allow_interpreted_subclasses=True)
class VerifiedMemory(KvMemory):
    """A memory in which only those blocks can be found that its owner has named."""

    def publish(self, request: Request, step: Decision) -> None:
        """That is done where tokens are verified."""

    def free(self, request: Request, comes_back: bool = False, unknown: int = 0) -> None:
        if comes_back:
            self.allocator.evict(request.seq)
        else:
            self.allocator.release(request.seq)
        self.internal -= request.internal
        request.internal = 0
