"""A layer's router is launched, in its own precision, if the experts' times do not include it."""

from dataclasses import replace

import pytest
from support.settings import deployed

from kvsim.sim.cost.calibrated.step import StepParts
from kvsim.sim.cost.named import cost_named
from kvsim.sim.cost.profile_files import gpu_and_cost
from kvsim.sim.cost.step_cost import StepShape
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.models.catalog import model_named
from kvsim.sim.models.quantization import quantized

SMALLEST_PS = 2.6e6
"""A launch that moves next to nothing."""


def served(gpu, model, **options):
    spec, cost, profile = gpu_and_cost(gpu, None)
    engine = EngineConfig(options=options)
    return deployed(model=model, gpu=spec, cost=cost, profile=profile, engine=engine, tensor_parallel_size=4)


def launches(tokens, *server, **options):
    where = served(*server, **options)
    return [each.ps for each in StepParts(where, where.profile["parts"]).body.router.launches(tokens)]


def scores_ps(tokens, *server, **options):
    return launches(tokens, *server, **options)[-1]


@pytest.mark.parametrize("bits", ["fp8", None])
def test_a_router_stays_in_16_bits_whatever_the_experts_are(bits):
    model = replace(model_named("qwen3-235b-a22b"), quantization=None)
    served_as = quantized(model, bits) if bits else model
    assert scores_ps(4096, "h100", served_as) == scores_ps(4096, "h100", model)


def test_the_choice_is_a_launch_where_the_tables_experts_were_told_it():
    assert launches(1, "h100", model_named("qwen3-235b-a22b"))[0] == pytest.approx(SMALLEST_PS, rel=0.05)
    assert len(launches(1, "h100", model_named("gpt-oss-120b"))) == 1


@pytest.mark.parametrize("model", ["minimax-m2", "glm-4.5-air"])
def test_routers_in_32_bits_compute_on_cuda_cores_and_twice_as_long_as_16_at_best(model):
    """989 TFLOP/s in 16 bits and 67 in 32 on an H100: with 8,192 tokens and 80 % of the peak."""
    wide = model_named(model)
    assert wide.router_bits == 32 and model_named("qwen3-235b-a22b").router_bits == 16
    flops = 2 * 8192 * wide.hidden_size * wide.experts
    highest = scores_ps(8192, "h100", wide)
    assert highest == pytest.approx(flops / (0.8 * 67e12) * 1e12, rel=0.2)
    high = scores_ps(8192, "h100", wide, float32_matmul_precision="high")
    assert scores_ps(8192, "h100", replace(wide, router_bits=16)) < high < highest / 3


def test_a_product_that_no_table_has_is_told():
    where = served("h100", model_named("minimax-m2"))
    cost = cost_named(where.cost, where)
    shape = StepShape(decode_seqs=8, context_tokens=8000)
    cost.carried_out(shape, cost.step_ps(shape))
    assert any("router in 32 bits" in each for each in cost.outside())
