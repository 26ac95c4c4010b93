"""What drafts give requests, event by event, for many requests at a time.

    given     3 1 4 2 4 ...           tokens of each event, in one array for all requests
    counts    70 73 74 78 80          stored before each event and after the last, up to the end of the answer
    fills     2 4                     before these events the table needs one more block than before

An array operation costs as much for one request as for fifty.
"""

from typing import NamedTuple

import numpy as np

Counts = np.ndarray[tuple[int], np.dtype[np.int64]]
Tokens = np.ndarray[tuple[int], np.dtype[np.uint8]]


class Ruled(NamedTuple):
    """What holds in all events of a course.

    `drafts` are verified; a table of `n` blocks needs another one when `n * unit - beyond` tokens are stored.
    """

    drafts: int
    unit: int
    beyond: int


class Course:
    """All events of a request from one on, if nothing disturbs them.

    Attributes
    ----------
    counts : array of int64
        Tokens that are stored before each event and after the last, of this and other requests.
    first, steps : int
        Where in `counts` its first event is; how many events it has.
    before_last : int
        Tokens that are stored before the last of them.
    over : int
        Tokens that the last event gives beyond the end of the answer.
    filled : int
        With at most as many blocks, a table needs another one before the first event.
    fills : list of int
        Where in `counts` a table with one block more, two more, ... needs another one; ascending.
    """

    __slots__ = ("before_last", "counts", "filled", "fills", "first", "over", "steps")

    def __init__(  # noqa: PLR0917 - a row of arrays
        self,
        counts: Counts,
        first: int,
        last: int,
        before_last: int,
        over: int,
        filled: int,
        fills: list[int],
    ) -> None:
        self.counts, self.first, self.steps = counts, first, last - first
        self.before_last, self.over, self.filled, self.fills = before_last, over, filled, fills

    def stored(self, event: int) -> int:
        """Tokens that are stored before this event of it; after the last, all."""
        return self.counts.item(self.first + event)

    def after(self) -> Counts:
        """Tokens that are stored after each event."""
        return self.counts[self.first + 1 : self.first + 1 + self.steps]


def courses(
    given: Tokens, events: Counts, stored: Counts, final: Counts, ruled: Ruled
) -> list[Course | None]:
    """The course of each request; None if the events do not give it all of its tokens.

    Parameters
    ----------
    given : array of uint8
        What the events give, request after request; each has one more in front, which is overwritten.
    events : array of int64
        How many there are of each request, including that one.
    stored, final : arrays of int64
        Tokens of each request before its first event, and after its last.
    """
    ends = np.add.accumulate(events)
    starts = ends - events
    given[starts] = 0
    counts = np.add.accumulate(given, dtype=np.int64)
    before = stored - counts[starts]
    lasts = np.maximum(counts.searchsorted(final - before), starts)
    enough = lasts < ends
    lasts[~enough] = starts[~enough] + 1
    counts += before.repeat(events)
    over = counts[lasts] - final
    counts[lasts] = final
    filled = (counts + ruled.beyond) // ruled.unit
    rises = (filled[1:] > filled[:-1]).nonzero()[0] + 1
    from_each, to_each = rises.searchsorted(starts, "right"), rises.searchsorted(lasts, "right")
    fills: list[int] = rises.tolist()
    columns = starts, lasts, counts[lasts - 1], over, filled[starts], from_each, to_each, enough
    found: list[Course | None] = []
    for row in zip(*[column.tolist() for column in columns], strict=True):
        start, last, before_last, more, full, one, other, fine = row
        course = Course(counts, start, last, before_last, more, full, fills[one:other])
        found.append(course if fine else None)
    return found
