"""Physics of all shipped profiles: fewer bytes are no slower, no memory beats its datasheet."""

from dataclasses import replace
from itertools import pairwise

import pytest
from support.settings import deployed

from kvsim.sim.cost.calibrated.layer import layer_of
from kvsim.sim.cost.calibrated.parts import Part
from kvsim.sim.cost.calibrated.small_weights import SmallWeights
from kvsim.sim.cost.calibrated.step import StepParts
from kvsim.sim.cost.named import cost_named
from kvsim.sim.cost.profile_files import gpu_and_cost
from kvsim.sim.cost.step_cost import StepShape
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.models.catalog import model_named
from kvsim.sim.models.quantization import quantized

BLACKWELL = ("b200", "b300", "gb200")
GPUS = ("a100-80gb", *BLACKWELL, "h100", "h200", "l40s", "rtx-4090", "rtx-pro-6000-server")
DENSE, EXPERTS = ("llama-3.1-8b", "qwen3-32b", "llama-3.1-70b"), ("qwen3-30b-a3b", "qwen3-235b-a22b")
FEW = (1, 2, 3, 4, 8, 16, 24, 32)


def served(gpu, model, bits=None, tp=1, **choices):
    spec, cost, profile = gpu_and_cost(gpu, None)
    found = quantized(model_named(model), bits) if bits else model_named(model)
    return deployed(
        model=found, gpu=spec, cost=cost, profile=profile, engine=EngineConfig(),
        tensor_parallel_size=tp, **choices,
    )  # fmt: skip


def parts(*server, **choices):
    scenario = served(*server, **choices)
    return StepParts(scenario, scenario.profile["parts"])


def layers_ps(tokens, *server, **choices):
    found = parts(*server, **choices)
    return [found.tokens(n).ps for n in tokens]


def no_slower(some, others):
    return all(one <= other for one, other in zip(some, others, strict=True))


@pytest.mark.parametrize("tp", [1, 4])
@pytest.mark.parametrize("model", DENSE)
@pytest.mark.parametrize("gpu", GPUS)
def test_weights_of_4_bits_decode_no_slower_than_those_of_8_nor_these_than_16(gpu, model, tp):
    four, eight, sixteen = (layers_ps(FEW, gpu, model, bits, tp) for bits in ("awq", "fp8", None))
    assert no_slower(four, eight)
    assert no_slower(four, sixteen)
    if gpu not in BLACKWELL:  # a small product of theirs takes cutlass's fp8 10 us, and 16 bits 9
        assert no_slower(eight, [1.01 * each for each in sixteen])


@pytest.mark.parametrize("model", EXPERTS)
def test_where_no_experts_of_few_bits_were_measured_they_still_decode_no_slower(model):
    four, eight, sixteen = (layers_ps(FEW, "a100-80gb", model, bits) for bits in ("awq", "fp8", None))
    assert no_slower(four, eight) and no_slower(eight, sixteen)


@pytest.mark.parametrize("bits", ["awq", "gptq"])
@pytest.mark.parametrize(("gpu", "model"), [("a100-80gb", "llama-3.1-70b"), ("l40s", "llama-3.1-8b")])
def test_one_client_of_a_model_in_4_bits_waits_for_reading_alone(gpu, model, bits):
    """Published: about 25 ms for 70B on an A100 and 8 ms for 8B on an L40S, for the whole step."""
    scenario = served(gpu, model, bits, host_time="none")
    roofline = replace(scenario, cost="roofline", profile=None)
    one = StepShape(decode_seqs=1, context_tokens=300)
    ours, bound = (cost_named(each.cost, each).step_ps(one) for each in (scenario, roofline))
    assert 0.85 * bound < ours < 1.15 * bound


@pytest.mark.parametrize("norm", [1, 1.5, 3, "max"])
def test_reading_4_bits_hides_unpacking_them_whatever_norm_16_bits_were_fitted_with(norm):
    """One token of 8,192 x 8,192: half a byte per weight at 0.89 of the bandwidth, plus a kernel's start."""
    profile = served("a100-80gb", "llama-3.1-70b").profile["parts"]["product"]
    part = Part("product", profile | {"form": profile["form"] | {"p": norm}})
    byte_ps = 1e12 / (0.89 * 2.039e12)
    found = SmallWeights(part, (8192, 8192), 0.5, byte_ps).priced(1).ps
    moved = 8192 * 8192 / 2 + 2 * (8192 + 8192)
    assert found == pytest.approx(part.t0_ps + moved * byte_ps)


