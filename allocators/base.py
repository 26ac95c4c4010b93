"""The contract of a KV-cache allocator: what it declares, what it counts, and the calls it serves.

A *slot* holds the key and value of one token in all layers (if layers are kept in groups: in one group; if
pages have several sizes: a grain of bytes that divides them all). An allocator owns an arena of
`capacity_slots` slots, numbered from 0, and allocates them to *sequences*. It knows sequences only as integer
ids; it knows no requests and no clock.

Rules for every allocator (`kvsim.allocators.contract.check_allocator` checks them on any class):

1. "No room" is a return value. A refused call changes nothing.
2. `used_slots + free_slots == capacity_slots` after every call, and no slot has two kinds.
3. `can_admit` predicts `admit`. A size it refuses stays refused until something is released, moved, evicted
   or left behind a window. With `moves_in_part`, an allocation may also end the refusal, and nothing is
   promised.
4. Releasing every sequence frees the whole arena.
5. No hidden randomness: the same calls give the same addresses.
6. A promise in `growth_budget` is kept in any order of growths. Such growths cost no time and leave
   `external_slots` and `idle_slots` unchanged.
7. A forbidden call (admitting a sequence twice or without a token; naming one that holds nothing) raises
   InvariantError and changes nothing.
8. Idle slots can be allocated like free ones. At most `most_sequences` sequences hold slots at a time.

Counts:

    capacity_slots = used_slots + free_slots
    used_slots     = token + reserved + internal            held: written, to be written, never written
    free_slots     = cached + idle + external + free        not held (allocators/arena.py)

An allocator updates its counts in every call. The ledger classifies all slots from scratch, by what each
sequence holds. A subclass must write six methods; all others follow from them. Abilities that only some
allocators have (prefixes, forks, swaps, windows, work between steps) are in allocators/protocols.py.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from mypy_extensions import mypyc_attr

from kvsim.allocators.arena import Layout, Ledger, Region
from kvsim.allocators.option import NoOptions
from kvsim.allocators.options import Options, said_by
from kvsim.allocators.records import Content, Holdings, InvariantError, Match, Run

__all__ = (
    "Allocator",
    "Content",
    "Holdings",
    "InvariantError",
    "Layout",
    "Ledger",
    "Match",
    "Region",
    "Run",
)


@mypyc_attr(allow_interpreted_subclasses=True)
class Allocator:
    """Allocates the slots of one arena to sequences.

    Attributes
    ----------
    capacity_slots : int
        Size of the arena; a remainder smaller than a unit (a block) is left out.
    used_slots : int
        Slots allocated now, each counted once.
    cached_slots : int
        Free slots that still hold a prefix.
    idle_slots : int
        Free and empty slots that the allocator has mapped or cached; only if the class sets `idles`.
    shared_tokens : int
        Tokens held by more than one sequence: the sum over sequences minus the slots that hold them.
    slots_per_token : int
        Slots per token: 1, or one in each group of layers, or its bytes in grains.
    state_slots : int
        Slots that hold recurrent states of living sequences, or tokens that only copies to and from a tier
        use; they count as `token`.
    expired_slots : int
        Slots of living sequences' tokens freed because no later token sees them (sliding windows). Thus
        `slots_per_token * tokens - shared_tokens - expired_slots + state_slots` slots hold a token.
    pools : tuple of (str, int)
        Layers and slots of arena parts that only some layers use, by address; empty: all layers share it.
    copied_slots : int
        Slots copied since the start (copy-on-write, moves).
    most_sequences : int or None
        Maximum number of sequences; None: as many as fit.
    cow_copies : int
        Copy-on-write copies since the start.
    caches : bool
        Whether it keeps prefixes (`Prefixes`): sequences are then placed by `match` and `admit_after`, and
        `fill` reports what they have computed, also just before `release` or `evict`.
    evicted_by : list of int
        Growths of the last `grow_many` that took slots of a cached prefix, one unit each; counted from 0.
    """

    # -- declared by the class: no caller checks a name --------------------------------------

    family: ClassVar[str] = ""
    """One of FAMILIES (allocators/__init__.py): where `sim allocators` lists it"""
    idea: ClassVar[str] = ""
    """The rule in one line, at most 70 characters"""
    wastes: ClassVar[str] = ""
    """What it wastes, at most 60 characters: a formula per sequence, then what is lost between sequences"""
    used_by: ClassVar[str] = ""
    """Which engines use it, or did; at most 40 characters"""
    source: ClassVar[str] = ""
    """Where the rule comes from: a paper (name, venue and year), or a file of an engine"""
    note: ClassVar[str] = ""
    """A sentence that readers of any result need besides the numbers; "": none"""

    declares: ClassVar[type] = NoOptions
    """Its own options: a frozen dataclass of `option` fields (allocators/option.py)"""
    scheduler: ClassVar[str] = ""
    """The default scheduler for it; "": vllm-v1 for paged allocators, else orca"""
    slow: ClassVar[bool] = False
    """Whether its runs are so slow that comparisons of all allocators skip it unless it is named."""
    reserves: ClassVar[bool] = False
    """Whether `admit` sets aside all of `bound`, so that a reservation policy applies."""
    frees_when_refused: ClassVar[bool] = False
    """Whether a refused growth may free slots that no later token of the sequence sees, as engines do."""
    keeps_groups: ClassVar[bool] = False
    """Whether the option `hybrid` applies."""
    own_page_sizes: ClassVar[bool] = False
    """Whether pages of different layers may differ in bytes: a slot is then a grain that divides them all."""
    idles: ClassVar[bool] = False
    """Whether free slots may be `idle`: results then have one more kind."""
    moves_on_release: ClassVar[bool] = False
    """Whether `release` may copy slots, as in a pool without holes."""
    moves_in_part: ClassVar[bool] = False
    """Whether moves for a refused sequence are limited, so that a token in a hole may save a move."""
    windows: ClassVar[bool] = False
    """Whether a token may take several slots and lose them later (`slots_per_token`, `expired_slots`)."""
    pages: ClassVar[bool] = False
    """Whether kernels find the memory through a table of pieces, as in paging engines."""
    has_blocks: ClassVar[bool] = False
    """Whether the option `block_size` applies: kernels read blocks of that size."""
    pools_windows: ClassVar[bool] = False
    """Whether windowed layers have their own pool, which no scheduler of vLLM supports"""
    caches_windows: ClassVar[bool] = False
    """Whether prefixes are kept although windowed layers free what is behind the window (`groups`)"""
    frees_behind_windows: ClassVar[bool] = False
    """Whether the option `groups` applies."""
    keeps_prefixes: ClassVar[bool] = False
    """Whether the option `cache` applies, or prefixes are kept anyway."""

    # -- declared by the instance ------------------------------------------------------------

    growth_unit: int
    """Exact number of tokens that a promised growth adds, in `slots_per_token` slots each; 0: no promises."""

    grows_by: int
    """Tokens that each growth of a decoding sequence adds, if nothing is promised; 0: it varies."""

    maps: int = 0
    """Driver calls since the start that map memory."""
    unmaps: int = 0
    """Driver calls since the start that unmap memory."""
    map_ns: int = 0
    """Duration of a call that maps memory, in nanoseconds."""
    unmap_ns: int = 0
    """Duration of a call that unmaps memory, in nanoseconds."""

    def __init__(self, capacity_slots: int) -> None:
        if capacity_slots < 1:
            raise ValueError(f"capacity_slots must be at least 1, got {capacity_slots}")
        self.capacity_slots = capacity_slots
        self.growth_unit = said_by(type(self), "growth_unit", 0)
        self.grows_by = said_by(type(self), "grows_by", 0)
        self.used_slots = 0
        self.cached_slots = 0
        self.idle_slots = 0
        self.shared_tokens = 0
        self.slots_per_token = 1
        self.state_slots = 0
        self.expired_slots = 0
        self.pools: tuple[tuple[str, int], ...] = ()
        self.copied_slots = 0
        self.cow_copies = 0
        self.most_sequences: int | None = None
        self.caches = False
        self.evicted_by: list[int] = []

    @property
    def free_slots(self) -> int:
        """Slots that no sequence holds, including cached and idle ones."""
        return self.capacity_slots - self.used_slots

    # -- six methods that each allocator must write ------------------------------------------

    @abstractmethod
    def slots_needed(self, tokens: int, bound: int) -> int:
        """Slots that `admit` would allocate: `tokens` or `bound`, rounded."""

    @abstractmethod
    def admit(self, seq: int, tokens: int, bound: int) -> bool:
        """Place a new sequence that holds `tokens` now and `bound` at most; False if there is no room.

        A `bound` below `tokens` counts as `tokens`. Raises InvariantError if the sequence already holds
        something or `tokens` is below 1.
        """

    @abstractmethod
    def capacity(self, seq: int) -> int:
        """Tokens that the sequence may hold before it must grow."""

    @abstractmethod
    def grow(self, seq: int, tokens: int) -> bool:
        """Make room for `tokens` in total, ready to be written; False if there is no room.

        Up to `capacity(seq)` tokens this always succeeds and changes nothing, except that slots behind a
        window may be freed (`LeavesBehind`).
        """

    @abstractmethod
    def release(self, seq: int) -> None:
        """Free what the sequence holds (for shared slots: only its claim to them)."""

    @abstractmethod
    def regions(self) -> Iterator[Region]:
        """Every range of addresses, allocated or free, in ascending order, without gaps."""

    # -- construction, and the address of every slot -----------------------------------------

    @classmethod
    def from_options(cls, capacity_slots: int, options: Options) -> "Allocator":
        """Build one from the run's options, ignoring those that do not apply."""
        return cls(capacity_slots)

    def layout(self) -> Layout:
        """The regions as columns."""
        return Layout.of(self.regions())

    def ledger(self, lengths: Mapping[int, int], finals: Mapping[int, int], need: int = 0) -> Ledger:
        """Classify every slot from scratch.

        `lengths` and `finals` give the tokens that each living sequence holds now and at its end; a
        sequence without an entry in either is dead weight. `need` is the size of the request at the head of
        the queue. The empty tail of a shared block (`shared_tail_slots`) is internal until one sequence owns
        the block alone. The engine updates the same numbers step by step; tests compare the two.

        Raises InvariantError if a kind is negative, as it is when lengths exceed capacities.
        """
        tokens = self.slots_per_token * sum(lengths.values()) - self.shared_tokens - self.expired_slots
        tokens += self.state_slots
        written_later = sum(
            self.surplus(seq, lengths[seq]) - max(0, self.surplus(seq, final))
            for seq, final in finals.items()
        )
        external = self.external_slots(need)
        ledger = Ledger(
            token=tokens,
            reserved=written_later,
            internal=self.used_slots - tokens - written_later,
            cached=self.cached_slots,
            external=external,
            free=self.free_slots - self.cached_slots - external - self.idle_slots,
            idle=self.idle_slots,
        )
        if min(ledger) < 0:
            raise InvariantError(f"no kind of slot can be negative: {ledger} of {self.capacity_slots}")
        return ledger

    # -- defaults that an allocator may override: what fits ----------------------------------

    def fits(self, tokens: int, bound: int) -> bool:
        """Whether a sequence of `tokens` (reserving `bound`) fits an empty arena.

        If so, then so does every sequence with fewer tokens and a smaller bound.
        """
        return self.peak_slots(tokens, bound) <= self.capacity_slots

    def peak_slots(self, tokens: int, bound: int) -> int:
        """Peak slots of a sequence that grows to `tokens`; if it frees some, not those at its end."""
        return self.slots_needed(tokens, bound)

    def leaves(self, match: "Match | None", tokens: int, bound: int) -> int:
        """Free slots left once a new sequence has all its `tokens`; negative: too few."""
        needed = self.peak_slots(tokens, bound)
        if match is not None:
            needed += match.woken_slots - match.tokens
        return self.free_slots - needed

    def can_admit(self, tokens: int, bound: int) -> bool:
        """Whether `admit` would succeed; changes nothing. This default is right if any free slot serves."""
        return self.slots_needed(tokens, bound) <= self.free_slots

    def can_admit_after(self, match: Match, tokens: int, bound: int) -> bool:
        """Whether `admit_after` would succeed, for allocators with `Prefixes`; changes nothing."""
        return self.leaves(match, tokens, bound) >= 0

    def can_hold(self, tokens: int, bound: int) -> bool:
        """Whether a new sequence could grow to `tokens` if no other sequence took any slots."""
        return self.can_admit(tokens, bound)

    def external_slots(self, need: int) -> int:
        """Free slots in extents below `need`, neither cached nor idle; 0 if any free slot serves."""
        return 0

    def largest_free_extent(self) -> int:
        """The most slots that a single request could get."""
        return self.free_slots

    # -- growing and releasing ---------------------------------------------------------------

    def grow_chunk(self, seq: int, computed: int, tokens: int) -> bool:
        """Like `grow`, for a chunk of a prompt: only `computed` tokens are written so far, not `capacity`."""
        return self.grow(seq, tokens)

    def growth_budget(self) -> int:
        """Growths by `growth_unit` that are sure to succeed, for any sequences; 0 is always safe."""
        return 0

    def grow_many(self, seqs: Sequence[int]) -> None:
        """Grow full sequences by one unit each, in this order, within `growth_budget`.

        A sequence named k times grows by k units. Raises InvariantError if a promise is broken.
        """
        for seq in seqs:
            tokens = self.capacity(seq) + 1
            if not self.grow(seq, tokens):
                raise InvariantError(f"sequence {seq} was promised growth to {tokens} tokens and got none")

    @property
    def growth_slots(self) -> int:
        """Slots that a growth by `growth_unit` or `grows_by` tokens allocates."""
        return (self.growth_unit or self.grows_by) * self.slots_per_token

    @property
    def growth_end(self) -> int:
        """Token count at which a sequence that grows by `grows_by` stops growing."""
        return 1 << 62

    def retire(self, seq: int) -> int:
        """Mark the sequence as finished; it keeps its memory until it is released. Returns its slots."""
        return self.capacity(seq)

    def evict(self, seq: int) -> None:
        """Release a sequence that will return under the same `own` and may find what is left of its text."""
        self.release(seq)

    # -- what it holds -----------------------------------------------------------------------

    @property
    def block_slots(self) -> int:
        """Slots per block, as logs count them; 1 without blocks."""
        return self.growth_unit or 1

    def surplus(self, seq: int, tokens: int) -> int:
        """Slots of a sequence left empty by `tokens` tokens; negative: it must grow for them."""
        return self.capacity(seq) - tokens

    def logical_slots(self) -> int:
        """Allocated slots, each counted once per sequence that holds it."""
        return self.used_slots

    def shared_slots(self) -> int:
        """Slots allocated to more than one sequence."""
        return 0

    def shared_tail_slots(self) -> int:
        """Empty slots behind the tokens of shared blocks: nobody writes there until a block has one owner."""
        return 0

    def memory_stats(self) -> Mapping[str, int]:
        """The framework's memory statistics, by the framework's names; empty for most allocators."""
        return {}
