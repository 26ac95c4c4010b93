"""Free blocks that remember their text: a queue of spans, in which a text found again is woken.

    freed     [2  7 11  5]  behind all others            allocated next from there: 5, then 11, 7, 2
    woken      2  7                                      a text is found from its start on
    left            [11  5]                              allocated next: 5, then 11

A free block is found until it is allocated. The queue is made of spans (allocators/spans.py), so that work
goes by spans, whatever their length: what is known of keys (allocators/keyed_blocks.py) changes in slices.

Of equal blocks a look-up finds the first that was entered; with `newest` it finds the last, and the others
are forgotten.
"""

from collections.abc import Sequence

from mypy_extensions import mypyc_attr

from kvsim.allocators.keyed_blocks import IDLE, IN_USE, UNKNOWN, KeyedBlocks
from kvsim.allocators.options import CacheRules
from kvsim.allocators.records import Id, InvariantError
from kvsim.allocators.spans import Span


@mypyc_attr(allow_interpreted_subclasses=True)
class PrefixPool(KeyedBlocks):
    """Allocates the block that was freed first, and finds those whose text is known.

    Attributes
    ----------
    newest : bool
        Whether of equal blocks the last is found.
    unlike : bool
        Whether no two blocks ever had the same text. Then whoever has the block that is found for a text has
        those of all text before it, too; so blocks that several sequences hold are the first ones of each.
    """

    def __init__(self, num_blocks: int, rules: CacheRules) -> None:
        super().__init__(num_blocks)
        self.newest = rules.newest
        self.unlike = True
        self._put([*range(num_blocks - 1, -1, -1)], None, self._ends)

    # -- finding ------------------------------------------------------------------------------

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
        """Take a free block with this key out of the queue, be it found or waiting behind another one."""
        span = self._equals.span.pop(block, None)
        if span is None:
            self.wake(key, 1)
            return
        span.take_first(1)
        self.free -= 1
        self.cached -= 1

    # -- entering and forgetting --------------------------------------------------------------

    def enter(self, key: int, blocks: Sequence[int]) -> None:
        """Let look-ups find blocks in use by this key and those behind it."""
        count = len(blocks)
        end, state = key + count, self._state
        if state.startswith(bytes(count), key):  # UNKNOWN, all of them
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
        """Let no look-up find a block by these keys any more; those that are free stay so."""
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
        """A free block loses its key, in its place in the queue."""
        span = self._spans.pop(key, None) or self._cut(key)
        if len(span.blocks) > 1:
            self._spans[key + 1] = span.split(1)
        span.key = None
        self._state[key] = UNKNOWN
        self.cached -= 1

    def _find_next(self, key: int) -> None:
        """The block found by this key is allocated: the next that waits behind it is found."""
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
        """As in Pool; whoever had their text finds them no more."""
        span = self._ends.behind
        if evicted is None and len(span.blocks) > count > 0:  # most often
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
        if len(blocks) > count:  # most often
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
        """Free blocks that look-ups found are allocated."""
        self._state[key : key + count] = bytearray(count)
        self.cached -= count
        if self._equals.waiting:
            for each in range(key, key + count):
                self._find_next(each)

    def give_back(self, blocks: list[int], key: int | None = None, first: bool = False) -> None:
        """Free blocks, to be allocated from the last on, after all others or before them.

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
        """A new span of blocks that are all of a kind."""
        kind = self._kind(key, blocks[0])
        span = self._put(blocks, key if kind == 1 else None, place)
        if kind < 0:
            self._equals.span[blocks[0]] = span
            self.cached += 1

    def _put(self, blocks: list[int], key: int | None, place: Span) -> Span:
        """A new span, to be allocated just before the one at `place`."""
        span = Span(blocks, key, place)
        if key is not None:
            count = len(blocks)
            self._state[key : key + count] = b"\2" * count
            self._spans[key] = span
            self.cached += count
        return span

    def _cut(self, key: int) -> Span:
        """Cut a span in two before this key; returns the rear one, which is allocated first.

        Seldom: whoever asks for a block holds those of all text before it, but with `newest` as equals.
        """
        for first in range(key - 1, -1, -1):
            if first in self._spans:
                return self._spans[first].split(key - first)
        raise InvariantError(f"key {key} is of a free block, but of none of {len(self._spans)} spans")
