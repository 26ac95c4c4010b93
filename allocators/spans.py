"""Spans: free blocks that follow each other in one text, or that have none, as parts of a queue.

    (ends) <-> [2  9  4] <-> [5] <-> [7  11] <-> (ends)
                key 20        no      key 3: 7 has 3, 11 has 4
    allocated: 4, then 9, then 2, then 5, then 11, then 7

The queue is a ring of spans, of which one, the ends, has no blocks: behind it comes the span allocated next.
A span is allocated from its last block on, so that of a text the end goes first.
"""

from collections.abc import Iterator


class Span:
    """Free blocks, the last to be allocated first; block i has the key `key + i`, or none has a key.

    A new one is allocated just before the one at `place`; None: it is the ends of a queue.
    """

    __slots__ = ("behind", "blocks", "front", "key")

    front: "Span"
    """allocated before this one"""
    behind: "Span"
    """allocated after this one"""

    def __init__(self, blocks: list[int], key: int | None, place: "Span | None") -> None:
        self.blocks = blocks
        self.key = key
        if place is None:
            self.front = self.behind = self
        else:
            self.front, self.behind = place.front, place
            place.front.behind = place.front = self

    def others(self) -> Iterator["Span"]:
        """Of the ends: all spans, the one allocated next first."""
        span = self.behind
        while span is not self:
            yield span
            span = span.behind

    def split(self, at: int) -> "Span":
        """Make the blocks of a text from `at` on a span of their own, allocated first; returns it."""
        assert self.key is not None
        rear = Span(self.blocks[at:], self.key + at, self)
        del self.blocks[at:]
        return rear

    def take_first(self, count: int) -> bool:
        """Take the first blocks of a text out of the queue; whether any are left in it."""
        if count == len(self.blocks):
            self.front.behind, self.behind.front = self.behind, self.front
            return False
        assert self.key is not None
        del self.blocks[:count]
        self.key += count
        return True
