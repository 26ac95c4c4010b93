"""Sums up what each kind of layers holds, for servers that keep unlike layers in groups.

decided    counts that differ by kind are noted when they change
a span     slots that were left behind within it are added
the end    these sums over time, and the recorder's for all layers, are split by kind
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from kvsim.allocators.arena import Slots
from kvsim.allocators.protocols import InGroups
from kvsim.sim.record.by_kind import HeldOverTime, Sums
from kvsim.sim.record.span import Integrals
from kvsim.sim.serving.decision import Decision
from kvsim.sim.serving.growth import Grown
from kvsim.sim.serving.server import Server


class KindsLedger:
    """The counts of one server by kind of layers, summed over time.

    Attributes
    ----------
    held : HeldOverTime
        The kinds, without sums; `counted` returns them.
    """

    def __init__(self, server: Server, groups: InGroups, in_words: dict[str, str]) -> None:
        self._server, self._groups = server, groups
        self.held = HeldOverTime.none(groups.kinds, server.allocator.pools, in_words)
        self._look = groups.kind_counts(server.memory.internal_slots, self._finals)
        self._counts = self._look()
        self._since_ps, self._nobody_waits = 0, True
        self._sums = [0] * len(self._counts), [0] * len(self._counts)  # while requests waited, while none did

    @property
    def now(self) -> Sequence[Slots]:
        """What each kind has held since the last decision."""
        server = self._server
        internal = server.memory.internal_slots()
        return self._groups.held_by_kind(server.allocator.used_slots, internal, self._counts)

    def around(self, decide: Callable[[Server], Decision]) -> Callable[[Server], Decision]:
        """Wrap `decide` so that it notes what is held then; nothing changes before the next decision."""
        look, waits = self._look, self._server.waiting

        def decide_and_note(server: Server) -> Decision:
            step, nobody_waits = decide(server), not waits and not server.swapped
            if nobody_waits is not self._nobody_waits or look() != self._counts:
                self.note(nobody_waits)
            return step

        return decide_and_note

    def note(self, nobody_waits: bool) -> None:
        """Sum up what was held until now, and read what is held from now on."""
        self._sum_up()
        self._counts, self._nobody_waits = self._look(), nobody_waits

    def add_left(self, ends: list[int], grown: Grown) -> None:
        """Add what sequences left behind within a span whose steps end at `ends`."""
        if grown[3]:
            left = sum([slots * (ends[-1] - ends[step - 1]) for step, slots in grown[3]])
            self._sums[self._nobody_waits][0] += left

    def counted(self, saturated: Integrals, unsaturated: Integrals) -> HeldOverTime:
        """What was held up to now, given the sums for all layers."""
        self._sum_up()
        rows = [self._told(*each) for each in zip((saturated, unsaturated), self._sums, strict=True)]
        return replace(self.held, saturated=rows[0], unsaturated=rows[1])

    def _sum_up(self) -> None:
        sums, now_ps = self._sums[self._nobody_waits], self._server.now_ps
        passed_ps, self._since_ps = now_ps - self._since_ps, now_ps
        for place, count in enumerate(self._counts):
            sums[place] += count * passed_ps

    def _told(self, whole: Integrals, counts: Sequence[int]) -> Sums:
        return [list(each) for each in self._groups.held_by_kind(whole.used, whole.internal, counts)]

    def _finals(self) -> dict[int, int]:
        living = self._server.batch.living()
        return {seq: request.final_tokens for seq, request in living.items() if request.internal}
