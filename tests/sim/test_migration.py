"""Running requests that move to other replicas: what is copied, what it costs, and that nothing is lost."""

from dataclasses import replace
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
from support.cases import draw_case, events_of, told

import kvsim
from kvsim import workloads
from kvsim.sim.build import build_engine
from kvsim.sim.deployment.deployment import Pool
from kvsim.sim.errors import KvsimError
from kvsim.sim.options.scenario import Scenario
from kvsim.sim.routers.llumnix import freeness
from kvsim.sim.run import deployment_of, prepare
from kvsim.sim.serving.fleet import FleetConfig
from kvsim.sim.serving.llumnix import Llumnix, migration_of
from kvsim.sim.serving.migration import STAGES
from kvsim.sim.serving.request import State
from kvsim.sim.workload import PS_PER_S, Workload

ASKED = {"model": "llama-3.1-8b", "gpu": "l40s", "replicas": 4, "kv_tokens": 8000, "router": "round-robin"}
BLOCK_BYTES = 16 * 131_072


def seen(place, used, running, head=0, capacity=1000):
    return SimpleNamespace(
        place=place, capacity_tokens=capacity, used_tokens=used, running=running, head_tokens=head
    )


def burst(migrate, rate=12.0, num_prompts=300, check=False, **settings):
    scenario = Scenario(**ASKED | {"migrate": migrate} | settings)
    work = workloads.build("sharegpt", num_prompts=num_prompts, request_rate=rate, burstiness=0.3, seed=1)
    if scenario.policy == "priority":
        work = replace(work, priority=np.arange(num_prompts) % 2)
    engine = build_engine(scenario.deployed(), work, check=check)
    return engine, engine.run()


def test_freeness_is_what_is_free_for_each_request():
    """(1000 - 400) / 3 = 200; a head that needs 700: (1000 - 400 - 700) / 4 = -25; no request: infinite."""
    assert freeness(seen(0, 400, 3)) == 200
    assert freeness(seen(0, 400, 3, head=700)) == -25
    assert freeness(seen(0, 0, 0)) == np.inf


def test_the_least_free_goes_with_the_freest():
    fleet = [seen(0, 900, 4, 500), seen(1, 100, 1), seen(2, 990, 5, 800), seen(3, 500, 2)]  # -80 900 -132 250
    none = [False] * 4
    policy = Llumnix()
    assert policy.pairs(fleet, none, lambda _: False) == [(2, 1), (0, 3)]
    assert policy.pairs(fleet, [False, True, False, False], lambda _: False) == [(2, 3)]
    assert Llumnix(target=300).pairs(fleet, none, lambda _: False) == [(2, 1)]
    assert Llumnix(source=-100).pairs(fleet, none, lambda _: False) == [(2, 1)]
    assert policy.pairs(fleet, none, lambda place: place == 3) == [(2, 1)]  # who preempted takes nobody in
    assert policy.pairs(fleet[1::2], none, lambda place: place == 3) == [(3, 1)]  # and is a source, if free


def test_a_migration_copies_the_blocks_held_and_stops_for_those_of_its_last_stage():
    engine, result = burst("llumnix:last=2,link=1")
    done = [move for move in engine.migrations.moves if not move.given_up]
    assert len(done) > 20
    assert max(move.stages for move in done) > 1
    for move in done:
        assert 1 <= move.last <= 2 + 1  # a block may have begun in the step that was under way
        # 1 GB/s, and 10 us of latency
        assert move.end_ps - move.stop_ps == 10_000_000 + -(-move.last * BLOCK_BYTES * 1000)
    totals = engine.migrations.totals()
    assert totals.copied_bytes == sum(move.copied for move in engine.migrations.moves) * BLOCK_BYTES
    assert result.finished.all()


