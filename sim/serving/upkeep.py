"""Times an allocator's other work: calls to the driver, moves, work after steps.

    in admit, grow, release    ->  the step waits         |== map ==|== compute ==========|
    in after_step              ->  while it computes      |== compute ==========|
                                                          |= maps for the next =|

    step = max(compute, what after_step began) + what the step waits for

A call takes the allocator's own `map_ns` or `unmap_ns`. A copy that a step waits for is part of the step's
work (`copied_tokens`), as copies on write are; a copy that `after_step` began takes the time that the cost
model gives for it alone. Work that is left when the server becomes idle is done before the next request
comes. An allocator without any such work has no upkeep at all.
"""

from kvsim.sim.cost.step_cost import CostModel, StepShape
from kvsim.sim.serving.memory import KvMemory
from kvsim.sim.serving.server import Server
from kvsim.sim.serving.totals import UpkeepTotals

PS_PER_NS = 1_000


class Upkeep:
    """The upkeep of one allocator.

    Parameters
    ----------
    server : Server
        The server of the allocator.
    """

    def __init__(self, server: Server) -> None:
        self._server, self._allocator = server, server.allocator
        self.totals = UpkeepTotals()
        self._maps = self._unmaps = self._copied = 0  # paid for
        self._background_ps = 0
        self._background_slots = 0

    @staticmethod
    def needed(memory: KvMemory) -> bool:
        """Whether the allocator may ever need upkeep."""
        allocator, works = memory.allocator, memory.abilities.after_steps is not None
        beside = works or allocator.moves_on_release or allocator.idles
        return bool(beside or allocator.map_ns or allocator.unmap_ns)

    @property
    def copied_slots(self) -> int:
        """Slots copied since a step last paid; part of the work of the next step that pays."""
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
        """Duration of the whole step, given its compute time."""
        totals, waited = self.totals, self._calls_ps()
        background = self._background_ps + self._copies_ps(cost)
        totals.waited_ps += waited
        totals.hidden_ps += min(background, compute_ps)
        totals.exceeded_ps += max(background - compute_ps, 0)
        self._settle()
        return max(compute_ps, background) + waited

    def after_step(self) -> None:
        """Let the allocator work while the next step computes; earlier work is still to be paid."""
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
        """Steps have passed that hid all the work done alongside them."""
        self.totals.hidden_ps += self._calls_ps()
        self._settle()

    def rest(self) -> None:
        """The server is idle: there is time for everything."""
        self._settle()

    def _calls_ps(self) -> int:
        """Time of the driver calls that are still to be paid."""
        allocator = self._allocator
        maps, unmaps = allocator.maps - self._maps, allocator.unmaps - self._unmaps
        return (maps * allocator.map_ns + unmaps * allocator.unmap_ns) * PS_PER_NS

    def _copies_ps(self, cost: CostModel) -> int:
        """Time of the copies that `after_step` began, by themselves."""
        if not self._background_slots:
            return 0
        tokens = -(-self._background_slots // self._allocator.slots_per_token)
        return max(cost.step_ps(StepShape(copied_tokens=tokens)) - cost.step_ps(StepShape()), 0)

    def _settle(self) -> None:
        allocator = self._allocator
        self._maps, self._unmaps, self._copied = allocator.maps, allocator.unmaps, allocator.copied_slots
        self._background_ps = self._background_slots = 0
        self.totals.maps, self.totals.unmaps = allocator.maps, allocator.unmaps
