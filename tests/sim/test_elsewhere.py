"""Profiles measured elsewhere: which GPUs have one, their contents, and that a run keeps what it needs."""

import json
import os
from dataclasses import replace
from importlib import resources
from statistics import median

import pytest
from support.settings import deployed, redeployed

from kvsim.sim.build import resolve
from kvsim.sim.cost.calibrated.layer import Experts, Layer, layer_of
from kvsim.sim.cost.calibrated.model import source
from kvsim.sim.cost.calibrated.needed import needed
from kvsim.sim.cost.calibrated.parts import Part, Product, chosen_experts
from kvsim.sim.cost.calibrated.step import StepParts
from kvsim.sim.cost.named import cost_named
from kvsim.sim.cost.profile_files import find_profile, gpu_and_cost, profile_files, read_profile
from kvsim.sim.cost.roofline import Roofline
from kvsim.sim.cost.step_cost import StepShape
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.deployment.offloading import link_figures
from kvsim.sim.errors import KvsimError
from kvsim.sim.models.catalog import gpu_named, model_named

GPUS = ("a100-80gb", "b200", "b300", "gb200", "h100", "h200", "l40s", "rtx-4090", "rtx-pro-6000-server")
TABLED = tuple(gpu for gpu in GPUS if gpu != "rtx-4090")
"""Measured by kernel, with any shapes; on the other GPU one model's layers were measured."""
FP8 = {"quantization": "fp8", "weight_bits": 8.0, "quantized_parameters": 6_979_321_856}
GPT_OSS = {
    "parameters": 116_829_156_672,
    "active_parameters": 5_100_000_000,
    "layers": 36,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "heads": 64,
    "kv_heads": 8,
    "head_dim": 64,
    "vocab_size": 201_088,
    "experts": 128,
    "experts_per_token": 4,
    "expert_parameters": 36 * 128 * 3 * 2880 * 2880,
    "quantization": "mxfp4",
    "weight_bits": 4.25,
    "quantized_parameters": 36 * 128 * 3 * 2880 * 2880,
}


@pytest.fixture(autouse=True)
def nobody_has_calibrated(tmp_path, monkeypatch):
    monkeypatch.setenv("KVSIM_PROFILES", str(tmp_path / "none"))


def served(gpu="h100", tp=1, model=None, **choices):
    spec, cost, profile = gpu_and_cost(gpu, None)
    model = model or model_named("llama-3.1-8b")
    choices = {"engine": EngineConfig(), "tensor_parallel_size": tp, "cost": cost} | choices
    return deployed(model=model, gpu=spec, profile=profile, **choices)


def model_with(**facts):
    return replace(model_named("llama-3.1-8b"), **facts)


def test_each_of_these_gpus_has_one_and_takes_it_by_itself():
    shipped = [each.gpu for each in profile_files() if each.elsewhere]
    assert tuple(shipped) == GPUS
    for gpu in GPUS:
        spec, cost, profile = gpu_and_cost(gpu, None)
        assert (spec.name, cost, profile["kind"]) == (gpu, "measured-elsewhere", "elsewhere")


@pytest.mark.parametrize(
    ("gpu", "error", "rates", "latency_us"),
    [("h200", "3.7 %", [58.5, 59.7], 7.5), ("h100", "3.7 %", [58.4, 59.3], 5.2)],
)
@pytest.mark.parametrize("asked", ["by cost", "by name"])
def test_our_own_ship_and_are_taken_where_they_are_asked_for(asked, gpu, error, rates, latency_us):
    name = f"{gpu}-triton"
    spec, cost, profile = gpu_and_cost(name, None) if asked == "by name" else gpu_and_cost(gpu, "calibrated")
    assert (spec.name, cost, profile["name"]) == (gpu, "calibrated", name)
    deployment = deployed(model=model_named("llama-3.1-8b"), gpu=spec, cost=cost, profile=profile)
    assert "faults" not in profile
    found = resolve(deployment).deployment
    assert f"error {error} on composed steps, host" in source(found.profile, found)
    link = link_figures("pcie", deployment)
    assert [round(rate, 1) for rate in (link.load_gb_per_s, link.store_gb_per_s)] == rates
    assert (round(link.latency_us, 1), link.source) == (latency_us, f"measured: profile {name}")


