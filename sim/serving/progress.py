"""Progress of the decoding sequences: the only module that knows how many tokens a step adds to a sequence.

    clock        decode steps executed
    stored       tokens of a sequence whose keys and values are stored: all but the newest
    tokens       the same in the step that is being decided, including the tokens it adds

In `Lockstep` every sequence gets one token per step: it has stored `base + clock` tokens, and all of them
together `sum(base) + size * clock`. Each finish is known when the sequence joins and is kept in a sorted
list: the work is proportional to changes, not to tokens. Any other progress must be known at the join, too;
then finishes and growth stay predictable, and many steps can be taken at a time.

Engines may *pause* decoding for a step: the clock stands still, and the time between two tokens is longer
than a step. A sequence that got no token in the previous step is *late*.
"""

from abc import abstractmethod
from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import ClassVar, Final

from mypy_extensions import mypyc_attr

from kvsim.sim.serving.request import Request
from kvsim.sim.serving.spread import Contexts

SEQ_BITS: Final = 40
"""A finish is one integer, clock << SEQ_BITS | seq: in order of clocks, then of admissions."""
SEQ_MASK: Final = (1 << SEQ_BITS) - 1
NEVER: Final = 1 << 61


@mypyc_attr(allow_interpreted_subclasses=True)
class Progress:
    """The sequences that decode, and how many tokens each has after every step.

    Attributes
    ----------
    clock : int
        Decode steps executed.
    size : int
        Sequences that decode.
    next_finish : int
        The clock at which the next of them gets its last token.
    most_added : int
        Most tokens that a step adds to a sequence.
    late : bool
        Whether any of them may have got no token in the previous step.
    spread : Contexts or None
        How their contexts differ, if the cost model asks.
    """

    linear: ClassVar[bool]
    """Whether every step adds one token to each sequence, so that sums over a span have closed forms."""

    def __init__(self) -> None:
        self.clock = self.size = self._base_sum = 0
        self.most_added = 1
        self.next_finish = NEVER
        self.late = False
        self.spread: Contexts | None = None
        self._members: dict[int, Request] = {}  # by the id with which each joined
        self._finishes: list[int] = []
        self._last_ps = 0  # when the last decode step ended
        self._joined: dict[int, int] = {}  # joined since then: seq -> its last token, in ps
        self._streams: dict[int, list[Request]] = {}  # sequences whose generated text others may share

    # -- what each kind of progress defines------------------------------------------------------

    @abstractmethod
    def stored(self, request: Request) -> int:
        """Tokens of a sequence that were stored when the step began."""

    @abstractmethod
    def tokens(self, request: Request) -> int:
        """Tokens of a sequence in the step, including those that it adds."""

    @abstractmethod
    def contexts(self) -> int:
        """The tokens of all sequences in the step."""

    @abstractmethod
    def contexts_later(self, steps: int) -> int:
        """`contexts()` this many decode steps later, if no sequence joins or leaves."""

    def contexts_ahead(self, steps: int) -> list[int]:
        """`contexts()` in this step and in the following ones, `steps` values in all."""
        return [self.contexts_later(later) for later in range(steps)]

    @abstractmethod
    def all_stored(self) -> int:
        """The tokens of all sequences when the step began."""

    @abstractmethod
    def generated(self, request: Request) -> int:
        """Tokens of the answer that a sequence had when the step began."""

    @abstractmethod
    def growth_clock(self, request: Request, capacity: int) -> int:
        """The clock of the step that needs more than `capacity` tokens; at the finish or later: none."""

    @abstractmethod
    def added(self, steps: int) -> int:
        """Tokens that the next `steps` steps add to all sequences."""

    @abstractmethod
    def _begin(self, request: Request) -> None:
        """Set `base` and `finish_clock` of a sequence that joins; `NEVER`: it is not known."""

    # -- in and out ---------------------------------------------------------------------------

    def join(self, request: Request, now_ps: int) -> None:
        """A sequence decodes from the next decode step on."""
        self._begin(request)
        seq, last_ps = request.seq, request.last_token_ps
        self._base_sum += request.base
        self.size += 1
        self._members[seq] = request
        request.joined_as = seq
        if self.spread is not None:
            self.spread.add(request.base)
        self._joined[seq] = last_ps
        if last_ps != now_ps:
            self.late = True
        if request.open_stream is not None:
            self._streams.setdefault(request.open_stream, []).append(request)
        finish = request.finish_clock
        if finish < NEVER:
            insort(self._finishes, finish << SEQ_BITS | seq)
            if finish < self.next_finish:
                self.next_finish = finish

    def leave(self, request: Request) -> None:
        """A sequence stops decoding before its end: write back its progress."""
        request.computed = self.stored(request)
        request.generated = self.generated(request)
        request.known_tokens = request.prompt_tokens + request.generated
        request.last_token_ps = self._joined.pop(request.joined_as, self._last_ps)
        self._remove(request)

    def cut(self, request: Request, output_tokens: int) -> None:
        """Shorten a sequence's answer; at least one token must still be to come."""
        finish, finishes = request.finish_clock, self._finishes
        del finishes[bisect_left(finishes, finish << SEQ_BITS | request.joined_as)]
        request.finish_clock = finish = finish - (request.output_tokens - output_tokens)
        request.set_output(output_tokens)
        insort(finishes, finish << SEQ_BITS | request.joined_as)
        self.next_finish = finishes[0] >> SEQ_BITS

    def finished(self) -> list[Request]:
        """Remove and return the sequences that have their last token, in order of their ids."""
        done: list[Request] = []
        while self.next_finish == self.clock:
            request = self._members[self._finishes[0] & SEQ_MASK]
            request.generated = request.output_tokens
            request.computed = request.final_tokens
            self._remove(request)
            done.append(request)
        if len(done) > 1:
            done.sort(key=lambda request: request.seq)  # beam search renames decoding sequences
        return done

    def _remove(self, request: Request) -> None:
        self.size -= 1
        del self._members[request.joined_as]
        self._base_sum -= request.base
        if self.spread is not None:
            self.spread.remove(request.base)
        if request.open_stream is not None:
            self._streams[request.open_stream].remove(request)
        finish = request.finish_clock
        if finish < NEVER:
            finishes = self._finishes
            del finishes[bisect_left(finishes, finish << SEQ_BITS | request.joined_as)]
            if finish == self.next_finish:
                self.next_finish = finishes[0] >> SEQ_BITS if finishes else NEVER

    def authors(self, stream: int) -> Sequence[Request]:
        """The sequences that generate a text that others may share."""
        return self._streams.get(stream, ())

    # -- time ---------------------------------------------------------------------------------

    def advance(self, steps: int, now_ps: int) -> None:
        """`steps` decode steps are over; the last one ended now."""
        self.clock += steps
        self._last_ps = now_ps
        self.late = False
        if self._joined:
            self._joined.clear()

    def pause(self) -> None:
        """A step is over in which no sequence decoded."""
        if self.size:
            self.late = True

    def late_tokens(self, now_ps: int) -> list[tuple[int, int]]:
        """(time of the last token, sequences), if any got its last token before the step that ended now.

        Otherwise empty: the time between two tokens is then the duration of a step.
        """
        last = [(when, 1) for when in self._joined.values()]
        others = self.size - len(last)
        if others:
            last.append((self._last_ps, others))
        for when, _ in last:
            if when != now_ps:
                return last
        return []


@mypyc_attr(allow_interpreted_subclasses=True)
class Lockstep(Progress):
    """One token per step for every sequence."""

    linear: ClassVar[bool] = True

    def stored(self, request: Request) -> int:
        return request.base + self.clock

    def tokens(self, request: Request) -> int:
        return request.base + self.clock + 1

    def contexts(self) -> int:
        return self._base_sum + self.size * (self.clock + 1)

    def contexts_later(self, steps: int) -> int:
        return self._base_sum + self.size * (self.clock + 1 + steps)

    def all_stored(self) -> int:
        return self._base_sum + self.size * self.clock

    def generated(self, request: Request) -> int:
        return request.output_tokens - (request.finish_clock - self.clock)

    def growth_clock(self, request: Request, capacity: int) -> int:
        return capacity - request.base

    def added(self, steps: int) -> int:
        return steps * self.size

    def _begin(self, request: Request) -> None:
        request.base = request.computed - self.clock
        request.finish_clock = self.clock + request.output_tokens - request.generated