@pytest.mark.parametrize("model", DENSE)
@pytest.mark.parametrize("gpu", GPUS)
def test_prompts_compute_as_long_with_small_weights_as_with_16_bits(gpu, model):
    four, sixteen = (layers_ps((2048, 8192), gpu, model, bits) for bits in ("awq", None))
    assert no_slower(four, sixteen) and no_slower([0.9 * each for each in sixteen], four)


def test_gpt_oss_on_an_a100_is_marlins_on_an_l40s_scaled_and_says_so():
    """Three products of 2,880 x 2,880, 4 of 32 experts per token: 0.53 of the peak; on the L40S 0.46."""
    scenario = served("a100-80gb", "gpt-oss-20b")
    priced = parts("a100-80gb", "gpt-oss-20b").body.products[-1].priced(8192)
    flops = 6 * 8192 * 4 * 2880 * 2880
    assert 0.5 < flops / (priced.ps / 1e12) / 312e12 < 0.55
    cost = cost_named(scenario.cost, scenario)
    shape = StepShape(decode_seqs=8, context_tokens=8000)
    cost.carried_out(shape, cost.step_ps(shape))
    assert "experts w4a16 mxfp4 of l40s, scaled" in cost.outside()


@pytest.mark.parametrize(
    ("gpu", "model", "tokens", "microseconds"),
    [
        ("l40s", "gpt-oss-20b", 2048, 2428),
        ("l40s", "gpt-oss-20b", 128, 700),
        ("l40s", "gpt-oss-120b", 2048, 3943),
        ("h100", "gpt-oss-20b", 2048, 941),
        ("h100", "gpt-oss-120b", 2048, 1766),
    ],
)
def test_experts_that_the_tables_have_take_what_their_rows_say(gpu, model, tokens, microseconds):
    """Routed by a power law, on one GPU. Mixed with shared experts and another kernel: 1.4 to 2.5 times."""
    choices = {"max_model_len": 2048, "gpu_memory_utilization": 0.98} if gpu != "h100" else {}
    priced = parts(gpu, model, **choices).body.products[-1].priced(tokens)
    assert priced.ps / 1e6 == pytest.approx(microseconds, rel=0.1)


@pytest.mark.parametrize(
    ("gpu", "slower"), [("a100-80gb", 2.29), ("l40s", 2.29), ("rtx-pro-6000-server", 2.61), ("h100", 1.0)]
)
def test_prompts_with_attention_sinks_take_tritons_time_where_no_other_kernel_has_them(gpu, slower):
    scenario = served(gpu, "gpt-oss-20b")
    without = replace(scenario, model=replace(scenario.model, sinks=False))
    some, others = (
        StepParts(each, each.profile["parts"]).attention.prompts.priced(1, 2048, 1 << 22)
        for each in (scenario, without)
    )
    assert some.ps == pytest.approx(slower * others.ps)
    assert (("attention sinks", "", 0.0) in [place for place, _ in some.reasons]) == (slower != 1)


@pytest.mark.parametrize("cache", ["auto", "fp8"])
@pytest.mark.parametrize("gpu", GPUS)
def test_no_context_is_read_faster_than_the_datasheet_allows(gpu, cache):
    for model, tp in (("llama-3.1-8b", 1), ("llama-3.1-70b", 8), ("llama-2-13b", 4)):
        scenario = served(gpu, model, tp=tp, kv_cache_dtype=cache)
        found = StepParts(scenario, scenario.profile["parts"])
        least_ps = (
            scenario.served_model.kv_bytes_per_token_per_gpu(tp) / scenario.gpu.bandwidth_bytes_per_s * 1e12
        )
        for seqs in (1, 3, 16, 100, 512):
            for mean in (100, 4096, 50_000, 131_072, 200_000):
                total = seqs * mean
                now, later = found.attention.decode_ends_ps(seqs, total, None, 64)
                assert now >= 0.999999 * total * least_ps
                assert later >= 0.999999 * (total + 64 * seqs) * least_ps


