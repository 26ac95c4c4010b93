"""A Hugging Face config.json, in any of its dialects, is the model it describes."""

import json

import pytest

from kvsim.sim.errors import KvsimError
from kvsim.sim.models.catalog import model_named
from kvsim.sim.models.huggingface import model_of, read_model

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}
OPT = {
    "_name_or_path": "facebook/opt-13b",
    "model_type": "opt",
    "num_hidden_layers": 40,
    "hidden_size": 5120,
    "ffn_dim": 20480,
    "num_attention_heads": 40,
    "vocab_size": 50272,
    "max_position_embeddings": 2048,
    "word_embed_proj_dim": 5120,
    "torch_dtype": "float16",
}
GPT2 = {
    "model_type": "gpt2",
    "n_layer": 12,
    "n_embd": 768,
    "n_head": 12,
    "n_inner": None,
    "n_positions": 1024,
    "vocab_size": 50257,
}
FALCON_7B = {
    "model_type": "falcon",
    "num_hidden_layers": 32,
    "hidden_size": 4544,
    "num_attention_heads": 71,
    "num_kv_heads": 71,
    "multi_query": True,
    "new_decoder_architecture": False,
    "vocab_size": 65024,
    "torch_dtype": "bfloat16",
}
MIXTRAL = {
    **LLAMA,
    "model_type": "mixtral",
    "vocab_size": 32000,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
QWEN_MOE = {
    "model_type": "qwen2_moe",
    "num_hidden_layers": 24,
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "intermediate_size": 5632,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "vocab_size": 151936,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}
GEMMA_7B = {
    "model_type": "gemma",
    "hidden_act": "gelu_pytorch_tanh",
    "num_hidden_layers": 28,
    "hidden_size": 3072,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "intermediate_size": 24576,
    "vocab_size": 256000,
    "max_position_embeddings": 8192,
}

DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "num_nextn_predict_layers": 1,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "hidden_act": "silu",
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
}
DEEPSEEK_V2 = {
    **DEEPSEEK_V3,
    "model_type": "deepseek_v2",
    "num_nextn_predict_layers": 0,
    "num_hidden_layers": 60,
    "hidden_size": 5120,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
    "n_routed_experts": 160,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
    "vocab_size": 102400,
    "quantization_config": None,
}
DEEPSEEK_V2_LITE = {
    **DEEPSEEK_V2,
    "num_hidden_layers": 27,
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "n_routed_experts": 64,
}
GEMMA_3_27B = {
    "model_type": "gemma3",
    "torch_dtype": "bfloat16",
    "text_config": {
        "model_type": "gemma3_text",
        "head_dim": 128,
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "num_attention_heads": 32,
        "num_hidden_layers": 62,
        "num_key_value_heads": 16,
        "sliding_window": 1024,
    },
    "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27},
}
GEMMA_3_4B = {
    **GEMMA_3_27B,
    "text_config": {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    },
}
GPT_OSS_20B = {
    "model_type": "gpt_oss",
    "num_hidden_layers": 24,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "vocab_size": 201088,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "quantization_config": {"quant_method": "mxfp4"},
}
MISTRAL_7B = {
    **LLAMA,
    "model_type": "mistral",
    "vocab_size": 32000,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
}


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (LLAMA, 8.030e9),
        (OPT, 12.853e9),
        (GPT2, 0.1244e9),
        (FALCON_7B, 6.92e9),
        (MIXTRAL, 46.70e9),
        (QWEN_MOE, 14.32e9),
        (GEMMA_7B, 8.538e9),
        (DEEPSEEK_V3, 671.03e9),
        (DEEPSEEK_V2, 235.74e9),
        (DEEPSEEK_V2_LITE, 15.706e9),
        (GEMMA_3_27B, 27.009e9),
        (GEMMA_3_4B, 3.880e9),
        (GPT_OSS_20B, 20.91e9),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_parameters_counted_from_the_geometry_are_the_published_ones(config, parameters):
    assert model_of(config, "x").parameters == pytest.approx(parameters, rel=0.005)


def test_a_token_passes_through_its_own_experts_only():
    assert model_of(MIXTRAL, "x").active_parameters == pytest.approx(12.88e9, rel=0.005)
    assert model_of(QWEN_MOE, "x").active_parameters == pytest.approx(2.69e9, rel=0.01)
    assert model_of({**MIXTRAL, "num_local_experts": 1}, "x").active_parameters is None


