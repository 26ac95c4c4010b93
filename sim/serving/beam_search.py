"""The state of a server's beam searches: which groups search, and the drops predicted for a span of steps.

decided step        the groups that search, and the first step after which one of them may drop a candidate
plan                the drops after it, up to the end of the span
carried out         those within the span; the drops of its last step are drawn when it is over
"""

from collections.abc import Iterator

from kvsim.sim.serving.beam import Drop, Pair, Survivors
from kvsim.sim.serving.request import Group


class Search:
    """The searches of one server.

    Attributes
    ----------
    groups : list of Group
        Those that search in the last decided step, and in the steps like it.
    drops : list of Drop
        Their predicted drops, from that step on.
    survivors : Survivors
        Draws the drops.
    """

    def __init__(self, survivors: Survivors) -> None:
        self.groups: list[Group] = []
        self.drops: list[Drop] = []
        self.survivors = survivors
        self._clock = 0  # survivors are drawn up to here

    def begin(self, groups: list[Group]) -> None:
        """These groups search in the step that was decided."""
        self.groups, self.drops = groups, []

    def look_ahead(self, steps: int) -> int:
        """The first search ends after `steps` steps: returns after how many a candidate is dropped."""
        self.survivors.look_ahead(len(self.groups), steps - 1)
        first = self.survivors.next_drop(self.drops)
        return steps if first is None else first[0]

    def draw(self, clock: int) -> Iterator[tuple[Group, list[Pair]]]:
        """Steps are over: yields the groups that drop candidates after the last one."""
        steps, survivors = clock - self._clock, self.survivors
        self._clock = clock
        if not (steps and self.groups):
            return
        survivors.pass_over((steps - 1) * len(self.groups))
        groups = [group for group in self.groups if group.sequences]  # the others have finished
        for _, place, pairs in survivors.drops(len(groups), 1):
            yield groups[place], pairs
        survivors.pass_over(len(groups))
