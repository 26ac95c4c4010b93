"""A segment of Mooncake Store: a byte interface to a `ClassHeap`, which counts in quanta.

A heap holds fewer than 2^32 units, so the bytes of a larger segment are counted in quanta of `2^k` bytes,
with the smallest sufficient k: 512 bytes for 1 TiB. `hint` is the store's estimate of its largest free
extent: a request above it is refused unsearched. It falls to the largest class when a search fails; then it
rises to each larger extent that a freed allocation merges into, while there is a node to allocate it.
"""

from kvsim.allocators.size_classes.bins import class_size
from kvsim.allocators.size_classes.class_heap import ClassHeap, Extent

BITS = 3
MAX_UNITS = class_size(239, BITS)
"""The largest class size that fits in 32 bits: 4,026,531,840."""


class Segment:
    """Bytes starting at `base`, allocated by a `ClassHeap`.

    Attributes
    ----------
    quantum_bits : int
        log2 of the bytes per unit of the heap.
    hint : int
        Requests above this many bytes are refused immediately.
    requested : int
        Requested bytes of all live allocations.
    """

    def __init__(
        self, size: int, base: int = 0, rounds: bool = True, nodes: int = 1, most_nodes: int | None = None
    ) -> None:
        bits = 0
        while size >> bits > MAX_UNITS:
            bits += 1
        self.base = base
        self.bytes = size
        self.quantum_bits = bits
        self.heap = ClassHeap(size >> bits, BITS, rounds=rounds, nodes=nodes, most_nodes=most_nodes)
        self.hint = self.largest_free
        self._has_refused = False
        self.requested = 0

    @property
    def largest_free(self) -> int:
        """Bytes of the largest class with a free extent."""
        return self.heap.largest_class() << self.quantum_bits

    def allocated_size(self, size: int) -> int:
        """Bytes that an allocation of `size` takes; 0 if it is never possible."""
        units = -(-size >> self.quantum_bits)
        if not 1 <= units <= MAX_UNITS:
            return 0
        return self.heap.allocated_size(units) << self.quantum_bits

    def address(self, loan: Extent) -> int:
        """The start address of an allocation."""
        return self.base + (loan.start << self.quantum_bits)

    def take(self, size: int) -> Extent | None:
        """Allocate `size` bytes, or None."""
        units = -(-size >> self.quantum_bits)
        if units < 1 or units > MAX_UNITS or size > self.hint:
            return None
        loan = self.heap.take(units)
        if loan is None:
            self.hint = self.largest_free
            self._has_refused = True
            return None
        loan.asked = size
        self.requested += size
        return loan

    def give_back(self, loan: Extent) -> None:
        """Free an allocation."""
        merged = self.heap.give_back(loan) << self.quantum_bits
        if merged > self.hint and self._has_refused and self.heap.has_node:
            self.hint = merged
        self.requested -= loan.asked
