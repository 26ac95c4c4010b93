"""Who notes what each kind of layers holds, on a server that keeps them in groups; others have none.

decided    what was held until now is counted for the time since the last decision
a span     what grew within it is added, where growth is promised
"""

from collections.abc import Callable, Sequence

from kvsim.allocators.abilities import GrowsInGroups, InGroups
from kvsim.allocators.arena import Held
from kvsim.sim.record.by_kind import HeldOverTime
from kvsim.sim.record.span import HELD_BY, Span
from kvsim.sim.serving.decision import Decision
from kvsim.sim.serving.observers import Observer
from kvsim.sim.serving.server import Server


class KindsLedger(Observer):
    """Sums up over time what each kind of layers holds.

    Attributes
    ----------
    held : HeldOverTime
        Up to the last decision.
    """

    def __init__(self, server: Server, groups: InGroups, in_words: dict[str, str]) -> None:
        super().__init__()
        self._server, self._groups = server, groups
        self.held = HeldOverTime.none(groups.kinds, server.allocator.pools, in_words)
        self._now: Sequence[Held] = ()
        self._since_ps, self._waited = 0, False

    def decided(self, step: Decision) -> None:
        """Nothing changes before the next decision, but for promised growth."""
        self._note(len(self._server.waiting) > 0 or self._server.swapped > 0)

    def idle(self) -> None:
        """What is cached stays."""
        self._note(False)

    def end(self) -> None:
        """Nothing is held any more."""
        self._note(False)

    def _note(self, waits: bool) -> None:
        """Count what was held since the last time, and look at what is held now."""
        server = self._server
        passed_ps = server.now_ps - self._since_ps
        if passed_ps and self._now:
            self.held.add(self._now, passed_ps, self._waited)
        self._now = self._groups.held_by_kind(server.memory.internal_slots(), self._finals)
        self._since_ps, self._waited = server.now_ps, waits

    def _finals(self) -> dict[int, int]:
        living = self._server.running | self._server.batch.loading
        return {seq: request.final_tokens for seq, request in living.items() if request.internal}

    def with_growth(self, record: Callable[[Span], None], groups: GrowsInGroups) -> Callable[[Span], None]:
        """What records a span, and adds what grew within it."""

        def record_grown(span: Span) -> None:
            ends, start, grown = span
            if grown is not None:
                left = sum([slots * (ends[-1] - ends[step - 1]) for step, slots in grown[3] or ()])
                if grown[0] or grown[1] or left:
                    changed = groups.grown_by_kind(grown[0], grown[1], left)
                    self.held.add(changed, 1, start[HELD_BY] != "")
            record(span)

        return record_grown
