"""What an allocator of hybrid layers knows of a sequence: its text, as far as known, and what it holds."""

from collections.abc import Hashable, Sequence
from typing import overload

from kvsim.allocators.base import Match
from kvsim.allocators.hybrid.hits import Hit
from kvsim.allocators.hybrid.tables import Text
from kvsim.allocators.texts import Keys

NOT_PLACED = -1


class TextKeys(Sequence[Hashable]):
    """The keys of a text's hash blocks, as far as its tokens are known.

    Numbers for what others may have too; for the rest the sequence's own name and the place.
    """

    def __init__(self, ranges: Sequence[Keys], own: int, hash_size: int) -> None:
        self._ranges, self._own, self._size = ranges, own, hash_size
        self._shareable = sum(count for _, count in ranges)
        self.known_tokens = 0

    def __len__(self) -> int:
        return self.known_tokens // self._size

    @overload
    def __getitem__(self, place: int) -> Hashable: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Hashable]: ...
    def __getitem__(self, place: int | slice) -> Hashable | Sequence[Hashable]:
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
        if place >= self._shareable:
            return (self._own, place)
        left = place
        for first, count in self._ranges:
            if left < count:
                return first + left
            left -= count
        raise IndexError(place)


class HybridMatch(Match):
    """What every group holds of a text."""

    __slots__ = ("hit", "text")

    def __init__(self, hit: Hit, text: Text, woken_slots: int) -> None:
        super().__init__(hit.tokens, woken_slots)
        self.hit, self.text = hit, text


class Holding:
    """A sequence: its text, its capacity, and where its last two pieces began."""

    __slots__ = ("capacity", "decoded", "expired", "pages", "start", "text", "tokens")

    def __init__(self, text: Text) -> None:
        self.text = text
        self.tokens = self.capacity = self.start = self.decoded = 0
        self.expired = self.pages = 0

    def __repr__(self) -> str:
        return f"{self.tokens} tokens in {self.pages} pages"
