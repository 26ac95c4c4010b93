"""Free blocks that remember their text: a queue of spans, and for each key of a text the block that holds it.

    keys of a text    0   1   2   3   4   5   6
    blocks found      4   9   2   7  11   5   -
                     '- in use -' '- a span -'     lent next: 5, then 11, then 7

A *span* is free blocks that follow each other in one text, or blocks without a text. The queue lends its
first span from the last block on, so that of a text the end goes first. A text that is found again leaves the
queue from its start on. So the work is by spans, whatever their length: arrays by key change in slices.

Equal blocks are not merged. Of those with one key a look-up finds the first that was entered; the others wait
behind it (`newest`: it finds the last, and the others are forgotten).
"""

from collections.abc import Iterator, Sequence

from mypy_extensions import mypyc_attr

from kvsim.allocators.options import CacheRules
from kvsim.allocators.pool import Pool

UNKNOWN, IN_USE, IDLE = 0, 1, 2
"""What the pool knows of a key: no block, one that a sequence holds, one that is free."""


class Span:
    """Free blocks, the last to be lent first; block i has the key `key + i`, or none has a key."""

    __slots__ = ("behind", "blocks", "front", "key")

    front: "Span"
    """lent before this one"""
    behind: "Span"
    """lent after this one"""

    def __init__(self, blocks: list[int], key: int | None) -> None:
        self.blocks = blocks
        self.key = key


