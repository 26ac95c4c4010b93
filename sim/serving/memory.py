"""The KV memory of a server: its allocator, and what is counted of it while sequences run."""

from collections.abc import Callable

from mypy_extensions import mypyc_attr

from kvsim.allocators.abilities import Abilities
from kvsim.allocators.base import Allocator, Match
from kvsim.sim.serving.decision import Decision
from kvsim.sim.serving.request import Request


@mypyc_attr(allow_interpreted_subclasses=True)
class KvMemory:
    """An allocator, and the slots that are not what they seem.

    Attributes
    ----------
    abilities : Abilities
        What the allocator can do; asked once.
    prefixes : Prefixes or None
        The allocator, if it keeps prefixes.
    windows : bool
        Whether a token may take several slots, or none any more.
    internal : int
        Allocated slots that will never be written.
    prefill_held : int
        Tokens held by sequences that do not decode.
    admissions : int
        Sequences that were placed so far: the id of the next one.
    admitted_slots : int
        Slots that admissions took; counted where free slots may be useless.
    below : callable or None
        How many tokens of a request's prompt a tier below has behind the first so many.
    """

    def __init__(self, allocator: Allocator) -> None:
        self.allocator = allocator
        self.abilities = abilities = Abilities.of(allocator)
        self.prefixes = abilities.prefixes
        self.windows = allocator.windows
        self.internal = 0
        self.prefill_held = 0
        self.admissions = 0
        self.admitted_slots = 0
        self.below: Callable[[Request, int], int] | None = None

    def new_seq(self) -> int:
        """The id of a sequence that is placed now: they count admissions and forks."""
        seq = self.admissions
        self.admissions += 1
        return seq

    def admit_after(self, match: Match, seq: int, tokens: int, bound: int) -> bool:
        """Place a new sequence that shares what `match` found; False: no room."""
        assert self.prefixes is not None
        return self.prefixes.admit_after(match, seq, tokens, bound)

    def can_hold(self, match: Match | None, tokens: int, bound: int) -> bool:
        """Whether a new sequence that shares what `match` found would find room all the way to `tokens`."""
        can_hold_after = self.abilities.can_hold_after
        if match is None or can_hold_after is None:
            return self.allocator.can_hold(tokens, bound)
        return can_hold_after(match, tokens, bound)

    def set_internal(self, request: Request, slots: int) -> None:
        """So many of a request's slots will never be written."""
        self.internal += slots - request.internal
        request.internal = slots

    def internal_slots(self) -> int:
        """Allocated slots that will never be written, or not before somebody owns them alone."""
        if self.allocator.shared_tokens:
            return self.internal + self.allocator.shared_tail_slots()
        return self.internal

    def publish(self, request: Request, step: Decision) -> None:
        """A chunk that `step` computed is there: from now on its prefix can be found."""
        if self.prefixes is not None:
            self.prefixes.fill(request.seq, request.computed)

    def free(self, request: Request, comes_back: bool = False, unknown: int = 0) -> None:
        """Free a request's memory. Its prefix can be found again, but for the last `unknown` tokens."""
        allocator = self.allocator
        if self.prefixes is not None:
            self.prefixes.fill(request.seq, request.computed - unknown)
        if comes_back:
            allocator.evict(request.seq)
        else:
            allocator.release(request.seq)
        self.internal -= request.internal
        request.internal = 0
