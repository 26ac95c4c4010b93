"""Data-parallel attention and pipeline stages: a round takes as long as its largest batch."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.sim.build import build_engine
from kvsim.sim.cost.named import cost_named
from kvsim.sim.cost.profile_files import gpu_and_cost
from kvsim.sim.cost.step_cost import Spread, StepShape
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.deployment.memory import kv_capacity
from kvsim.sim.deployment.profile_run import FUSED_ALLREDUCE_BYTES, GRAPH_LAYER_BYTES, RUNTIME_BYTES
from kvsim.sim.errors import KvsimError
from kvsim.sim.models.catalog import gpu_named, model_named
from kvsim.sim.validate import Point, compare_point, workload_of

ENGINE = EngineConfig(max_num_seqs=64, max_num_batched_tokens=1024, max_model_len=4096)
H200, COST, PROFILE = gpu_and_cost("h200", None)
DENSE = Deployment(
    model=model_named("llama-3.1-70b"), gpu=gpu_named("h100"), engine=ENGINE, tensor_parallel_size=4
)
EXPERTS = Deployment(
    model=model_named("qwen3-30b-a3b"), gpu=H200, cost=COST, profile=PROFILE, engine=ENGINE,
    enable_expert_parallel=True,
)  # fmt: skip
SERVERS = [
    replace(DENSE, pipeline_parallel_size=3),
    replace(EXPERTS, data_parallel_size=4),
    replace(EXPERTS, data_parallel_size=2, pipeline_parallel_size=2, cost="roofline", profile=None),
]
COSTS = [cost_named(server.cost, server) for server in SERVERS]


@given(st.sampled_from(COSTS), st.integers(1, 300), st.integers(1, 2000), st.integers(1, 40))
def test_a_span_is_its_steps_one_by_one(cost, seqs, mean, steps):
    contexts = seqs * mean + seqs // 2
    each = [
        cost.step_ps(StepShape(decode_seqs=seqs, context_tokens=contexts + i * seqs)) for i in range(steps)
    ]
    assert list(cost.span_ps(seqs, contexts, steps)) == each
    ends = [sum(each[: i + 1]) for i in range(steps)]
    for limit in (0, each[0], ends[-1] // 2, ends[-1]):
        found = cost.span_ends(seqs, contexts, steps, limit)
        assert found == ends[: len(found)]
        assert found[-1] >= limit and (len(found) == 1 or found[-2] < limit)


@pytest.mark.parametrize("server", SERVERS)
def test_a_round_is_its_largest_batch_and_the_hops(server):
    batch = cost_named(server.cost, replace(server, pipeline_parallel_size=1))
    if server.data_parallel_size > 1:
        batch = batch._batch
    count, cost = server.batches, cost_named(server.cost, server)
    whole = StepShape(1000 * count, 500_000 * count, count, 8 * count, 8 * count * 700)
    of_one = StepShape(1000, 500_000, 1, 8, 8 * 700)
    hops = cost.step_ps(whole) - batch.step_ps(of_one)
    rows = 1000 + 8
    moved = rows * 2 * server.model.hidden_size * server.model.dtype_bytes
    stages = server.pipeline_parallel_size
    between = 1 if server.gpus > 8 else 0  # twelve GPUs stand in two nodes
    moving = (stages - between) / server.gpu.link_bytes_per_s + between / server.gpu.network_bytes_per_s
    assert abs(hops - (1e12 * (stages * 5e-6 + moved * moving) if stages > 1 else 0)) <= 1


def test_idle_ranks_are_bubbles():
    cost, count = COSTS[0], SERVERS[0].batches
    alone = cost.step_ps(StepShape(decode_seqs=1, context_tokens=500))
    assert cost.step_ps(StepShape(decode_seqs=count, context_tokens=500 * count)) == alone
    assert cost.step_ps(StepShape(decode_seqs=count + 1, context_tokens=500 * (count + 1))) > alone


def test_spread_contexts_are_those_of_a_rank():
    cost, ranks = COSTS[1], SERVERS[1].data_parallel_size
    tile = cost.context_tile
    of_all = cost.span_ends(
        8 * ranks, 8 * ranks * 640, 5, 1 << 60, Spread(640, 8 * ranks * (640 // tile + 1) * tile)
    )
    of_one = cost._batch.span_ends(8, 8 * 640, 5, 1 << 60, Spread(640, 8 * (640 // tile + 1) * tile))
    assert of_all == of_one


def test_stages_share_weights_and_the_memory_of_a_token():
    one, three = kv_capacity(DENSE).tokens, kv_capacity(SERVERS[0]).tokens
    model = DENSE.model
    freed = (model.weight_bytes / 4 + GRAPH_LAYER_BYTES * model.layers) * (1 - 1 / 3)
    more = freed / (model.kv_bytes_per_token_per_gpu(4) / 3)
    assert three == pytest.approx(3 * one + more, rel=1e-4)


def test_ranks_hold_all_dense_weights_and_a_share_of_the_experts():
    one, four = kv_capacity(EXPERTS).tokens, kv_capacity(SERVERS[1]).tokens
    model = EXPERTS.model
    freed = model.expert_bytes * 3 / 4 - (FUSED_ALLREDUCE_BYTES - RUNTIME_BYTES)
    assert four == pytest.approx(4 * (one + freed / model.kv_bytes_per_token), rel=1e-4)
    given_blocks = replace(SERVERS[1], num_gpu_blocks=100)
    assert kv_capacity(given_blocks).tokens == 4 * 100 * ENGINE.block_size


def test_seats_and_budget_are_those_of_a_rank():
    engine = SERVERS[2].served_engine
    assert (engine.max_num_seqs, engine.max_num_batched_tokens) == (128, 4096)
    assert DENSE.served_engine is DENSE.engine
    assert SERVERS[2].gpus == 4


@pytest.mark.parametrize("server", SERVERS)
def test_fast_forward_and_step_mode_agree(server):
    point = Point("n", "m", "g", "", "", 1, 1, 1, 400, 60, 12, 1.0, 1.0)
    outcomes = [
        build_engine(server, workload_of(point), max_span=span).run().requests for span in (1, 1 << 20)
    ]
    for name, column in outcomes[0].items():
        assert list(column) == list(outcomes[1][name]), name


@pytest.mark.slow
def test_measured_servers_with_data_parallel_attention_are_met():
    """MiniMax-M2.5 in fp8 on four H100, four ranks; no constant was fitted to it."""
    errors = []
    for clients, tpot_s in ((4, 0.010089), (16, 0.015472), (64, 0.025691)):
        point = Point(
            "n",
            "MiniMaxAI/MiniMax-M2.5",
            "h100_sxm",
            "fp8",
            "0.18.0",
            4,
            4,
            4,
            1024,
            1024,
            clients,
            0.1,
            tpot_s,
        )
        errors.append(next(each.off for each in compare_point(point) if each.what == "TPOT"))
    assert max(map(abs, errors)) < 0.12


@pytest.mark.parametrize(
    ("server", "change", "words"),
    [
        (DENSE, {"data_parallel_size": 2}, "data_parallel_size must be 1 for model llama-3.1-70b"),
        (DENSE, {"pipeline_parallel_size": 81}, "pipeline_parallel_size must be at most the 80 layers"),
        (DENSE, {"pipeline_parallel_size": 0}, "pipeline_parallel_size must be a whole number of at least 1"),
        (DENSE, {"pipeline_parallel_size": 2, "cost": "a100-40gb-sosp23"}, "must be 1 for cost"),
    ],
)
def test_what_cannot_be_is_refused(server, change, words):
    with pytest.raises(KvsimError, match=words):
        found = replace(server, **change)
        cost_named(found.cost, found)
