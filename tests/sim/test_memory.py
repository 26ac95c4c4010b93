"""The KV capacity: given, reported by the paper, or memory x utilisation - weights - activations."""

from dataclasses import replace

import pytest

from kvsim.sim.build import resolve
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.deployment.memory import gpu_memory, kv_capacity
from kvsim.sim.errors import KvsimError
from kvsim.sim.fit.answer import fit
from kvsim.sim.models.catalog import GIB, gpu_named, model_named
from kvsim.sim.models.kv_groups import kv_groups
from kvsim.sim.options.scenario import Scenario

MIB = 2**20


def scenario(model="llama-3.1-8b", gpu="h100", **settings) -> Deployment:
    engine = settings.pop("engine", EngineConfig())
    return Deployment(model=model_named(model), gpu=gpu_named(gpu), engine=engine, **settings)


def test_opt_13b_on_an_a100_holds_what_the_paper_reports():
    capacity = kv_capacity(scenario("opt-13b", "a100-40gb"))
    assert capacity.tokens == 15_744 == 984 * 16
    assert capacity.kv_bytes_per_token == 819_200
    assert capacity.tokens * capacity.kv_bytes_per_token == pytest.approx(12 * GIB, rel=0.001)
    assert "PagedAttention paper" in capacity.reason


@pytest.mark.parametrize("allocator", ["paged", "contiguous", "hybrid", "jenga", "split"])
def test_every_allocator_has_what_the_paper_reported(allocator):
    engine = EngineConfig(allocator=allocator)
    capacity = resolve(scenario("opt-13b", "a100-40gb", engine=engine)).kept.capacity
    assert capacity.tokens == 15_744
    assert "reported by the PagedAttention paper" in capacity.reason


def test_the_papers_number_is_for_its_own_server_only():
    computed = kv_capacity(scenario("opt-13b", "a100-40gb", gpu_memory_utilization=0.91))
    assert computed.tokens != 15_744
    mine = replace(scenario("opt-13b", "a100-40gb"), model=replace(model_named("opt-13b"), layers=39))
    assert "PagedAttention paper" not in kv_capacity(mine).reason


@pytest.mark.parametrize(
    ("model", "gpu", "tp", "tokens"),
    [("opt-66b", "a100-40gb", 4, 9_700), ("opt-175b", "a100-80gb", 8, 60_100)],
)
def test_the_papers_other_servers_hold_what_it_reports(model, gpu, tp, tokens):
    assert kv_capacity(scenario(model, gpu, tensor_parallel_size=tp)).tokens == tokens
    assert kv_capacity(scenario(model, gpu, tensor_parallel_size=2 * tp)).tokens != tokens


def test_given_counts_win():
    papers_own = scenario("opt-13b", "a100-40gb", num_gpu_blocks=100, engine=EngineConfig(block_size=32))
    assert kv_capacity(papers_own).tokens == 3200
    assert kv_capacity(papers_own).reason == "given"
    assert kv_capacity(scenario("opt-175b", "l4", kv_tokens=1000)).tokens == 1000


def test_numbers_of_8_bits_hold_twice_the_tokens():
    tokens = {dtype: kv_capacity(scenario(kv_cache_dtype=dtype)).tokens for dtype in ("auto", "bf16", "fp8")}
    assert tokens["auto"] == tokens["bf16"]
    assert tokens["fp8"] == pytest.approx(2 * tokens["auto"], abs=17)  # the null block
    assert kv_capacity(scenario(kv_cache_dtype="fp8")).kv_bytes_per_token == 65_536


def test_the_papers_number_is_for_16_bits():
    papers = [
        "PagedAttention paper" in kv_capacity(scenario("opt-13b", "a100-40gb", kv_cache_dtype=dtype)).reason
        for dtype in ("auto", "fp16", "fp8")
    ]
    assert papers == [True, True, False]


def test_deepseek_v3_fits_on_eight_h200_and_each_keeps_every_token():
    capacity = kv_capacity(scenario("deepseek-v3", "h200", tensor_parallel_size=8))
    assert capacity.kv_bytes_per_token == 70_272
    assert 500_000 < capacity.tokens < 800_000
    with pytest.raises(KvsimError, match="deepseek-v3 does not fit on 4 x h200"):
        kv_capacity(scenario("deepseek-v3", "h200", tensor_parallel_size=4))


def test_a_slot_is_a_token_unless_layers_are_kept_in_groups():
    plain = kv_capacity(scenario("gemma-3-27b"))
    assert (plain.slots, plain.slots_per_token) == (plain.tokens, 1)
    grouped = kv_capacity(scenario("gemma-3-27b"), kv_groups(model_named("gemma-3-27b")))
    assert grouped.slots_per_token == 7
    assert grouped.slots == pytest.approx((plain.slots + 16) * 62 / 10 - 16, abs=7)
    assert grouped.tokens == grouped.slots // 7 < plain.tokens  # 8 layers of the last group are padding


