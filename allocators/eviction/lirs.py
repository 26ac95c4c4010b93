"""LIRS: blocks with short times between uses stay (LIR), in 99 % of the cache; the rest (HIR) rotate.

    stack S   newest  h c a x b  oldest       LIR: a b c    HIR: h (held), x (evicted, remembered)
    queue Q   h                               the held HIR blocks: the oldest one is evicted

A HIR block used while in the stack was unused for less time than the LIR block at the bottom: they swap
roles. The bottom of the stack is always a LIR block; blocks below it are forgotten.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from kvsim.allocators.eviction.base import NONE, Eviction
from kvsim.allocators.option import option


@dataclass(frozen=True, kw_only=True)
class LirsOptions:
    """Options of `lirs`."""

    hir_share: float = option(
        "Share of the capacity for HIR blocks.", default=0.01, value="SHARE", least=0, below=1
    )


class Lirs(Eviction):
    """Evicts the oldest block of those with long times between uses."""

    idea = "blocks with short times between uses stay; the others share 1 %"
    used_by = "MySQL NDB, H2, Infinispan"
    source = "Jiang and Zhang, LIRS, SIGMETRICS 2002"
    checked = "a second implementation of the paper"
    declares: ClassVar[type] = LirsOptions

    def __init__(self, capacity: int, options: object = None) -> None:
        super().__init__(capacity, options)
        assert isinstance(self.options, LirsOptions)
        self.held: dict[int, bool] = {}  # block -> whether it is LIR
        self._most_lir = capacity - max(1, int(capacity * self.options.hir_share))
        self._lir = 0
        self._stack: OrderedDict[int, None] = OrderedDict()  # the newest is last
        self._queue: OrderedDict[int, None] = OrderedDict()

    def touch(self, block: int) -> Sequence[int]:
        stack = self._stack
        if self.held[block]:
            oldest = next(iter(stack)) == block
            stack.move_to_end(block)
            if oldest:
                self._prune()
        elif block in stack and self._most_lir:
            del self._queue[block]
            self._rise(block)
        else:
            self._queue.move_to_end(block)
            self._see(block)
        return NONE

    def insert(self, block: int) -> Sequence[int]:
        left = NONE
        if self._lir < self._most_lir and block not in self._stack:
            self._lir += 1
            self.held[block] = True
            self._stack[block] = None
            return left
        if len(self.held) == self.capacity:
            victim = self._queue.popitem(last=False)[0]
            del self.held[victim]
            left = (victim,)
        if block in self._stack:
            self._rise(block)
        else:
            self.held[block] = False
            self._queue[block] = None
            self._see(block)
        return left

    def _see(self, block: int) -> None:
        if self._most_lir:
            self._stack[block] = None
            self._stack.move_to_end(block)

    def _rise(self, block: int) -> None:
        """Promote a block of the stack to LIR, and demote the one at the bottom to HIR."""
        self._stack.move_to_end(block)
        self.held[block] = True
        bottom = self._stack.popitem(last=False)[0]
        self.held[bottom] = False
        self._queue[bottom] = None
        self._prune()

    def _prune(self) -> None:
        stack, held = self._stack, self.held
        while not held.get(next(iter(stack))):
            stack.popitem(last=False)
