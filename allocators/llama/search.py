"""The two searches for empty cells, contiguous or any, and where they begin.

head beyond `used + 2n`: begin at 0, hoping to fill empty cells there; else at the head
from there to the end, then from 0: a run that begins before the head may extend beyond it
"""

import re
from collections.abc import Iterator
from itertools import islice

EMPTY = re.compile(b"\1")


def read(empty: bytearray, padding: int) -> int:
    """Cells that attention reads: all up to the last used one, rounded up to the padding."""
    top = empty.rfind(0) + 1
    return min(len(empty), max(padding, -(-top // padding) * padding))


def begin(head: int, used: int, count: int) -> int:
    """The cell at which a search for `count` cells begins."""
    return 0 if head > used + 2 * count else head


def in_a_row(empty: bytearray, count: int, head: int) -> int | None:
    """Start of the first `count` contiguous empty cells from `head` on, then from 0 on."""
    run = b"\1" * count
    start = empty.find(run, head)
    if start < 0:
        start = empty.find(run, 0, head + count - 1)
    return None if start < 0 else start


def anywhere(empty: bytearray, count: int, head: int) -> list[range] | None:
    """The first `count` empty cells from `head` on, then from 0 on, as runs in search order."""
    runs: list[range] = []
    for at, stop in ((head, len(empty)), (0, head)):
        start = empty.find(1, at, stop)
        while start >= 0:
            last = start + count if start + count < stop else stop
            end = empty.find(0, start, last)
            if end < 0:
                end = last
            runs.append(range(start, end))
            count -= end - start
            if not count:
                return runs
            start = empty.find(1, end, stop)
    return None


def cells(empty: bytearray, count: int, head: int) -> list[int]:
    """Like `anywhere`, but single cells and as many as exist: faster if most runs are short."""
    found = [cell.start() for cell in islice(EMPTY.finditer(empty, head), count)]
    if len(found) < count:
        found += [cell.start() for cell in islice(EMPTY.finditer(empty, 0, head), count - len(found))]
    return found


def rows(empty: bytearray, least: int) -> Iterator[range]:
    """All maximal rows of at least `least` empty cells."""
    run, start = b"\1" * least, 0
    while (start := empty.find(run, start)) >= 0:
        end = empty.find(0, start + least)
        yield range(start, len(empty) if end < 0 else end)
        if end < 0:
            return
        start = end


def longest(empty: bytearray) -> int:
    """Length of the longest row of empty cells."""
    length = start = 0
    while (start := empty.find(b"\1" * (length + 1), start)) >= 0:
        end = empty.find(0, start + length + 1)
        length = (len(empty) if end < 0 else end) - start
        if end < 0:
            break
        start = end
    return length


def places_in_rows(empty: bytearray, count: int) -> tuple[int, int]:
    """How many rows of `count` cells fit, and the longest run left beside them."""
    found = beside = 0
    for row in rows(empty, 1):
        more, rest = divmod(len(row), count)
        found += more
        beside = max(beside, rest)
    return found, beside
