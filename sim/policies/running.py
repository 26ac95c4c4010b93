"""Running requests in the order of constant marks: the highest is known without visiting any request.

time in the batch (mlfq)      mark = what it had - when it entered              all grow alike
tokens to come (srpt)         mark = tokens + clock                             all fall alike
rank (ltr)                    mark = rank                                       nothing moves
"""

from bisect import bisect_left, insort

from kvsim.sim.serving.request import Request

Entry = tuple[int, int, Request]
"""(mark, number of its admission, request)"""


class Running:
    """Running requests that have a mark.

    Attributes
    ----------
    entries : list
        (mark, number of the admission, request), the smallest first.
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._of: dict[Request, Entry] = {}

    def add(self, mark: int, number: int, request: Request) -> None:
        """Add a request."""
        entry = self._of[request] = mark, number, request
        insort(self.entries, entry)

    def __contains__(self, request: Request) -> bool:
        return request in self._of

    def mark(self, request: Request) -> int:
        """The mark of a request."""
        return self._of[request][0]

    def take_out(self, request: Request) -> int | None:
        """The request no longer runs; returns its mark, None if it has none."""
        entry = self._of.pop(request, None)
        if entry is None:
            return None
        del self.entries[bisect_left(self.entries, entry)]
        return entry[0]

    def first_from(self, mark: int) -> int:
        """Index in `entries` of the first request whose mark is not below."""
        return bisect_left(self.entries, (mark,))
