"""Replicas that come and go: when, by which policy, and what they cost."""

from dataclasses import replace
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
from support.apart import deaths
from support.cases import draw_case, told

import kvsim
from kvsim import workloads
from kvsim.reports.memory_map import MemoryMap
from kvsim.sim.build import build_engine
from kvsim.sim.errors import KvsimError
from kvsim.sim.options.scenario import Scenario
from kvsim.sim.run import deployment_of, prepare
from kvsim.sim.serving.fleet import FleetConfig
from kvsim.sim.serving.scaling import Schedule, Threshold, policy_of
from kvsim.sim.workload import PS_PER_S

ASKED = {
    "model": "llama-3.1-8b",
    "gpu": "l40s",
    "replicas": 4,
    "router": "least-requests",
    "num_prompts": 600,
    "request_rate": 20.0,
    "startup_time": 2.0,
    "load_bandwidth": 8.0,
}
WEIGHTS_S = 16_060_522_496 / 8e9


def load(waiting, used=0.0):
    return SimpleNamespace(waiting=waiting, used_share=used)


def changes(run):
    return [(each["time_s"], each["replica"], each["state"]) for each in run.summary["scaling"]["changes"]]


def test_a_schedule_says_how_many_from_when_on():
    policy = policy_of("schedule:0=2,60=5,90.5=1", 6)
    assert policy == Schedule(((0, 2), (60, 5), (90.5, 1)))
    assert (policy.first, policy.times_s) == (2, [60, 90.5])
    assert [policy.target(at_s, [], 0) for at_s in (0, 59, 60, 100)] == [2, 2, 5, 1]


def test_a_threshold_wants_what_brings_the_mean_to_its_target():
    """Two replicas with 12 waiting each, a target of 4: 3 x 2 = 6, the most is 5."""
    policy = policy_of("threshold:queue=4,kv=0.8,cool=0", 5)
    assert policy.target(15, [load(12), load(12)], 2) == 5
    assert policy.target(30, [load(6), load(4)], 2) == 3
    assert policy.target(45, [load(0, 0.9), load(0, 0.9)], 2) == 3
    assert policy.target(60, [load(4), load(4)], 2) == 2
    assert policy.target(75, [load(4, 0.86)], 3) == 3  # within 10 %: those that start stay
    assert policy.target(90, [load(0)] * 4, 4) == 1


def test_fewer_are_wanted_only_when_no_look_within_the_cool_down_wanted_more():
    policy = policy_of("threshold:queue=4,kv=0.8,least=2,cool=60", 8)
    assert policy.target(0, [load(8), load(8)], 2) == 4
    assert [policy.target(at_s, [load(0)] * 4, 4) for at_s in (15, 30, 45, 59)] == [4] * 4
    assert policy.target(61, [load(0)] * 4, 4) == 2


def test_a_replica_starts_drains_and_costs_while_it_is_there():
    run = kvsim.simulate(**ASKED, scale="schedule:0=1,5=3,15=1", gpu_price=2.0)
    scaling, rows = run.summary.scaling, run.columns.requests
    found = changes(run)
    ready_s = 5 + 2 + WEIGHTS_S
    assert found[:4] == [(0, 0, "on"), (0, 1, "off"), (0, 2, "off"), (0, 3, "off")]
    assert found[4:6] == [(5, 1, "starting"), (5, 2, "starting")]
    assert [each[1:] for each in found[6:8]] == [(1, "on"), (2, "on")]
    assert [each[0] for each in found[6:8]] == pytest.approx([ready_s] * 2, rel=1e-3)
    assert found[8:10] == [(15, 2, "draining"), (15, 1, "draining")]
    ended = {place: at_s for at_s, place, state in found[10:] if state == "off"}
    for place in (1, 2):
        its = rows["replica"] == place
        assert ready_s * 0.999 < rows["arrival_s"][its].min() and rows["arrival_s"][its].max() <= 15
        assert ended[place] == rows["finish_s"][its].max()
    hours = (run.summary.duration_s + (ended[1] - 5) + (ended[2] - 5)) / 3600
    assert scaling.gpu_hours == pytest.approx(hours)
    assert scaling.cost == pytest.approx(2 * hours)
    assert scaling.mean_replicas == pytest.approx(hours * 3600 / run.summary.duration_s)
    assert (scaling.starts, scaling.drains) == (2, 2)
    tokens = rows["output_tokens"].sum()
    assert run.summary.price.per_million_output_tokens == pytest.approx(scaling.cost / tokens * 1e6)
    assert run.summary.per_gpu.gpus == pytest.approx(scaling.mean_replicas)
    assert run.summary.requests.finished == 600
    assert set(rows["replica"]) == {0, 1, 2}


