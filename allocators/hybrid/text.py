"""What the cache knows about a sequence: its lengths, and the keys of its text, block by block."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import overload

from kvsim.allocators.texts import Keys


@dataclass
class Text:
    """What the cache knows about a sequence.

    Attributes
    ----------
    sequence : int
    prompt_tokens, tokens : int
        Tokens of its prompt, and tokens known so far.
    keys : sequence
        One key per hash block for the text up to its end; equal keys mean equal texts.
    junction : int
        Where the text diverges from one whose windows and states were not kept there; 0 if unknown.
    """

    sequence: int
    prompt_tokens: int
    tokens: int
    keys: Sequence[Hashable] = field(default_factory=list)
    junction: int = 0

    def know(self, tokens: int) -> None:
        """So many tokens are known now."""
        self.tokens = tokens
        if isinstance(self.keys, TextKeys):
            self.keys.known_tokens = tokens


class TextKeys(Sequence[Hashable]):
    """The keys of a text's hash blocks, up to the last known token.

    Text that others may share has numbers; the rest has the sequence's own name and the position.
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
