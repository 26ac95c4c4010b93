"""All built-in schedulers keep the rules of sim/contract.py; broken ones are each caught by their rule."""

import json
from collections import deque

import numpy as np
import pytest

from kvsim.allocators.base import InvariantError
from kvsim.allocators.paged import Paged
from kvsim.sim.classes import class_named
from kvsim.sim.contract import CountedCost, check_scheduler
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.record.request_log import RequestLog
from kvsim.sim.schedulers import SCHEDULERS
from kvsim.sim.schedulers.base import Scheduler
from kvsim.sim.schedulers.orca import Orca
from kvsim.sim.schedulers.vllm_v0 import VllmV0
from kvsim.sim.schedulers.vllm_v1 import VllmV1
from kvsim.sim.serving.engine import Engine
from kvsim.sim.serving.replica import Replica
from kvsim.sim.serving.reservation import reservation
from kvsim.sim.workload import PS_PER_S, Workload


@pytest.mark.parametrize("workloads", [3, pytest.param(12, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_built_in_schedulers_keep_the_rules(name, workloads):
    check_scheduler(class_named("scheduler", name, SCHEDULERS, Scheduler), workloads=workloads)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("method", ["ngram", "eagle3", "mtp", "draft_model"])
def test_vllm_v1_keeps_the_rules_with_drafts(method, caching, asynchronous):
    if method == "ngram" and asynchronous:
        method = "ngram_gpu"  # on the host it is synchronous
    said = {"method": method, "num_speculative_tokens": 3, "synthetic_acceptance_rates": [0.8, 0.6, 0.5]}
    said |= {"model": "tiny"} if method == "draft_model" else {}
    said |= {"num_nextn_predict_layers": 2} if method == "mtp" else {}
    options = {"speculative_config": json.dumps(said), "enable_prefix_caching": caching}
    check_scheduler(VllmV1, workloads=3, async_scheduling=asynchronous, **options)


class LosesDrafts(VllmV1):
    """Forgets rejected drafts in every third step."""

    def schedule(self, server):
        super().schedule(server)
        if server.steps % 3 == 2 and self.steps.taken:
            self.steps.taken.pop()


def test_a_scheduler_that_loses_what_it_verifies_is_caught():
    said = {"method": "eagle3", "num_speculative_tokens": 3, "synthetic_acceptance_length": 2}
    with pytest.raises(InvariantError):
        check_scheduler(LosesDrafts, workloads=3, speculative_config=json.dumps(said))


class SwapsWithoutPaying(VllmV0):
    """Forgets the blocks that it moved."""

    def schedule(self, server):
        super().schedule(server)
        server.step.moved = None


class AsksTheClock(Orca):
    """Admits only at every third decision."""

    asked = 0

    def schedule(self, server):
        self.asked += 1
        if self.asked % 3 == 0 or not server.running:
            super().schedule(server)
        else:
            server.grow_due()


class ShortestFirst(Scheduler):
    """The page of the documents, `docs/own-scheduler.md`, in short: it sorts what waits."""

    def schedule(self, server):
        server.grow_due()
        server.waiting = deque(sorted(server.waiting, key=lambda request: request.known_tokens))
        while server.waiting and len(server.running) < self.config.max_num_seqs:
            if server.step.preemptions or not server.admit_head(server.waiting[0].known_tokens):
                return


class ShortestFirstInTurn(ShortestFirst):
    """The same, and it says what is not so."""

    serves_in_turn = ("fcfs",)


class FirstThatFits(Scheduler):
    """Looks at all waiting requests, not only at the head."""

    def schedule(self, server):
        server.grow_due()
        for _ in range(len(server.waiting)):
            if len(server.running) == self.config.max_num_seqs or server.step.preemptions:
                return
            if not server.admit_head(server.waiting[0].known_tokens):
                server.waiting.append(server.waiting.popleft())
        server.waiting = deque(sorted(server.waiting, key=lambda request: request.index))


class OrcaOfTheShortest(Orca):
    """A built-in scheduler with a sorted queue."""

    def schedule(self, server):
        server.waiting = deque(sorted(server.waiting, key=lambda request: request.known_tokens))
        super().schedule(server)


@pytest.mark.parametrize("own", [ShortestFirst, FirstThatFits, OrcaOfTheShortest])
def test_who_looks_at_others_than_the_head_decides_alike_in_spans_and_in_steps(own):
    check_scheduler(own, workloads=25)


class TurnsAwayLongPrompts(Orca):
    """Prompts of more than 30 tokens can never be served."""

    def refusal(self, server, request, sequences):
        too_long = request.prompt_tokens > 30
        return "too long" if too_long else super().refusal(server, request, sequences)


@pytest.mark.parametrize("max_span", [1, 1 << 20])
def test_who_can_never_be_served_is_turned_away_by_the_schedulers_own_rule(max_span):
    row = np.arange(10)
    work = Workload("long and short", row * PS_PER_S, np.where(row % 2, 40, 20), np.full(10, 5))
    chosen = TurnsAwayLongPrompts(EngineConfig(scheduler="own", max_num_batched_tokens=256), 256)
    server = chosen.new_server(Paged(4096, 16), reservation("max", 256))
    log = RequestLog(work)
    result = Engine(work, log, [Replica(server, chosen, CountedCost(), log, max_span=max_span)], [256]).run()
    assert result.rejected == {"too long": 5}
    assert result.finished.tolist() == [True, False] * 5


class NeverReleases(Orca):
    """Keeps the memory of finished requests."""

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
    """Preempts the newest request again and again, forever."""

    def schedule(self, server):
        super().schedule(server)
        for request in list(server.running.values()):
            server.preempt(request)


@pytest.mark.parametrize(
    ("broken", "rule"),
    [
        (SwapsWithoutPaying, "what_is_moved_costs_time: .* swapped out, 0 paid for"),
        (AsksTheClock, "decisions_depend_on_state_alone: in step 26, step by step .*; there differ"),
        (ShortestFirstInTurn, r"in step \d+, step by step request \d+: admit, but in spans nothing happens"),
        (NeverReleases, "nobody runs|every_request_ends"),
        (WritesTokensWithoutRoom, "tokens|negative|holds|promised"),
        (LosesTime, "late_tokens_are_late|decisions_depend"),
        pytest.param(
            Starves, "every_request_ends: requests preempt each other forever", marks=pytest.mark.slow
        ),
    ],
)
def test_broken_schedulers_are_caught(broken, rule):
    with pytest.raises(InvariantError, match=rule):
        check_scheduler(broken)


def test_a_decision_is_a_record_that_tells_itself():
    told = []

    class Telling(VllmV1):
        def decide(self, server):
            decision = super().decide(server)
            told.append(repr(decision))
            return decision

    work = Workload("two", np.array([0, 0]), np.array([5, 20]), np.array([3, 3]))
    chosen = Telling(EngineConfig(max_num_batched_tokens=16, max_num_seqs=4, async_scheduling=False), 256)
    server = chosen.new_server(Paged(64, 16), reservation("max", 256))
    log = RequestLog(work)
    Engine(work, log, [Replica(server, chosen, CountedCost(), log, max_span=1)], [256]).run()
    assert told == [
        "Decision(prompts=Prompts(chunks=[0:5, 1:11], tokens=16, pairs=81), changed=True)",
        "Decision(decodes=1, prompts=Prompts(chunks=[1:20], tokens=9, pairs=144), changed=True)",
        "Decision(decodes=2)",
        "Decision(decodes=1)",
    ]
