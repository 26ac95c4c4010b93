"""An arena whose free extents are sorted by size classes: OffsetAllocator, TLSF and segregated fit.

    classes of free extents   [.. | 896 | 960 | 1024 | 1152 | ..]     2^bits per power of two
                                     |      |
                                  newest  newest                      a stack in each class
                                  older

*Take* `size`: round it up to its class, go to the first class at or above that has an extent, take the one
that came there last, lend its low end. The rest goes back to the class *below* its size, so that every
extent of a class serves every request of it: no search, whatever the number of extents. *Give back*: merge
with both neighbours at once.

With `rounds` the extent lent has the size of its class: one that is given back serves the same request
again. Without, an extent of 1,025 comes back to the class of 1,024, and no request of 1,025 ever finds it
until it has merged with a neighbour. With `searches` the class below the request is looked through first.

                     bits   rounds   searches
    OffsetAllocator   3     no       no         Aaltonen 2023; its utilisation falls to 0.66-0.71
      in Mooncake     3     yes      no         the change that Mooncake Store made
    TLSF              5     no       no         two-level segregated fit: Masmano et al. 2004
    segregated fit    0     no       yes        classes are powers of two: Wilson et al. 1995

Extents are numbered (nodes); numbers of merged ones are used again, last first.
"""

from array import array
from collections.abc import Iterator

from kvsim.allocators.size_classes.bins import class_down, class_size, class_up

NONE = -1


