"""Blocks, and the two pools of free blocks.

    segment   |==== block ====|.... free ....|== block ==|     neighbours are linked: prev, next
    pool      small (blocks up to 1 MiB), large; the free blocks of a stream in order of (bytes, address)

Free neighbours that are both mapped or both unmapped are merged immediately.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import NamedTuple


class Range(NamedTuple):
    """A virtual range of an expandable segment, in which the card maps whole pages."""

    start: int
    size: int
    page_bytes: int


class Block:
    """A piece of a segment, allocated or free.

    Attributes
    ----------
    addr, size : int
        Its address and bytes.
    requested : int
        Bytes that its last owner requested.
    born : int
        Searches of its pool until it became free: its age counts from then on.
    mapped : bool
        Whether the card has memory behind it; always, except in an expandable segment.
    range : Range or None
        The virtual range that it belongs to.
    """

    __slots__ = (
        *("addr", "allocated", "born", "mapped", "next", "pool", "prev", "range", "requested"),
        *("size", "stream"),
    )

    def __init__(self, pool: "Pool", stream: int, addr: int, size: int, within: Range | None = None) -> None:
        self.pool = pool
        self.stream = stream
        self.addr = addr
        self.size = size
        self.range = within
        self.requested = 0
        self.born = 0
        self.allocated = False
        self.mapped = True
        self.prev: Block | None = None
        self.next: Block | None = None

    @property
    def is_split(self) -> bool:
        """Whether its segment also has other blocks."""
        return self.prev is not None or self.next is not None

    def cut(self, size: int) -> "Block":
        """Split `size` bytes off its low end: returns them as a separate block."""
        low = Block(self.pool, self.stream, self.addr, size, self.range)
        low.link(self.prev, self)
        self.addr += size
        self.size -= size
        return low

    def link(self, before: "Block | None", after: "Block | None") -> None:
        """Link it between two neighbours."""
        self.prev, self.next = before, after
        if before is not None:
            before.next = self
        if after is not None:
            after.prev = self

    def absorb(self, other: "Block | None") -> int:
        """Merge a neighbour into this block, if free and mapped alike; returns its bytes, else 0."""
        if other is None or other.allocated or other.mapped != self.mapped:
            return 0
        self.pool.remove(other)
        if self.prev is other:
            self.addr = other.addr
            self.prev = other.prev
            if self.prev is not None:
                self.prev.next = self
        else:
            self.next = other.next
            if self.next is not None:
                self.next.prev = self
        self.size += other.size
        return other.size


class Journal:
    """The state of blocks when first touched, except blocks of expandable segments."""

    def __init__(self) -> None:
        self._seen: dict[Block, tuple[int, int, int, int, bool, Block | None, Block | None]] = {}

    def touch(self, *blocks: Block | None) -> None:
        """Record blocks that are about to change."""
        seen = self._seen
        for block in blocks:
            if block is not None and block not in seen:
                numbers = block.addr, block.size, block.requested, block.born
                seen[block] = *numbers, block.allocated, block.prev, block.next

    def restore(self) -> None:
        for block, was in self._seen.items():
            block.addr, block.size, block.requested, block.born = was[:4]
            block.allocated, block.prev, block.next = was[4:]


class Pool:
    """The free blocks of the small or the large pool, and the unmapped ones of expandable segments.

    Attributes
    ----------
    searches : int
        Number of searches while ages are counted.
    """

    def __init__(self, small: bool) -> None:
        self.small = small
        self.searches = 0
        self._free: dict[int, list[tuple[int, int, Block]]] = {}  # stream -> (bytes, address, block)
        self._unmapped: dict[int, list[tuple[int, Block]]] = {}  # stream -> (address, block)

    def add(self, block: Block) -> None:
        """Add a block that became free or was unmapped."""
        if block.mapped:
            block.born = self.searches
            insort(self._free.setdefault(block.stream, []), (block.size, block.addr, block))
        else:
            insort(self._unmapped.setdefault(block.stream, []), (block.addr, block))

    def remove(self, block: Block) -> None:
        """Remove a block that is no longer free or unmapped."""
        if block.mapped:
            blocks = self._free[block.stream]
            del blocks[bisect_left(blocks, (block.size, block.addr))]
        else:
            unmapped = self._unmapped[block.stream]
            del unmapped[bisect_left(unmapped, (block.addr,))]

    def free_of(self, stream: int) -> list[tuple[int, int, Block]]:
        """The free blocks of a stream as (bytes, address, block), ascending."""
        return self._free.setdefault(stream, [])

    def free(self) -> list[Block]:
        """All free blocks, by stream, bytes and address."""
        return [block for stream in sorted(self._free) for _, _, block in self._free[stream]]

    def unmapped_of(self, stream: int) -> Iterator[Block]:
        """The unmapped blocks of a stream by address."""
        return (block for _, block in self._unmapped.get(stream, []))

    def saved(self) -> tuple[int, dict[int, list[tuple[int, int, Block]]]]:
        """The state for `restore`, without unmapped blocks."""
        return self.searches, {stream: blocks.copy() for stream, blocks in self._free.items()}

    def restore(self, saved: tuple[int, dict[int, list[tuple[int, int, Block]]]]) -> None:
        self.searches, self._free = saved