@mypyc_attr(allow_interpreted_subclasses=True)
class PrefixPool(Pool):
    """Lends the block that was freed first, and finds those whose text is known."""

    def __init__(self, num_blocks: int, rules: CacheRules) -> None:
        self.free = num_blocks
        self.cached = 0
        self.newest = rules.newest
        self._ends = Span([], None)  # the queue is a ring: behind its ends comes the span lent next
        self._ends.front = self._ends.behind = self._ends
        self._state = bytearray()  # by key: UNKNOWN, IN_USE or IDLE
        self._found: list[int] = []  # by key: the block, unless UNKNOWN
        self._home: list[Span] = []  # by key: the span of the block, if IDLE
        self._equals: dict[int, list[int]] = {}  # by key: blocks that wait behind the one found
        self._equal_key: dict[int, int] = {}  # the keys of those blocks
        self._equal_home: dict[int, Span] = {}  # their spans, if they are free: one block each
        self._put([*range(num_blocks - 1, -1, -1)], None, self._ends)

    def know(self, keys: int) -> None:
        """Make room for so many keys in all."""
        more = keys - len(self._state)
        if more > 0:
            self._state += bytes(more)
            self._found += [0] * more
            self._home += [self._ends] * more

    # -- finding ------------------------------------------------------------------------------

    def find(self, key: int, count: int) -> list[int]:
        """The blocks of the next keys, up to the first without one."""
        miss = self._state.find(UNKNOWN, key, key + count)
        return self._found[key : key + count if miss < 0 else miss]

    def idle(self, key: int, count: int) -> int:
        """How many of these keys have a block that is free."""
        return self._state.count(IDLE, key, key + count)

    def wake(self, key: int, count: int) -> list[int]:
        """Take those blocks of the next keys out of the queue that are free; returns the others."""
        state, end, others = self._state, key + count, []
        while key < end:
            idle = state.find(IDLE, key, end)
            if idle < 0:
                idle = end
            others += self._found[key:idle]
            key = idle
            if key < end:
                span = self._home[key]
                assert span.key is not None
                if span.key < key:
                    span = self._split(span, key - span.key)
                taken = min(len(span.blocks), end - key)
                self._take_first(span, taken)
                state[key : key + taken] = b"\1" * taken
                self.free -= taken
                self.cached -= taken
                key += taken
        return others

    def holds(self, key: int, block: int) -> bool:
        """Whether the block is known by this key."""
        return bool(self._state[key] and self._found[key] == block) or self._equal_key.get(block) == key

    # -- entering and forgetting --------------------------------------------------------------

    def enter(self, key: int, blocks: Sequence[int]) -> None:
        """Let look-ups find blocks in use by this key and those behind it."""
        count = len(blocks)
        end, state = key + count, self._state
        if state.count(UNKNOWN, key, end) == count:
            self._found[key:end] = blocks
            state[key:end] = b"\1" * count
            return
        for each, block in enumerate(blocks, key):
            self._enter_one(each, block)

    def _enter_one(self, key: int, block: int) -> None:
        if self.holds(key, block):
            return
        if self._state[key] and not self.newest:
            self._equals.setdefault(key, []).append(block)
            self._equal_key[block] = key
            return
        if self._state[key] == IDLE:
            self._cut_out(key)
        self._state[key] = IN_USE
        self._found[key] = block

    def forget(self, key: int, count: int) -> None:
        """Let no look-up find a block by these keys any more; those that are free stay so."""
        state, end = self._state, key + count
        if self._equals:
            for each in range(key, end):
                for block in self._equals.pop(each, ()):
                    del self._equal_key[block]
                    if self._equal_home.pop(block, None):
                        self.cached -= 1
        at = state.find(IDLE, key, end)
        while at >= 0:
            span = self._home[at]
            self.cached -= len(span.blocks)
            span.key = None
            at = state.find(IDLE, at + len(span.blocks), end)
        state[key:end] = bytes(count)

    def _cut_out(self, key: int) -> None:
        """A free block loses its key, in its place in the queue."""
        span = self._home[key]
        assert span.key is not None
        if key > span.key:
            span = self._split(span, key - span.key)
        if len(span.blocks) > 1:
            self._split(span, 1)
        span.key = None
        self._state[key] = UNKNOWN
        self.cached -= 1

    def _find_next(self, key: int) -> None:
        """The block found by this key is lent: the next that waits behind it is found."""
        equals = self._equals.get(key)
        if equals is None:
            return
        block = self._found[key] = equals.pop(0)
        if not equals:
            del self._equals[key]
        del self._equal_key[block]
        span = self._equal_home.pop(block, None)
        self._state[key] = IDLE if span else IN_USE
        if span:
            span.key, self._home[key] = key, span

    # -- lending ------------------------------------------------------------------------------

    def lend(self, count: int, evicted: list[int] | None = None) -> list[int]:
        """As in Pool; whoever had their text finds them no more."""
        lent: list[int] = []
        missing = count
        while missing:
            span = self._ends.behind
            blocks, key = span.blocks, span.key
            left = len(blocks) - missing
            if left > 0:
                taken, found = blocks[: left - 1 : -1], missing
                del blocks[left:]
            else:
                taken, found, left = blocks[::-1], missing + left, 0
                span.front.behind, span.behind.front = span.behind, span.front
            cached = key is not None
            if key is not None:
                self._forget_lent(key + left, found)
            elif self._equal_key and taken[0] in self._equal_key:
                self._forget_equal(taken[0])
                cached = True
            if cached and evicted is not None:
                evicted += range(count - missing, count - missing + found)
            missing -= found
            if lent:
                lent += taken
            else:
                lent = taken
        self.free -= count
        return lent

    def lend_each(
        self, seqs: Sequence[int], tables: dict[int, list[int]], evicted: list[int] | None = None
    ) -> None:
        """As in Pool."""
        blocks = self._ends.behind.blocks
        if self._ends.behind.key is None and len(blocks) > len(seqs):  # most often
            for seq in seqs:
                tables[seq].append(blocks.pop())
            self.free -= len(seqs)
            return
        for seq, block in zip(seqs, self.lend(len(seqs), evicted), strict=True):
            tables[seq].append(block)

    def _forget_lent(self, key: int, count: int) -> None:
        """Free blocks that look-ups found are lent."""
        self._state[key : key + count] = bytes(count)
        self.cached -= count
        if self._equals:
            for each in range(key, key + count):
                self._find_next(each)

    def _forget_equal(self, block: int) -> None:
        """A free block that waited behind the one that is found is lent."""
        key = self._equal_key.pop(block)
        del self._equal_home[block]
        self.cached -= 1
        self._equals[key].remove(block)
        if not self._equals[key]:
            del self._equals[key]

    def give_back(self, blocks: list[int], key: int | None = None, first: bool = False) -> None:
        """Free blocks, to be lent from the last on, after all others or before them.

        `key` is the first block's, and those behind it have the next ones, as far as they are known by them.
        """
        if not blocks:
            return
        place = self._ends.behind if first else self._ends
        self.free += len(blocks)
        if key is None:
            self._put(blocks, None, place)
            return
        end = key + len(blocks)
        if self._state.find(UNKNOWN, key, end) < 0 and self._found[key:end] == blocks:
            self._put(blocks, key, place)
            return
        stop = len(blocks)
        for at in range(len(blocks) - 1, -1, -1):
            if not at or self._kind(key + at, blocks[at]) != self._kind(key + at - 1, blocks[at - 1]):
                self._put_alike(blocks[at:stop], key + at, place)
                stop = at

    def _kind(self, key: int, block: int) -> int:
        """1: look-ups find the block by this key; 0: it is not known; else it waits behind another one."""
        if self._state[key] and self._found[key] == block:
            return 1
        return -key - 1 if block in self._equal_key else 0

    def _put_alike(self, blocks: list[int], key: int, place: Span) -> None:
        """A new span of blocks that are all of a kind."""
        kind = self._kind(key, blocks[0])
        span = self._put(blocks, key if kind == 1 else None, place)
        if kind < 0:
            self._equal_home[blocks[0]] = span
            self.cached += 1

    def _put(self, blocks: list[int], key: int | None, place: Span) -> Span:
        """A new span, to be lent just before the one at `place`."""
        span = Span(blocks, key)
        span.front, span.behind = place.front, place
        place.front.behind = place.front = span
        if key is not None:
            count = len(blocks)
            self._state[key : key + count] = b"\2" * count
            self._home[key : key + count] = [span] * count
            self.cached += count
        return span

    def _split(self, span: Span, at: int) -> Span:
        """Make the blocks from `at` on a span of their own, which is lent first; returns it."""
        assert span.key is not None
        rear = Span(span.blocks[at:], span.key + at)
        del span.blocks[at:]
        rear.front, rear.behind = span.front, span
        span.front.behind = span.front = rear
        assert rear.key is not None
        self._home[rear.key : rear.key + len(rear.blocks)] = [rear] * len(rear.blocks)
        return rear

    def _take_first(self, span: Span, count: int) -> None:
        """Take the first blocks of a text out of the queue."""
        if count == len(span.blocks):
            span.front.behind, span.behind.front = span.behind, span.front
            return
        assert span.key is not None
        del span.blocks[:count]
        span.key += count

    # -- looking ------------------------------------------------------------------------------

    def queue(self) -> Iterator[int]:
        """The free blocks in the order in which they will be lent."""
        span = self._ends.behind
        while span is not self._ends:
            yield from reversed(span.blocks)
            span = span.behind

    def cached_blocks(self) -> Iterator[int]:
        """The free blocks that have a text."""
        span = self._ends.behind
        while span is not self._ends:
            if span.key is not None:
                yield from span.blocks
            span = span.behind
        yield from self._equal_home

    def known_blocks(self) -> Iterator[tuple[int, int]]:
        """All blocks that have a text, free or not, and their keys."""
        for key, (state, block) in enumerate(zip(self._state, self._found, strict=True)):
            if state:
                yield block, key
        yield from self._equal_key.items()