def test_requests_on_their_way_have_their_seat():
    eager = "llumnix:source=200,target=200,every=0.005"
    engine, result = burst(eager, rate=60.0, num_prompts=200, max_num_seqs=6, router="random", kv_tokens=3000)
    assert engine.migrations.totals().migrations > 20
    assert result.max_running <= 6


def outcome(case, deployment, max_span, watched):
    """The results of a run and its migrations; its memory is empty at the end."""
    engine = build_engine(
        deployment, case.work, max_span=max_span, check=True, events=True, map_instants=watched
    )
    keep_few(engine, case.timeline_rows)
    result = engine.run()
    assert set(np.flatnonzero(~result.finished)) == engine.log.rejected
    for replica in engine.replicas:
        memory = replica.server.memory
        assert not replica.server.batch.moving
        assert not (memory.prefill_held or memory.internal or memory.allocator.used_slots)
    moves = [
        (move.request.index, move.source, move.target, move.copied, move.begin_ps, move.stop_ps, move.end_ps)
        for move in engine.migrations.moves
    ]
    events = [events_of(SimpleNamespace(replica=replica)) for replica in engine.replicas]
    return told(result), moves, events, engine.migrations.totals()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_all_are_served_and_fast_forward_equals_step_mode(asynchronous, request):
    moved, given_up = 0, set()
    for seed in range(request.config.getoption("--fuzz") or 60):
        rng = Random(f"{seed} {asynchronous}")
        case = draw_case(rng, "vllm-v1@0.33.0")
        engine = replace(case.engine, async_scheduling=asynchronous, allocator="paged", reserve=None)
        if engine.policy == "sjf":
            engine = replace(engine, policy="fcfs")
        kv_tokens = rng.choice([case.kv_tokens, 300, 1000])
        case = replace(case, engine=engine, samples=False, kv_tokens=kv_tokens)
        count, router = rng.randint(2, 4), rng.choice(["round-robin", "llumnix", "least-kv"])
        every = rng.choice([0.007, 0.05, 0.3])
        last, stages, link = rng.choice([1, 2, 16]), rng.randint(1, 4), rng.choice(["0.01", "1", "400gb"])
        source = rng.choice([-48, 0, 30, 100, 250])
        migrate = (
            f"llumnix:every={every},last={last},stages={stages},link={link},source={source},target={source}"
        )
        watched = rng.choice([0, 0, 5])  # instants of the map
        fleet = FleetConfig(replicas=count, router=router, migrate=migrate)
        deployment = replace(case.scenario, fleet=fleet)
        one = outcome(case, deployment, 1, watched)
        other = outcome(case, deployment, 1 << 20, watched)
        assert {name for name in one[0] if one[0][name] != other[0][name]} == set(), seed
        assert one[1:] == other[1:], seed
        moved += one[3].migrations
        given_up |= one[3].given_up.keys()
    assert moved > 100
    assert given_up >= {"finished", "no room", "stages"}


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (1, 2)])
def test_each_gpu_copies_its_part_of_a_block(tp, pp):
    engine, _ = burst("llumnix:link=1", tensor_parallel_size=tp, pipeline_parallel_size=pp)
    done = [move for move in engine.migrations.moves if not move.given_up]
    assert done
    for move in done:
        assert move.end_ps - move.stop_ps == 10_000_000 + -(-move.last * BLOCK_BYTES * 1000) // (tp * pp)
    copied = sum(move.copied for move in engine.migrations.moves)
    assert engine.migrations.totals().copied_bytes == copied * BLOCK_BYTES


def test_equal_replicas_under_equal_load_move_nothing():
    """Two requests each, and no replica is full: with the smallest thresholds none is a source."""
    engine, result = burst("llumnix", num_prompts=4, replicas=2, kv_tokens=None)
    assert engine.migrations.moves == []
    assert result.stages is not None
    assert all(not column.any() for column in result.stages.values())


def keep_few(engine, rows):
    """Keep so few timeline instants that they end no spans."""
    for replica in engine.replicas:
        replica.recorder.timeline.most_rows = rows


