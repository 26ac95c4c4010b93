"""Mutated config.json files of Hugging Face: a model, or one line."""

import json
from pathlib import Path

import pytest
from support.attack import attack, tried
from support.mutations import mutated_json

pytestmark = pytest.mark.slow

LLAMA = {
    "_name_or_path": "meta-llama/Llama-3.1-8B",
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "vocab_size": 128256,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "rope_scaling": {"factor": 8.0, "rope_type": "llama3"},
}
DEEPSEEK = LLAMA | {
    "model_type": "deepseek_v3",
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
GEMMA = {
    "model_type": "gemma3",
    "text_config": {
        **{"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240},
        **{"num_hidden_layers": 34, "sliding_window": 1024, "sliding_window_pattern": 6},
        "layer_types": ["sliding_attention", "full_attention"] * 17,
    },
    "torch_dtype": "bfloat16",
}
CONFIGS = [json.dumps(config) for config in (LLAMA, DEEPSEEK, GEMMA)]
RUN = "run --gpu h200 --num-prompts 3 --max-model-len 4096 --no-plots --out out --force"


def test_mutated_model_configs(cases):
    def case(rng):
        folder = Path("model")
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_bytes(mutated_json(rng, rng.choice(CONFIGS)))
        name = rng.choice(["model", "model/config.json"])
        cost = rng.choice(["--cost roofline", "--cost constant:0.03 --kv-tokens 4096"])
        return attack(f"{RUN} {cost} --model {name}".split())

    found = tried("models", cases(100), case)
    assert min(found["accepted"], found["refused"]) > 0