@pytest.mark.parametrize(
    ("config", "active", "tolerance"),
    [(DEEPSEEK_V3, 36.7e9, 0.005), (DEEPSEEK_V2, 21e9, 0.01), (DEEPSEEK_V2_LITE, 2.4e9, 0.025)],
    ids=["deepseek-v3", "deepseek-v2", "deepseek-v2-lite"],
)
def test_published_active_parameters_leave_out_the_input_embedding(config, active, tolerance):
    model = model_of(config, "x")
    assert model.active_parameters - model.head_parameters == pytest.approx(active, rel=tolerance)


def test_deepseek_caches_a_latent_of_576_numbers():
    model = model_of(DEEPSEEK_V3, "x")
    assert (model.kv_latent_dim, model.kv_rope_dim, model.head_dim) == (576, 64, 128)
    assert model.kv_bytes_per_token == 61 * 576 * 2


def test_fp8_weights_take_a_byte_and_leave_the_cache_and_the_embeddings_at_two():
    model = model_of(DEEPSEEK_V3, "x")
    assert (model.quantization, model.dtype_bytes, model.kv_dtype_bytes) == ("fp8", 2, None)
    assert model.weight_bits == 8 + 32 / 128**2
    router = 58 * 7168 * 256
    assert model.quantized_parameters == model.parameters - 2 * 129280 * 7168 - router


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (DEEPSEEK_V3, "deepseek-v3"),
        (DEEPSEEK_V2_LITE, "deepseek-v2-lite"),
        (GEMMA_3_27B, "gemma-3-27b"),
        (GEMMA_3_4B, "gemma-3-4b"),
        (MISTRAL_7B, "mistral-7b"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_config_has_the_geometry_of_the_built_in_model(config, name):
    read, built_in = model_of(config, "x"), model_named(name)
    assert read.parameters == pytest.approx(built_in.parameters, rel=0.001)
    if built_in.active_parameters:
        assert read.active_parameters == pytest.approx(built_in.active_parameters, rel=0.001)
    counted = ("parameters", "active_parameters", "expert_parameters", "quantized_parameters")
    same = dict.fromkeys(("name", "source", "notes", *counted))
    assert {**vars(read), **same} == {**vars(built_in), **same}


@pytest.mark.parametrize(
    ("config", "seen"),
    [
        (MISTRAL_7B, (4096, 32)),
        ({**MISTRAL_7B, "sliding_window": None}, (None, 0)),
        ({**MISTRAL_7B, "sliding_window": 32768}, (None, 0)),
        (GEMMA_3_27B, (1024, 52)),
        (GEMMA_3_4B, (1024, 29)),
        ({**LLAMA, "model_type": "gemma3_text", "num_hidden_layers": 26, "sliding_window": 512}, (512, 22)),
        ({**LLAMA, "model_type": "gemma2", "num_hidden_layers": 46, "sliding_window": 4096}, (4096, 23)),
        ({**LLAMA, "sliding_window": 1024, "sliding_window_pattern": 4}, (1024, 24)),
        (GPT_OSS_20B, (128, 12)),
        ({**LLAMA, "model_type": "qwen2", "sliding_window": 4096}, (None, 0)),
        ({**LLAMA, "sliding_window": 4096, "use_sliding_window": False}, (None, 0)),
        (
            {
                **LLAMA,
                "model_type": "qwen2",
                "sliding_window": 4096,
                "use_sliding_window": True,
                "max_window_layers": 28,
            },
            (4096, 4),
        ),
    ],
)
def test_windowed_layers_are_those_that_the_config_or_the_family_says(config, seen):
    model = model_of(config, "x")
    assert (model.window, model.window_layers) == seen


def test_deepseek_style_shared_experts_and_first_dense_layers_are_counted():
    config = {
        **QWEN_MOE,
        "model_type": "deepseek",
        "num_experts": None,
        "shared_expert_intermediate_size": None,
        "n_routed_experts": 64,
        "num_experts_per_tok": 6,
        "n_shared_experts": 2,
        "first_k_dense_replace": 1,
        "intermediate_size": 10944,
        "num_hidden_layers": 28,
        "vocab_size": 102400,
    }
    assert model_of(config, "x").parameters == pytest.approx(16.38e9, rel=0.005)  # DeepSeekMoE 16B


def test_a_config_of_a_built_in_model_is_that_model_up_to_norms_and_biases():
    read, built_in = model_of(OPT, "x"), model_named("opt-13b")
    assert read.kv_bytes_per_token == built_in.kv_bytes_per_token == 819_200
    assert read.parameters == pytest.approx(built_in.parameters, rel=0.001)
    assert (read.max_model_len, read.tie_word_embeddings) == (2048, True)


def test_heads_share_keys_as_the_config_says_and_have_their_own_otherwise():
    assert model_of(LLAMA, "x").kv_heads == 8
    assert model_of(GPT2, "x").kv_heads == 12
    assert model_of(FALCON_7B, "x").kv_heads == 1
    assert model_of({**FALCON_7B, "new_decoder_architecture": True}, "x").kv_heads == 71


def test_head_dim_is_explicit_or_hidden_over_heads():
    assert model_of(GEMMA_7B, "x").head_dim == 256
    assert model_of(LLAMA, "x").head_dim == 128


def test_what_a_config_leaves_out_is_filled_as_vllm_does_and_noted():
    falcon = model_of(FALCON_7B, "x")
    assert (falcon.max_model_len, falcon.intermediate_size) == (2048, 4 * 4544)
    assert "2048, as vLLM assumes" in falcon.notes[0]


def test_the_language_model_of_a_multimodal_config_counts():
    outer = {"model_type": "llava", "tie_word_embeddings": False, "text_config": LLAMA}
    assert model_of(outer, "x").parameters == model_of(LLAMA, "x").parameters


def test_the_name_is_the_configs_else_the_folders():
    assert model_of(OPT, "folder").name == "facebook/opt-13b"
    assert model_of(LLAMA, "folder").name == "folder"
    assert model_of({**LLAMA, "_name_or_path": "/models/my-llama/"}, "folder").name == "my-llama"


def test_weights_of_32_bit_are_served_as_16_bit():
    sizes = [
        model_of({**LLAMA, "torch_dtype": t}, "x").dtype_bytes for t in ("float32", "torch.float16", None)
    ]
    assert sizes == [2, 2, 2]
    assert model_of({**LLAMA, "torch_dtype": None, "dtype": "float8_e4m3fn"}, "x").dtype_bytes == 1


def test_a_model_is_named_by_a_file_or_by_its_folder(tmp_path):
    folder = tmp_path / "my-llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    assert model_named(str(folder)) == model_named(str(folder / "config.json"))
    assert model_named(str(folder)).name == "my-llama"


def test_a_file_that_cannot_be_read_is_an_error_with_its_path(tmp_path):
    with pytest.raises(KvsimError, match=r"config.json cannot be read: No such file"):
        read_model(tmp_path)
    for text, message in (("{", "config.json is not valid JSON"), ("[1]", "must hold a JSON object")):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(KvsimError, match=f"model '{tmp_path}': .*{message}"):
            model_named(str(tmp_path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": None}, "layers is missing: none of the keys num_hidden_layers, n_layer"),
        ({"vocab_size": None}, "vocab_size is missing: none of the keys vocab_size, padded_vocab_size"),
        ({"hidden_size": 0}, "hidden_size must be a whole number of at least 1, got 0"),
        ({"num_attention_heads": "32"}, "num_attention_heads must be a whole number .* got '32'"),
        (
            {"num_attention_heads": 33},
            "head_dim is missing and hidden_size 4096 is no multiple of the 33 heads",
        ),
        ({"num_key_value_heads": 5}, r"kv_heads must divide heads \(32\), got 5"),
        ({"torch_dtype": "int4"}, "torch_dtype must be one of float32, .* got 'int4'"),
        ({"kv_lora_rank": 512}, "rope_dim is missing: none of the keys qk_rope_head_dim is set"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be at most 65,536, got 1000000000"),
        ({"num_experts": 10**9}, "num_experts must be at most 65,536, got 1000000000"),
        ({"num_experts": 8}, "experts_per_token is missing"),
        ({"num_experts": 8, "num_experts_per_tok": 9}, "at most the 8 experts, got 9"),
        (
            {"num_experts": 8, "num_experts_per_tok": 2, "first_k_dense_replace": 33},
            "dense layers must be at most the 32 layers, got 33",
        ),
    ],
)
def test_a_config_that_cannot_be_is_refused(change, message):
    with pytest.raises(KvsimError, match=message):
        model_of({**LLAMA, **change}, "x")
