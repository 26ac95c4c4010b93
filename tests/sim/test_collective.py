"""All-reduces within a node, and over the network beyond it."""

from dataclasses import replace

import pytest

from kvsim import simulate
from kvsim.sim.cost.collective import Group, all_reduce_s, group_of
from kvsim.sim.cost.named import cost_named
from kvsim.sim.cost.profile_files import gpu_and_cost
from kvsim.sim.cost.step_cost import StepShape
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.errors import KvsimError
from kvsim.sim.models.catalog import gpu_named, model_named
from kvsim.sim.models.own_gpu import gpu_of

H100 = gpu_named("h100")
DECODE = StepShape(decode_seqs=16, context_tokens=16_000)
PROMPT = StepShape(prefill_tokens=4096, prefill_pairs=4096 * 2048, prefill_seqs=1)


def server(model, gpu, cost=None, **sizes):
    spec, cost, profile = gpu_and_cost(gpu, cost)
    engine = EngineConfig(max_model_len=8192)
    return Deployment(model=model_named(model), gpu=spec, cost=cost, profile=profile, engine=engine, **sizes)


@pytest.mark.parametrize(
    ("gpu", "count", "stride", "group"),
    [
        ("h100", 8, 1, Group(8)),
        ("h100", 16, 1, Group(8, 2)),
        ("h100", 16, 8, Group(1, 16)),
        ("h100", 4, 4, Group(2, 2)),
        ("gb200", 16, 1, Group(16)),
        ("gb200", 144, 1, Group(72, 2)),
        ("l40s", 12, 1, Group(8, 2)),
    ],
)
def test_a_group_fills_its_nodes(gpu, count, stride, group):
    assert group_of(gpu_named(gpu), count, stride) == group


def test_two_nodes_of_eight_start_as_nccl_says_and_share_eight_networks():
    least_s, each_s = all_reduce_s(H100, Group(8, 2))
    assert least_s == pytest.approx(25.2e-6)  # 6.8 + 2 * (7 * 0.6 + 5)
    slow = replace(H100, network_bytes_per_s=1e9)
    assert all_reduce_s(slow, Group(8, 2))[1] == pytest.approx(1 / 8 / 1e9)  # 2 * 1/2 of an eighth
    assert each_s == all_reduce_s(H100, Group(16))[1]  # 8 x 50 GB/s carry it beside NVLink
    assert all_reduce_s(H100, Group(8, 4))[0] == pytest.approx(least_s + 10e-6)  # a level more, up and down


@pytest.mark.parametrize(("gpu", "count"), [("rtx-pro-6000", 2), ("l40s", 4)])
def test_without_peer_access_every_hop_is_two_copies_through_the_host(gpu, count):
    near = gpu_named(gpu)
    far = replace(near, peer_access=False)
    (_, near_s), (least_s, far_s) = (all_reduce_s(each, Group(count)) for each in (near, far))
    assert least_s == pytest.approx((8.4 + 2 * (count - 1) * 5.7) * 1e-6)
    assert far_s == pytest.approx(2 * near_s)
    assert all_reduce_s(replace(H100, peer_access=False), Group(8)) == all_reduce_s(H100, Group(8))


@pytest.mark.parametrize("cost", ["measured-elsewhere", "roofline"])
def test_a_server_may_lack_peer_access_and_its_profile_s_all_reduces_are_then_outside(cost):
    usual = server("qwen3-32b", "rtx-pro-6000-server", cost, tensor_parallel_size=2)
    through_host = replace(usual, peer_access=False)
    near, far = (cost_named(each.cost, each) for each in (usual, through_host))
    spent = far.step_ps(DECODE) - near.step_ps(DECODE)
    each = {name: all_reduce_s(one.served_gpu, Group(2)) for name, one in
            {"near": usual, "far": through_host}.items()}  # fmt: skip
    size, layers = 16 * 5120 * 2, 64
    if cost == "roofline":
        least, more = (each["far"][i] - each["near"][i] for i in (0, 1))
        assert spent == pytest.approx(2 * layers * (least + size * more) * 1e12, rel=1e-6)
    else:
        assert spent > 2 * layers * 10e6  # more than 10 us each
        far.carried_out(DECODE, far.step_ps(DECODE))
        assert any("through the host" in words for words in far.outside())
    assert cost_named(cost, replace(usual, peer_access=True)).step_ps(DECODE) == near.step_ps(DECODE)


