"""A config.json says what each of its layers keeps; unknown kinds are an error that names them."""

import pytest

from kvsim.sim.errors import KvsimError
from kvsim.sim.models.catalog import model_named
from kvsim.sim.models.huggingface import model_of

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 8,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}
MAMBA = {
    "mamba_n_heads": 128,
    "mamba_d_head": 64,
    "mamba_d_state": 128,
    "mamba_n_groups": 1,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}


def kinds(config):
    """(kind, layers) of what the model keeps."""
    model = model_of({**LLAMA, **config}, "x")
    return [(each.kind, list(each.layers)) for each in model.kv_layers or model.uniform_kv_layers]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, [("full_attention", [*range(8)])]),
        (
            {"layer_types": ["sliding_attention"] * 7 + ["full_attention"], "sliding_window": 512},
            [("sliding_window", [*range(7)]), ("full_attention", [7])],
        ),
        (
            {"model_type": "llama4_text", "attention_chunk_size": 8192},
            [("chunked_local_attention", [0, 1, 2, 4, 5, 6]), ("full_attention", [3, 7])],
        ),
        (
            {
                "model_type": "gemma3n_text",
                "sliding_window": 512,
                "num_kv_shared_layers": 3,
                "layer_types": ["sliding_attention", "full_attention"] * 4,
            },
            [("sliding_window", [0, 2, 4]), ("full_attention", [1, 3])],
        ),
        (
            {"model_type": "granitemoehybrid", "layer_types": ["mamba"] * 7 + ["attention"], **MAMBA},
            [("mamba", [*range(7)]), ("full_attention", [7])],
        ),
        (
            {"model_type": "bamba", "attn_layer_indices": [4], **MAMBA},
            [("mamba", [0, 1, 2, 3, 5, 6, 7]), ("full_attention", [4])],
        ),
        (
            {
                "model_type": "nemotron_h",
                "hybrid_override_pattern": "M-M*EME-",
                "mamba_num_heads": 128,
                "mamba_head_dim": 64,
                "n_groups": 8,
                "ssm_state_size": 128,
                "conv_kernel": 4,
            },
            [("mamba", [0, 2, 5]), ("full_attention", [3])],
        ),
        (
            {"model_type": "falcon_h1", "mamba_d_ssm": 4096, **MAMBA},
            [("full_attention", [*range(8)]), ("mamba", [*range(8, 16)])],
        ),
        (
            {"model_type": "lfm2", "layer_types": ["conv", "full_attention"] * 4, "conv_L_cache": 3},
            [("mamba", [0, 2, 4, 6]), ("full_attention", [1, 3, 5, 7])],
        ),
        (
            {"model_type": "mllama_text_model", "cross_attention_layers": [3]},
            [("full_attention", [0, 1, 2, 4, 5, 6, 7]), ("cross_attention", [3])],
        ),
        (
            {
                "model_type": "deepseek_v32",
                "kv_lora_rank": 512,
                "qk_rope_head_dim": 64,
                "qk_nope_head_dim": 128,
                "v_head_dim": 128,
                "index_topk": 2048,
            },
            [("mla_attention", [*range(8)]), ("mla_attention", [*range(8)])],
        ),
    ],
    ids=lambda value: value.get("model_type", "llama") if isinstance(value, dict) else "",
)
def test_layers_are_of_the_kinds_that_the_config_says(config, expected):
    assert kinds(config) == expected


def test_a_window_as_long_as_the_model_is_still_a_window_for_the_engine():
    model = model_named("phi-4-mini")
    assert (model.window, model.window_layers) == (None, 0)
    assert [(each.kind, each.window) for each in model.kv_layers] == [("sliding_window", 262144)]


def test_layers_that_share_or_are_recurrent_keep_no_token():
    qwen = model_named("qwen3-next-80b-a3b")
    assert (qwen.layers, qwen.caching_layers) == (48, 12)
    assert qwen.kv_bytes_per_token == 12 * 2 * 2 * 256 * 2
    assert qwen.state_bytes_per_sequence() == 36 * 1_097_728
    assert any("36 of its layers keep a state" in note for note in qwen.notes)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "frobnicator"}, "model_type 'frobnicator' is unknown"),
        ({"layer_types": ["full_attention"] * 7 + ["spiral"]}, "layer_types holds spiral, a kind of layer"),
        ({"layer_types": ["full_attention"] * 7}, "one entry for each of the 8 layers, got 7"),
        ({"layer_types": 8}, "layer_types must be a list, got 8"),
        ({"layer_types": ["linear_attention"] * 8}, "of model_type 'llama' holds recurrent layers"),
        (
            {"layer_types": ["sliding_attention"] * 8, "model_type": "gemma4"},
            "sliding_window is missing",
        ),
        ({"layer_types": ["sliding_attention"] * 8}, "sliding_window is missing: layer_types holds"),
        (
            {"quantization_config": {"quant_method": "gptq", "group_size": 128}},
            "quantization_config.bits is missing: gptq has weights of several widths",
        ),
        ({"model_type": "granitemoehybrid", **MAMBA}, "layer_types is missing: a granitemoehybrid model"),
        (
            {"model_type": "qwen3_next", "linear_key_head_dim": 128},
            "linear_value_head_dim is missing: a qwen3_next model needs it",
        ),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "M-M*?ME-"}, r"holds \?, a kind of layer"),
        ({"model_type": "llama4_text", "layer_types": ["chunked_attention"] * 8}, "attention_chunk_size is"),
    ],
)
def test_what_is_missing_unknown_or_contradictory_is_named(config, message):
    with pytest.raises(KvsimError, match=message):
        model_of({**LLAMA, **config}, "x")