def stops(scenario, work, max_span):
    engine = build_engine(scenario.deployed(), work, max_span=max_span)
    keep_few(engine, 8)
    result = engine.run()
    times = [
        (each.request.index, each.source, each.begin_ps, each.stop_ps) for each in engine.migrations.moves
    ]
    return times, result.saturated, result.unsaturated


@pytest.mark.parametrize("full", [0, 1])
def test_a_target_whose_step_ends_with_the_sources_is_the_same_in_spans_as_in_steps(full):
    """Steps of 20 ms from 0 on: both end at the same instant, and the target's was first, or not."""
    prompts = np.tile([300, 16] if full == 0 else [16, 300], 12)
    work = Workload("unlike", np.zeros(24, np.int64), prompts, np.full(24, 400))
    asked = ASKED | {"replicas": 2, "kv_tokens": 4000, "cost": "constant:0.02", "async_scheduling": False}
    scenario = Scenario(**asked, migrate="llumnix:every=0.31,source=48,target=96,link=1")
    one, other = (stops(scenario, work, max_span) for max_span in (1, 1 << 20))
    assert one == other
    assert sum(source == full for _, source, _, stop_ps in one[0] if stop_ps) > 3


@pytest.mark.parametrize("cost", ["constant:0.02", "roofline"])
def test_a_request_stops_after_the_step_under_way_also_where_nobody_can_enter(cost):
    """A span goes on while others wait for room, but not beyond the step after which a request moves."""
    work = workloads.build("sharegpt", num_prompts=300, request_rate=12.0, burstiness=0.3, seed=1)
    scenario = Scenario(**ASKED, migrate="llumnix:every=0.31", cost=cost)
    one, other = (stops(scenario, work, max_span) for max_span in (1, 1 << 20))
    assert one == other


def test_who_prefills_stays_behind_all_that_decode_also_where_others_enter():
    """vLLM looks there for the prompt it has begun: else it would wait for requests that entered after it."""
    scenario = Scenario(
        **ASKED, migrate="llumnix:source=48,target=48", max_num_batched_tokens=64, max_num_seqs=64
    )
    work = workloads.build("sharegpt", num_prompts=200, request_rate=12.0, burstiness=0.3, seed=1)
    engine = build_engine(scenario.deployed(), work)
    beside = 0  # requests that entered while another prefilled

    def watch(replica):
        decide, server = replica.decide, replica.server

        def watched(_):
            nonlocal beside
            step = decide(server)
            states = [each.state for each in server.running.values() if each.state != State.FINISHED]
            assert states == sorted(states, key=State.PREFILL.__eq__)
            beside += any(r.sample and r.state == State.DECODE for r in server.running.values()) and (
                State.PREFILL in states
            )
            return step

        replica.decide = watched

    for replica in engine.replicas:
        watch(replica)
    engine.run()
    assert beside > 100


def test_every_token_is_generated_once_wherever_it_is():
    """There is a gap before each token of a request but the first, even if it moved in between."""
    engine, result = burst("llumnix", check=True)
    work = engine.workload
    assert engine.migrations.totals().migrations > 100
    assert result.token_gaps.count == int((work.output_tokens - 1).sum())
    assert sum(each.token_gaps.count for each in engine.results) == result.token_gaps.count
    assert "preempted" in engine.migrations.totals().given_up


def test_a_moved_request_counts_where_it_answers_and_says_when_it_moved():
    engine, result = burst("llumnix")
    last = {move.request.index: move for move in engine.migrations.moves if move.end_ps}
    for row, move in last.items():
        assert result.replica[row] == move.target
        assert [result.stages[name][row] for name in STAGES] == [move.begin_ps, move.stop_ps, move.end_ps]
        assert move.begin_ps <= move.stop_ps < move.end_ps < result.requests["finish_ps"][row]
    assert np.count_nonzero(result.stages["migration_end_ps"]) == len(last)


