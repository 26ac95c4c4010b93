"""Where the beam searches of a server stand: who searches, and which drops are foreseen in a span of steps.

decided step        the groups that search, and the first step after which one of them may drop a candidate
plan                the drops behind it, as far as the span goes
carried out         those within the span; what its last step drops is drawn when it is over
"""

from collections.abc import Iterator

from kvsim.sim.serving.beam import Drop, Pair, Survivors
from kvsim.sim.serving.request import Group


class Search:
    """The searches of one server.

    Attributes
    ----------
    groups : list of Group
        Those that search in the step that was decided last, and in the steps like it.
    drops : list of Drop
        What was foreseen of them, from that step on.
    survivors : Survivors
        Says who is dropped.
    """

    def __init__(self, survivors: Survivors) -> None:
        self.groups: list[Group] = []
        self.drops: list[Drop] = []
        self.survivors = survivors
        self._clock = 0  # up to which survivors were drawn

    def begin(self, groups: list[Group]) -> None:
        """These search in the step that was decided."""
        self.groups, self.drops = groups, []

    def look_ahead(self, steps: int) -> int:
        """The first of them ends after so many steps: after how many of these is a candidate dropped?"""
        self.survivors.look_ahead(len(self.groups), steps - 1)
        first = self.survivors.next_drop(self.drops)
        return steps if first is None else first[0]

    def draw(self, clock: int) -> Iterator[tuple[Group, list[Pair]]]:
        """Steps are over: who drops candidates after the last of them."""
        steps, survivors = clock - self._clock, self.survivors
        self._clock = clock
        if not (steps and self.groups):
            return
        survivors.pass_over((steps - 1) * len(self.groups))
        groups = [group for group in self.groups if group.sequences]  # the others have finished
        for _, place, pairs in survivors.drops(len(groups), 1):
            yield groups[place], pairs
        survivors.pass_over(len(groups))
