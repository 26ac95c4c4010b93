"""Weights have the precision of their checkpoint: which ones are quantized, and to how many bits."""

import pytest

from kvsim.sim.errors import KvsimError
from kvsim.sim.models.catalog import model_named
from kvsim.sim.models.huggingface import model_of

LLAMA_8B = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}
BODY = 32 * (4096 * 128 * 80 + 3 * 4096 * 14336)
"""Weights of the layers of Llama-3.1-8B."""


def quantized(**config):
    model = model_of({**LLAMA_8B, "quantization_config": config}, "x")
    return model.weight_bits, model.quantized_parameters


@pytest.mark.parametrize(
    ("config", "bits"),
    [
        ({"quant_method": "fp8"}, 8),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 8 + 32 / 16384),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 4 + 20 / 128),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, 4 + 20 / 128),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 8),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 4.5),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, 8),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4.5),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True},
            4 + 8 / 64 + 32 / 16384,
        ),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 8),
    ],
)
def test_a_weight_has_the_bits_of_its_method_and_its_share_of_scales(config, bits):
    assert quantized(**config) == (bits, BODY)


@pytest.mark.parametrize(
    ("weights", "bits"),
    [
        ({"num_bits": 8, "type": "float", "strategy": "channel"}, 8),
        ({"num_bits": 8, "type": "int", "strategy": "channel"}, 8),
        ({"num_bits": 4, "type": "int", "group_size": 128, "symmetric": True}, 4.125),
        ({"num_bits": 4, "type": "int", "group_size": 128, "symmetric": False}, 4 + 20 / 128),
        ({"num_bits": 4, "type": "float", "group_size": 16}, 4.5),
        ({"num_bits": 4, "type": "float", "group_size": 32}, 4.25),
    ],
)
def test_compressed_tensors_say_it_for_each_group_of_layers(weights, bits):
    groups = {"group_0": {"weights": weights, "targets": ["Linear"]}}
    assert quantized(quant_method="compressed-tensors", config_groups=groups, ignore=["lm_head"]) == (
        bits,
        BODY,
    )


ATTENTION = 32 * 4096 * 128 * 80
LAST_LAYER = BODY // 32


@pytest.mark.parametrize(
    ("left_out", "parameters"),
    [
        (["lm_head"], BODY),
        (["self_attn"], BODY - ATTENTION),
        (["re:.*self_attn.*"], BODY - ATTENTION),
        (["model.layers.*.self_attn*"], BODY - ATTENTION),
        (["model.layers.31"], BODY - LAST_LAYER),
        (["re:model.layers.31.*", "model.layers.31.mlp"], BODY - LAST_LAYER),
        (["model.layers.3"], BODY - LAST_LAYER),  # and not 30, 31
    ],
)
@pytest.mark.parametrize("key", ["modules_to_not_convert", "ignore", "exclude_modules"])
def test_what_a_config_leaves_out_stays_in_16_bit(key, left_out, parameters):
    assert quantized(quant_method="fp8", **{key: left_out}) == (8, parameters)


def test_mxfp4_is_for_experts_only():
    gpt_oss = model_named("gpt-oss-120b")
    assert gpt_oss.quantized_parameters == gpt_oss.expert_parameters == 36 * 128 * 3 * 2880**2
    assert (gpt_oss.quantization, gpt_oss.weight_bits) == ("mxfp4", 4.25)
    assert gpt_oss.weight_bytes / 2**30 == pytest.approx(60.8, abs=0.1)
    assert any("98.2 % of its parameters in 4.25 bits" in note for note in gpt_oss.notes)


def test_a_checkpoint_may_ask_for_an_fp8_cache():
    scheme = {"num_bits": 8, "type": "float"}
    groups = {"g": {"weights": {"num_bits": 8, "type": "float"}}}
    given = {"quant_method": "compressed-tensors", "config_groups": groups, "kv_cache_scheme": scheme}
    model = model_of({**LLAMA_8B, "quantization_config": given}, "x")
    assert model.kv_bytes_per_token == 65_536
    assert "its checkpoint asks for an fp8 cache (kv_cache_scheme)" in model.notes


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "sorcery"}, "quant_method must be one of fp8, .*got 'sorcery'"),
        ({"bits": 4}, "quant_method must be one of fp8, .*got None"),
        (
            {"quant_method": "modelopt", "quant_algo": "INT3"},
            "quant_algo must be one of FP8, NVFP4, got 'INT3'",
        ),
        ({"quant_method": "awq", "bits": "four"}, "quantization_config.bits must be a number, got 'four'"),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 5}}}},
            "weights of 4 or 8 bits, int or float, got 5",
        ),
    ],
)
def test_a_precision_that_is_not_known_is_named(config, message):
    with pytest.raises(KvsimError, match=message):
        quantized(**config)
