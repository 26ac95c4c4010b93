"""Free blocks that keep their text: a queue of spans, from which a hit takes blocks back.

    freed     [2  7 11  5]  behind all others            allocated next from there: 5, then 11, 7, 2
    woken      2  7                                      a text is found from its start on
    left            [11  5]                              allocated next: 5, then 11

A free block can be found until it is allocated. The queue consists of spans (allocators/spans.py), so work
is proportional to spans, whatever their length: the state of keys changes in slices.

    keys of a text    0   1   2   3   4   5   6
    blocks found      4   9   2   7  11   5   -
                     '- in use -' '-- idle --'   unknown

A key stands for the text of a block and all text before it (allocators/texts.py). Equal blocks are not
merged: a look-up finds the first one entered, and the others wait behind it. When the one found is allocated,
the next takes its place. With `newest` a look-up finds the last, and the others are forgotten.
"""

from collections.abc import Iterator, Sequence

from mypy_extensions import mypyc_attr

from kvsim.allocators.options import CacheRules
from kvsim.allocators.pool import Pool
from kvsim.allocators.records import Id, InvariantError
from kvsim.allocators.spans import Span


class EqualBlocks:
    """Blocks that wait behind a block with an equal text.

    Attributes
    ----------
    waiting : dict of list of int
        By key: the waiting blocks, the next one first.
    key : dict of int
        By block: its key.
    span : dict of Span
        By block, if it is free: its span, which has no other blocks.
    """

    def __init__(self) -> None:
        self.waiting: dict[int, list[int]] = {}
        self.key: dict[int, int] = {}
        self.span: dict[int, Span] = {}

    def add(self, key: int, block: int) -> None:
        """Make a block in use wait behind those with its key."""
        self.waiting.setdefault(key, []).append(block)
        self.key[block] = key

    def next(self, key: int) -> int | None:
        """The next waiting block for a key."""
        blocks = self.waiting.get(key)
        return blocks[0] if blocks else None

    def remove(self, block: int) -> Span | None:
        """Remove a block from those waiting; returns its span, if it is free."""
        key = self.key.pop(block)
        self.waiting[key].remove(block)
        if not self.waiting[key]:
            del self.waiting[key]
        return self.span.pop(block, None)

    def forget(self, key: int) -> int:
        """Remove all blocks waiting for a key; returns how many of them are free."""
        free = 0
        for block in self.waiting.pop(key, ()):
            del self.key[block]
            free += self.span.pop(block, None) is not None
        return free


UNKNOWN, IN_USE, IDLE = 0, 1, 2
"""State of a key: no block, a block that a sequence holds, a free block."""


