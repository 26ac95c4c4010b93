"""Numbers for the texts of blocks: equal numbers mean equal text from the first token to the block's end.

    text "system | chat 7"    runs (system, 0, 512) (chat 7, 0, 80), blocks of 16
    keys                      0 .. 31 | 32 .. 36              ranges [(0, 37)]
    text "system | chat 8"    0 .. 31 | 37 .. 41              ranges [(0, 32), (37, 5)]

A number is called a key. Consecutive blocks of a new text get consecutive keys, so that most texts are a few
ranges of keys, and the data of their blocks are adjacent in arrays.
"""

from kvsim.allocators.base import Content

Keys = tuple[int, int]
"""A range of consecutive keys: (first, count)."""


RECENT = 1024
"""Number of texts whose ranges are memoized, since requests look them up several times."""


class Texts:
    """Assigns keys.

    Parameters
    ----------
    lookahead : int
        Tokens behind a block that its key also covers: vLLM's drafts depend on them.

    Attributes
    ----------
    count : int
        Keys assigned so far: 0 to `count - 1`.
    """

    def __init__(self, block_size: int, lookahead: int = 0) -> None:
        self.count = 0
        self._size, self._lookahead = block_size, lookahead
        self._ranges: dict[tuple[int, ...], Keys] = {}  # by the previous key and the runs of the first block
        self._recent: dict[Content, list[Keys]] = {}
        self._spare: dict[int, list[int]] = {}  # returned ranges, by their length

    def keys(self, content: Content) -> list[Keys]:
        """The keys of the full blocks of a text, in order; do not modify."""
        known = self._recent.get(content)
        if known is None:
            if len(self._recent) >= RECENT:
                self._recent.clear()
            known = self._recent[content] = self.keys_once(content)
        return known

    def keys_once(self, content: Content) -> list[Keys]:
        """The same without memoization, for a text that is looked up only once."""
        size = self._size
        found: list[Keys] = []
        part: tuple[int, ...] = ()
        before, missing = -1, size + self._lookahead if self._lookahead else 0
        for stream, first, length in content:
            if missing:  # complete the block begun by an earlier run, or the first block and its lookahead
                taken = min(length, missing)
                part, missing = (*part, stream, first, taken), missing - taken
                if missing:
                    continue
                before = self._follow(found, (before, *part), 1)[0]
            else:
                taken = 0
            whole, filled = divmod(length - taken, size)
            start = first + taken
            while whole:
                known, count = self._follow(found, (before, stream, start), whole)
                before = known + count - 1
                start += count * size
                whole -= count
            part, missing = (stream, start, filled), size - filled if filled else 0
        return found

    def _follow(self, found: list[Keys], place: tuple[int, ...], blocks: int) -> Keys:
        """Append the next keys of a text, at most `blocks`, to `found`; returns them."""
        known = self._ranges.get(place)
        if known is None:
            known = self._ranges[place] = self.count, blocks
            self.count += blocks
        first, count = known
        if count > blocks:
            count = blocks
        if found:
            start, length = found[-1]
            if start + length == first:
                found[-1] = start, length + count
                return first, count
        found.append((first, count))
        return first, count

    # -- private text of one sequence ---------------------------------------------------------

    def lengthen(self, ranges: list[Keys], blocks: int) -> None:
        """Add private keys until they suffice for `blocks` blocks."""
        held = sum([count for _, count in ranges])
        while held < blocks:
            count = max(held, 1 << (blocks - 1).bit_length() if not held else 1)
            spare = self._spare.get(count)
            if spare:
                first = spare.pop()
            else:
                first = self.count
                self.count += count
            ranges.append((first, count))
            held += count

    def give_back(self, ranges: list[Keys]) -> None:
        """Return keys that are no longer used."""
        for first, count in ranges:
            self._spare.setdefault(count, []).append(first)
        ranges.clear()


def pieces(ranges: list[Keys], start: int, stop: int) -> list[tuple[int, int, int]]:
    """Blocks `start` up to `stop` (exclusive) of a text: (block, its key, number of consecutive blocks)."""
    if len(ranges) == 1:  # usually
        first, count = ranges[0]
        if stop > count:
            stop = count
        return [(start, first + start, stop - start)] if start < stop else []
    found: list[tuple[int, int, int]] = []
    at = 0
    for first, count in ranges:
        end = at + count
        if end > start:
            low, high = start if start > at else at, stop if stop < end else end
            if low >= high:
                break
            found.append((low, first + low - at, high - low))
        at = end
    return found