def test_geforce_cards_have_no_peer_access():
    assert not gpu_named("rtx-4090").peer_access and not gpu_named("rtx-5090").peer_access
    assert gpu_named("rtx-pro-6000").peer_access
    near, far = (
        simulate(model="llama-3.1-8b", gpu="rtx-4090", tensor_parallel_size=2, cost="roofline",
                 num_prompts=4, clients=1, peer_access=peer).summary.latency.tpot_s.mean
        for peer in (True, None)
    )  # fmt: skip
    assert far - near == pytest.approx(2 * 32 * (8.4 + 2 * 5.7 - 6) * 1e-6, rel=0.05)
    numbers = {"memory_gib": 24, "bandwidth_gb_per_s": 1008, "bf16_tflops": 165, "pcie_gb_per_s": 32}
    assert not gpu_of({**numbers, "peer_access": False}, "own", "here").peer_access
    with pytest.raises(KvsimError, match="peer_access must be true or false, got 1"):
        gpu_of({**numbers, "peer_access": 1}, "own", "here")


@pytest.mark.parametrize("cost", [None, "roofline"])
@pytest.mark.parametrize(
    ("model", "gpu", "sizes"),
    [
        ("llama-3.1-70b", "h100", {"tensor_parallel_size": 16}),
        ("llama-3.1-70b", "gb200", {"tensor_parallel_size": 8}),
        ("llama-3.1-70b", "l40s", {"tensor_parallel_size": 16}),
        ("deepseek-v3", "h200", {"data_parallel_size": 16}),
        ("deepseek-v3", "h200", {"tensor_parallel_size": 8, "data_parallel_size": 2}),
        ("qwen3-235b-a22b", "b200", {"tensor_parallel_size": 4, "data_parallel_size": 8}),
        ("llama-3.1-70b", "h200", {"tensor_parallel_size": 8, "pipeline_parallel_size": 2}),
    ],
)
def test_groups_beyond_a_node_or_a_profile_have_a_price_and_say_so(model, gpu, sizes, cost):
    scenario = server(model, gpu, cost, **sizes)
    price = cost_named(scenario.cost, scenario)
    narrow = replace(scenario, gpu=replace(scenario.gpu, network_bytes_per_s=1e7))
    slow = cost_named(scenario.cost, narrow)
    crosses = scenario.gpus > scenario.gpu.node_gpus
    for shape in (DECODE, PROMPT):
        assert 0 < price.step_ps(shape) <= slow.step_ps(shape)
        price.carried_out(shape, price.step_ps(shape))
    assert (slow.step_ps(PROMPT) > price.step_ps(PROMPT)) == crosses
    if cost is None:
        assert any("reduce" in each for each in price.outside()) == ("pipeline_parallel_size" not in sizes)


@pytest.mark.parametrize("cost", [None, "roofline"])
def test_a_second_node_costs_what_its_network_takes(cost):
    """The same number of GPUs, eight or sixteen per node: the difference is the network's."""
    there = server("llama-3.1-70b", "h100", cost, tensor_parallel_size=16)
    together = replace(there, gpu=replace(there.gpu, node_gpus=16))
    for shape in (DECODE, PROMPT):
        apart, joined = (cost_named(each.cost, each).step_ps(shape) for each in (there, together))
        assert apart > joined


def test_an_own_gpu_says_how_many_stand_in_a_node_and_what_joins_nodes():
    numbers = {"memory_gib": 48, "bandwidth_gb_per_s": 900, "bf16_tflops": 100, "pcie_gb_per_s": 32}
    usual = gpu_of(numbers, "mine", "file")
    assert (usual.node_gpus, usual.network_bytes_per_s) == (8, 50e9)
    told = gpu_of(numbers | {"node_gpus": 4, "network_gb_per_s": 12.5}, "mine", "file")
    assert (told.node_gpus, told.network_bytes_per_s) == (4, 12.5e9)


@pytest.mark.parametrize("tp", [8, 16])
def test_results_tell_of_the_network(tp):
    gpu = gpu_named("h100")
    found = simulate(
        allocator="paged",
        model="llama-3.1-70b",
        gpu=gpu.name,
        tensor_parallel_size=tp,
        num_prompts=2,
        cost="roofline",
    )
    told = [note for note in found.summary["notes"] if "network" in note]
    assert len(told) == (tp > 8) and all("16 GPUs on nodes of 8" in note for note in told)
