"""Weights of other bits and whole experts on each GPU: bytes, speed, and what is refused."""

from dataclasses import replace

import pytest
from support.settings import deployed

from kvsim.sim.cost.calibrated.layer import expert_precision, layer_of
from kvsim.sim.cost.named import cost_named
from kvsim.sim.cost.profile_files import gpu_and_cost
from kvsim.sim.cost.step_cost import StepShape
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.errors import KvsimError
from kvsim.sim.models.catalog import model_named
from kvsim.sim.models.quantization import BITS, quantized

LLAMA = model_named("llama-3.1-8b")
MOE = replace(
    LLAMA,
    parameters=30_000_000_000,
    active_parameters=4_000_000_000,
    experts=128,
    experts_per_token=8,
    expert_parameters=26_000_000_000,
)


def step_ps(model, gpu="h100", cost="roofline", tp=1, **facts):
    spec, cost, profile = gpu_and_cost(gpu, cost)
    scenario = deployed(
        model=model, gpu=spec, engine=EngineConfig(), cost=cost, profile=profile, tensor_parallel_size=tp,
        host_time="none", **facts,
    )  # fmt: skip
    return cost_named(cost, scenario).step_ps(StepShape(decode_seqs=32, context_tokens=32 * 500))


@pytest.mark.parametrize("name", BITS)
def test_fewer_bits_take_fewer_bytes_in_all_but_the_embeddings(name):
    model = quantized(LLAMA, name)
    embeddings = 2 * LLAMA.vocab_size * LLAMA.hidden_size * 2
    assert model.weight_bytes == pytest.approx(LLAMA.body_parameters * BITS[name] / 8 + embeddings)


@pytest.mark.parametrize("cost", ["roofline", "measured-elsewhere"])
@pytest.mark.parametrize("name", BITS)
def test_fewer_bits_are_faster_where_weights_are_read(cost, name):
    assert step_ps(quantized(LLAMA, name), cost=cost) < step_ps(LLAMA, cost=cost)


def test_mxfp4_is_for_the_experts_alone_where_there_are_some():
    assert quantized(MOE, "mxfp4").quantized_parameters == MOE.expert_parameters
    assert quantized(LLAMA, "mxfp4").quantized_parameters == LLAMA.body_parameters
    assert expert_precision(quantized(MOE, "mxfp4")).parts[0] == "_w4a8_mxfp4_mxfp8"


def test_none_takes_the_published_quantization_away():
    assert quantized(quantized(LLAMA, "fp8"), "none") == LLAMA
    assert quantized(LLAMA, None) is LLAMA


def test_an_unknown_quantization_is_refused():
    with pytest.raises(
        KvsimError, match="quantization must be one of fp8, awq, gptq, mxfp4, nvfp4, none, got 'int3'"
    ):
        quantized(LLAMA, "int3")


def test_expert_parallelism_gives_each_gpu_whole_experts():
    split, shared = layer_of(MOE, 4).experts, layer_of(MOE, 4, expert_parallel=True).experts
    assert (split.local, shared.local) == (128, 32)
    assert shared.inner == pytest.approx(4 * split.inner)
    times = [
        step_ps(MOE, cost="measured-elsewhere", tp=4, enable_expert_parallel=each) for each in (False, True)
    ]
    assert times[0] != times[1] and 0.5 < times[0] / times[1] < 2


def test_expert_parallelism_needs_experts():
    with pytest.raises(KvsimError, match="enable_expert_parallel must be left out for model llama"):
        step_ps(LLAMA, enable_expert_parallel=True)


def test_few_tokens_read_few_experts_and_uneven_ones_fewer():
    def read(tokens, **facts):
        spec, cost, _ = gpu_and_cost("h100", "roofline")
        scenario = deployed(model=MOE, gpu=spec, engine=EngineConfig(), cost=cost, **facts)
        shape = StepShape(decode_seqs=tokens, context_tokens=tokens)
        return cost_named("roofline", scenario).parts_ps(shape)["layers"]

    assert read(1) < read(8) < read(64)
    assert read(8, expert_skew=1.2) < read(8)
    everything = 2 * MOE.body_parameters / (3.35e12 * 0.89) * 1e12
    assert read(200) == pytest.approx(everything, rel=1e-4)