@pytest.mark.parametrize("gpu", ["a100-40gb", "h100-pcie", "rtx-5090", "mi300x"])
def test_others_keep_the_roofline(gpu):
    assert gpu_and_cost(gpu, None) == (gpu_named(gpu), "roofline", None)
    with pytest.raises(KvsimError, match="profiles measured elsewhere ship of a100-80gb, b200"):
        gpu_and_cost(gpu, "measured-elsewhere")


def test_the_roofline_can_be_asked_for_and_a_calibration_is_something_else():
    assert gpu_and_cost("h100", "roofline") == (gpu_named("h100"), "roofline", None)
    with pytest.raises(KvsimError, match="cost calibrated needs a measured profile of gpu 'l40s'"):
        gpu_and_cost("l40s", "calibrated")


@pytest.mark.parametrize("gpu", GPUS)
def test_a_shipped_file_is_whole_small_and_says_where_it_is_from(gpu):
    file = resources.files("kvsim.sim.profiles").joinpath(f"{gpu}-vllm.json")
    content = read_profile(find_profile(gpu).path).content
    assert len(file.read_bytes()) < 420_000
    tabled = gpu in TABLED
    source = "ai-dynamo/aiconfigurator at 095f58a" if tabled else "casys-kaist/LLMServingSim 5daddb2"
    assert content["source"] == source
    assert content["licence"].startswith("Apache-2.0" if tabled else "MIT") and "NOTICE" in content["licence"]
    assert content["engine"]["decode"].startswith("vLLM 0.")
    assert content["measured"]["date"] == "2026-11-21"
    assert {part["form"]["p"] for part in content["parts"].values()} <= {1, 1.5, 2, 3}


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize(
    ("part", "most"),
    [("product", 0.06), ("decode", 0.07), ("prefill", 0.10), ("experts", 0.15), ("all_reduce", 0.15)],
)
def test_the_error_on_rows_that_were_held_out_is_small(gpu, part, most):
    for name, content in find_profile(gpu).content["parts"].items():
        known_miss = name == "experts" and gpu == "gb200"  # 15.1 %
        if name.startswith(part) and not known_miss and "scaled_from" not in content:
            assert content["error"]["held_out"]["median"] <= most, name