def test_the_shortest_of_the_lowest_priority_moves():
    engine, _ = burst("llumnix", policy="priority")
    moved = [move.request.priority for move in engine.migrations.moves]
    assert moved.count(1) > 4 * moved.count(0)


def test_in_a_burst_fewer_are_preempted_and_first_tokens_come_sooner():
    """The purpose of Llumnix, if the router ignores memory."""
    stays, moves = (burst(each, 8.0, 400)[1] for each in (None, "llumnix"))
    assert moves.preemptions < 0.8 * stays.preemptions
    ttft_s = [
        np.quantile(result.requests["first_token_ps"] - result.arrival_ps, 0.99) / PS_PER_S
        for result in (stays, moves)
    ]
    assert ttft_s[1] < 0.5 * ttft_s[0]


def test_a_config_repeats_it():
    scenario = Scenario(**ASKED, migrate="llumnix:every=0.1")
    work = workloads.build("sharegpt", num_prompts=200, request_rate=12.0, burstiness=0.3, seed=1)
    outcome = prepare(scenario.deployed(), work, {}).outcome()
    assert outcome.config["fleet"]["migrate"] == "llumnix:every=0.1"
    assert outcome.summary["migration"]["migrations"] > 10
    again = prepare(deployment_of(outcome.config)[0], work, {}).outcome()
    assert {**again.summary, "simulation": 0} == {**outcome.summary, "simulation": 0}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("often", "migrate must be none, llumnix or llumnix:every=S"),
        ("llumnix:each=3", "migrate must be none, llumnix or llumnix:every=S"),
        ("llumnix:last=0", "migrate must be none, llumnix or llumnix:every=S"),
        ("llumnix:source=nan", "migrate must be none, llumnix or llumnix:every=S"),
        ("llumnix:last=2,last=3", "migrate must have last once"),
        ("llumnix:every=0", "migrate: every must be 0.001 to"),
        ("llumnix:source=5", "migrate: source must be at most target, got 5 and -48"),
    ],
)
def test_what_cannot_be_is_refused(text, said):
    with pytest.raises(KvsimError, match=said):
        migration_of(text)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"replicas": 1}, "migrate must be left out with one replica"),
        ({"migrate": "llumnix:link=wet string"}, "migrate: link"),
        ({"scheduler": "vllm-v0"}, "scheduler must be vllm-v1 with migrate, got vllm-v0"),
        (
            {"allocator": "contiguous", "scheduler": "vllm-v1", "enable_prefix_caching": False},
            "allocator must be paged with migrate, got contiguous",
        ),
        ({"policy": "srpt"}, "policy must be fcfs or priority with migrate, got 'srpt'"),
        ({"model": "gemma-3-12b"}, "model must keep every token in all layers with migrate"),
        ({"kv_offloading_size": "4"}, "kv_offloading_size must be left out with migrate, got '4'"),
        ({"n": 2}, "requests must have one answer each with migrate"),
    ],
)
def test_what_does_not_go_together_is_refused(settings, said):
    with pytest.raises(KvsimError, match=said):
        kvsim.simulate(**{**ASKED, "kv_tokens": None, "migrate": "llumnix", "num_prompts": 5, **settings})


def unlike(rng, case, fleet):
    """Two pools: servers of another speed, memory, number of seats and kind of steps."""
    pools = tuple(
        Pool(
            name,
            "both",
            replicas,
            replace(
                case.scenario,
                engine=replace(
                    case.engine,
                    async_scheduling=rng.random() < 0.5,
                    max_num_seqs=rng.choice([2, 5, case.engine.max_num_seqs]),
                ),
                cost=f"constant:{seconds}",
                kv_tokens=rng.choice([case.kv_tokens, 128, 400, 1000]),
                fleet=FleetConfig(replicas=replicas, router=fleet.router),
            ),
        )
        for name, replicas, seconds in (
            ("one", 1, 0.02),
            ("other", fleet.replicas - 1, rng.choice([0.02, 0.05])),
        )
    )
    return replace(pools[0].server, fleet=fleet, pools=pools)


