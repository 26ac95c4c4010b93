"""Where a search for empty cells begins, and the two ways to search: cells in a row, or any.

head beyond `used + 2n`: begin at 0, in the hope to fill what is empty there; else at the head
from there to the end, then from 0: a run that begins before the head may go beyond it
"""


def begin(head: int, used: int, count: int) -> int:
    """The cell at which a search for `count` cells begins."""
    return 0 if head > used + 2 * count else head


def in_a_row(empty: bytearray, count: int, head: int) -> int | None:
    """Start of the first `count` empty cells in a row from `head` on, then from 0 on.

    `empty` has a 1 for each cell that may be written.
    """
    run = b"\1" * count
    start = empty.find(run, head)
    if start < 0:
        start = empty.find(run, 0, head + count - 1)
    return None if start < 0 else start


def anywhere(empty: bytearray, count: int, head: int) -> list[range] | None:
    """The first `count` empty cells from `head` on, then from 0 on, as runs in the order of the search."""
    runs: list[range] = []
    for at, stop in ((head, len(empty)), (0, head)):
        start = empty.find(1, at, stop)
        while start >= 0:
            end = empty.find(0, start, min(start + count, stop))
            if end < 0:
                end = min(start + count, stop)
            runs.append(range(start, end))
            count -= end - start
            if not count:
                return runs
            start = empty.find(1, end, stop)
    return None


def places_in_rows(empty: bytearray, count: int) -> tuple[int, int]:
    """How many rows of `count` cells there are room for, and the largest run beside as many of them."""
    rows = beside = 0
    start = empty.find(1)
    while start >= 0:
        end = empty.find(0, start)
        length = (len(empty) if end < 0 else end) - start
        rows += length // count
        beside = max(beside, length % count)
        start = -1 if end < 0 else empty.find(1, end)
    return rows, beside