@pytest.mark.slow
def test_nothing_that_launches_from_the_host_was_taken_for_a_product():
    for gpu in GPUS:
        products = [name for name in find_profile(gpu).content["parts"] if name.startswith("product")]
        assert "product_fp8_block" not in products
        for name in products:
            assert find_profile(gpu).content["parts"][name]["form"]["t0_s"] < 10e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    "scenario",
    [
        served(),
        served("h200", 4, model_named("llama-3.1-70b")),
        served("h200", kv_cache_dtype="fp8"),
        served("b200", model=model_with(**FP8)),
        served("h100", 2, model_with(**GPT_OSS)),
        served("a100-80gb", 8, model_named("deepseek-v3")),
    ],
    ids=["dense", "four GPUs", "fp8 cache", "fp8 weights", "experts", "latent"],
)
def test_a_run_keeps_what_it_needs_and_nothing_changes(scenario):
    kept = replace(scenario, profile=needed(scenario.profile, scenario))
    assert needed(kept.profile, kept) == kept.profile
    assert len(json.dumps(kept.profile)) < len(json.dumps(scenario.profile)) / 4
    whole, part = (cost_named(one.cost, one) for one in (scenario, kept))
    for seqs in (1, 7, 64, 300):
        for shape in (
            StepShape(decode_seqs=seqs, context_tokens=seqs * 900),
            StepShape(700, 700 * 701 // 2, 1, seqs, seqs * 90),
        ):
            assert whole.step_ps(shape) == part.step_ps(shape)
            whole.carried_out(shape, whole.step_ps(shape))
            part.carried_out(shape, part.step_ps(shape))
    assert whole.extrapolated_share == part.extrapolated_share
    assert whole.outside() == part.outside()


def test_every_result_says_measured_elsewhere():
    source = cost_named("measured-elsewhere", served("h100", 2)).source
    assert source.startswith("measured elsewhere: llama-3.1-8b on 2 x h100; profile h100-vllm, ")
    assert "vLLM 0.24.0" in source and "calibrated" not in source


def decode_ps(scenario, seqs=64, context=2000, **facts):
    scenario = redeployed(scenario, **facts)
    shape = StepShape(decode_seqs=seqs, context_tokens=seqs * context)
    return cost_named(scenario.cost, scenario).step_ps(shape)


def test_a_step_is_near_the_roofline_but_not_it():
    scenario = served("h100")
    shape = StepShape(decode_seqs=64, context_tokens=64 * 2000)
    analytic = Roofline(scenario.model, scenario.gpu).step_ps(shape)
    assert 0.7 < decode_ps(scenario, host_time="none") / analytic < 1.4


@pytest.mark.slow
def test_fp8_weights_and_an_fp8_cache_are_faster():
    plain = decode_ps(served("h100"), host_time="none")
    weights = decode_ps(served("h100", model=model_with(**FP8)), host_time="none")
    assert 0.6 * plain < weights < 0.9 * plain
    assert 0.7 * plain < decode_ps(served("h100", kv_cache_dtype="fp8"), host_time="none") < plain


def test_fp8_on_a_gpu_without_it_reads_less_and_counts_as_not_measured():
    scenario = served("a100-80gb", model=model_with(**FP8))
    cost = cost_named(scenario.cost, scenario)
    shape = StepShape(decode_seqs=8, context_tokens=8000)
    cost.carried_out(shape, cost.step_ps(shape))
    assert decode_ps(scenario) < decode_ps(served("a100-80gb"))
    assert "weights of 8 bits" in cost.outside()


FLASH_ATTENTION_2 = ("a100-80gb", "l40s", "rtx-4090", "rtx-pro-6000-server")


def attention_beside_a_prompt_ps(scenario, seqs, context):
    """What decoding sequences add to a step that has a prompt of 256 tokens, as they would be without it."""
    found = cost_named(scenario.cost, scenario)
    prompt = StepShape(256, 256 * 257 // 2, 1)
    few = prompt._replace(decode_seqs=seqs, context_tokens=seqs)
    return found.step_ps(few._replace(context_tokens=seqs * context)) - found.step_ps(few)


@pytest.mark.slow
@pytest.mark.parametrize("gpu", GPUS)
def test_beside_prompts_decoding_takes_longer_where_one_launch_does_both(gpu):
    """Up to group times as long if the keys of a head do not stay in the cache; otherwise as alone."""
    scenario = served(gpu, host_time="none")
    alone = decode_ps(scenario, 128, 8000) - decode_ps(scenario, 128, 1)
    ratio = attention_beside_a_prompt_ps(scenario, 128, 8000) / alone
    if gpu in FLASH_ATTENTION_2:
        assert 2 < ratio < 5
    else:
        assert ratio == pytest.approx(1, abs=0.01)


def test_both_are_launched_at_once_but_by_vllm_v0_and_with_an_fp8_cache():
    usual = served("l40s", host_time="none")
    v0 = replace(usual, engine=EngineConfig(scheduler="vllm-v0"))
    apart = attention_beside_a_prompt_ps(v0, 64, 4000)
    assert attention_beside_a_prompt_ps(usual, 64, 4000) > 1.3 * apart
    eight = replace(usual, kv_cache_dtype="fp8")
    assert attention_beside_a_prompt_ps(eight, 64, 4000) < 1.1 * apart


@pytest.mark.slow
def test_attention_beside_prompts_is_what_was_measured_on_an_rtx_pro_6000():
    """LLMServingSim 5daddb2 (MIT): a layer of Llama-3.1-8B, vLLM 0.19, less what the prompt takes alone."""
    scenario = served("rtx-pro-6000-server", host_time="none")
    measured_us = {
        (8, 4096): 179, (16, 2048): 147, (32, 1024): 158, (32, 4096): 571, (64, 1024): 314, (64, 4096): 1444,
        (128, 1024): 688, (128, 4096): 4301,
    }  # fmt: skip
    off = [abs(attention_beside_a_prompt_ps(scenario, *at) / 32e6 / us - 1) for at, us in measured_us.items()]
    assert median(off) < 0.12
    assert max(off) < 0.25


def test_of_a_4090_another_models_shapes_count_as_not_measured():
    measured, other = (served("rtx-4090", model=model_named(name)) for name in ("llama-3.1-8b", "qwen3-8b"))
    for scenario, outside in ((measured, False), (other, True)):
        cost = cost_named(scenario.cost, scenario)
        shape = StepShape(decode_seqs=8, context_tokens=8000)
        cost.carried_out(shape, cost.step_ps(shape))
        assert bool(cost.outside()) == outside, cost.outside()


def test_few_tokens_choose_few_experts():
    experts = Experts(hidden=2880, inner=2880, top_k=4, experts=128, local=128)
    assert chosen_experts(experts, 1) == pytest.approx(4)
    assert chosen_experts(experts, 32) == pytest.approx(128 * (1 - (31 / 32) ** 32))
    assert chosen_experts(experts, 10_000) == pytest.approx(128)


def test_a_layer_of_experts_has_attention_a_router_and_the_experts():
    layer = layer_of(model_with(**GPT_OSS), 2)
    assert layer == Layer(
        ((2880, 32 * 64 + 2 * 4 * 64), (32 * 64, 2880)),
        (2880, 128),
        Experts(hidden=2880, inner=1440, top_k=4, experts=128, local=128),
    )


@pytest.mark.slow
def test_an_experts_step_takes_longer_with_more_tokens_and_is_measured():
    scenario = served("h100", 2, model_with(**GPT_OSS))
    assert decode_ps(scenario, 1) < decode_ps(scenario, 16) < decode_ps(scenario, 256)
    cost = cost_named(scenario.cost, scenario)
    shape = StepShape(decode_seqs=64, context_tokens=64 * 2000)
    cost.carried_out(shape, cost.step_ps(shape))
    assert not any("expert" in reason for reason in cost.outside()), cost.outside()


def test_the_notice_names_what_ships():
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    with open(os.path.join(root, "NOTICE"), encoding="utf-8") as file:
        notice = file.read()
    for words in ("ai-dynamo/aiconfigurator", "Apache License", "LLMServingSim", "MIT"):
        assert words in notice


def all_reduce_ps(tokens, **choices):
    where = served("b200", 8, model_named("llama-3.1-70b"), **choices)
    parts = StepParts(where, where.profile["parts"])
    return parts.body.over_tp.priced(tokens * where.model.hidden_size * where.model.dtype_bytes).ps


def test_a_fused_all_reduce_is_one_shot_where_that_is_shorter():
    sizes = (1, 4, 16, 32, 64, 512, 8192)
    plain, fused = ([all_reduce_ps(n, fuse_allreduce_rms=on) for n in sizes] for on in (False, True))
    assert all(one <= other for one, other in zip(fused, plain, strict=True))
    assert fused[2] < 0.5 * plain[2]  # vLLM's own takes 26 us for 256 KiB, and 17 for 1 MiB
    assert fused[-1] == plain[-1]
    assert fused[2] - fused[1] == pytest.approx(7 * 12 * 2 * 8192 / 900e9 * 1e12)
    assert fused == sorted(fused)


def test_a_fused_all_reduce_needs_measured_ones_and_a_link():
    with pytest.raises(KvsimError, match="fuse_allreduce_rms must be left out for cost roofline"):
        resolve(served("b200", 8, cost="roofline", fuse_allreduce_rms=True))
    with pytest.raises(KvsimError, match="fuse_allreduce_rms must be left out for gpu l40s"):
        cost_named("measured-elsewhere", served("l40s", 2, fuse_allreduce_rms=True))


def product_ps(gpu, tokens, real, part="product"):
    found = dict(gpu_and_cost(gpu, None)[2]["parts"][part])
    constants = dict(found["constants"])
    assert constants["real_data"] == 1.148
    if not real:
        del constants["real_data"]
    return Product(Part(part, found | {"constants": constants}), 8192, 57344).priced(tokens).ps


@pytest.mark.parametrize("gpu", TABLED)
def test_products_compute_longer_with_real_weights_but_read_them_as_fast(gpu):
    few, many = (product_ps(gpu, tokens, True) / product_ps(gpu, tokens, False) for tokens in (8, 8192))
    assert 1.0 <= few < 1.01
    assert 1.10 < many < 1.15


def test_tables_with_random_weights_and_whole_layers_need_no_more():
    assert "real_data" not in gpu_and_cost("b200", None)[2]["parts"]["product_nvfp4"]["constants"]
    assert "real_data" not in gpu_and_cost("rtx-4090", None)[2]["parts"]["product"]["constants"]


def test_norms_over_all_heads_take_an_all_reduce_in_every_layer():
    model = model_named("minimax-m2")
    assert model.norms_over_heads and not model_named("qwen3-32b").norms_over_heads
    plain, normed = (
        StepParts(where, where.profile["parts"]).tokens(8).ps
        for where in (served("b200", 4, replace(model, norms_over_heads=on)) for on in (False, True))
    )
    assert 62 * 10e6 < normed - plain < 62 * 15e6
