"""Prefill and decode replicas that come and go, each side by its own policy, while others die."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from support.apart import all_free, apart, deaths, run
from support.cases import draw_case, told
from support.seeded import noted

import kvsim
from kvsim.sim.record import metrics
from kvsim.sim.serving.scale_groups import scaled_of
from kvsim.sim.serving.scaling import Threshold
from kvsim.sim.serving.slo_sides import DecodePlanner, PrefillPlanner
from kvsim.sim.workload import PS_PER_S


def policy(rng, most, end_s):
    """A policy for at most `most` replicas, with changes during the run."""
    kind = rng.choice(["schedule", "threshold", "slo"])
    if kind == "schedule":
        steps = ",".join(f"{end_s * share / 4:.9f}={rng.randint(1, most)}" for share in (1, 2, 3))
        return f"schedule:0={rng.randint(1, most)},{steps}"
    every_ms = max(1, round(1000 * end_s / rng.choice([9, 40])))
    if kind == "threshold":
        return f"threshold:queue=1,kv={rng.choice([0.2, 0.5])},every={every_ms / 1000},cool=0"
    return f"slo:look={every_ms / 1000},every={3 * every_ms / 1000}"


def two_policies(rng, prefill, decode, end_s):
    """One policy for both sides, or one for each."""
    if rng.random() < 0.3:
        return policy(rng, min(prefill, decode), end_s)
    found = [
        f"{side}={policy(rng, most, end_s)}" for side, most in (("prefill", prefill), ("decode", decode))
    ]
    goals = {"prefill": f"ttft={end_s / 40:.9f},", "decode": f"tpot={end_s / 200:.9f},"}
    found = [each.replace("slo:", f"slo:{goals[each.split('=')[0]]}") for each in found]
    return rng.choice([" ".join(found), found[0], found[1]])


def served(deployment, case, max_span):
    """The engine and its result; nobody was sent to a replica that was not on."""
    return run(deployment, case, max_span, watched)


def watched(engine):
    """Check each choice of a router against the state of the replica."""
    for each in (engine._dispatcher, engine._second):
        place = each.place

        def checked(request, only=None, place=place):
            found = place(request, only)
            assert found < 0 or engine.scaler._states[found] == "on"
            assert found < 0 or found not in engine.scaler._dead
            return found

        each.place = checked


@noted
def check_seed(seed, faulty):
    rng = Random(f"{seed} {faulty}")
    case = draw_case(Random(seed), "vllm-v1@0.33.0")
    prefill, decode = rng.randint(1, 3), rng.randint(2, 3)
    deployment, case = apart(rng, case, prefill, decode)
    _, plain = run(deployment, case, 1 << 20)
    end_s = plain.end_ps / PS_PER_S
    fail = deaths(rng, prefill + decode, plain.end_ps) if faulty else ""
    scale = two_policies(rng, prefill, decode, end_s)
    fleet = replace(
        deployment.fleet,
        scale=scale,
        fail=fail,
        startup_time=end_s / rng.choice([5, 20, 100]),
        load_bandwidth=1e9,
        direct_decode=rng.choice([0, 0, 8, 40]),
    )
    deployment = replace(deployment, fleet=fleet)
    engine, slow = served(deployment, case, 1)
    other, fast = served(deployment, case, 1 << 20)
    one, two = told(slow), told(fast)
    assert {name for name in one if one[name] != two[name]} == set()
    assert engine.scaler.changes == other.scaler.changes
    assert engine.hand_over.totals() == other.hand_over.totals()
    assert slow.finished.sum() + sum(slow.rejected.values()) == len(case.work)
    all_free(engine)
    all_free(other)
    if engine.deaths is not None:
        assert engine.deaths.lost == other.deaths.lost
    if not faulty:  # an answer is generated once, and each prompt read once
        twice = slow.token_gaps.count - int((slow.output_tokens[slow.finished] - 1).sum())
        assert 0 <= twice <= slow.preemptions  # a token in flight is dropped with its request
        assert np.count_nonzero(slow.stages["read_end_ps"]) == engine.hand_over.totals().requests
    offs_after_frees(engine)
    return engine


def offs_after_frees(engine):
    """A replica that drained is off only when it holds nothing: its last prompt was freed by then."""
    for lives in engine.lives.lives:
        for life in lives:
            freed_ps = [at_ps for _, _, at_ps in getattr(life.server, "freed", ())]
            place = engine.lives.lives.index(lives)
            for at_ps in freed_ps:
                assert at_ps == 0 or is_there(engine.scaler, place, at_ps), (place, at_ps)


def is_there(scaler, place, at_ps):
    """Whether a replica cost something up to that time."""
    state = [each.state for each in scaler.changes if each.place == place and each.at_ps < at_ps]
    return not state or state[-1] != "off"


@pytest.mark.parametrize("faulty", [False, True])
def test_all_are_served_and_fast_forward_equals_step_mode(faulty, request):
    moved = started = died = 0
    for seed in range(request.config.getoption("--fuzz") or 40):
        engine = check_seed(seed, faulty)
        states = [each.state for each in engine.scaler.changes]
        moved += states.count("draining")
        started += states.count("starting")
        died += engine.deaths.lost.deaths if engine.deaths else 0
    assert (moved > 10, started > 10, died > 20 or not faulty) == (True, True, True), (moved, started, died)


def events_of(engine):
    """The events of all replicas and lives, in order of time, as lists."""
    lives = [[metrics.event_table(life.server.events) for life in lives] for lives in engine.lives.lives]
    table = metrics.together([metrics.in_turn(tables) for tables in lives])
    texts = {name: (table[name].codes.tolist(), table[name].texts) for name in ("event", "reason")}
    return texts | {name: str(table[name].tolist()) for name in table if name not in texts}


def test_events_change_nothing_and_are_the_same_in_both_modes():
    lives = 0
    for seed in range(15):
        rng = Random(seed)
        case = draw_case(Random(seed), "vllm-v1@0.33.0")
        deployment, case = apart(rng, case, 2, 2)
        _, plain = run(deployment, case, 1 << 20)
        end_s = plain.end_ps / PS_PER_S
        scale = f"schedule:0=1,{end_s / 5:.9f}=2,{end_s / 2:.9f}=1"
        fleet = replace(deployment.fleet, scale=scale, startup_time=end_s / 20, load_bandwidth=1e9)
        deployment = replace(deployment, fleet=fleet)
        _, silent = run(deployment, case, 1 << 20)
        found = [run(deployment, case, max_span, events=True) for max_span in (1, 1 << 20)]
        assert told(found[0][1]) == told(found[1][1]) == told(silent), seed
        assert events_of(found[0][0]) == events_of(found[1][0]), seed
        lives += max(map(len, found[0][0].lives.lives)) > 1
    assert lives > 10


def test_all_replicas_always_is_no_scaling_also_if_some_die():
    for seed in range(12):
        rng = Random(seed)
        case = draw_case(Random(seed), "vllm-v1@0.33.0")
        deployment, case = apart(rng, case, 2, 2)
        _, plain = run(deployment, case, 1 << 20)
        fail = deaths(rng, 4, plain.end_ps)
        found = [
            run(replace(deployment, fleet=replace(deployment.fleet, fail=fail, scale=scale)), case, 1 << 20)
            for scale in ("", "schedule:0=2", "prefill=schedule:0=2", "decode=schedule:0=2 0=schedule:0=2")
        ]
        for engine, result in found[1:]:
            assert told(result) == told(found[0][1]), seed
            assert engine.hand_over.totals() == found[0][0].hand_over.totals()


ASKED = {
    "model": "llama-3.1-8b",
    "gpu": "h100",
    "pool": "prefill:2 decode:3",
    "num_prompts": 400,
    "request_rate": 30.0,
    "startup_time": 1.0,
    "load_bandwidth": 1e6,
}


def test_a_prefill_replica_that_drains_holds_its_prompts_until_they_are_read():
    """Over a slow link prompts are read long after the replica has computed the last of them."""
    run = kvsim.simulate(**ASKED, kv_transfer_link="1", scale="prefill=schedule:0=2,5=1")
    changes = run.summary["scaling"]["changes"]
    assert [(each["replica"], each["state"]) for each in changes[-2:]] == [(1, "draining"), (1, "off")]
    rows = run.columns.requests
    freed_s = run.columns.timeline
    its = freed_s["replica"] == 1
    last = freed_s["time_s"][its & (freed_s["held"] > 0)].max()
    assert changes[-1]["time_s"] > last > 5.2
    assert changes[-1]["time_s"] in rows["held_until_s"]
    assert run.summary.requests.finished == 400


def test_a_decode_replica_that_drains_finishes_what_it_has():
    run = kvsim.simulate(**ASKED, scale="decode=schedule:0=3,5=1")
    ended = {
        each["replica"]: each["time_s"] for each in run.summary["scaling"]["changes"] if each["time_s"] > 5
    }
    rows = run.columns.requests
    assert set(ended) == {3, 4}
    for place in (3, 4):
        its = rows["replica"] == place
        assert rows["read_begin_s"][its].max() < 5.1
        assert ended[place] == rows["finish_s"][its].max() > 5.5


def test_each_side_has_its_hours_and_cost():
    run = kvsim.simulate(**ASKED, scale="decode=schedule:0=3,5=1", gpu_price=2.0)
    scaling, pools = run.summary["scaling"], run.summary["pools"]
    prefill, decode = scaling["pools"]
    assert [each["role"] for each in scaling["pools"]] == ["prefill", "decode"]
    assert prefill["gpu_hours"] == pytest.approx(2 * run.summary.duration_s / 3600)
    assert (
        decode["gpu_hours"] < decode["gpu_hours_of_all"] == pytest.approx(3 * run.summary.duration_s / 3600)
    )
    assert (prefill["drains"], decode["drains"]) == (0, 2)
    for name in ("gpu_hours", "cost", "mean_replicas"):
        assert prefill[name] + decode[name] == pytest.approx(scaling[name])
    assert [each["gpu_hours"] for each in pools] == [each["gpu_hours"] for each in scaling["pools"]]
    assert [each["cost"] for each in pools] == [each["cost"] for each in scaling["pools"]]
    for row in scaling["over_time"]:
        assert sum(row["replicas_by_pool"]) == pytest.approx(row["replicas"])


def test_the_planner_adds_on_the_side_that_is_late():
    """Long prompts and short answers make prefill late, short prompts and long answers decode."""
    asked = {**ASKED, "pool": "prefill:4 decode:4", "trace": "synthetic", "num_prompts": 1500}
    more = {}
    for name, sizes, rate in (("prompts", (6000, 20), 12.0), ("answers", (100, 600), 60.0)):
        prompt, answer = map(str, sizes)
        run = kvsim.simulate(
            **asked | {"request_rate": rate},
            input_len=prompt,
            output_len=answer,
            scale="slo:ttft=0.5,tpot=0.012,look=1,every=10",
        )
        prefill, decode = run.summary["scaling"]["pools"]
        more[name] = prefill["starts"], decode["starts"]
        assert run.summary.requests.finished == 1500
    assert more["prompts"][0] > 0 == more["prompts"][1], more
    assert more["answers"][0] == 0 < more["answers"][1], more


def test_who_scales_what():
    pools = [("prefill", 2), ("decode", 3)]
    both = scaled_of("slo:ttft=1,tpot=0.1", pools)
    assert [(each.name, each.places) for each in both] == [("prefill", (0, 1)), ("decode", (2, 3, 4))]
    assert [type(each.policy) for each in both] == [PrefillPlanner, DecodePlanner]
    assert [each.policy.most for each in both] == [2, 3]
    (one,) = scaled_of("decode=threshold:queue=1,kv=0.5", pools)
    assert (one.places, type(one.policy)) == ((2, 3, 4), Threshold)
    two = scaled_of("0=schedule:0=1, 5=2  2=slo:", [("both", 2), ("both", 1), ("both", 2)])
    assert [each.places for each in two] == [(0, 1), (3, 4)]
    assert two[0].policy.times_s == [5]


def test_unlike_servers_of_one_role_scale_apart():
    """The first pool is always there, the second comes for the peak."""
    asked = {**ASKED, "pool": "both:1:gpu=h100 both:2:gpu=l40s", "router": "least-requests"}
    run = kvsim.simulate(**asked, scale="1=schedule:0=1,4=2")
    told = run.summary["scaling"]
    assert {each["replica"] for each in told["changes"] if each["time_s"]} == {2}
    assert [each["starts"] for each in told["pools"]] == [0, 1]
    assert run.summary.requests.finished == 400


def test_the_death_of_one_that_never_comes_back_starts_another():
    run = kvsim.simulate(**ASKED, scale="decode=schedule:0=1", fail="replica=2:at=4")
    found = [(each["replica"], each["state"]) for each in run.summary["scaling"]["changes"] if each["time_s"]]
    assert found == [(2, "off"), (3, "starting"), (3, "on")]
    rows = run.columns.requests
    assert run.summary.requests.finished == 400
    waited = (rows["prompt_computed_s"] > 4) & (rows["prompt_computed_s"] < 5)
    assert (rows["read_begin_s"][waited] > 5).all()
    assert waited.sum() > 10


def test_one_that_is_off_cannot_die():
    run = kvsim.simulate(**ASKED, scale="decode=schedule:0=1", fail="replica=4:at=4:for=2")
    assert run.summary.faults.deaths == 0
    assert run.summary.requests.finished == 400


def test_dead_ones_go_first_and_come_back_as_off():
    scale = "decode=schedule:0=3,5=2"
    run = kvsim.simulate(**ASKED, scale=scale, fail="replica=2:at=4:for=4")
    found = [(each["replica"], each["state"]) for each in run.summary["scaling"]["changes"] if each["time_s"]]
    assert found == [(2, "off")]
    assert run.summary.requests.finished == 400


def test_a_queue_counts_on_the_prefill_side_and_memory_on_the_decode_side():
    asked = {**ASKED, "request_rate": 50.0, "num_prompts": 800}
    scale = "prefill=threshold:queue=2,kv=1,every=1,cool=3 decode=threshold:queue=50,kv=0.03,every=1,cool=3"
    run = kvsim.simulate(**asked, scale=scale)
    prefill, decode = run.summary["scaling"]["pools"]
    assert decode["starts"] > 0
    assert run.summary.requests.finished == 800
    assert np.isfinite(run.columns.requests["ttft_s"]).all()
    assert prefill["mean_replicas"] <= 2
