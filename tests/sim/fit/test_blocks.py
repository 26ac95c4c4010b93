"""The block that vLLM takes for a model's kernels, and the pages of layers, by hand."""

import pytest

from kvsim.sim.errors import KvsimError
from kvsim.sim.kv.blocks import KvSettings, paged
from kvsim.sim.models.huggingface import model_of

SPARSE = {
    **{"architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32", "dtype": "bfloat16"},
    **{"num_hidden_layers": 3, "hidden_size": 1024, "intermediate_size": 2048, "vocab_size": 1000},
    **{"num_attention_heads": 16, "num_key_value_heads": 16, "max_position_embeddings": 4096},
    **{"kv_lora_rank": 512, "q_lora_rank": 256, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128},
    **{"v_head_dim": 128, "index_topk": 2048, "index_n_heads": 64, "index_head_dim": 128},
}
LATENT = {key: value for key, value in SPARSE.items() if not key.startswith("index")} | {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
}
TWO_WIDTHS = {
    **{"architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "dtype": "bfloat16"},
    **{"num_hidden_layers": 4, "hidden_size": 512, "intermediate_size": 512, "vocab_size": 1000},
    **{"num_attention_heads": 8, "num_key_value_heads": 4, "num_global_key_value_heads": 1},
    **{"head_dim": 256, "global_head_dim": 512, "sliding_window": 128, "max_position_embeddings": 4096},
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}


@pytest.mark.parametrize(
    ("dtype", "latent"), [("auto", 64 * 1152), ("fp8", 64 * 656), ("fp8_ds_mla", 64 * 656)]
)
def test_a_latent_and_the_index_that_reads_it_lie_side_by_side_layer_by_layer(dtype, latent):
    found = paged(model_of(SPARSE, "sparse"), KvSettings(kv_cache_dtype=dtype))
    assert found.block_size == 64
    assert [number for number, _ in found.layers] == [0, 0, 1, 1, 2, 2]
    for number in range(3):
        assert sorted(page.bytes for at, page in found.layers if at == number) == [64 * 132, latent]


@pytest.mark.parametrize(("dtype", "each"), [("auto", 1152), ("fp8", 576), ("fp8_ds_mla", 656)])
def test_blackwell_has_plain_fp8_for_such_latents_too(dtype, each):
    found = paged(model_of(SPARSE, "sparse"), KvSettings(kv_cache_dtype=dtype, compute_capability=100))
    assert {page.bytes for _, page in found.layers} == {64 * 132, 64 * each}


def test_the_packed_latent_is_refused_where_no_index_reads_it():
    with pytest.raises(KvsimError, match="fp8_ds_mla is for latents that an index reads"):
        paged(model_of(LATENT, "latent"), KvSettings(kv_cache_dtype="fp8_ds_mla"))


@pytest.mark.parametrize(("dtype", "block"), [("auto", 16), ("fp8", 64)])
def test_fp8_takes_blocks_of_64_tokens_where_any_layer_has_heads_of_512(dtype, block):
    assert paged(model_of(TWO_WIDTHS, "two widths"), KvSettings(kv_cache_dtype=dtype)).block_size == block


def test_an_index_has_no_kernel_before_hopper():
    assert paged(model_of(LATENT, "latent"), KvSettings(compute_capability=80)).block_size == 16
    with pytest.raises(KvsimError, match="needs a GPU of compute capability"):
        paged(model_of(SPARSE, "sparse"), KvSettings(compute_capability=80))
