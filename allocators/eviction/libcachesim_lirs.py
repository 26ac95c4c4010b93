"""LIRS as in libCacheSim: it remembers less, and a hit outside the stack costs a LIR block its rank.

1. The stack has at most twice as many entries as the capacity; blocks that left first are forgotten first.
2. A hit on a HIR block that is no longer in the stack demotes the LIR block at the bottom to HIR. The demoted
   block pushes out the oldest HIR block; the hit block stays HIR, so the next new block becomes LIR
   immediately. If there is room for only one HIR block (below 200 blocks), the block pushed out is the very
   block that was hit: it can be found through the stack while it stays there, but is not counted. So such a
   cache holds a few blocks more than its capacity.

The rest is as `lirs`. Here a queue's newest block is last; `_hir` and `_lir` are libCacheSim's counts.
"""

from collections import OrderedDict
from collections.abc import Sequence

from kvsim.allocators.eviction.base import Eviction

LIR, HIR, LEFT = "LIR", "HIR", "left"


class LibCacheSimLirs(Eviction):
    """Evicts like libCacheSim's LIRS.c."""

    idea = "lirs with a memory of at most twice its room, and other ranks"
    used_by = "libCacheSim"
    source = "libCacheSim 0.3.5, LIRS.c"
    checked = "libCacheSim 0.3.5"
    leaves_room = True
    overfills = True

    def __init__(self, capacity: int, options: object = None) -> None:
        super().__init__(capacity, options)
        self.held: set[int] = set()
        self._most_hir = max(1, int(capacity * 0.01))
        self._most_lir = capacity - self._most_hir
        self._lir = self._hir = 0
        self._stack: OrderedDict[int, str] = OrderedDict()
        self._queue: OrderedDict[int, None] = OrderedDict()
        self._memory: OrderedDict[int, None] = OrderedDict()  # evicted, in the stack; in order of eviction
        self._gone: list[int] = []

    def touch(self, block: int) -> Sequence[int]:
        self._gone = []
        stack, queue = self._stack, self._queue
        in_queue = block in queue
        if in_queue:
            queue.move_to_end(block)
        if block in stack:
            stack.move_to_end(block)
            if stack[block] == LIR:
                self._prune()
            else:
                self._rise(block, in_queue)
        else:
            self._lower_while_full()
            stack[block] = HIR
            self.held.add(block)
        self._cut()
        return self._left(block)

    def insert(self, block: int) -> Sequence[int]:
        if not self._most_lir:
            return (block,)  # libCacheSim refuses it
        self._gone = []
        stack = self._stack
        if block in stack:
            stack.move_to_end(block)
            self._lower_while_full()
            self._memory.pop(block, None)
            if self._lir + self._hir == self.capacity:
                while self._hir >= self._most_hir:
                    self._push_out()
                self._lower()
            stack[block] = LIR
            self._lir += 1
        else:
            full = self._lir >= self._most_lir
            while full and self._hir >= self._most_hir:
                self._push_out()
            stack[block] = HIR if full else LIR
            if full:
                self._queue[block] = None
                self._hir += 1
            else:
                self._lir += 1
        self.held.add(block)
        self._cut()
        return self._left(block)

    def _left(self, block: int) -> Sequence[int]:
        return [each for each in self._gone if each != block or each not in self.held]

    def _rise(self, block: int, in_queue: bool) -> None:
        """Promote a HIR block of the stack to LIR after a hit."""
        if in_queue:
            del self._queue[block]
            self._hir -= 1
        self._lower_while_full()
        self._stack[block] = LIR
        self.held.add(block)
        self._lir += 1

    def _lower_while_full(self) -> None:
        while self._lir >= self._most_lir > 0:
            self._lower()

    def _lower(self) -> None:
        """Demote the LIR block at the bottom to the newest HIR block."""
        block, _ = self._stack.popitem(last=False)
        self._lir -= 1
        while self._hir >= self._most_hir:
            self._push_out()
        self._queue[block] = None
        self._hir += 1
        self._prune()

    def _push_out(self) -> None:
        """Evict the oldest HIR block."""
        block, _ = self._queue.popitem(last=False)
        self._hir -= 1
        if block in self._stack:
            self._stack[block] = LEFT
            self._memory[block] = None
        self._let_go(block)

    def _prune(self) -> None:
        """Drop everything below the lowest LIR block from the stack; the newest block always stays."""
        stack = self._stack
        while len(stack) > 1 and stack[next(iter(stack))] != LIR:
            block, rank = stack.popitem(last=False)
            if rank == LEFT:
                self._memory.pop(block, None)
            elif block not in self._queue:
                self._let_go(block)

    def _cut(self) -> None:
        while len(self._stack) > 2 * self.capacity and self._memory:
            del self._stack[self._memory.popitem(last=False)[0]]

    def _let_go(self, block: int) -> None:
        if block in self.held:
            self.held.remove(block)
            self._gone.append(block)
