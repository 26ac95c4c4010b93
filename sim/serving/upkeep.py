"""The other work of an allocator, on the clock: calls to the driver, moves, work after steps.

    in admit, grow, release    ->  the step waits         |== map ==|== compute ==========|
    in after_step              ->  while it computes      |== compute ==========|
                                                          |= maps for the next =|

    step = max(compute, what after_step began) + what the step waits for

A call takes the allocator's own `map_ns` or `unmap_ns`. A copy that a step waits for is part of its work
(`copied_tokens`), as copies on write are; one that `after_step` began takes what the cost model says it takes
alone. What is still to do when the server falls idle is done before somebody comes. An allocator for which
all this is nothing has no upkeep at all.
"""

from kvsim.sim.cost.step_cost import CostModel, StepShape
from kvsim.sim.serving.memory import KvMemory
from kvsim.sim.serving.server import Server
from kvsim.sim.serving.totals import UpkeepTotals

PS_PER_NS = 1_000


class Upkeep:
    """The bill of one allocator.

    Parameters
    ----------
    server : Server
        Whose allocator it is.
    """

    def __init__(self, server: Server) -> None:
        self._server, self._allocator = server, server.allocator
        self.totals = UpkeepTotals()
        self._maps = self._unmaps = self._copied = 0  # paid for
        self._background_ps = 0
        self._background_slots = 0

    @staticmethod
    def needed(memory: KvMemory) -> bool:
        """Whether there may ever be anything to pay for."""
        allocator, works = memory.allocator, memory.abilities.after_steps is not None
        beside = works or allocator.moves_on_release or allocator.idles
        return bool(beside or allocator.map_ns or allocator.unmap_ns)

    @property
    def copied_slots(self) -> int:
        """Copied since a step paid last: part of the work of the next that does."""
        return self._allocator.copied_slots - self._copied

    def due(self) -> bool:
        """Whether the step just decided has to pay for anything."""
        allocator = self._allocator
        return bool(
            self._background_ps
            or self._background_slots
            or allocator.maps != self._maps
            or allocator.unmaps != self._unmaps
            or allocator.copied_slots != self._copied
        )

    def step_ps(self, compute_ps: int, cost: CostModel) -> int:
        """The whole step, whose compute takes so long."""
        totals, waited = self.totals, self._calls_ps()
        background = self._background_ps + self._copies_ps(cost)
        totals.waited_ps += waited
        totals.hidden_ps += min(background, compute_ps)
        totals.exceeded_ps += max(background - compute_ps, 0)
        self._settle()
        return max(compute_ps, background) + waited

    def after_step(self) -> None:
        """Let the allocator work while the next step computes; what it did before is still to be paid."""
        allocator = self._allocator
        maps, unmaps, copied = allocator.maps, allocator.unmaps, allocator.copied_slots
        self._server.after_step()
        maps, unmaps = allocator.maps - maps, allocator.unmaps - unmaps
        self._background_ps += (maps * allocator.map_ns + unmaps * allocator.unmap_ns) * PS_PER_NS
        self._background_slots += allocator.copied_slots - copied
        self._maps += maps
        self._unmaps += unmaps
        self.totals.maps, self.totals.unmaps = allocator.maps, allocator.unmaps
        self._copied += allocator.copied_slots - copied

    def pass_steps(self) -> None:
        """Steps have passed that hid all that was done beside them."""
        self.totals.hidden_ps += self._calls_ps()
        self._settle()

    def rest(self) -> None:
        """The server is idle: there is time for everything."""
        self._settle()

    def _calls_ps(self) -> int:
        """Of the calls to the driver that are still to be paid."""
        allocator = self._allocator
        maps, unmaps = allocator.maps - self._maps, allocator.unmaps - self._unmaps
        return (maps * allocator.map_ns + unmaps * allocator.unmap_ns) * PS_PER_NS

    def _copies_ps(self, cost: CostModel) -> int:
        """Of the copies that `after_step` began, by themselves."""
        if not self._background_slots:
            return 0
        tokens = -(-self._background_slots // self._allocator.slots_per_token)
        return max(cost.step_ps(StepShape(copied_tokens=tokens)) - cost.step_ps(StepShape()), 0)

    def _settle(self) -> None:
        allocator = self._allocator
        self._maps, self._unmaps, self._copied = allocator.maps, allocator.unmaps, allocator.copied_slots
        self._background_ps = self._background_slots = 0
        self.totals.maps, self.totals.unmaps = allocator.maps, allocator.unmaps
