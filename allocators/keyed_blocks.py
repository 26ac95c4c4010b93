"""For each key of a text the block that holds it: what look-ups find.

    keys of a text    0   1   2   3   4   5   6
    blocks found      4   9   2   7  11   5   -
                     '- in use -' '-- idle --'   unknown

A key stands for the text of a block and all text before it (allocators/texts.py). Equal blocks are not
merged: where a key has a block already, others wait behind it (allocators/equal_blocks.py). How blocks enter,
are freed and allocated is for allocators/prefix_pool.py.
"""

from collections.abc import Iterator

from mypy_extensions import mypyc_attr

from kvsim.allocators.equal_blocks import EqualBlocks
from kvsim.allocators.pool import Pool
from kvsim.allocators.spans import Span

UNKNOWN, IN_USE, IDLE = 0, 1, 2
"""What the pool knows of a key: no block, one that a sequence holds, one that is free."""


@mypyc_attr(allow_interpreted_subclasses=True)
class KeyedBlocks(Pool):
    """A pool whose blocks may have keys; the free ones are spans of a queue."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self._ends = Span([], None, None)  # the queue is a ring: behind its ends comes what is allocated next
        self._state = bytearray()  # by key: UNKNOWN, IN_USE or IDLE
        self._found: list[int] = []  # by key: the block, unless UNKNOWN
        self._spans: dict[int, Span] = {}  # by the key of their first block: the free ones that have keys
        self._equals = EqualBlocks()

    def know(self, keys: int) -> None:
        """Make room for so many keys in all."""
        more = keys - len(self._state)
        if more > 0:
            self._state += bytes(more)
            self._found += [0] * more

    def find(self, key: int, count: int) -> list[int]:
        """The blocks of the next keys, up to the first without one."""
        miss = self._state.find(UNKNOWN, key, key + count)
        return self._found[key : key + count if miss < 0 else miss]

    def unknown(self, key: int, count: int) -> list[int]:
        """Those of the next keys that have no block."""
        state, end, found = self._state, key + count, []
        at = state.find(UNKNOWN, key, end)
        while at >= 0:
            found.append(at)
            at = state.find(UNKNOWN, at + 1, end)
        return found

    def idle(self, key: int, count: int) -> int:
        """How many of these keys have a block that is free."""
        return self._state.count(IDLE, key, key + count)

    def holds(self, key: int, block: int) -> bool:
        """Whether the block is known by this key."""
        return bool(self._state[key] and self._found[key] == block) or self._equals.key.get(block) == key

    def is_free(self, block: int, key: int) -> bool:
        """Whether a block is free that is known by this key."""
        if self._state[key] and self._found[key] == block:
            return self._state[key] == IDLE
        return block in self._equals.span

    def finds_free(self, key: int, blocks: list[int]) -> bool:
        """Whether look-ups find these blocks by the next keys, and all of them are free."""
        end = key + len(blocks)
        return self._state.count(IDLE, key, end) == len(blocks) and self._found[key:end] == blocks

    def _kind(self, key: int, block: int) -> int:
        """1: look-ups find the block by this key; 0: it is not known; else it waits behind another one."""
        if self._state[key] and self._found[key] == block:
            return 1
        return -key - 1 if block in self._equals.key else 0

    def known_blocks(self) -> Iterator[tuple[int, int]]:
        """All blocks that have a text, free or not, and their keys."""
        for key, (state, block) in enumerate(zip(self._state, self._found, strict=True)):
            if state:
                yield block, key
        yield from self._equals.key.items()

    def queue(self) -> Iterator[int]:
        """The free blocks in the order in which they will be allocated."""
        for span in self._ends.others():
            yield from reversed(span.blocks)

    def keyed_queue(self) -> Iterator[tuple[int, int]]:
        """The same with their keys; -1: none."""
        equals = self._equals.key
        for span in self._ends.others():
            blocks, key = span.blocks, span.key
            for at in range(len(blocks) - 1, -1, -1):
                yield blocks[at], key + at if key is not None else equals.get(blocks[at], -1)

    def span_of(self, block: int, key: int) -> Span | None:
        """The span of a block, if it is free; `key` is the one it had when it was seen last, or -1."""
        if key >= 0:
            if self._state[key] == IDLE and self._found[key] == block:
                while key not in self._spans:
                    key -= 1
                return self._spans[key]
            if block in self._equals.span:
                return self._equals.span[block]
        return next((span for span in self._ends.others() if block in span.blocks), None)

    def rows_behind(self, block: int, span: Span | None) -> Iterator[tuple[list[int], int | None]]:
        """What is allocated after a block of a span, or all: (row of blocks, key of its first, if any).

        The last of a row is allocated first.
        """
        if span is None:
            span = self._ends
        else:
            at = span.blocks.index(block)
            if at:
                yield span.blocks[:at], span.key
        while (span := span.behind) is not self._ends:
            yield span.blocks, span.key

    @property
    def last_queued(self) -> int:
        """The free block that is allocated last; -1: there is none."""
        return self._ends.front.blocks[0] if self.free else -1

    def key_of(self, block: int) -> int:
        """The key of a block that waits behind an equal one; -1: it does not."""
        return self._equals.key.get(block, -1)

    def cached_blocks(self) -> Iterator[int]:
        """The free blocks that have a text."""
        for span in self._ends.others():
            if span.key is not None:
                yield from span.blocks
        yield from self._equals.span