@mypyc_attr(allow_interpreted_subclasses=True)
class PrefixPool(Pool):
    """Allocates the block freed first, and finds blocks whose text is known.

    Attributes
    ----------
    newest : bool
        Whether the last of equal blocks is found.
    unlike : bool
        Whether no two blocks ever had the same text. Then a sequence with the block found for a text also
        has the blocks of all text before it, so blocks shared by several sequences are the first of each.
    """

    def __init__(self, num_blocks: int, rules: CacheRules) -> None:
        super().__init__(num_blocks)
        self._ends = Span([], None, None)  # the queue is a ring: behind its ends comes the next to allocate
        self._state = bytearray()  # state by key: UNKNOWN, IN_USE or IDLE
        self._found: list[int] = []  # block by key, unless UNKNOWN
        self._spans: dict[int, Span] = {}  # by the key of their first block: free spans that have keys
        self._equals = EqualBlocks()
        self.newest = rules.newest
        self.unlike = True
        self._put([*range(num_blocks - 1, -1, -1)], None, self._ends)

    def know(self, keys: int) -> None:
        """Make room for `keys` keys in total."""
        more = keys - len(self._state)
        if more > 0:
            self._state += bytes(more)
            self._found += [0] * more

    def find(self, key: int, count: int) -> list[int]:
        """The blocks of the next `count` keys, up to the first miss."""
        miss = self._state.find(UNKNOWN, key, key + count)
        return self._found[key : key + count if miss < 0 else miss]

    def unknown(self, key: int, count: int) -> list[int]:
        """Those of the next `count` keys that have no block."""
        state, end, found = self._state, key + count, []
        at = state.find(UNKNOWN, key, end)
        while at >= 0:
            found.append(at)
            at = state.find(UNKNOWN, at + 1, end)
        return found

    def misses(self, key: int, count: int) -> int:
        """How many of the next `count` keys have no block."""
        return self._state.count(UNKNOWN, key, key + count)

    def idle(self, key: int, count: int) -> int:
        """How many of these keys have a free block."""
        return self._state.count(IDLE, key, key + count)

    def holds(self, key: int, block: int) -> bool:
        """Whether the block is known by this key."""
        return bool(self._state[key] and self._found[key] == block) or self._equals.key.get(block) == key

    def is_free(self, block: int, key: int) -> bool:
        """Whether a block known by this key is free."""
        if self._state[key] and self._found[key] == block:
            return self._state[key] == IDLE
        return block in self._equals.span

    def none_free(self, key: int, count: int) -> bool:
        """Whether no block known by one of the next `count` keys is free."""
        return not self._equals.span and not self.idle(key, count)

    def finds_free(self, key: int, blocks: list[int]) -> bool:
        """Whether look-ups find these blocks by consecutive keys, and all of them are free."""
        end = key + len(blocks)
        return self._state.count(IDLE, key, end) == len(blocks) and self._found[key:end] == blocks

    def _kind(self, key: int, block: int) -> int:
        """1: look-ups find the block by this key; 0: unknown key; else the block waits behind another one."""
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
        """The free blocks in allocation order."""
        for span in self._ends.others():
            yield from reversed(span.blocks)

    def span_of(self, block: int, key: int) -> Span | None:
        """The span of a block, if it is free; `key` is its last known key, or -1."""
        if key >= 0:
            if self._state[key] == IDLE and self._found[key] == block:
                while key not in self._spans:
                    key -= 1
                return self._spans[key]
            if block in self._equals.span:
                return self._equals.span[block]
        return next((span for span in self._ends.others() if block in span.blocks), None)

    def rows_behind(self, block: int, span: Span | None) -> Iterator[tuple[list[int], int | None]]:
        """Rows allocated after a block of a span, or all rows: (blocks, key of the first, if any).

        The last block of a row is allocated first.
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
        """The free block allocated last; -1 if there is none."""
        return self._ends.front.blocks[0] if self.free else -1

    def key_of(self, block: int) -> int:
        """The key of a block that waits behind an equal one; -1 if it does not."""
        return self._equals.key.get(block, -1)

    def cached_blocks(self) -> Iterator[int]:
        """The free blocks that have a text."""
        for span in self._ends.others():
            if span.key is not None:
                yield from span.blocks
        yield from self._equals.span

    # -- finding ------------------------------------------------------------------------------

    def wake(self, key: int, count: int) -> list[int]:
        """Take the free blocks of the next `count` keys out of the queue; returns the blocks in use."""
        state, end, others = self._state, key + count, []
        while key < end:
            idle = state.find(IDLE, key, end)
            if idle < 0:
                idle = end
            others += self._found[key:idle]
            key = idle
            if key < end:
                span = self._spans.pop(key, None) or self._cut(key)
                taken = min(len(span.blocks), end - key)
                if span.take_first(taken):
                    self._spans[key + taken] = span
                state[key : key + taken] = b"\1" * taken
                self.free -= taken
                self.cached -= taken
                key += taken
        return others

    def take(self, key: int, block: int) -> None:
        """Take a free block with this key out of the queue, whether found or waiting behind another one."""
        span = self._equals.span.pop(block, None)
        if span is None:
            self.wake(key, 1)
            return
        span.take_first(1)
        self.free -= 1
        self.cached -= 1

    # -- entering and forgetting --------------------------------------------------------------

    def enter(self, key: int, blocks: Sequence[int]) -> None:
        """Let look-ups find blocks in use by this key and the following ones."""
        count = len(blocks)
        end, state = key + count, self._state
        if state.startswith(bytes(count), key):  # all UNKNOWN
            self._found[key:end] = blocks
            state[key:end] = b"\1" * count
            return
        for each, block in enumerate(blocks, key):
            self._enter_one(each, block)

    def _enter_one(self, key: int, block: int) -> None:
        if self.holds(key, block):
            return
        self.unlike = self.unlike and not self._state[key]
        if self._state[key] and not self.newest:
            self._equals.add(key, block)
            return
        if self._state[key] == IDLE:
            self._cut_out(key)
        self._state[key] = IN_USE
        self._found[key] = block

    def forget(self, key: int, count: int) -> None:
        """Stop look-ups from finding blocks by these keys; free blocks stay free."""
        state, end = self._state, key + count
        if self._equals.waiting:
            for each in range(key, end):
                self.cached -= self._equals.forget(each)
        at = state.find(IDLE, key, end)
        while at >= 0:
            span = self._spans.pop(at)
            self.cached -= len(span.blocks)
            span.key = None
            at = state.find(IDLE, at + len(span.blocks), end)
        state[key:end] = bytearray(count)

    def _cut_out(self, key: int) -> None:
        """Remove the key of a free block; the block keeps its place in the queue."""
        span = self._spans.pop(key, None) or self._cut(key)
        if len(span.blocks) > 1:
            self._spans[key + 1] = span.split(1)
        span.key = None
        self._state[key] = UNKNOWN
        self.cached -= 1

    def _find_next(self, key: int) -> None:
        """The block found by this key was allocated: look-ups now find the next waiting one."""
        block = self._equals.next(key)
        if block is None:
            return
        self._found[key] = block
        span = self._equals.remove(block)
        self._state[key] = IDLE if span else IN_USE
        if span:
            span.key, self._spans[key] = key, span

    # -- allocating ------------------------------------------------------------------------------

    def allocate(self, count: int, evicted: list[int] | None = None) -> list[int]:
        """As in Pool; look-ups no longer find the allocated blocks."""
        span = self._ends.behind
        if evicted is None and len(span.blocks) > count > 0:  # usually
            blocks = span.blocks
            allocated = blocks[: -count - 1 : -1]
            del blocks[-count:]
            if span.key is not None:
                self._forget_allocated(span.key + len(blocks), count)
            self.free -= count
            return allocated
        allocated, missing = [], count
        while missing:
            span = self._ends.behind
            blocks, key = span.blocks, span.key
            left = len(blocks) - missing
            if left > 0:
                taken, found = blocks[: left - 1 : -1], missing
                del blocks[left:]
            else:
                blocks.reverse()
                taken, found, left = blocks, missing + left, 0
                span.front.behind, span.behind.front = span.behind, span.front
                if key is not None:
                    del self._spans[key]
            cached = key is not None
            if key is not None:
                self._forget_allocated(key + left, found)
            elif self._equals.key and taken[0] in self._equals.key:
                self._equals.remove(taken[0])
                self.cached -= 1
                cached = True
            if cached and evicted is not None:
                evicted += range(count - missing, count - missing + found)
            missing -= found
            if allocated:
                allocated += taken
            else:
                allocated = taken
        self.free -= count
        return allocated

    def allocate_each(
        self, seqs: Sequence[Id], tables: dict[Id, list[Id]], evicted: list[int] | None = None
    ) -> None:
        span, count = self._ends.behind, len(seqs)
        blocks: list[Id] = span.blocks
        if len(blocks) > count:  # usually
            for seq in seqs:
                tables[seq].append(blocks.pop())
            self.free -= count
            if span.key is not None:
                self._forget_allocated(span.key + len(blocks), count)
                if evicted is not None:
                    evicted += range(count)
            return
        super().allocate_each(seqs, tables, evicted)

    def _forget_allocated(self, key: int, count: int) -> None:
        """Forget the keys of free blocks that are now allocated."""
        self._state[key : key + count] = bytearray(count)
        self.cached -= count
        if self._equals.waiting:
            for each in range(key, key + count):
                self._find_next(each)

    def give_back(self, blocks: list[int], key: int | None = None, first: bool = False) -> None:
        """Free blocks, to be allocated from the last on, after all others or before them.

        `key` is the key of the first block; the blocks behind it have the next keys, if known by them.
        """
        if not blocks:
            return
        place = self._ends.behind if first else self._ends
        self.free += len(blocks)
        if key is None:
            self._put(blocks, None, place)
            return
        end = key + len(blocks)
        if (
            self._state.find(UNKNOWN, key, end) < 0
            and self._found[end - 1] == blocks[-1]
            and (self.unlike or self._found[key:end] == blocks)
        ):
            self._put(blocks, key, place)
            return
        stop = len(blocks)
        for at in range(len(blocks) - 1, -1, -1):
            if not at or self._kind(key + at, blocks[at]) != self._kind(key + at - 1, blocks[at - 1]):
                self._put_alike(blocks[at:stop], key + at, place)
                stop = at

    def _put_alike(self, blocks: list[int], key: int, place: Span) -> None:
        """Add a span of blocks that are all of one kind."""
        kind = self._kind(key, blocks[0])
        span = self._put(blocks, key if kind == 1 else None, place)
        if kind < 0:
            self._equals.span[blocks[0]] = span
            self.cached += 1

    def _put(self, blocks: list[int], key: int | None, place: Span) -> Span:
        """Add a span, to be allocated just before the one at `place`."""
        span = Span(blocks, key, place)
        if key is not None:
            count = len(blocks)
            self._state[key : key + count] = b"\2" * count
            self._spans[key] = span
            self.cached += count
        return span

    def _cut(self, key: int) -> Span:
        """Cut a span in two before this key; returns the rear one.

        Rare: a sequence that asks for a block holds those of all text before it, or equals with `newest`.
        """
        for first in range(key - 1, -1, -1):
            if first in self._spans:
                return self._spans[first].split(key - first)
        raise InvariantError(f"key {key} is of a free block, but of none of {len(self._spans)} spans")
