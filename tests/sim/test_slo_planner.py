"""The planner that keeps goals: what a replica serves, when one starts or stops, its laws in whole runs."""

import re
from dataclasses import replace
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
from support.cases import draw_case, told

import kvsim
from kvsim.sim.build import build_engine
from kvsim.sim.errors import KvsimError
from kvsim.sim.serving.fleet import FleetConfig
from kvsim.sim.serving.scaling import policy_of
from kvsim.sim.serving.slo_planner import planner_of
from kvsim.sim.workload import PS_PER_S

PROMPT, ANSWER = 1000, 100


class Log:
    """This many requests finish each second, all alike."""

    def __init__(self, per_s):
        self.per_s = per_s
        self.workload = SimpleNamespace(prompt_tokens=np.full(100_000, PROMPT))
        self.output_tokens = np.full(100_000, ANSWER)

    def finished_between(self, from_ps, to_ps):
        return np.arange(round(self.per_s * (to_ps - from_ps) / PS_PER_S))


def load(waiting_tokens=0, decode_tokens=0):
    """A replica whose steps take 10 ms, 0.1 ms per prompt token, and 1 ms per 1,000 tokens of contexts."""
    return SimpleNamespace(
        waiting_tokens=waiting_tokens,
        decode_tokens=decode_tokens,
        capacity_tokens=100_000,
        max_num_batched_tokens=2000,
        max_num_seqs=64,
        step_s=lambda prompts, tokens, sequences, contexts: 0.01 + 1e-4 * tokens + 1e-6 * contexts,
    )


def planner(per_s=1.0, most=8, **given):
    """A planner that has seen the lengths of requests."""
    return planner_of({"look": 5.0, "every": 60.0, **given}, most, Log(per_s))


def test_a_replica_serves_the_largest_batch_within_both_goals():
    """A batch of x takes 10 + 1 x + 1.05 x ms per step: at 50 ms 19, and 19 / (100 x 48.95 ms) requests/s."""
    found = planner(ttft=9.0)
    found._observe(5 * PS_PER_S, [load()], False)
    assert found._served_per_s(load()) == pytest.approx(19 / (ANSWER * 0.04895))
    found = planner(ttft=9.0, tpot=0.001)  # no batch is within it: what one alone takes
    found._observe(5 * PS_PER_S, [load()], False)
    assert found._served_per_s(load()) == pytest.approx(1 / (ANSWER * 0.01205))
    found = planner(ttft=0.13)  # a prompt alone takes 110 ms, and beside a batch of x 2.05 x more
    found._observe(5 * PS_PER_S, [load()], False)
    assert found._served_per_s(load()) == pytest.approx(9 / (ANSWER * 0.02845))


def test_the_least_is_what_the_requests_of_the_last_interval_need():
    """3.88 requests/s per replica: 20 per second need six; looks in between do not go below."""
    found = planner(20.0, ttft=9.0)
    assert [found.target(5 * look, [load()], 1) for look in range(1, 12)] == [1] * 11
    assert found.target(60, [load()], 1) == 6
    assert found.target(65, [load()] * 6, 6) == 6
    found.log.per_s = 5
    assert [found.target(5 * look, [load()] * 6, 6) for look in range(14, 24)] == [6] * 10
    assert [found.target(120, [load()] * 6, 6), found.target(125, [load()] * 5, 5)] == [5, 4]


def test_the_least_grows_with_the_load():
    least = []
    for per_s in (4, 8, 16, 32):
        found = planner(per_s, most=100, ttft=9.0)
        least.append([found.target(5 * look, [load()], 1) for look in range(1, 13)][-1])
    assert least == [2, 3, 5, 9]


def test_one_comes_when_all_are_late_and_goes_when_the_others_can_do_its_work():
    found = planner(0.2)
    for count, loads in (
        (2, [load(3000)] * 2),  # 4,000 tokens take 420 ms; one alone would have a queue of 6,000, 630 ms
        (3, [load(4000)] * 2),  # 530 ms
        (2, [load(4000), load()]),
        (3, [load(0, 40_000)] * 2),  # TPOT: 10 + 39 + 41 ms
        (2, [load(0, 10_000)] * 2),  # of one alone: 10 + 20 + 21 ms
        (1, [load(0, 5_000)] * 2),  # 10 + 11 + 11 ms
        (1, [load()]),
    ):
        assert found.target(5, loads, len(loads)) == count


def test_nothing_changes_while_a_replica_starts_or_before_anybody_has_finished():
    found = planner(1.0)
    assert found.target(5, [load(9000)], 2) == 2
    assert found.target(10, [load(9000)], 1) == 2
    assert planner(0.0).target(5, [load(9000)], 1) == 1


def test_an_interval_in_which_nobody_finishes_leaves_the_least_as_it_is():
    """As in Dynamo's code, which skips it: mean lengths are 0, so that no rate to serve is known."""
    found = planner(20.0, ttft=9.0)
    assert [found.target(5 * look, [load()], 1) for look in range(1, 13)][-1] == 6
    found.log.per_s = 0
    assert [found.target(5 * look, [load()] * 6, 6) for look in range(13, 40)] == [6] * 27


