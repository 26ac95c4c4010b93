"""An arena whose free extents are sorted into size classes: OffsetAllocator, TLSF and segregated fit.

    classes of free extents   [.. | 896 | 960 | 1024 | 1152 | ..]     2^bits per power of two
                                     |      |
                                  newest  newest                      a stack in each class
                                  older

*Take* `size`: round it up to its class, go to the first class at or above that has an extent, take the newest
one there, allocate its low end. The rest goes to the class *below* its size, so that every extent of a class
serves every request of the class: no search, whatever the number of extents. *Give back*: merge with both
neighbours immediately.

With `rounds` the allocated extent has the size of its class: once freed, it serves the same request again.
Without, an extent of 1,025 returns to the class of 1,024, and no request of 1,025 finds it until it has
merged with a neighbour. With `searches` the class below the request is searched first.

                     bits   rounds   searches
    OffsetAllocator   3     no       no         Aaltonen 2023; its utilisation falls to 0.66-0.71
      in Mooncake     3     yes      no         the change made by Mooncake Store
    TLSF              5     no       no         two-level segregated fit: Masmano et al. 2004
    segregated fit    0     no       yes        classes are powers of two: Wilson et al. 1995

Extents are numbered (nodes) and linked to their neighbours; nodes of merged extents are reused, last first.
"""

from collections.abc import Iterator

from kvsim.allocators.size_classes.bins import class_down, class_size, class_up


class Extent:
    """A range of units, allocated, or free and in a class; the fields of an unused node mean nothing.

    Attributes
    ----------
    node : int
        Its number.
    before, behind : Extent
        Its neighbours; at the ends of the arena, the edge, which counts as allocated.
    number : int
        The class in which it was last free.
    asked : int
        For the caller: the requested size.
    """

    __slots__ = ("allocated", "asked", "before", "behind", "node", "number", "size", "start")
    before: "Extent"
    behind: "Extent"

    def __init__(self, node: int) -> None:
        self.node = node
        self.start = self.size = self.number = self.asked = 0
        self.allocated = True


