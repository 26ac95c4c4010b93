"""Blocks with equal texts: of those with one key a look-up finds one, the others wait behind it.

    key 7     block 12 is found     waiting: 5, 31, in the order in which they were entered

When the one that is found is allocated, the next takes its place. Equal blocks are not merged: each is held,
freed and allocated like any other.
"""

from kvsim.allocators.spans import Span


class EqualBlocks:
    """Those that wait.

    Attributes
    ----------
    waiting : dict of list of int
        By key: the blocks, the next first.
    key : dict of int
        By block: its key.
    span : dict of Span
        By block, if it is free: its span, which has no other block.
    """

    def __init__(self) -> None:
        self.waiting: dict[int, list[int]] = {}
        self.key: dict[int, int] = {}
        self.span: dict[int, Span] = {}

    def add(self, key: int, block: int) -> None:
        """Let a block in use wait behind those with its key."""
        self.waiting.setdefault(key, []).append(block)
        self.key[block] = key

    def next(self, key: int) -> int | None:
        """The block that waits next for a key."""
        blocks = self.waiting.get(key)
        return blocks[0] if blocks else None

    def remove(self, block: int) -> Span | None:
        """A block waits no more; returns its span, if it is free."""
        key = self.key.pop(block)
        self.waiting[key].remove(block)
        if not self.waiting[key]:
            del self.waiting[key]
        return self.span.pop(block, None)

    def forget(self, key: int) -> int:
        """No block waits for a key any more; returns how many of them are free."""
        free = 0
        for block in self.waiting.pop(key, ()):
            del self.key[block]
            free += self.span.pop(block, None) is not None
        return free
