"""Spans: free blocks that are consecutive in one text, or that have no text, as parts of a queue.

    (ends) <-> [2  9  4] <-> [5] <-> [7  11] <-> (ends)
                key 20        no      key 3: 7 has 3, 11 has 4
    allocated: 4, then 9, then 2, then 5, then 11, then 7

The queue is a ring of spans. One of them, the ends, has no blocks: behind it comes the span allocated next.
A span is allocated from its last block on, so that the end of a text goes first.
"""

from collections.abc import Iterator


class Span:
    """Free blocks, allocated from the last on; block i has the key `key + i`, or none has a key.

    A new span is allocated just before the one at `place`; None: it is the ends of a queue.

    Attributes
    ----------
    forward : bool
        Whether it is allocated from the first block on instead; only second pools have such spans.
    """

    __slots__ = ("behind", "blocks", "forward", "front", "key")

    front: "Span"
    """allocated before this one"""
    behind: "Span"
    """allocated after this one"""

    def __init__(self, blocks: list[int], key: int | None, place: "Span | None") -> None:
        self.blocks = blocks
        self.key = key
        self.forward = False
        if place is None:
            self.front = self.behind = self
        else:
            self.front, self.behind = place.front, place
            place.front.behind = place.front = self

    def others(self) -> Iterator["Span"]:
        """Called on the ends: all other spans, the one allocated next first."""
        span = self.behind
        while span is not self:
            yield span
            span = span.behind

    def split(self, at: int) -> "Span":
        """Split off the blocks of a text from `at` on as a span of their own; returns it."""
        assert self.key is not None
        rear = Span(self.blocks[at:], self.key + at, self.behind if self.forward else self)
        rear.forward = self.forward
        del self.blocks[at:]
        return rear

    def take_first(self, count: int) -> bool:
        """Take the first blocks of a text out of the queue; returns whether the span has any left."""
        if count == len(self.blocks):
            self.front.behind, self.behind.front = self.behind, self.front
            return False
        assert self.key is not None
        del self.blocks[:count]
        self.key += count
        return True
