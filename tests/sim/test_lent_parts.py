"""What a calibrated profile lacks comes from the tables of its GPU, and says so."""

import json
from dataclasses import replace

import pytest
from support.settings import deployed

from kvsim.sim.build import resolve
from kvsim.sim.cost.lent_parts import LENT, lent_words, part_words, with_lent
from kvsim.sim.cost.named import cost_named
from kvsim.sim.cost.older_experts import of_release
from kvsim.sim.cost.profile_files import find_profile, gpu_and_cost
from kvsim.sim.cost.step_cost import StepShape
from kvsim.sim.models.catalog import gpu_named, model_named

CALIBRATED = ("calibrated",)


def on_h200(model, tp):
    """A deployment with the profile of an H200 that ships."""
    gpu, cost, profile = gpu_and_cost("h200", "calibrated")
    return deployed(model=model_named(model), gpu=gpu, cost=cost, profile=profile, tensor_parallel_size=tp)


def test_only_what_is_missing_is_lent_and_attention_never():
    own = {"product": {"own": 1}, "experts_fp8": {"own": 1}, "decode": {"own": 1}}
    names = (*own, "experts", "experts_fp8_block", "product_fp8", "all_reduce", "decode_fp8", "sampling")
    found = with_lent(own, {name: {"theirs": 1} for name in names}, "vLLM 1")
    assert {name for name, part in found.items() if LENT in part} == {"experts", "product_fp8", "all_reduce"}
    assert {name: found[name] for name in own} == own
    assert lent_words(found) == "experts and product fp8 and all-reduce of vLLM 1, measured elsewhere"
    assert lent_words(own) == "" and part_words("experts_w4a16_mxfp4") == "experts w4a16 mxfp4"


def test_a_profile_takes_them_from_the_tables_of_its_own_gpu():
    own, lender = (find_profile("h200", kinds=(kind,)) for kind in ("calibrated", "elsewhere"))
    _, _, profile = gpu_and_cost("h200", "calibrated")
    assert own.lender.name == lender.name and lender.lender is None
    lent = {name for name, part in profile["parts"].items() if LENT in part}
    assert lent == set(with_lent(own.parts, lender.parts, "")) - set(own.parts)
    assert {"experts", "all_reduce"} <= lent and not lent & set(own.parts)
    for name in lent:
        assert profile["parts"][name] == {**lender.parts[name], LENT: lender.engine}


def test_no_other_gpu_lends_and_no_rehearsal_takes(tmp_path):
    content = json.loads(find_profile("h200", kinds=CALIBRATED).path.read_text(encoding="utf-8"))
    for change in ({"gpu": None}, {"kind": "rehearsal"}, {"gpu": "a10-24gb"}):
        path = tmp_path / "other.json"
        path.write_text(json.dumps({**content, **change}), encoding="utf-8")
        found = find_profile(str(path))
        assert found.lender is None and found.completed() == found.settings()


@pytest.mark.parametrize(
    ("model", "tp", "lent"),
    [
        ("gpt-oss-120b", 2, {"experts_w4a16_mxfp4", "all_reduce"}),
        ("qwen3-30b-a3b", 1, {"experts"}),
        ("llama-3.1-8b", 1, set()),
    ],
)
def test_a_run_keeps_the_lent_parts_that_it_needs_and_names_their_time(model, tp, lent):
    found = resolve(on_h200(model, tp)).deployment
    kept = {name for name, part in found.profile["parts"].items() if LENT in part}
    assert kept == lent
    cost = cost_named("calibrated", found)
    assert ("of vLLM 0.24.0, measured elsewhere" in cost.source) == bool(lent)
    shape = StepShape(decode_seqs=64, context_tokens=64 * 1000)
    cost.carried_out(shape, cost.step_ps(shape))
    said = {each for each in cost.outside() if "of vLLM" in each}
    assert said == {f"{part_words(name)} of vLLM 0.24.0" for name in lent}
    assert (cost.extrapolated_share > 0.3) == bool(lent)
    whole = replace(found, profile=on_h200(model, tp).profile)
    assert len(whole.profile["parts"]) > len(found.profile["parts"])
    assert cost_named("calibrated", whole).step_ps(shape) == cost.step_ps(shape)


def test_lent_experts_are_those_of_the_tables():
    """The same layer priced by either profile: equal to the last bit."""
    tables = gpu_and_cost("h200", "measured-elsewhere")
    costs = [
        cost_named(cost, deployed(model=model_named("qwen3-30b-a3b"), gpu=gpu, cost=cost, profile=profile))
        for gpu, cost, profile in (tables, gpu_and_cost("h200", "calibrated"))
    ]
    theirs, ours = (cost._parts.body.products[-1] for cost in costs)
    for tokens in (1, 30, 500, 8000):
        assert ours.priced(tokens).ps == theirs.priced(tokens).ps
        assert ours.priced(tokens).outside_ps == ours.priced(tokens).ps


def test_experts_of_an_older_release_are_lent_as_that_release_computed_them():
    _, _, profile = gpu_and_cost("h200", "calibrated")
    older = of_release(profile, "0.12.0", gpu_named("h200"), 2)
    part = older["parts"]["experts_fp8_block"]
    assert part["constants"]["block_rows"] == 128 and part[LENT] == "vLLM 0.24.0"
    own = {**profile, "parts": {name: part for name, part in profile["parts"].items() if LENT not in part}}
    assert of_release(own, "0.12.0", gpu_named("h200"), 2) is own
