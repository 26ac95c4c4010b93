"""What a layer keeps of a sequence, and that a model's record of it survives a run's config.json."""

import json
from dataclasses import asdict, replace

import pytest

from kvsim.sim.errors import KvsimError
from kvsim.sim.models.catalog import model_named
from kvsim.sim.models.kv_layers import KvLayers, RecurrentState
from kvsim.sim.models.spec import ModelSpec

GDN = RecurrentState(
    kind="gdn", conv_taps=3, conv_channels=2 * 16 * 128 + 32 * 128, heads=32, head_values=128 * 128
)
MAMBA2 = RecurrentState(
    kind="mamba2", conv_taps=3, conv_channels=8192, groups=1, group_channels=256, heads=128, head_values=8192
)


def test_a_state_is_split_over_the_gpus_and_its_groups_are_copied():
    assert GDN.shapes() == ((3, 8192), (32, 16384))
    assert GDN.bytes_per_sequence() == 2 * (3 * 8192 + 32 * 16384) == 1_097_728
    assert GDN.shapes(4) == ((3, 2048), (8, 16384))
    assert MAMBA2.shapes(2) == ((3, (8192 + 2 * 256) // 2), (64, 8192))
    assert replace(MAMBA2, dtype_bytes=4).bytes_per_sequence() == 2 * 3 * 8448 + 4 * 128 * 8192


def test_a_state_that_gpus_cannot_share_says_why():
    assert MAMBA2.refusal(8) is None
    assert "2 groups" in (replace(MAMBA2, groups=2).refusal(4) or "")
    assert "32 heads" in (GDN.refusal(3) or "")


def test_a_latent_lies_whole_on_every_gpu_and_kv_heads_are_split_down_to_one():
    latent = KvLayers(kind="mla_attention", layers=(0,), kv_heads=1, head_dim=576)
    assert [latent.numbers_per_token(tp) for tp in (1, 8)] == [576, 576]
    heads = KvLayers(kind="full_attention", layers=(0,), kv_heads=4, head_dim=128, value_dim=128)
    assert [heads.numbers_per_token(tp) for tp in (1, 2, 4, 8)] == [1024, 512, 256, 256]


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "striped"},
        {"kind": "mamba"},
        {"kind": "full_attention", "window": 5},
        {"kind": "sliding_window"},
        {"kind": "chunked_local_attention"},
    ],
)
def test_a_layer_that_contradicts_itself_is_refused(wrong):
    with pytest.raises(KvsimError, match=wrong["kind"]):
        KvLayers(layers=(0,), **wrong)


def test_a_model_with_kinds_of_layers_survives_json():
    kinds = (
        KvLayers(kind="mamba", layers=(0, 1), state=GDN),
        KvLayers(kind="full_attention", layers=(2,), kv_heads=2, head_dim=256, value_dim=256),
    )
    model = replace(model_named("llama-3.1-8b"), kv_layers=kinds, notes=("a note",))
    assert ModelSpec(**json.loads(json.dumps(asdict(model)))) == model


def test_a_config_json_written_before_these_fields_still_reads():
    old = asdict(model_named("opt-13b"))
    for field in ("quantization", "weight_bits", "quantized_parameters", "experts", "experts_per_token"):
        del old[field]
    for field in ("expert_parameters", "kv_layers", "notes"):
        del old[field]
    assert ModelSpec(**old) == model_named("opt-13b")


def test_quantized_parameters_have_their_own_bits_and_all_others_the_models_type():
    llama = model_named("llama-3.1-8b")
    body = llama.body_parameters
    four = replace(llama, quantization="awq", weight_bits=4.25, quantized_parameters=body)
    assert four.weight_bytes == body * 4.25 / 8 + 2 * (llama.parameters - body)
    assert four.body_weight_bytes == body * 4.25 / 8
    assert llama.body_weight_bytes == 2 * body


@pytest.mark.parametrize(
    ("field", "value"),
    [("weight_bits", 4.0), ("quantized_parameters", 5), ("experts_per_token", 2), ("expert_parameters", -1)],
)
def test_contradictory_weights_are_refused(field, value):
    with pytest.raises(KvsimError, match=field):
        replace(model_named("llama-3.1-8b"), **{field: value})