def test_means_over_time_are_over_the_time_for_which_replicas_cost_something():
    asked = {**ASKED, "num_prompts": 200, "request_rate": 4.0, "enable_prefix_caching": True}
    fixed = {name: asked[name] for name in asked if name not in ("startup_time", "load_bandwidth")}
    alone = kvsim.simulate(**{**fixed, "replicas": 1}).summary
    one = kvsim.simulate(**asked, scale="schedule:0=1").summary
    assert one.engine.mean_running == pytest.approx(alone.engine.mean_running)
    assert one.memory.average == pytest.approx(alone.memory.average)
    assert one.load.held_back_share == pytest.approx(alone.load.held_back_share)
    assert [each["engine"]["mean_running"] for each in one.replicas[1:]] == [None] * 3
    always = kvsim.simulate(**{**fixed, "replicas": 3}).summary
    some = kvsim.simulate(**asked, scale="schedule:0=3,20=1,30=3,40=2").summary
    assert some.scaling.mean_replicas < 2.8
    running = some.engine.mean_running * some.scaling.mean_replicas
    assert running == pytest.approx(always.engine.mean_running * 3, rel=0.1)
    shares = [each["engine"]["mean_running"] for each in some.replicas]
    assert shares[3] is None and all(share < 1.5 * some.engine.mean_running for share in shares[:3])


def test_a_replica_that_is_off_holds_nothing():
    """What it had cached is gone when it is off: the timeline says so, and the mean counts it until then."""
    asked = {
        **ASKED,
        "num_prompts": 200,
        "enable_prefix_caching": True,
        "replicas": 2,
        "shared_prefix": "2x300",
    }
    run = kvsim.simulate(**asked, scale="schedule:0=2,5=1")
    off_s = next(at_s for at_s, place, state in changes(run)[2:] if (place, state) == (1, "off"))
    rows = run.columns.timeline
    its = rows["replica"] == 1
    cached, at_s = rows["cached"][its], rows["time_s"][its]
    assert cached[at_s < off_s].max() > 0 and cached[-1] == 0
    assert at_s[-1] == pytest.approx(off_s)
    never = kvsim.simulate(**asked, scale="schedule:0=1").columns.timeline
    assert never["time_s"][never["replica"] == 1].tolist() == [0]


def test_the_memory_map_follows_a_replica_through_its_lives(tmp_path):
    asked = {**ASKED, "num_prompts": 200, "request_rate": 5.0, "replicas": 2, "kv_tokens": 40_000}
    asked |= {"scale": "schedule:0=2,4=1,25=2", "enable_prefix_caching": True, "shared_prefix": "2x300"}
    run = kvsim.simulate(**asked, record_map=60)
    assert run.summary.latency == kvsim.simulate(**asked).summary.latency
    run.save(tmp_path / "run")
    off_s, on_s = (
        next(at_s for at_s, place, now in changes(run)[2:] if (place, now) == (1, state))
        for state in ("off", "on")
    )
    assert 4 < off_s < on_s < run.summary.duration_s
    timeline, compared = run.columns.timeline, 0
    for place in (0, 1):
        here, recorded = timeline["replica"] == place, MemoryMap.read(tmp_path / "run" / "map.parquet", place)
        for at_s in np.intersect1d(recorded.instants[:-1], timeline["time_s"][here]):
            row = np.searchsorted(timeline["time_s"][here], at_s, side="right") - 1
            compared += 1
            assert recorded.at(at_s).filled.sum() == timeline["token"][here][row], (place, at_s)
    assert compared > 20
    assert off_s in recorded.instants
    arena = recorded.at(off_s)
    assert (arena.size.sum(), arena.filled.sum(), arena.cached.any()) == (40_000, 0, False)
    assert max(recorded.instants) > on_s and recorded.at(on_s + 5).filled.any()


def test_load_replicas_and_attainment_share_a_time_axis():
    run = kvsim.simulate(**ASKED, scale="schedule:0=1,5=3,15=1", slo="ttft=500ms")
    over, rows = run.summary.scaling.over_time, run.columns.requests
    width_s = run.summary.duration_s / len(over)
    assert [each["time_s"] for each in over] == pytest.approx([width_s * place for place in range(len(over))])
    assert sum(each["requests_per_s"] for each in over) * width_s == pytest.approx(600)
    mean = sum(each["replicas"] for each in over) / len(over)
    assert mean == pytest.approx(run.summary.scaling.mean_replicas)
    counts = [round(each["requests_per_s"] * width_s) for each in over]
    good = sum(each["attained_share"] * count for each, count in zip(over, counts, strict=True) if count)
    assert good == pytest.approx((rows["ttft_s"] <= 0.5).sum())


def test_a_replica_that_drains_is_kept_on_if_it_is_wanted_again():
    run = kvsim.simulate(**ASKED, scale="schedule:0=2,10=1,11=2")
    assert changes(run)[4:] == [(10, 1, "draining"), (11, 1, "on")]
    assert run.summary.scaling.gpu_hours == pytest.approx(2 * run.summary.duration_s / 3600)


