"""Who runs, in the order of marks that stay: who stands highest is known without a visit to anybody.

time in the batch (mlfq)      mark = when it entered, taken off what it had     all grow alike
tokens to come (srpt)         mark = tokens + clock                             all fall alike
rank (ltr)                    mark = rank                                       nothing moves
"""

from bisect import bisect_left, insort

from kvsim.sim.serving.request import Request

Entry = tuple[int, int, Request]
"""(mark, number of its admission, request)"""


class Running:
    """Those who have a mark.

    Attributes
    ----------
    entries : list
        (mark, number of the admission, request), the smallest first.
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._of: dict[Request, Entry] = {}

    def add(self, mark: int, number: int, request: Request) -> None:
        """One more."""
        entry = self._of[request] = mark, number, request
        insort(self.entries, entry)

    def __contains__(self, request: Request) -> bool:
        return request in self._of

    def mark(self, request: Request) -> int:
        """That of one of them."""
        return self._of[request][0]

    def take_out(self, request: Request) -> int:
        """It runs no more; returns its mark."""
        entry = self._of.pop(request)
        del self.entries[bisect_left(self.entries, entry)]
        return entry[0]

    def first_from(self, mark: int) -> int:
        """The place in `entries` of the first whose mark is not below."""
        return bisect_left(self.entries, (mark,))