ASKED = {
    "model": "llama-3.1-8b",
    "gpu": "l40s",
    "replicas": 4,
    "router": "least-requests",
    "num_prompts": 900,
    "startup_time": 2.0,
    "load_bandwidth": 16.0,
}


def mean_replicas(rate, scale, **more):
    run = kvsim.simulate(**{**ASKED, "request_rate": rate, "scale": scale, **more})
    assert run.summary.requests.finished == run.summary.requests.submitted
    return run.summary.scaling


def test_a_load_far_below_what_one_can_do_needs_one_and_twice_the_load_more():
    scale = "slo:ttft=1,tpot=0.06,look=2,every=20"
    assert mean_replicas(0.5, scale, num_prompts=100).mean_replicas == 1
    few, many = (mean_replicas(rate, scale) for rate in (8, 16))
    assert 1 < few.mean_replicas < many.mean_replicas
    assert few.starts > 0


def test_goals_that_are_never_met_take_all():
    scaling = mean_replicas(4.0, "slo:ttft=0.001,tpot=0.001,look=5,every=20", num_prompts=400)
    assert (scaling.starts, scaling.drains) == (3, 0)


def test_goals_are_kept_better_than_by_one_and_cheaper_than_by_all():
    asked = {**ASKED, "num_prompts": 2500, "request_rate": 10.0, "arrivals": "diurnal:120:2"}
    found = [
        kvsim.simulate(**asked, scale=scale, slo="ttft=1s,tpot=60ms").summary
        for scale in ("schedule:0=1", "slo:ttft=1,tpot=0.06,look=2,every=20", "schedule:0=4")
    ]
    attained = [each["slo"]["attained_share"] for each in found]
    hours = [each.scaling.mean_replicas for each in found]
    assert attained[0] < attained[1] <= attained[2]
    assert hours[0] < hours[1] < hours[2]


def test_fast_forward_equals_step_mode():
    moved = 0
    for seed in range(400, 412):
        case = draw_case(Random(seed), "vllm-v1@0.33.0")
        alone = build_engine(replace(case.scenario, fleet=FleetConfig(replicas=3)), case.work).run()
        end_s = alone.end_ps / PS_PER_S
        goals = f"ttft={end_s / 40:.9f},tpot={end_s / 200:.9f}"
        look_ms = max(1, round(1000 * end_s / 30))
        scale = f"slo:{goals},look={look_ms / 1000},every={3 * look_ms / 1000}"
        fleet = FleetConfig(
            replicas=3, router="least-kv", scale=scale, startup_time=end_s / 20, load_bandwidth=1e9
        )
        found = []
        for max_span in (1, 1 << 20):
            deployment = replace(case.scenario, fleet=fleet)
            engine = build_engine(deployment, case.work, max_span=max_span, check=True)
            found.append((told(engine.run()), engine.scaler.changes))
        one, other = found
        assert {name for name in one[0] if one[0][name] != other[0][name]} == set(), seed
        assert one[1] == other[1], seed
        moved += len(one[1]) > 3
    assert moved > 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("slo:size=3", "scale: slo takes ttft, tpot, least, every, look, down, got 'size'"),
        ("slo:tpot=fast", "scale must be schedule"),
    ],
)
def test_mistakes_are_named(text, said):
    with pytest.raises(KvsimError, match=said):
        policy_of(text, 4)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("slo:look=9,every=5", "scale: every must be a whole multiple of look, got 5 and 9"),
        ("slo:look=5,every=7", "scale: every must be a whole multiple of look, got 7 and 5"),
        ("slo:every=10,look=1e-13", "scale: look must be 0.001 to 1,000,000,000 seconds, got 1e-13"),
        ("slo:every=1e300,look=1e-300", "scale: every must be 0.001 to 1,000,000,000 seconds, got 1e+300"),
        ("threshold:every=1e-13", "scale: every must be 0.001 to 1,000,000,000 seconds, got 1e-13"),
        ("slo:ttft=0", "scale: ttft must be above 0, got 0"),
        ("slo:down=2", "scale: down must be above 0 and at most 1, got 2"),
        ("slo:least=1.5", "scale: least must be a whole number, got 1.5"),
        ("slo:ttft=0.1,ttft=9", "scale must have ttft once, got it 2 times"),
        ("schedule:0=1,5=2,5=3", "scale must have second 5 once, got it 2 times"),
        ("schedule:0=1,1e300=2", "scale: a schedule must give whole numbers of replicas from second 0 on"),
    ],
)
def test_intervals_that_cannot_be_and_names_given_twice_have_a_line_of_their_own(text, said):
    with pytest.raises(KvsimError, match=f"^{re.escape(said)}"):
        policy_of(text, 4)


def test_its_defaults_are_dynamos():
    found = policy_of("slo:", 8)
    assert (found.ttft_s, found.tpot_s, found.first, found.every_s, found.plan_looks, found.down) == (
        *(0.5, 0.05, 1, 5.0, 36),
        0.8,
    )