def test_one_that_is_switched_off_while_it_starts_never_serves():
    run = kvsim.simulate(**ASKED, scale="schedule:0=1,5=2,6=1,6.5=2")
    found = changes(run)[4:]
    assert found[:3] == [(5, 1, "starting"), (6, 1, "off"), (6.5, 1, "starting")]
    assert found[3][0] == pytest.approx(6.5 + 2 + WEIGHTS_S, rel=1e-3)
    assert len(found) == 4


def test_a_replica_begins_empty_each_time():
    asked = {**ASKED, "enable_prefix_caching": True, "shared_prefix": "1x1000", "request_rate": 5.0}
    run = kvsim.simulate(**asked, scale="schedule:0=2,10=1,60=2")
    timeline = run.columns.timeline
    its = timeline["replica"] == 1
    before = timeline["cached"][its & (timeline["time_s"] > 40) & (timeline["time_s"] < 60)]
    after = timeline["cached"][its & (timeline["time_s"] > 60) & (timeline["time_s"] < 62)]
    assert before.max(initial=1) > 0
    assert not after.any()


def test_all_replicas_always_is_no_scaling():
    plain, scaled = (kvsim.simulate(**ASKED, scale=scale) for scale in ("none", "schedule:0=4"))
    for name, column in plain.columns.requests.items():
        assert column.tobytes() == scaled.columns.requests[name].tobytes(), name
    assert scaled.summary.scaling.gpu_hours == pytest.approx(scaled.summary.scaling.gpu_hours_of_all)


def test_a_threshold_follows_the_load():
    asked = {**ASKED, "num_prompts": 3000, "max_num_seqs": 24, "arrivals": "diurnal:120:2"}
    run = kvsim.simulate(**asked, scale="threshold:queue=2,kv=0.8,every=5,cool=20")
    assert run.summary.requests.finished == 3000
    assert run.summary.scaling.starts > 1
    assert 1 < run.summary.scaling.mean_replicas < 4


@pytest.mark.parametrize("scheduler", ["vllm-v1@0.33.0", "vllm-v0", "orca", "sglang"])
def test_with_scaling_all_are_served_and_fast_forward_equals_step_mode(scheduler):
    moved = 0
    for seed in range(300, 310):
        rng = Random(seed)
        case = draw_case(rng, scheduler)
        end_s = (
            build_engine(replace(case.scenario, fleet=FleetConfig(replicas=3)), case.work).run().end_ps
            / PS_PER_S
        )
        steps = ",".join(f"{end_s * share / 4:.9f}={rng.randint(1, 3)}" for share in (1, 2, 3))
        scale = rng.choice(
            [
                f"schedule:0={rng.randint(1, 3)},{steps}",
                f"threshold:queue=1,kv=0.5,every={end_s / 9:.9f},cool=0",
            ]
        )
        router = ("least-kv", "round-robin", "least-requests")[seed % 3]
        fleet = FleetConfig(
            replicas=3, router=router, scale=scale, startup_time=end_s / 20, load_bandwidth=1e9
        )
        if seed % 2:
            fleet = replace(fleet, fail=deaths(rng, 3, round(end_s * PS_PER_S)))
        found = []
        for max_span in (1, 1 << 20):
            deployment = replace(case.scenario, fleet=fleet)
            engine = build_engine(deployment, case.work, max_span=max_span, check=True)
            result = engine.run()
            assert set(np.flatnonzero(~result.finished)) == engine.log.rejected
            found.append((told(result), engine.scaler.changes))
            for replica in engine.replicas:
                assert not replica.input_queue.has_requests
                assert not replica.server.allocator.used_slots
        one, other = found
        assert {name for name in one[0] if one[0][name] != other[0][name]} == set(), seed
        assert one[1] == other[1], seed
        moved += len(one[1]) > 3
    assert moved > 3


def test_a_config_repeats_it():
    scenario = Scenario(
        model="llama-3.1-8b",
        pool="both:1:gpu=h100 both:2:gpu=l40s",
        scale="schedule:0=1,2=3",
        startup_time=1.0,
    )
    work = workloads.build("sharegpt", num_prompts=120, request_rate=20.0, burstiness=1.0, seed=1)
    outcome = prepare(scenario.deployed(), work, {}).outcome()
    assert outcome.config["fleet"]["startup_time"] == 1.0
    again = prepare(deployment_of(outcome.config)[0], work, {}).outcome()
    assert {**again.summary, "simulation": 0} == {**outcome.summary, "simulation": 0}


