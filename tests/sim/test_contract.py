"""Every built-in scheduler keeps the rules of sim/contract.py; broken ones are caught, each by its rule."""

import pytest

from kvsim.allocators.base import InvariantError
from kvsim.sim.classes import class_named
from kvsim.sim.contract import check_scheduler
from kvsim.sim.schedulers import SCHEDULERS
from kvsim.sim.schedulers.base import Scheduler
from kvsim.sim.schedulers.orca import Orca
from kvsim.sim.schedulers.vllm_v0 import VllmV0
from kvsim.sim.schedulers.vllm_v1 import VllmV1


@pytest.mark.parametrize("workloads", [3, pytest.param(12, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_built_in_schedulers_keep_the_rules(name, workloads):
    check_scheduler(class_named("scheduler", name, SCHEDULERS, Scheduler), workloads=workloads)


class SwapsWithoutPaying(VllmV0):
    """Forgets the blocks that it moved."""

    def schedule(self, server):
        super().schedule(server)
        server.step.swapped_out_blocks = server.step.swapped_in_blocks = 0


class AsksTheClock(Orca):
    """Admits only at every third decision."""

    asked = 0

    def schedule(self, server):
        self.asked += 1
        if self.asked % 3 == 0 or not server.running:
            super().schedule(server)
        else:
            server.grow_due()


class NeverReleases(Orca):
    """Keeps the memory of whoever is finished."""

    def finish(self, server, request):
        server.depart(request)


class WritesTokensWithoutRoom(VllmV1):
    """Lets sequences decode without the memory for it."""

    def schedule(self, server):
        if not server.running:
            super().schedule(server)


class LosesTime(VllmV0):
    """Hides from the server that the decodes stood still."""

    def schedule(self, server):
        super().schedule(server)
        server.progress.late = False


class Starves(Orca):
    """Sends the newest away again, for ever."""

    def schedule(self, server):
        super().schedule(server)
        for request in list(server.running.values()):
            server.evict(request)


@pytest.mark.parametrize(
    ("broken", "rule"),
    [
        (SwapsWithoutPaying, "what_is_moved_costs_time: .* swapped out, 0 paid for"),
        (AsksTheClock, "decisions_depend_on_state_alone"),
        (NeverReleases, "nobody runs|every_request_ends"),
        (WritesTokensWithoutRoom, "tokens|negative|holds|promised"),
        (LosesTime, "late_tokens_are_late|decisions_depend"),
        pytest.param(Starves, "every_request_ends: 20,000 decisions", marks=pytest.mark.slow),
    ],
)
def test_broken_schedulers_are_caught(broken, rule):
    with pytest.raises(InvariantError, match=rule):
        check_scheduler(broken)
