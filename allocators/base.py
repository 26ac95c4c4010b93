"""The contract of a KV-cache allocator: what it can be told to do.

A *slot* holds the key and the value of one token in all layers (where layers are kept in groups: in one
group of them; where pages have several sizes: a grain of bytes that divides them all). An allocator owns an
arena of `capacity_slots` slots, numbered from 0, and allocates them to *sequences*, which it knows by integer
ids, and by nothing else: no requests, no clock.

What holds for every allocator (`kvsim.allocators.contract.check_allocator` tries it on any class):

1. "No room" is a return value. A refused call changes nothing.
2. `used_slots + free_slots == capacity_slots` after every call, and no slot has two kinds.
3. `can_admit` foretells `admit`; once it says no, it says no until something is released, moved,
   evicted or left behind a window. Where `moves_in_part`, a loan may end the no, and nothing is promised.
4. Releasing every sequence gives back the whole arena.
5. No hidden randomness: the same calls give the same addresses.
6. A promise in `growth_budget` is kept whatever the order of the growths. Such growths cost no time and
   leave `external_slots` and `idle_slots` as they were.
7. What no caller may do (admit a sequence twice, or without a token; name one that holds nothing)
   raises InvariantError and changes nothing.
8. Idle slots can be had like free ones. Nobody has more than `most_sequences` at a time.

What its class says of itself stands in allocators/facts.py; what it counts, in allocators/account.py.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence

from mypy_extensions import mypyc_attr

from kvsim.allocators.account import Account
from kvsim.allocators.arena import Layout, Ledger, Region
from kvsim.allocators.facts import Facts
from kvsim.allocators.options import Options
from kvsim.allocators.records import Content, Holdings, InvariantError, Match, Run

__all__ = (
    "Allocator",
    "Content",
    "Facts",
    "Holdings",
    "InvariantError",
    "Layout",
    "Ledger",
    "Match",
    "Region",
    "Run",
)


@mypyc_attr(allow_interpreted_subclasses=True)
class Allocator(Account):
    """Allocates the slots of one arena to sequences."""

    @classmethod
    def from_options(cls, capacity_slots: int, options: Options) -> "Allocator":
        """Build one from the choices of a run, of which it takes those it knows."""
        return cls(capacity_slots)

    # -- placing ------------------------------------------------------------------------------

    @abstractmethod
    def slots_needed(self, tokens: int, bound: int) -> int:
        """Slots that `admit` would allocate: `tokens` or `bound` after rounding."""

    def fits(self, tokens: int, bound: int) -> bool:
        """Whether a sequence of `tokens` (reserving `bound`) fits an empty arena at all.

        If it does, so does every sequence with fewer tokens and a smaller bound.
        """
        return self.peak_slots(tokens, bound) <= self.capacity_slots

    def peak_slots(self, tokens: int, bound: int) -> int:
        """Slots of a sequence's largest moment on its way to `tokens`: not its end, if it frees some."""
        return self.slots_needed(tokens, bound)

    def leaves(self, match: "Match | None", tokens: int, bound: int) -> int:
        """Free slots that a new sequence would leave, once it has all its `tokens`; below 0: too few."""
        needed = self.peak_slots(tokens, bound)
        if match is not None:
            needed += match.woken_slots - match.tokens
        return self.free_slots - needed

    def can_hold(self, tokens: int, bound: int) -> bool:
        """Whether a new sequence would find room all the way to `tokens`, if nobody else took any."""
        return self.can_admit(tokens, bound)

    @abstractmethod
    def can_admit(self, tokens: int, bound: int) -> bool:
        """Whether `admit` would succeed; changes nothing."""

    @abstractmethod
    def admit(self, seq: int, tokens: int, bound: int) -> bool:
        """Place a new sequence that holds `tokens` now and `bound` at most; False when there is no room.

        A `bound` below `tokens` counts as `tokens`. Raises InvariantError when the sequence holds
        something already or `tokens` is below 1.
        """

    @abstractmethod
    def grow(self, seq: int, tokens: int) -> bool:
        """Make room for `tokens` in all, ready to be written; False when there is no room.

        Up to `capacity(seq)` tokens there is always room, and nothing changes but what is left behind a
        window (`leaves_at`).
        """

    def grow_chunk(self, seq: int, computed: int, tokens: int) -> bool:
        """As `grow`, for a piece of a prompt: only `computed` tokens are written by now, not `capacity`."""
        return self.grow(seq, tokens)

    def leaves_at(self, seq: int) -> int:
        """Tokens with which a sequence frees what is behind its windows, though it has room: it grows then.

        0: it never does, or `capacity` ends there.
        """
        return 0

    def growth_budget(self) -> int:
        """How many growths by `growth_unit` are sure to succeed, whoever asks; 0 is always a safe answer."""
        return 0

    def grow_many(self, seqs: Sequence[int]) -> None:
        """Grow full sequences by one unit each, in this order, within `growth_budget`.

        A sequence named k times grows by k units. Raises InvariantError when a promise is broken.
        """
        for seq in seqs:
            tokens = self.capacity(seq) + 1
            if not self.grow(seq, tokens):
                raise InvariantError(f"sequence {seq} was promised growth to {tokens} tokens and got none")

    def grow_mapped(self, seqs: Sequence[int]) -> bool:
        """Grow full sequences by `grows_by` each, in this order, if that maps nothing; else nothing is done.

        Needs `works_in_spans`, as `pass_steps` does.
        """
        return False

    @abstractmethod
    def release(self, seq: int) -> None:
        """Take back what the sequence holds (shared slots: only its claim to them)."""

    def retire(self, seq: int) -> int:
        """The sequence is finished, but keeps its memory until it is released: returns its slots."""
        return self.capacity(seq)

    def fork(self, parent: int, child: int, tokens: int) -> bool:
        """Let `child` start as a copy of all `tokens` of `parent`, sharing slots; False when out of room."""
        raise NotImplementedError(f"{type(self).__name__.lower()} cannot fork a sequence")

    def fork_over(self, seq: int, parent: int, child: int, tokens: int) -> bool:
        """`fork`, then `release` of `seq`, whose place the child takes; False, and no change: no room."""
        if not self.fork(parent, child, tokens):
            return False
        self.release(seq)
        return True

    def branch(self, forks: list[tuple[int, int, int, int]], writers: list[tuple[list[int], int]]) -> None:
        """`fork_over` of each (seq, parent, child, tokens), then `grow` of those who write.

        These are (sequences of one search, tokens that each of them gets to, one more than it has). For all
        of that there must be room, else InvariantError is raised.
        """
        for fork in forks:
            if not self.fork_over(*fork):
                raise InvariantError(f"sequence {fork[1]} was refused a fork")
        for seqs, tokens in writers:
            for seq in seqs:
                if not self.grow(seq, tokens):
                    raise InvariantError(f"sequence {seq} got no slot for its token {tokens}")

    # -- working beside -----------------------------------------------------------------------

    def after_step(self, lengths: Mapping[int, int]) -> None:
        """A step is over, in which the living sequences have come to hold so many tokens.

        What is mapped, unmapped or copied here is done while the next step computes; in any other call, the
        step waits for it. It may give sequences room ahead, if `growth_unit` is 0. Needs `works_after_steps`.
        """

    def pass_steps(self, growths: Iterator[Sequence[int]], most_ns: int) -> list[int]:
        """Steps pass: `after_step`, then `grow_mapped` by the sequences that the next one names, and so on.

        Each step adds a token to each living sequence, the one that has begun already, too. Where the work
        after a step might take longer than `most_ns`, or a growth have to map, neither is done any more.
        Returns the idle slots in each step that was begun.
        """
        return []

    # -- keeping prefixes ---------------------------------------------------------------------

    def match(self, content: Content, own: int, most: int) -> Match:
        """Look up a sequence's text: how much of its first `most` tokens is there already.

        `content` is the part that other sequences may have too; what follows it can only be found by the
        sequence itself, by the name `own`, after `evict`. Changes nothing.
        """
        raise NotImplementedError(f"{type(self).__name__.lower()} keeps no prefixes")

    def can_admit_after(self, match: Match, tokens: int, bound: int) -> bool:
        """Whether `admit_after` would succeed; changes nothing."""
        raise NotImplementedError(f"{type(self).__name__.lower()} keeps no prefixes")

    def can_hold_after(self, match: Match, tokens: int, bound: int) -> bool:
        """As `can_hold`, for a new sequence that shares what `match` found."""
        return self.can_admit_after(match, tokens, bound)

    def admit_after(self, match: Match, seq: int, tokens: int, bound: int) -> bool:
        """As `admit`, but share what `match` found: of `tokens`, the first `match.tokens` are there."""
        raise NotImplementedError(f"{type(self).__name__.lower()} keeps no prefixes")

    def introduce(self, own: int, prompt_tokens: int) -> None:
        """Say how long the prompt of the sequence named `own` is, before `match`."""

    def new_step(self) -> None:
        """A step is to be decided: what the last one computed may be hit."""

    def decided(self) -> None:
        """The step is decided: what was copied from need not be kept any longer."""

    def piece(self, match: Match | None, seq: int, start: int, tokens: int, most: int) -> int:
        """How many of these tokens of a prompt to compute now, of a step's `most`; 0: none, for now.

        Of a new sequence with this `match`, else of one that runs.
        """
        return tokens

    def fill(self, seq: int, tokens: int) -> None:
        """Say that the first `tokens` tokens of a sequence are computed: `match` finds them from now on."""

    def evict(self, seq: int) -> None:
        """Release a sequence that will come back, under the same `own`, and may find what is left of it."""
        self.release(seq)

    # -- swapping -----------------------------------------------------------------------------

    def slots_held(self, seqs: Sequence[int]) -> int:
        """Slots that these sequences hold together, here or in the host pool; shared ones count once."""
        raise NotImplementedError(f"{type(self).__name__.lower()} cannot swap")

    def swap_out(self, seqs: Sequence[int]) -> bool:
        """Move sequences to the host pool, with what they share among each other; False: no room there."""
        raise NotImplementedError(f"{type(self).__name__.lower()} cannot swap")

    def swap_in(self, seqs: Sequence[int]) -> bool:
        """Bring swapped sequences back; False when there is no room."""
        raise NotImplementedError(f"{type(self).__name__.lower()} cannot swap")