@pytest.mark.parametrize("where", [{}, {"replicas": 1, "pool": "both:1:gpu=h100 both:3"}])
def test_a_sweep_compares_with_all_replicas_always(where):
    few = {**ASKED, "num_prompts": 40, "gpu_price": 1.0, "jobs": 1, **where}
    rows = kvsim.sweep(**few, scale=["none", "schedule:0=4", "schedule:0=2"])
    assert list(rows.status) == ["finished"] * 3
    none, four, two = (
        rows[rows.scale.str.startswith(at)].iloc[0] for at in ("none", "schedule:0=4", "schedule:0=2")
    )
    name = "price.per_million_output_tokens"
    assert none[name] == four[name] > two[name]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"scale": "often"}, "scale must be schedule:SECOND=REPLICAS"),
        ({"scale": "schedule:"}, "scale: a schedule must give whole numbers of replicas from second 0 on"),
        ({"scale": "schedule:1=2"}, "scale: a schedule must give whole numbers of replicas from second 0 on"),
        ({"scale": "schedule:0=2,9=1,5=2"}, "from second 0 on, in order, up to second 1,000,000,000"),
        ({"scale": "schedule:0=2,5=1.5"}, "got 'schedule:0=2,5=1.5'"),
        ({"scale": "schedule:0=5"}, "scale must ask for 1 to 4 replicas, as many as there are, got 'sch"),
        ({"scale": "schedule:0=0"}, "scale must ask for 1 to 4 replicas, as many as there are, got 'sch"),
        ({"scale": "threshold:queue=0"}, "scale: queue must be above 0, got 0"),
        ({"scale": "threshold:queue=nan"}, "scale: queue must be above 0, got nan"),
        ({"scale": "threshold:kv=1.5"}, "scale: kv must be above 0 and at most 1, got 1.5"),
        ({"scale": "threshold:cool=-1"}, "scale: cool must be at least 0 seconds, got -1"),
        ({"scale": "threshold:least=1.5"}, "scale: least must be a whole number, got 1.5"),
        ({"scale": "slo:ttft=0"}, "scale: ttft must be above 0, got 0"),
        ({"scale": "slo:ttft=1,down=2"}, "scale: down must be above 0 and at most 1, got 2"),
        (
            {"scale": "threshold:least=9"},
            "scale must ask for 1 to 4 replicas, as many as there are, got 'thr",
        ),
        ({"scale": "threshold:size=9"}, "scale: threshold takes queue, kv, least, every, cool, got 'size'"),
        ({"scale": "threshold:down=2"}, "scale: threshold takes queue, kv, least, every, cool, got 'down'"),
        ({"load_bandwidth": 2.0}, "startup_time must be left out without scale, got 2"),
        ({"startup_time": 30.0}, "load_bandwidth must be left out without scale, got 8"),
        ({"scale": "none schedule:0=2"}, "a sweep separates policies by ;"),
        ({"replicas": 1, "scale": "slo:ttft=1"}, "scale must be left out with one replica"),
        ({"scale": "prefill=schedule:0=2"}, "scale must not name a pool, as there is one, got 'prefill'"),
        ({"scale": "0=none"}, "scale: replicas without a policy do not scale; leave out '0=none'"),
        (
            {"scale": "threshold: schedule:0=2"},
            "scale must have one policy for all replicas, or one per name",
        ),
    ],
)
def test_mistakes_in_scaling_are_named(settings, said):
    with pytest.raises(KvsimError, match=said):
        kvsim.simulate(**{**ASKED, **settings})


def test_the_policy_of_a_text():
    assert policy_of("threshold:", 4) == Threshold(4.0, 0.8, 1, 4, 15.0, 300.0)


def test_a_look_lets_nobody_into_a_step_that_began_before_they_came():
    """Steps of 50 ms, looks every 10 ms: some find a replica in whose step a request has arrived."""
    asked = {
        **ASKED,
        "cost": "constant:0.05",
        "router": "round-robin",
        "request_rate": 3.0,
        "num_prompts": 300,
    }
    plain = kvsim.simulate(**asked, scale="threshold:least=4,every=1000000")
    watched = kvsim.simulate(**asked, scale="threshold:least=4,every=0.01")
    rows = watched.columns.requests
    assert (rows["first_scheduled_s"] >= rows["arrival_s"]).all()
    for name, column in plain.columns.requests.items():
        assert column.tobytes() == rows[name].tobytes(), name


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("startup_time", float("nan"), "startup_time must be a finite number of at least 0, got nan"),
        ("load_bandwidth", None, "load_bandwidth must be a finite number of at least 0, got None"),
        ("load_bandwidth", 0, "load_bandwidth must be above 0, got 0"),
    ],
)
def test_a_fleet_made_in_python_is_checked_too(name, value, said):
    with pytest.raises(KvsimError, match=said):
        FleetConfig(replicas=2, scale="threshold:", **{name: value})
