"""What is known of the text of a sequence: the keys of its blocks, and which of them are computed.

keys        [40 41 42 43 | 90 91]      of blocks 0 to 5: texts that others may have, too
full                   ^               blocks 0 to 2 are computed: look-ups find them
rest                     [ - - - - - -  7 8]     of blocks 6 and 7, once it was evicted: its own alone
"""

from kvsim.allocators.base import Match
from kvsim.allocators.texts import Keys, pieces

NOBODY = -1
"""The name of sequences that never come back to look for what is left of them."""


class Known:
    """What is known of a sequence's text.

    Attributes
    ----------
    keys : list of Keys
        Of the blocks that others may have too.
    shareable : int
        How many those are.
    rest : list of Keys
        For the private blocks, counted from the first of all; empty before the first eviction.
    own : int
        The sequence's name.
    full : int
        Blocks that are computed.
    alone : int
        From this block on nobody else can have a claim.
    """

    __slots__ = ("_range", "_range_at", "alone", "full", "keys", "own", "rest", "shareable")

    def __init__(self, keys: list[Keys], shareable: int, rest: list[Keys], own: int) -> None:
        self.keys = keys
        self.shareable = self.alone = shareable
        self.rest = rest
        self.own = own
        self.full = 0
        self._range = self._range_at = 0  # of those in `keys` the one of the last full block; its first block

    def fill(self, full: int) -> list[tuple[int, int, int]]:
        """As many blocks are full now: those that became so, as `pieces` says it."""
        before, self.full = self.full, full
        if len(self.keys) == 1:  # most often
            return pieces(self.keys, before, full)
        found: list[tuple[int, int, int]] = []
        at = self._range_at
        for index in range(self._range, len(self.keys)):
            first, count = self.keys[index]
            end = at + count
            if end > before:
                self._range, self._range_at = index, at
                low, high = max(at, before), min(end, full)
                if low < high:
                    found.append((low, first + low - at, high - low))
                if end >= full:
                    break
            at = end
        return found

    def pieces(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Blocks `start` to before `stop`, as far as they have keys: (block, its key, how many)."""
        found = pieces(self.keys, start, stop)
        if self.rest and stop > self.shareable:
            found += pieces(self.rest, max(start, self.shareable), stop)
        return found

    def runs(self, stop: int) -> list[tuple[int, int, int | None]]:
        """The blocks before `stop`, the last first: (first, the one behind the last, key or None)."""
        found: list[tuple[int, int, int | None]] = []
        for at, key, count in reversed(self.pieces(0, stop)):
            if at + count < stop:
                found.append((at + count, stop, None))
            found.append((at, at + count, key))
            stop = at
        if stop:
            found.append((0, stop, None))
        return found


class PrefixMatch(Match):
    """The cached blocks of a prefix, in the order of its tokens."""

    __slots__ = ("blocks", "known")

    def __init__(self, tokens: int, woken_slots: int, blocks: list[int], known: Known) -> None:
        super().__init__(tokens, woken_slots)
        self.blocks = blocks
        self.known = known