@pytest.mark.parametrize("bits", [None, "fp8", "awq"])
@pytest.mark.parametrize("gpu", GPUS)
def test_no_weights_are_read_faster_than_the_datasheet_allows(gpu, bits):
    for model in DENSE:
        for tp in (1, 8):
            scenario = served(gpu, model, bits, tp)
            least_ps = scenario.model.body_weight_bytes / tp / scenario.gpu.bandwidth_bytes_per_s * 1e12
            assert min(layers_ps(FEW, gpu, model, bits, tp)) > 0.99 * least_ps


@pytest.mark.parametrize("bits", [None, "fp8", "awq"])
@pytest.mark.parametrize("gpu", GPUS)
def test_a_step_of_more_sequences_takes_no_less_but_for_what_was_measured(gpu, bits):
    """Kernels change with the number of tokens, so a few percent less were measured; no more than these."""
    for model, tp in (("llama-3.1-8b", 1), ("llama-3.1-70b", 8), ("qwen3-235b-a22b", 8)):
        found = layers_ps(range(1, 129), gpu, model, bits, tp)
        dips = [1 - later / before for before, later in pairwise(found)]
        assert max(dips) < 0.045, (model, dips.index(max(dips)) + 1, max(dips))


@pytest.mark.parametrize("gpu", GPUS)
def test_a_step_of_more_sequences_of_experts_takes_no_less(gpu):
    """Prices once fell by 5 to 12 %: gpt-oss-120b on an A100 from 1 to 4, DeepSeek-V3 on a B200 from 1."""
    for model, tp in (("gpt-oss-20b", 1), ("gpt-oss-120b", 1), ("deepseek-v3", 8)):
        found = layers_ps(range(1, 129), gpu, model, tp=tp)
        assert all(later > 0.995 * before for before, later in pairwise(found)), model


@pytest.mark.parametrize("gpu", GPUS)
def test_a_longer_context_takes_no_less(gpu):
    for cache in ("auto", "fp8"):
        found = parts(gpu, "llama-3.1-8b", kv_cache_dtype=cache).attention
        for seqs in (1, 8, 64, 256):
            at = [found.decode_ends_ps(seqs, seqs * mean, None, 0)[0] for mean in range(512, 131_072, 1024)]
            assert all(later > 0.98 * before for before, later in pairwise(at))


@pytest.mark.parametrize(
    ("model", "tp"), [("deepseek-v3", 1), ("deepseek-v3", 8), ("kimi-k2", 8), ("deepseek-v2-lite", 4)]
)
def test_latent_attention_has_all_its_products_and_their_weights(model, tp):
    spec = model_named(model)
    layer = layer_of(spec, tp)
    shapes = *layer.products, layer.router
    latent, absorbed, values, out = shapes[:4]
    assert latent == (spec.hidden_size, spec.kv_latent_dim)  # on every GPU
    assert absorbed[1] * spec.head_dim == values[0] * values[1]  # queries in, values out: as many weights
    assert out == (spec.heads // tp * spec.head_dim, spec.hidden_size)
    whole = shapes[0], layer.router  # neither is shared out
    held = sum(one * other for one, other in whole) + tp * sum(
        one * other for one, other in shapes if (one, other) not in whole
    )
    dense = (spec.body_parameters - spec.expert_parameters) / spec.layers
    assert held == pytest.approx(dense, rel=0.01)


def test_deepseek_on_eight_h200_takes_what_its_launches_take():
    """Real servers have a TPOT of 10 to 15 ms with one client; reading alone would take 1.7 ms."""
    scenario = served("h200", "deepseek-v3", tp=8)
    found = cost_named(scenario.cost, scenario)
    one = StepShape(decode_seqs=1, context_tokens=1000)
    assert 9e9 < found.step_ps(one) < 15e9
    found.carried_out(one, found.step_ps(one))
    assert any("latent attention" in each for each in found.outside())