class ClassHeap:
    """Extents of an arena of `units`, sorted by size classes.

    Parameters
    ----------
    units : int
        Size of the arena.
    bits : int
        log2 of the classes between two powers of two.
    rounds : bool
        Whether to allocate whole classes, or the exact size.
    searches : bool
        Whether extents of the class that contains `size` are searched one by one; for exact sizes.
    nodes : int
        Initial number of nodes for extents, allocated and free.
    most_nodes : int, optional
        Maximum number of extents; None: no limit.

    Attributes
    ----------
    free_units : int
        Units in free extents.
    num_nodes : int
        Existing nodes.
    """

    def __init__(
        self,
        units: int,
        bits: int = 3,
        *,
        rounds: bool = True,
        searches: bool = False,
        nodes: int = 1,
        most_nodes: int | None = None,
    ) -> None:
        if units < 1:
            raise ValueError(f"units must be at least 1, got {units}")
        self.units = units
        self.bits = bits
        self.rounds = rounds
        self.searches = searches
        self.num_nodes = nodes
        self.most_nodes = None if most_nodes is None else max(nodes, most_nodes)
        self._sizes = [class_size(number, bits) for number in range(class_down(units, bits) + 1)]
        self._classes: list[dict[Extent, None]] = [{} for _ in self._sizes]
        self._occupied = 0  # bit i: class i has an extent
        self._unused: list[Extent] = []
        self._made = 1
        self.free_units = units
        whole = Extent(0)
        whole.before = whole.behind = self._edge = Extent(-1)
        self._edge.before = self._edge.behind = whole
        self._insert(whole, units)

    def allocated_size(self, size: int) -> int:
        """Units that an allocation of `size` takes."""
        return class_size(class_up(size, self.bits), self.bits) if self.rounds else size

    def fits(self, size: int) -> bool:
        if self.searches:
            return size <= self.units
        return class_up(size, self.bits) <= class_down(self.units, self.bits)

    def serves(self, size: int) -> bool:
        """Whether `take` would find an extent and a node; changes nothing."""
        return self.has_node and (
            self._occupied >> class_up(size, self.bits) != 0 or self._search(size) is not None
        )

    def take(self, size: int) -> Extent | None:
        """Allocate an extent for `size` units, or None."""
        if not self._unused:
            if self._made == self.most_nodes:
                return None
            self._unused.append(Extent(self._made))
            self._made += 1
            self.num_nodes = max(self.num_nodes, self._made)
        wanted = class_up(size, self.bits)
        extent = self._search(size) if self.searches else None
        if extent is None:
            above = self._occupied >> wanted
            if not above:
                return None
            number = wanted + (above & -above).bit_length() - 1
            extents = self._classes[number]
            extent, _ = extents.popitem()
            if not extents:
                self._occupied ^= 1 << number
        else:
            self._remove(extent)
        extent.allocated = True
        whole = extent.size
        taken = self._sizes[wanted] if self.rounds else size
        if whole > taken:
            rest, behind = self._unused.pop(), extent.behind
            rest.start = extent.start + taken
            rest.before, rest.behind = extent, behind
            extent.behind = behind.before = rest
            extent.size = taken
            self._insert(rest, whole - taken)
        self.free_units -= extent.size
        return extent

    def give_back(self, extent: Extent) -> int:
        """Free an extent; returns the size of the free extent that it is now part of."""
        size, before, behind = extent.size, extent.before, extent.behind
        self.free_units += size
        if not before.allocated:
            self._remove(before)
            self._unused.append(before)
            extent.start = before.start
            size += before.size
            extent.before = before = before.before
            before.behind = extent
        if not behind.allocated:
            self._remove(behind)
            self._unused.append(behind)
            size += behind.size
            extent.behind = behind = behind.behind
            behind.before = extent
        self._insert(extent, size)
        return size

    def extents(self) -> Iterator[Extent]:
        extent = self._edge.behind
        while extent is not self._edge:
            yield extent
            extent = extent.behind

    def too_small(self, size: int) -> int:
        """Free units in extents that `take(size)` cannot use."""
        if self.searches:
            return sum(each.size for extents in self._classes for each in extents if each.size < size)
        below = self._classes[: class_up(size, self.bits)]
        return sum(each.size for extents in below for each in extents)

    def largest(self) -> int:
        """The largest size that `take` would serve."""
        if not self.searches:
            return self.largest_class()
        return max((each.size for each in self._classes[self._occupied.bit_length() - 1]), default=0)

    def largest_class(self) -> int:
        """The size of the highest class with an extent, which `take` can serve; 0 without a node."""
        if not self._occupied or not self.has_node:
            return 0
        return self._sizes[self._occupied.bit_length() - 1]

    @property
    def has_node(self) -> bool:
        """Whether there is a node for one more extent, without which nothing can be allocated."""
        return bool(self._unused) or self._made != self.most_nodes

    def _search(self, size: int) -> Extent | None:
        """The newest extent in the class of `size` that is large enough."""
        number = class_down(size, self.bits)
        if not self.searches or number >= len(self._classes):
            return None
        return next((each for each in reversed(self._classes[number]) if each.size >= size), None)

    def _insert(self, extent: Extent, size: int) -> None:
        """Make an extent of this size free, the newest of its class; the caller sets the other fields."""
        number = class_down(size, self.bits)
        extents = self._classes[number]
        if not extents:
            self._occupied |= 1 << number
        extents[extent] = None
        extent.size, extent.number, extent.allocated = size, number, False

    def _remove(self, extent: Extent) -> None:
        """Take a free extent out of its class."""
        extents = self._classes[extent.number]
        del extents[extent]
        if not extents:
            self._occupied ^= 1 << extent.number