def test_given_blocks_are_of_one_group_and_given_tokens_of_all():
    groups = kv_groups(model_named("gemma-3-27b"))
    blocks = kv_capacity(scenario("gemma-3-27b", num_gpu_blocks=700), groups)
    assert (blocks.slots, blocks.tokens) == (11_200, 1_600)
    assert kv_capacity(scenario("gemma-3-27b", kv_tokens=1_600), groups).slots == 11_200
    with pytest.raises(KvsimError, match=r"num_gpu_blocks must be at least 7, one of each group .* got 6"):
        kv_capacity(scenario("gemma-3-27b", num_gpu_blocks=6), groups)


def test_the_capacity_is_the_formula():
    sampler = 14 * 256 * 128_256
    free = (
        int((81_559 * MIB - int(0.3 * GIB + 0.003 * 81_559 * MIB)) * 0.9)
        - (2 * 8_030_261_248 + 2 * 2 * 2048 * 4096 + sampler)
        - int(0.15 * GIB)
        - int(0.45 * GIB + 32 * 5.5 * MIB)
    )
    capacity = kv_capacity(scenario())
    assert capacity.tokens == free // 131_072 - 16  # the null block
    assert capacity.reason == (
        "71.2 GiB available (79.1 GiB x 0.9) - weights 15.0 GiB + activations 0.5 GiB + runtime 0.1 GiB + "
        "CUDA graphs 0.6 GiB leaves 55.0 GiB"
    )


@pytest.mark.parametrize(
    ("model", "gpu", "tp", "release"),
    [
        ("llama-3.1-8b", "h100", 1, "0.33.0"),
        ("qwen3-32b", "a100-80gb", 2, "0.33.0"),
        ("qwen3-235b-a22b", "h200", 4, "0.11.0"),
        ("mixtral-8x7b", "h100", 2, "0.33.0"),
    ],
)
def test_a_run_has_the_blocks_that_fit_says_but_the_null_block(model, gpu, tp, release):
    asked = Scenario(model=model, gpu=gpu, tensor_parallel_size=tp, scheduler=f"vllm-v1@{release}")
    found = fit(model, gpu, tensor_parallel_size=tp, engine=f"vllm-v1@{release}")
    assert resolve(asked.deployed()).kept.capacity.tokens // 16 == found.capacity.num_blocks - 1
    assert gpu_memory(asked.deployed()) == {
        **dict.fromkeys(("CUDA graphs",), 0),
        **{line.name: line.bytes for line in found.lines},
    }


def test_more_memory_gpus_or_utilization_hold_more():
    def tokens(**settings) -> int:
        return kv_capacity(scenario(**settings)).tokens

    assert (
        tokens() < tokens(gpu_memory_utilization=0.95) < tokens(gpu="h200") < tokens(tensor_parallel_size=8)
    )
    assert tokens(engine=EngineConfig(max_num_batched_tokens=16_384)) < tokens()


def test_gpus_beyond_the_kv_heads_hold_copies_and_gain_only_from_split_weights():
    two, four, eight = (
        kv_capacity(scenario("qwen2.5-7b", tensor_parallel_size=tp)).tokens for tp in (2, 4, 28)
    )
    assert four > 2 * two
    assert four < eight < 1.1 * four


def test_a_model_that_does_not_fit_says_by_how_much_and_what_would():
    with pytest.raises(KvsimError) as error:
        kv_capacity(scenario("opt-66b", "a100-40gb"))
    assert str(error.value) == (
        "model opt-66b does not fit on 1 x a100-40gb: weights 122.4 GiB + activations 0.6 GiB + runtime "
        "0.1 GiB + CUDA graphs 0.8 GiB need 88.3 GiB more than the 35.6 GiB available (39.6 GiB x 0.9); "
        "try --tensor-parallel-size 4 or a larger GPU"
    )
    kv_capacity(scenario("opt-66b", "a100-40gb", tensor_parallel_size=4))


def test_when_no_split_would_do_the_advice_is_a_larger_gpu():
    with pytest.raises(KvsimError, match=r"on each GPU \(22.1 GiB x 0.5\); try a larger GPU"):
        kv_capacity(scenario("opt-175b", "l4", tensor_parallel_size=16, gpu_memory_utilization=0.5))


def test_room_for_less_than_a_block_is_an_error():
    tight = scenario("opt-13b", "a100-40gb", gpu_memory_utilization=0.635)
    tokens = kv_capacity(tight).tokens
    assert 16 <= tokens < 512
    with pytest.raises(
        KvsimError, match=rf"leave {tokens + 16} tokens of the 25.1 GiB .* at least 512 are needed"
    ):
        kv_capacity(replace(tight, engine=EngineConfig(block_size=512)))
    with pytest.raises(KvsimError, match=r"kv_tokens must be at least one block \(16 tokens\), got 8"):
        kv_capacity(scenario(kv_tokens=8))


def test_an_allocator_without_blocks_takes_any_capacity():
    assert kv_capacity(scenario(kv_tokens=8, engine=EngineConfig(allocator="contiguous"))).tokens == 8
