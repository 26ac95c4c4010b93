"""A Hugging Face config.json, in any of its dialects, is the model it describes."""

import json

import pytest

from sim.catalog import model_named
from sim.errors import KvsimError
from sim.huggingface import model_of, read_model

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
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_parameters_counted_from_the_geometry_are_the_published_ones(config, parameters):
    assert model_of(config, "x").parameters == pytest.approx(parameters, rel=0.005)


def test_a_token_passes_through_its_own_experts_only():
    assert model_of(MIXTRAL, "x").active_parameters == pytest.approx(12.88e9, rel=0.005)
    assert model_of(QWEN_MOE, "x").active_parameters == pytest.approx(2.69e9, rel=0.01)
    assert model_of({**MIXTRAL, "num_local_experts": 1}, "x").active_parameters is None


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
    assert "2048, as vLLM assumes" in falcon.source
    assert "quantization_config is ignored" in model_of({**LLAMA, "quantization_config": {}}, "x").source


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
    with pytest.raises(KvsimError, match=r"cannot read config.json \(No such file"):
        read_model(tmp_path)
    for text, message in (("{", "config.json is not valid JSON"), ("[1]", "must hold one JSON object")):
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
        ({"kv_lora_rank": 512}, r"multi-head latent attention \(kv_lora_rank\) is not supported yet"),
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
