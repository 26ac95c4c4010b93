"""Pools that share a buffer: what neighbours in the chain know of each other, and how they ask for room.

    | padding | SWA: 1 2 3 . 5 |>    gap    <| state |>    gap    <| 4 3 . 1 :full |
                below <-------------------- a member -------------------> above

Users hold *virtual* pages; `physical` maps each to its current place, so a pool can move them transparently.
A pool that is short of room asks a neighbour to close its holes (`flush`), then one in the middle to move.
Pages that a forward pass still reads or writes stay in place until the pass is over.

Source: SGLang 0.5.23, `mem_cache/allocator/unified_sub_pool.py`.
"""

from collections.abc import Callable, Sequence


class Pass:
    """A forward pass of the model, running or over."""

    def __init__(self) -> None:
        self.over = False


class Passes:
    """The forward passes that may still read or write a pool's pages.

    Attributes
    ----------
    latest : Pass or None
        The one that began last; it may read any page.
    waits : list of Pass
        Those that a flush waited for, in order.
    """

    def __init__(self) -> None:
        self.latest: Pass | None = None
        self.waits: list[Pass] = []
        self._writing: tuple[Pass, frozenset[int]] | None = None

    def begin(self, running: Pass, written: Sequence[int]) -> None:
        """Start a pass that may read any page and writes these virtual pages."""
        self.latest = running
        self._writing = (running, frozenset(written)) if written else None

    def settle(self) -> None:
        """Make later work wait until the latest pass is over."""
        if self.latest is not None:
            self.waits.append(self.latest)
            self._writing = None

    def written(self) -> frozenset[int]:
        """The virtual pages that the latest pass is writing."""
        if self._writing is None or self._writing[0].over:
            self._writing = None
            return frozenset()
        return self._writing[1]


class Member:
    """A pool in a chain ordered by address, as its neighbours see it.

    Attributes
    ----------
    page_bytes, pages, first : int
        Bytes per page; pages that the buffer could hold; the first page that is not padding.
    physical : dict of int
        Virtual page -> its place.
    virtual : dict of int
        The inverse.
    free_virtual : list of int
        Names to allocate next.
    holes : list of int
        Free pages inside the span, in the order in which they were freed.
    below, above : Member or None
        Neighbours.
    passes : Passes
        What may still read or write its pages.
    """

    def __init__(self, page_bytes: int, pages: int, first: int, total_bytes: int) -> None:
        self.page_bytes = page_bytes
        self.pages = pages
        self.first = first
        self.total_bytes = total_bytes
        self.physical: dict[int, int] = {}
        self.virtual: dict[int, int] = {}
        self.free_virtual = list(range(first, pages))
        self.holes: list[int] = []
        self.below: Member | None = None
        self.above: Member | None = None
        self.lazy = False
        self.passes = Passes()
        self.on_move: Callable[[Sequence[int], Sequence[int]], None] = lambda _sources, _targets: None

    # -- what neighbours see ------------------------------------------------------------------

    low_byte: int
    """the byte where its pages begin"""
    high_byte: int
    """the byte after its pages"""
    transparent = False
    """whether it is empty, so that neighbours may use the room beyond it"""

    def room_below(self) -> int:
        """The byte from which no pool below holds anything."""
        at = self.below
        while at is not None and at.transparent:
            at = at.below
        return at.high_byte if at is not None else 0

    def room_above(self) -> int:
        """The byte up to which no pool above holds anything."""
        at = self.above
        while at is not None and at.transparent:
            at = at.above
        return at.low_byte if at is not None else self.total_bytes

    def allocated(self) -> int:
        """Pages of this pool's span that neighbours cannot use."""
        raise NotImplementedError

    def available(self, more_bytes: int = 0) -> int:
        """Pages that can be allocated without moving any, if the gap grew by `more_bytes`."""
        raise NotImplementedError

    def flush(self, urgent: bool) -> int:
        """Close holes and release the room; returns how many pages were moved."""
        raise NotImplementedError

    def place(self, pages: Sequence[int]) -> bool:
        """Find places for virtual pages; False if there is no room."""
        raise NotImplementedError

    def helpers(self) -> Sequence["Member"]:
        """Pools whose flush makes room for this pool."""
        return ()

    def ask_for_room(self, pages: int) -> None:
        """Ask a pool in the middle to move."""

    # -- allocating ------------------------------------------------------------------------------

    def alloc(self, pages: int) -> list[int] | None:
        """Allocate `pages` virtual pages, asking neighbours for room; None if that is not enough."""
        if pages > self.available() and not self._find_room(pages):
            return None
        if pages > len(self.free_virtual):
            return None
        names, self.free_virtual = self.free_virtual[:pages], self.free_virtual[pages:]
        if not self.place(names):
            self.free_virtual[:0] = names
            return None
        return names

    def _find_room(self, pages: int) -> bool:
        for helper in self.helpers():
            helper.flush(urgent=True)
        if pages <= self.available():
            return True
        self.ask_for_room(pages)
        return pages <= self.available()

    def bind(self, names: Sequence[int], places: Sequence[int]) -> None:
        """Record the places of virtual pages."""
        self.physical.update(zip(names, places, strict=True))
        self.virtual.update(zip(places, names, strict=True))

    def take_out(self, names: Sequence[int]) -> list[int]:
        """Free virtual pages; returns their places."""
        places = [self.physical.pop(name) for name in names]
        for place in places:
            del self.virtual[place]
        return places

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Move pages simultaneously; their users need not know."""
        names = [self.virtual.pop(source) for source in sources]
        self.bind(names, targets)
        self.on_move(sources, targets)

    def take_holes(self, count: int, from_low: bool) -> list[int]:
        """Take `count` holes from one end of the sorted list, or all in their current order."""
        if count == len(self.holes):
            taken, self.holes = self.holes, []
            return taken
        self.holes.sort()
        if from_low:
            taken, self.holes = self.holes[:count], self.holes[count:]
        else:
            taken, self.holes = self.holes[-count:], self.holes[:-count]
        return taken


def drained(member: Member | None) -> int:
    """Bytes that an urgent flush of a pool would release."""
    return len(member.holes) * member.page_bytes if member is not None and member.lazy else 0
