"""LightLLM's token pool: an array of slot numbers and a stack pointer.

    slots   [ 4  0  1 | 7  2  3  5  6 ]
         allocated ...^ mark: the next to be allocated is slots[mark]

`alloc(n)` takes the n slots behind the mark and moves it up. `free` writes what comes back just before the
mark, in its own order, and moves it down: what came last goes first. What stands before the mark is stale.
"""

from collections.abc import Sequence


class TokenPool:
    """Free slots of one token each, last in, first out.

    Attributes
    ----------
    slots : list of int
        All slot numbers; those from `mark` on are free, in the order in which they will be allocated.
    mark : int
        The stack pointer: how many slots are allocated.
    """

    def __init__(self, size: int) -> None:
        self.slots = list(range(size))
        self.mark = 0

    @property
    def free(self) -> int:
        """Slots that can be allocated."""
        return len(self.slots) - self.mark

    def alloc(self, count: int) -> list[int] | None:
        """The next `count` slots; None when there are fewer."""
        start = self.mark
        if count > len(self.slots) - start:
            return None
        self.mark = start + count
        return self.slots[start : self.mark]

    def give_back(self, slots: Sequence[int]) -> None:
        """Take slots back, each allocated once."""
        end = self.mark
        self.mark = end - len(slots)
        self.slots[self.mark : end] = slots