def test_between_unlike_pools_all_are_served_and_fast_forward_equals_step_mode(request):
    moved, across = 0, 0
    for seed in range(request.config.getoption("--fuzz") or 60):
        rng = Random(f"unlike {seed}")
        case = draw_case(rng, "vllm-v1@0.33.0")
        policy = "fcfs" if case.engine.policy == "sjf" else case.engine.policy
        engine = replace(case.engine, allocator="paged", reserve=None, policy=policy)
        case = replace(case, engine=engine, samples=False, kv_tokens=rng.choice([300, 1000]))
        last, link, source = rng.choice([1, 16]), rng.choice(["0.01", "400gb"]), rng.choice([-48, 30, 250])
        words = f"every={rng.choice([0.007, 0.05])},last={last},link={link},source={source},target={source}"
        router = rng.choice(["round-robin", "llumnix", "least-kv"])
        deployment = unlike(
            rng, case, FleetConfig(replicas=rng.randint(2, 4), router=router, migrate=f"llumnix:{words}")
        )
        one, other = (outcome(case, deployment, span, 0) for span in (1, 1 << 20))
        assert {name for name in one[0] if one[0][name] != other[0][name]} == set(), seed
        assert one[1:] == other[1:], seed
        moved += one[3].migrations
        across += sum(end > 0 and 0 in (source, target) for _, source, target, *_, end in one[1])
    assert (moved > 100, across > 100) == (True, True), (moved, across)


def test_no_request_moves_to_a_memory_too_small_for_all_of_it():
    """Prompts of 3,000 tokens fit in both pools, with their answers only in the first."""
    asked = {
        "model": "llama-3.1-8b",
        "gpu": "l40s",
        "router": "llumnix",
        "max_model_len": 4096,
        "num_prompts": 40,
    }
    asked |= {"trace": "synthetic", "input_len": "3000", "output_len": "600", "request_rate": 20.0}
    pool = "both:1:kv_tokens=14400 both:1:kv_tokens={}"
    large, small = (
        kvsim.simulate(**asked, pool=pool.format(tokens), migrate="llumnix:source=3000,target=3000")
        for tokens in (28800, 3200)
    )
    assert large.summary["migration"]["migrations"] > 0
    assert small.summary["migration"]["migrations"] == 0


@pytest.mark.parametrize(
    ("pool", "said"),
    [
        (
            "both:1 both:1:block_size=32",
            "block_size must be the same in all pools with migrate, got 16 and 32",
        ),
        (
            "both:1 both:1:kv_cache_dtype=fp8",
            "kv_cache_dtype must be the same in all pools with migrate, got auto",
        ),
        ("both:1 both:1:max_model_len=99", "max_model_len must be the same in all pools with migrate, got"),
        (
            "both:1 both:1:tp=2",
            "tensor_parallel_size must be the same in all pools with migrate, got 1 and 2",
        ),
        ("both:1 both:1:scheduler=orca", "scheduler must be vllm-v1 with migrate, got orca"),
        ("prefill:1 decode:2", "pool must have the role both with migrate, got prefill"),
    ],
)
def test_pools_whose_blocks_differ_are_refused(pool, said):
    with pytest.raises(KvsimError, match=said):
        kvsim.simulate(model="llama-3.1-8b", gpu="h100", pool=pool, migrate="llumnix", num_prompts=5)


def test_a_sweep_calls_it_none_where_requests_stay():
    stay = [Scenario(**ASKED, migrate=name).deployed().fleet for name in (None, "none")]
    assert stay[0] == stay[1]
    assert Scenario(**ASKED, migrate="llumnix").deployed().fleet.migrate == "llumnix"
