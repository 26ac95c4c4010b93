"""Optional abilities of allocators: small protocols. An allocator has an ability if it has its methods.

No base class and no flag is needed. The engine checks once which abilities an allocator has (abilities.py).

    Prefixes       finds cached texts                 Forks        copies sequences, sharing what they hold
    Pieces         is told where prompts end          Branches     lets copies replace other sequences
    LeavesBehind   frees what no token sees           Swaps        moves sequences to a host pool
    AfterSteps     works while the next step runs     InSpans      does so for many steps in one call
    ReadsHoles     makes attention read more than contexts
    InGroups       keeps layers in groups, and knows what each kind of layer holds
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

from kvsim.allocators.arena import Slots
from kvsim.allocators.base import Content, Match


@runtime_checkable
class Prefixes(Protocol):
    """Keeps computed tokens that look-ups find by their text, if it `caches`.

    If a sequence's peak is not at its end, `can_hold_after(match, tokens, bound)` says whether a sequence
    that shares what `match` found would find room all the way, as `can_hold` does.
    """

    def match(self, content: Content, own: int, most: int) -> Match:
        """Look up how much of the first `most` tokens of a sequence's text is already there. Changes nothing.

        `content` is the part that other sequences may share. After `evict`, the sequence itself finds what
        follows by the name `own`.
        """

    def admit_after(self, match: Match, seq: int, tokens: int, bound: int) -> bool:
        """Like `admit`, but share what `match` found: the first `match.tokens` of `tokens` are there."""

    def fill(self, seq: int, tokens: int) -> None:
        """Report that the first `tokens` tokens of a sequence are computed: `match` now finds them."""


@runtime_checkable
class Pieces(Protocol):
    """Keeps states and windows only at some places, so it must know where prompts end and when steps begin.

    `ends_pieces`: whether it decides where chunks of prompts end, since states can be kept only there.
    """

    ends_pieces: bool

    def introduce(self, own: int, prompt_tokens: int) -> None:
        """Report the prompt length of the sequence named `own`, before `match`."""

    def new_step(self) -> None:
        """A step is about to be scheduled: hits may use what the last one computed."""

    def decided(self) -> None:
        """The step is scheduled: sources of copies may be reused."""

    def piece(self, match: Match | None, seq: int, start: int, tokens: int, most: int) -> int:
        """How many of these prompt tokens to compute now, within a step's budget of `most`; 0: none for now.

        With a `match` the sequence is new; otherwise it is running.
        """


@runtime_checkable
class LeavesBehind(Protocol):
    """Frees what lies behind the windows of a sequence that still has room."""

    def leaves_at(self, seq: int) -> int:
        """Token count at which a sequence must grow, to free what is behind its windows.

        0: never, or its `capacity` ends there anyway.
        """


@runtime_checkable
class Forks(Protocol):
    """Lets sequences start as copies of others."""

    def fork(self, parent: int, child: int, tokens: int) -> bool:
        """Start `child` as a copy of all `tokens` of `parent`, sharing slots; False if there is no room."""


@runtime_checkable
class Branches(Forks, Protocol):
    """Lets copies replace other sequences, step by step, as beam search does.

    `copies_on_write`: `fork` copies nothing; a sequence that writes behind a shared last token then copies
    the tokens of its block, except the last sequence that shares it.
    """

    copies_on_write: bool

    def fork_over(self, seq: int, parent: int, child: int, tokens: int) -> bool:
        """`fork`, then `release` `seq`, which the child replaces; False, with no change, if no room."""

    def branch(self, forks: list[tuple[int, int, int, int]], writers: list[tuple[list[int], int]]) -> None:
        """`fork_over` each (seq, parent, child, tokens), then `grow` the writers.

        A writer is (sequences of one search, tokens that each of them will have, one more than it has now).
        Raises InvariantError unless there is room for all of it.
        """


@runtime_checkable
class Swaps(Protocol):
    """Moves sequences to a pool in host memory, whole or not at all."""

    host_capacity_slots: int
    host_used_slots: int

    def slots_held(self, seqs: Sequence[int]) -> int:
        """Slots that these sequences hold together, here or in the host pool; shared slots count once."""

    def swap_out(self, seqs: Sequence[int]) -> bool:
        """Move sequences to the host pool, keeping what they share with each other; False: no room there."""

    def swap_in(self, seqs: Sequence[int]) -> bool:
        """Bring swapped sequences back; False if there is no room."""


@runtime_checkable
class AfterSteps(Protocol):
    """Works between steps: the engine then plans one step at a time, unless it is also `InSpans`."""

    def after_step(self, lengths: Mapping[int, int]) -> None:
        """A step has ended; `lengths` gives the tokens of the living sequences.

        Work that maps, unmaps or copies here runs while the next step computes; in any other call, the step
        waits for it. It may give sequences room in advance, if `growth_unit` is 0.
        """


@runtime_checkable
class InSpans(Protocol):
    """Does the work after the steps of a span in one call, with the same results."""

    def grow_mapped(self, seqs: Sequence[int]) -> bool:
        """Grow full sequences by `grows_by` each, in order, unless that would map memory: then do nothing."""

    def pass_steps(self, growths: Iterator[Sequence[int]], most_ns: int) -> list[int]:
        """Pass steps: `after_step`, then `grow_mapped` for the sequences that the next step names, and so on.

        Each step, including the one that has already begun, adds a token to each living sequence. Stops
        when the work after a step might take longer than `most_ns`, or when a growth would have to map.
        Returns the idle slots in each step begun.
        """


@runtime_checkable
class ReadsHoles(Protocol):
    """Makes attention read slots that hold no token of the contexts, so each step is priced separately."""

    def read_slots(self) -> int:
        """Slots that attention reads in a step with at least one decode."""


@runtime_checkable
class InGroups(Protocol):
    """Keeps layers in groups with separate tables, and counts what each kind of layer holds.

    `kinds`: (name, slots of a token in all groups of these layers), as in `Region.layers`.

    Slots of a kind that hold a token: slots of a token * tokens of all living sequences + used - tables.
    """

    kinds: Sequence[tuple[str, int]]

    def kind_counts(
        self, internal: Callable[[], int], finals: Callable[[], Mapping[int, int]]
    ) -> Callable[[], Sequence[int]]:
        """Return a function that reads the counts that `held_by_kind` needs besides used and internal slots.

        `internal` gives the slots that will never be written, `finals` the final token counts of sequences
        that have such slots. If the allocator leaves slots behind, the first count is `expired_slots`.
        """

    def held_by_kind(self, used: int, internal: int, counts: Sequence[int]) -> Sequence[Slots]:
        """What each kind holds, from `used` and `internal` slots and these counts, or sums over time."""
