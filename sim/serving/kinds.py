"""What each kind of layers holds, noted on a server that keeps them in groups; others note nothing.

decided    what was held until now is counted for the time since the last decision
a span     what grew within it is added, where growth is promised
"""

from collections.abc import Callable, Sequence

from kvsim.allocators.abilities import GrowsInGroups, InGroups
from kvsim.allocators.arena import Slots
from kvsim.sim.record.by_kind import HeldOverTime
from kvsim.sim.record.span import HELD_BY, Span
from kvsim.sim.serving.decision import Decision
from kvsim.sim.serving.server import Server

AT_ONCE = 1024
"""Decisions that are counted together."""


class KindsLedger:
    """Sums up over time what each kind of layers holds.

    Attributes
    ----------
    held : HeldOverTime
        Complete once `counted` was called.
    """

    def __init__(self, server: Server, groups: InGroups, in_words: dict[str, str]) -> None:
        self._server, self._groups = server, groups
        self.held = HeldOverTime.none(groups.kinds, server.allocator.pools, in_words)
        self.now: Sequence[Slots] = ()
        self._since_ps, self._waited = 0, False
        self._seen: tuple[list[Sequence[Slots]], ...] = ([], [])  # while nobody waited, and somebody did
        self._times_ps: tuple[list[int], ...] = ([], [])

    def around(self, decide: Callable[[Server], Decision]) -> Callable[[Server], Decision]:
        """What decides, and notes what is held then: nothing changes before the next decision."""
        note, waits = self.note, self._server.waiting

        def decide_and_note(server: Server) -> Decision:
            step = decide(server)
            note(len(waits) > 0 or server.swapped > 0)
            return step

        return decide_and_note

    def note(self, waits: bool) -> None:
        """Keep what was held since the last time, and look at what is held now."""
        server, seen = self._server, self._seen[self._waited]
        passed_ps = server.now_ps - self._since_ps
        if passed_ps and self.now:
            seen.append(self.now)
            self._times_ps[self._waited].append(passed_ps)
            if len(seen) == AT_ONCE:
                self._count(self._waited)
        self.now = self._groups.held_by_kind(server.memory.internal_slots(), self._finals)
        self._since_ps, self._waited = server.now_ps, waits

    def counted(self) -> HeldOverTime:
        """What was held up to now."""
        self.note(False)
        for waited in (False, True):
            if self._seen[waited]:
                self._count(waited)
        return self.held

    def _count(self, waited: bool) -> None:
        self.held.add(self._seen[waited], self._times_ps[waited], waited)
        self._seen[waited].clear()
        self._times_ps[waited].clear()

    def _finals(self) -> dict[int, int]:
        living = self._server.running | self._server.batch.parked()
        return {seq: request.final_tokens for seq, request in living.items() if request.internal}

    def with_growth(self, record: Callable[[Span], None], groups: GrowsInGroups) -> Callable[[Span], None]:
        """What records a span, and adds what grew within it."""

        def record_grown(span: Span) -> None:
            ends, start, grown = span
            if grown is not None:
                left = sum([slots * (ends[-1] - ends[step - 1]) for step, slots in grown[3] or ()])
                if grown[0] or grown[1] or left:
                    self.held.add_changes(
                        groups.grown_by_kind(grown[0], grown[1], left), start[HELD_BY] != ""
                    )
            record(span)

        return record_grown
