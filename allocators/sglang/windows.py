"""Base of SGLang's two memories for models with sliding windows, without prefixes.

    full pages      a a a a b b          every token, to the end of its sequence
    SWA pages       . . a a b b          those that a window still sees

A token takes a slot in each group of layers, as everywhere in kvsim. Here all full groups of a page are in
one pool, all windowed ones (SWA) in another, and both kinds of page are allocated together. SWA pages behind
the window are freed, but only when `interval` tokens can go, as in SGLang (128).

    waste per sequence = groups.each * (-tokens % page_size), and SWA pages not freed yet

Pool layout: dual_windows.py, unified_windows.py. Ignored: prefixes (windowed.py), fork, swapping.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence

from kvsim.allocators.arena import Table, layout_of_tables
from kvsim.allocators.base import Holdings, InvariantError, Layout, Region
from kvsim.allocators.options import Groups
from kvsim.allocators.sglang.kinds import Counts, TwoKinds

INTERVAL = 128


class Pages:
    """Pages of a sequence: all full pages, and the SWA pages after the first `behind`."""

    __slots__ = ("behind", "capacity", "full", "swa")

    def __init__(self) -> None:
        self.full: list[int] = []
        self.swa: list[int] = []
        self.behind = self.capacity = 0

    def __repr__(self) -> str:
        return f"{len(self.full)} pages, {self.behind} behind the window"


class SglangWindows(TwoKinds):
    """Full and SWA pages that are allocated together; SWA pages are freed behind the window.

    Parameters
    ----------
    capacity_slots : int
        Slots, each of one group of layers.
    groups : Groups
        How many groups keep all tokens, and how many a window.
    page_size : int
        Tokens per page.
    interval : int
        Tokens that must lie behind the window before their pages are freed.
    """

    family = "layers"
    used_by = "SGLang"

    windows = pages = has_blocks = pools_windows = True
    frees_behind_windows = True

    def __init__(self, capacity_slots: int, groups: Groups, page_size: int, interval: int) -> None:
        if groups.windowed < 1 or groups.full < 1:
            raise ValueError(f"groups must have full and windowed ones, got {groups}")
        if page_size < 1 or capacity_slots < groups.each * page_size:
            raise ValueError(
                f"capacity_slots must hold {groups.each} pages of {page_size}, got {capacity_slots}"
            )
        super().__init__(capacity_slots)
        self.page_size = page_size
        self._keep(groups, interval)
        self._gone = 0  # slots that finished sequences have left behind their windows
        self._held: Holdings[Pages] = Holdings()

    # -- defined by the two kinds of pools ----------------------------------------------------

    @abstractmethod
    def _room(self, full: int, swa: int) -> bool:
        """Whether this many pages of each kind can be allocated, if necessary by moving others."""

    @abstractmethod
    def _allocate(self, held: Pages, count: int) -> None:
        """Allocate `count` more pages of both kinds."""

    @abstractmethod
    def _take_back(self, full: Sequence[int], swa: Sequence[int]) -> None:
        """Free pages."""

    @abstractmethod
    def _pairs(self) -> int:
        """How many pages of both kinds can be allocated together."""

    @abstractmethod
    def _places(self, held: Pages) -> tuple[list[int], list[int]]:
        """Positions, in pages, of a sequence's full and SWA pages in the first group each; others follow."""

    # -- placing ------------------------------------------------------------------------------

    def _count(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    def _seen(self, tokens: int) -> int:
        whole, chunk = self._count(tokens), self.groups.max_chunk
        if chunk is None:
            return whole
        reach = self.groups.window + max(self.interval, self.page_size) + chunk
        return min(whole, self._count(reach) + 1)

    def peak_slots(self, tokens: int, bound: int) -> int:
        full, windowed, *_ = self.groups
        return (full * self._count(tokens) + windowed * self._seen(tokens)) * self.page_size

    def can_admit(self, tokens: int, bound: int) -> bool:
        return self._room(self._count(tokens), self._count(tokens))

    def can_hold(self, tokens: int, bound: int) -> bool:
        return self._room(self._count(tokens), self._seen(tokens))

    def admit(self, seq: int, tokens: int, bound: int) -> bool:
        self._held.expect_new(seq, tokens)
        count = self._count(tokens)
        if not self._room(count, count):
            return False
        held = self._held[seq] = Pages()
        self._extend(held, count)
        self._plan(held, tokens)
        return True

    # -- growing ------------------------------------------------------------------------------

    def capacity(self, seq: int) -> int:
        return self._held[seq].capacity

    def surplus(self, seq: int, tokens: int) -> int:
        return self.slots_per_token * (len(self._held[seq].full) * self.page_size - tokens)

    def grow(self, seq: int, tokens: int) -> bool:
        return self.grow_chunk(seq, self._held[seq].capacity, tokens)

    def grow_chunk(self, seq: int, computed: int, tokens: int) -> bool:
        held = self._held[seq]
        if tokens <= held.capacity:
            return True
        if computed > held.capacity:
            raise InvariantError(f"sequence {seq} has room for {held.capacity} tokens, not {computed}")
        behind = computed - self.groups.window
        gone = 0
        if behind >= held.behind * self.page_size + max(self.interval, self.page_size):
            gone = behind // self.page_size - held.behind
        missing = max(0, self._count(tokens) - len(held.full))
        if not self._room(missing, missing - gone):
            return False
        if gone:
            slots = gone * self.groups.windowed * self.page_size
            self._take_back((), held.swa[:gone])
            del held.swa[:gone]
            held.behind += gone
            self.used_slots -= slots
            self.expired_slots += slots
        if missing:
            self._extend(held, missing)
        self._plan(held, tokens)
        return True

    def _extend(self, held: Pages, count: int) -> None:
        self._allocate(held, count)
        self.used_slots += count * self.groups.each * self.page_size

    def _plan(self, held: Pages, tokens: int) -> None:
        """Set the token count at which a sequence must grow next: for pages, or to free those behind."""
        free_at = self.groups.window + held.behind * self.page_size + max(self.interval, self.page_size)
        held.capacity = max(tokens, min(len(held.full) * self.page_size, free_at))

    # -- leaving ------------------------------------------------------------------------------

    def release(self, seq: int) -> None:
        held = self._held.pop(seq, None)
        if held is None:
            raise self._held.holds_nothing(seq)
        left = self._left(held)
        if held.behind >= 0:
            self.expired_slots -= left
        else:
            self._gone -= left
        self.used_slots -= self._slots(held)
        self._take_back(held.full, held.swa)

    def retire(self, seq: int) -> int:
        held = self._held[seq]
        if held.behind >= 0:
            self.expired_slots -= self._left(held)
            self._gone += self._left(held)
            held.behind = -1  # the sequence is no longer alive
        return self._slots(held)

    def _left(self, held: Pages) -> int:
        """Slots that a sequence has left behind its window."""
        return (len(held.full) - len(held.swa)) * self.groups.windowed * self.page_size

    def _slots(self, held: Pages) -> int:
        full, windowed, *_ = self.groups
        return (full * len(held.full) + windowed * len(held.swa)) * self.page_size

    # -- counting -----------------------------------------------------------------------------

    def _counts(self) -> Counts:
        left = self.expired_slots + self._gone
        table = (self.used_slots + left) // self.groups.each
        return self.groups.windowed * table - left, table, self._gone, 0, 0

    # -- looking ------------------------------------------------------------------------------

    def external_slots(self, need: int) -> int:
        """Free slots of one kind that lack a counterpart of the other."""
        return self.free_slots - self._pairs() * self.groups.each * self.page_size

    def largest_free_extent(self) -> int:
        return self._pairs() * self.groups.each * self.page_size

    def regions(self) -> Iterator[Region]:
        return self.layout().regions()

    def layout(self) -> Layout:
        size, (full, *_), tables = self.page_size, self.groups, list[Table]()
        for seq, held in self._held.items():
            behind = (len(held.full) - len(held.swa)) * size
            places, seen = self._places(held)
            for group, name in enumerate(self.groups.names):
                if group < full:
                    tables.append(Table(seq, 0, [place + group for place in places], layers=name))
                else:
                    tables.append(Table(seq, behind, [place + group - full for place in seen], layers=name))
        return layout_of_tables(range(self.capacity_slots // size), size, tables, pools=self.pools)
