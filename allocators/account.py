"""What an allocator counts, and the ledger that says where every slot went.

    capacity_slots = used_slots + free_slots
    used_slots     = token + reserved + internal            of sequences: written, to be written, never
    free_slots     = cached + idle + external + free        of nobody (allocators/arena.py)

An allocator keeps its counts up to date in every call. The ledger sorts all slots from scratch, by what each
sequence holds. No method here changes anything; those that do are in allocators/base.py.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping

from mypy_extensions import mypyc_attr

from kvsim.allocators.arena import Layout, Ledger, Region
from kvsim.allocators.beside import Beside
from kvsim.allocators.options import said_by
from kvsim.allocators.records import InvariantError


@mypyc_attr(allow_interpreted_subclasses=True)
class Account(Beside):
    """The counts of an allocator, and what can be asked of it.

    Attributes
    ----------
    capacity_slots : int
        Size of the arena; what does not fill a whole unit (a block) is left out.
    used_slots : int
        Slots allocated now, each counted once.
    cached_slots : int
        Free slots that still hold a prefix.
    idle_slots : int
        Free and empty slots that are mapped or cached by the allocator; only where the class says `idles`.
    shared_tokens : int
        Tokens held by more than one sequence: the sum over sequences minus the slots that hold them.
    slots_per_token : int
        Slots that a token takes: 1, or one in each group of layers, or its bytes in grains.
    state_slots : int
        Slots that hold the recurrent states of living sequences; they count as `token`.
    expired_slots : int
        Slots of living sequences' tokens that were freed, as no later token sees them (sliding windows). So
        `slots_per_token * tokens - shared_tokens - expired_slots + state_slots` slots hold a token.
    copied_slots : int
        Slots copied since the start (copy-on-write, moves).
    most_sequences : int or None
        How many sequences it can hold; None: as many as fit.
    cow_copies : int
        Copy-on-write copies since the start.
    caches : bool
        Whether it keeps prefixes: sequences are then placed by `match` and `admit_after`, what they compute
        is told by `fill`, also just before `release` or `evict`.
    ends_pieces : bool
        Whether it says where pieces of prompts end (`piece`), as states can be kept only there.
    evicted_by : list of int
        Which growths of the last `grow_many` took slots of a cached prefix, one unit each; counted from 0.
    """

    growth_unit: int
    """Tokens that a promised growth adds, exactly, in `slots_per_token` slots; 0: nothing is promised."""

    grows_by: int
    """Tokens that each growth for a decoded token adds, where nothing is promised; 0: they differ."""

    def __init__(self, capacity_slots: int) -> None:
        if capacity_slots < 1:
            raise ValueError(f"capacity_slots must be at least 1, got {capacity_slots}")
        super().__init__()
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
        self.copied_slots = 0
        self.cow_copies = 0
        self.most_sequences: int | None = None
        self.caches = False
        self.ends_pieces = False
        self.evicted_by: list[int] = []

    @property
    def free_slots(self) -> int:
        """Slots that nobody has borrowed, cached and idle ones included."""
        return self.capacity_slots - self.used_slots

    @property
    def block_slots(self) -> int:
        """Slots of a block, as logs count them; 1 for those that have none."""
        return self.growth_unit or 1

    # -- of sequences -------------------------------------------------------------------------

    @abstractmethod
    def capacity(self, seq: int) -> int:
        """Tokens that the sequence may hold before it must grow."""

    def surplus(self, seq: int, tokens: int) -> int:
        """Slots allocated to a sequence that `tokens` tokens leave empty; below 0: it must grow for them."""
        return self.capacity(seq) - tokens

    @property
    def growth_slots(self) -> int:
        """Slots that a growth by `growth_unit` or `grows_by` tokens allocates."""
        return (self.growth_unit or self.grows_by) * self.slots_per_token

    @property
    def growth_end(self) -> int:
        """Tokens beyond which a sequence that grows by `grows_by` grows no more."""
        return 1 << 62

    def logical_slots(self) -> int:
        """Slots allocated, each counted once for every sequence that holds it."""
        return self.used_slots

    def shared_slots(self) -> int:
        """Slots allocated to more than one sequence."""
        return 0

    def shared_tail_slots(self) -> int:
        """Empty slots behind the tokens of shared blocks: nobody writes there before one owns the block."""
        return 0

    # -- of the arena -------------------------------------------------------------------------

    def memory_stats(self) -> Mapping[str, int]:
        """What a deep-learning framework would report of its memory, by its names; of most: nothing."""
        return {}

    def read_slots(self) -> int:
        """Slots that attention reads in a step in which somebody decodes; needs `reads_holes`."""
        return self.used_slots

    def external_slots(self, need: int) -> int:
        """Free slots in extents below `need`, neither cached nor idle; 0 where any free slot serves."""
        return 0

    def largest_free_extent(self) -> int:
        """The largest number of slots that one request could still get."""
        return self.free_slots

    @abstractmethod
    def regions(self) -> Iterator[Region]:
        """Every range of addresses, allocated or free, in ascending order, without gaps."""

    def layout(self) -> Layout:
        """The regions as columns."""
        return Layout.of(self.regions())

    def ledger(self, lengths: Mapping[int, int], finals: Mapping[int, int], need: int = 0) -> Ledger:
        """Sort every slot into its kind, from scratch.

        `lengths` and `finals` give for each living sequence the tokens that it holds now and when it
        ends; a sequence without an entry in either is dead weight. `need` is the size of the head of the
        queue. The empty tail of a shared block (`shared_tail_slots`) is internal until one sequence owns it
        alone. The engine keeps the same numbers up to date step by step; tests hold the two together.

        Raises InvariantError when a kind comes out negative, as it does when lengths exceed capacities.
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
