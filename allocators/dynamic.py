"""Dynamic: one extent per sequence that doubles when full, like a growable array.

    |######## tokens ########|~~~~ reserved or internal: up to as much again ~~~~|

An extent starts at the smallest power of two that holds the prompt. It doubles in place while the upper
neighbour is free; otherwise it moves: the old extent is copied whole and becomes a hole. Old and new
coexist during the copy, so a sequence may find no room although one copy of it would fit.
Waste per sequence: less than `tokens` (half the extent), plus the holes (external).
"""

from kvsim.allocators.base import Holdings
from kvsim.allocators.contiguous import Contiguous


class Dynamic(Contiguous):
    """One extent per sequence that grows by doubling and moves when it cannot grow in place.

    Parameters
    ----------
    capacity_slots : int
        Size of the arena.
    fit : "first", "best", "next" or "worst"
        Which free extent a sequence gets when it is placed or moves, as in `Contiguous`.
    """

    idea = "an extent that doubles when full, and moves if it must"
    wastes = "up to tokens; holes; room for two while it moves"
    used_by = "none; what a growable array would do"
    source = "Cormen et al., Introduction to Algorithms, 16.4"

    reserves = False

    def __init__(self, capacity_slots: int, fit: str = "first") -> None:
        super().__init__(capacity_slots, fit)
        self._bounds: Holdings[int] = Holdings()

    def slots_needed(self, tokens: int, bound: int) -> int:
        return self._doubled(tokens, bound)

    def fits(self, tokens: int, bound: int) -> bool:
        return tokens <= self.capacity_slots

    def admit(self, seq: int, tokens: int, bound: int) -> bool:
        if not super().admit(seq, tokens, bound):
            return False
        self._bounds[seq] = bound
        return True

    def release(self, seq: int) -> None:
        super().release(seq)
        del self._bounds[seq]

    def grow(self, seq: int, tokens: int) -> bool:
        size = self.capacity(seq)
        if tokens <= size:
            return True
        wanted = self._doubled(tokens, self._bounds[seq])
        if not self.arena.extend(seq, wanted):
            if not self.arena.move(seq, wanted):
                return False
            self.copied_slots += size
        self.used_slots += wanted - size
        return True

    def _doubled(self, tokens: int, bound: int) -> int:
        """The power of two that holds `tokens`, capped at `bound` and the capacity."""
        power = 1 << (tokens - 1).bit_length()
        return max(tokens, min(power, bound, self.capacity_slots))