class ClassHeap:
    """Extents of an arena of `units`, sorted by size classes.

    Parameters
    ----------
    units : int
        Size of the arena.
    bits : int
        log2 of the classes between two powers of two.
    rounds : bool
        Lend whole classes, or the exact size.
    searches : bool
        Whether extents of the class that `size` lies in are tried one by one; goes with the exact size.
    nodes : int
        Extents, lent and free, for which there is a node at first.
    most_nodes : int, optional
        Most extents that there can be; None: any number.

    Attributes
    ----------
    start, size : array of int
        Of each node: its range. Those of nodes in no use mean nothing.
    lent : bytearray
        Of each node: 1 if it is lent.
    free_units : int
        Units in free extents.
    num_nodes : int
        Nodes that exist.
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
        self.start = array("q", [0]) * nodes
        self.size = array("q", [0]) * nodes
        self.lent = bytearray(nodes)
        self._before = array("q", [NONE]) * nodes
        self._behind = array("q", [NONE]) * nodes
        self._unused = list(range(nodes - 1, -1, -1))
        self._classes: list[dict[int, None]] = [{} for _ in range(class_down(units, self.bits) + 1)]
        self._occupied = 0  # bit i: class i has an extent
        self.free_units = 0
        self._insert(self._unused.pop(), 0, units)

    def lent_size(self, size: int) -> int:
        """Units that a loan of `size` takes."""
        return class_size(class_up(size, self.bits), self.bits) if self.rounds else size

    def fits(self, size: int) -> bool:
        """Whether `take` would serve it with everything free."""
        if self.searches:
            return size <= self.units
        return class_up(size, self.bits) <= class_down(self.units, self.bits)

    def serves(self, size: int) -> bool:
        """Whether `take` would find an extent and a node; changes nothing."""
        return self.has_node and (
            self._occupied >> class_up(size, self.bits) != 0 or self._search(size) != NONE
        )

    def take(self, size: int) -> int:
        """Lend an extent for `size` units; its node, or `NONE`."""
        if not self._unused:
            if self.num_nodes == self.most_nodes:
                return NONE
            self._add_node()
        wanted = class_up(size, self.bits)
        node = self._search(size) if self.searches else NONE
        if node == NONE:
            above = self._occupied >> wanted
            if not above:
                return NONE
            number = wanted + (above & -above).bit_length() - 1
            nodes = self._classes[number]
            node, _ = nodes.popitem()
        else:
            number = class_down(size, self.bits)
            nodes = self._classes[number]
            del nodes[node]
        if not nodes:
            self._occupied ^= 1 << number
        whole = self.size[node]
        self.free_units -= whole
        self.lent[node] = 1
        taken = class_size(wanted, self.bits) if self.rounds else size
        if whole > taken:
            self.size[node] = taken
            rest, behind = self._unused.pop(), self._behind[node]
            self._insert(rest, self.start[node] + taken, whole - taken)
            self._before[rest] = node
            self._behind[rest] = behind
            self._behind[node] = rest
            if behind != NONE:
                self._before[behind] = rest
        return node

    def give_back(self, node: int) -> int:
        """End a loan; the size of the free extent that it is now part of."""
        start, size, lent = self.start[node], self.size[node], self.lent
        before, behind = self._before[node], self._behind[node]
        if before != NONE and not lent[before]:
            start = self.start[before]
            size += self._remove(before)
            before = self._before[before]
            self._before[node] = before
            if before != NONE:
                self._behind[before] = node
        if behind != NONE and not lent[behind]:
            size += self._remove(behind)
            behind = self._behind[behind]
            self._behind[node] = behind
            if behind != NONE:
                self._before[behind] = node
        lent[node] = 0
        self._insert(node, start, size)
        return size

    def extents(self) -> Iterator[int]:
        """The nodes in the order of their addresses."""
        nodes_in_use = set(range(self.num_nodes)).difference(self._unused)
        node = next(node for node in nodes_in_use if self._before[node] == NONE and self.start[node] == 0)
        while node != NONE:
            yield node
            node = self._behind[node]

    def free_classes(self) -> Iterator[tuple[int, list[int]]]:
        """Classes that have free extents, with their nodes, the next to be taken first."""
        for number, nodes in enumerate(self._classes):
            if nodes:
                yield number, list(reversed(nodes))

    def too_small(self, size: int) -> int:
        """Free units in extents that `take(size)` would not use."""
        if self.searches:
            return sum(self.size[node] for nodes in self._classes for node in nodes if self.size[node] < size)
        below = self._classes[: class_up(size, self.bits)]
        return sum(self.size[node] for nodes in below for node in nodes)

    def largest(self) -> int:
        """The largest size that `take` would serve."""
        if not self.searches:
            return self.largest_class()
        return max((self.size[node] for node in self._classes[self._occupied.bit_length() - 1]), default=0)

    def largest_class(self) -> int:
        """The size of the highest class that has an extent: what surely can be had; 0 without a node."""
        if not self._occupied or not self.has_node:
            return 0
        return class_size(self._occupied.bit_length() - 1, self.bits)

    def reported_free(self) -> int:
        """Free units as the storage report says them: 0 without a node to lend them with."""
        return self.free_units if self.has_node else 0

    @property
    def nodes_in_use(self) -> int:
        """Extents, lent and free."""
        return self.num_nodes - len(self._unused)

    @property
    def has_node(self) -> bool:
        """Whether there is a node for one more extent, without which nothing is lent."""
        return bool(self._unused) or self.num_nodes != self.most_nodes

    def _search(self, size: int) -> int:
        """The newest extent in the class of `size` that is large enough."""
        number = class_down(size, self.bits)
        if not self.searches or number >= len(self._classes):
            return NONE
        return next((node for node in reversed(self._classes[number]) if self.size[node] >= size), NONE)

    def _add_node(self) -> None:
        self._unused.append(self.num_nodes)
        self.num_nodes += 1
        self.start.append(0)
        self.size.append(0)
        self.lent.append(0)
        self._before.append(NONE)
        self._behind.append(NONE)

    def _insert(self, node: int, start: int, size: int) -> None:
        """Make a node a free extent, the newest of its class; its neighbours are the caller's."""
        number = class_down(size, self.bits)
        self.start[node] = start
        self.size[node] = size
        self._classes[number][node] = None
        self._occupied |= 1 << number
        self.free_units += size

    def _remove(self, node: int) -> int:
        """Take a free extent out of its class and give its node up; its size."""
        size = self.size[node]
        number = class_down(size, self.bits)
        nodes = self._classes[number]
        del nodes[node]
        if not nodes:
            self._occupied ^= 1 << number
        self._unused.append(node)
        self.free_units -= size
        return size
