"""Specs refuse impossible values, naming the field, the value and what is allowed; the tables are right."""

from dataclasses import FrozenInstanceError, replace

import pytest

from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.errors import KvsimError
from kvsim.sim.models.catalog import GIB, gpu_named, gpu_names, model_named, model_names
from kvsim.sim.models.spec import GpuSpec, ModelSpec

PUBLISHED = {
    "opt-13b": 12.85e9,
    "opt-66b": 65.7e9,
    "opt-175b": 175e9,
    "bloom-176b": 176.247e9,
    "llama-2-7b": 6.738e9,
    "llama-2-13b": 13.016e9,
    "llama-2-70b": 68.977e9,
    "llama-3.1-8b": 8.030e9,
    "llama-3.1-70b": 70.554e9,
    "mistral-7b": 7.242e9,
    "qwen2.5-7b": 7.616e9,
    "qwen2.5-72b": 72.706e9,
    "gemma-3-4b": 3.88e9,
    "gemma-3-12b": 11.77e9,
    "gemma-3-27b": 27.0e9,
    "mistral-small-3.2-24b": 23.57e9,
    "deepseek-v2-lite": 15.7e9,
    "deepseek-v3": 671e9,
    "qwen3-8b": 8.19e9,
    "qwen3-14b": 14.77e9,
    "qwen3-32b": 32.76e9,
    "qwen3-30b-a3b": 30.53e9,
    "qwen3-235b-a22b": 235.1e9,
    "qwen3-next-80b-a3b": 79.67e9,
    "llama-4-scout": 107.8e9,
    "llama-4-maverick": 400.7e9,
    "gpt-oss-20b": 20.91e9,
    "gpt-oss-120b": 116.83e9,
    "kimi-k2": 1026e9,
    "glm-4.5": 352.8e9,
    "glm-4.5-air": 106.9e9,
    "minimax-m2": 228.7e9,
    "mixtral-8x7b": 46.70e9,
    "ministral-8b": 8.02e9,
    "phi-4-mini": 3.84e9,
    "jamba-1.5-mini": 51.57e9,
    "falcon-h1-7b": 7.59e9,
    "falcon-h1-34b": 33.6e9,
    "nemotron-h-8b": 8.1e9,
    "nemotron-h-56b": 56.3e9,
    "granite-4.0-h-tiny": 6.94e9,
    "granite-4.0-h-small": 32.2e9,
}
PUBLISHED_GB = {
    "deepseek-v3": 673,
    "kimi-k2": 1029,
    "minimax-m2": 230,
    "gpt-oss-20b": 13.76,
    "gpt-oss-120b": 65.25,
}
"""Weights that are not published in 16 bit: 10**9 bytes of their checkpoints, draft heads left out."""


def scenario(model="llama-3.1-8b", gpu="h100", **settings) -> Deployment:
    engine = settings.pop("engine", EngineConfig())
    return Deployment(model=model_named(model), gpu=gpu_named(gpu), engine=engine, **settings)


def test_every_built_in_model_has_the_published_number_of_parameters():
    assert set(model_names()) == set(PUBLISHED)
    for name, parameters in PUBLISHED.items():
        assert model_named(name).parameters == pytest.approx(parameters, rel=0.01), name
        published = PUBLISHED_GB.get(name, 2 * parameters / 1e9)
        assert model_named(name).weight_bytes / 1e9 == pytest.approx(published, rel=0.011), name


def test_a_token_of_the_papers_models_takes_the_published_bytes():
    sizes = [
        model_named(name).kv_bytes_per_token for name in ("opt-13b", "opt-66b", "opt-175b", "llama-2-7b")
    ]
    assert sizes == [819_200, 2_359_296, 4_718_592, 524_288]


def test_grouped_query_attention_divides_the_bytes_of_a_token():
    assert model_named("llama-3.1-8b").kv_bytes_per_token == 131_072


def test_a_latent_is_cached_once_for_keys_values_and_heads_and_copied_to_every_gpu():
    deepseek = model_named("deepseek-v3")
    assert deepseek.kv_bytes_per_token == 61 * 576 * 2 == 70_272
    assert [deepseek.kv_bytes_per_token_per_gpu(tp) for tp in (1, 8)] == [70_272, 70_272]
    assert model_named("deepseek-v2-lite").kv_bytes_per_token == 27 * 576 * 2


def test_attention_on_a_latent_costs_less_in_a_prompt_than_while_decoding():
    deepseek = model_named("deepseek-v3")
    assert deepseek.prefill_pair_flops == 61 * 2 * 128 * (192 + 128)
    assert deepseek.decode_pair_flops == 61 * 2 * 128 * (576 + 512)
    llama = model_named("llama-3.1-8b")
    assert llama.prefill_pair_flops == llama.decode_pair_flops == 4 * 32 * 32 * 128


def test_windowed_models_say_how_many_layers_see_how_much():
    seen = {name: (m.window, m.window_layers) for name in model_names() if (m := model_named(name)).window}
    assert seen == {
        "mistral-7b": (4096, 32),
        "gemma-3-4b": (1024, 29),
        "gemma-3-12b": (1024, 40),
        "gemma-3-27b": (1024, 52),
        "gpt-oss-20b": (128, 12),
        "gpt-oss-120b": (128, 18),
        "ministral-8b": (32768, 27),
    }


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("auto", 2), ("fp8", 1), ("fp8_e4m3", 1), ("fp8_e5m2", 1), ("bf16", 2), ("bfloat16", 2), ("fp32", 4)],
)
def test_a_cached_number_has_the_bytes_of_its_type(dtype, size):
    served = scenario(kv_cache_dtype=dtype).served_model
    assert served.kv_bytes_per_token == 65_536 * size
    assert served.weight_bytes == scenario().model.weight_bytes


def test_kv_heads_are_split_over_gpus_then_replicated():
    qwen = model_named("qwen2.5-7b")  # 4 KV heads
    per_gpu = [qwen.kv_bytes_per_token_per_gpu(tp) for tp in (1, 2, 4, 28)]
    assert per_gpu == [57_344, 28_672, 14_336, 14_336]


def test_gpu_memory_is_gib_and_rates_are_decimal():
    a100 = gpu_named("a100-40gb")
    assert a100.memory_bytes == 40 * GIB
    assert (a100.bandwidth_bytes_per_s, a100.flops_per_s) == (1555e9, 312e12)
    assert (a100.link_bytes_per_s, gpu_named("l4").link_bytes_per_s) == (300e9, None)


def test_every_table_entry_names_its_source():
    assert all(model_named(name).source for name in model_names())
    assert all(gpu_named(name).source for name in gpu_names())
    assert len(gpu_names()) == 20


@pytest.mark.parametrize("name", ["A100-40GB", "a100_40gb", " A100 40gb "])
def test_names_match_whatever_the_case_and_the_separator(name):
    assert gpu_named(name) is gpu_named("a100-40gb")


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(KvsimError, match="model 'opt-31b' is unknown; did you mean 'opt-13b'"):
        model_named("opt-31b")
    with pytest.raises(KvsimError, match=r"gpu 'h10' is unknown; did you mean 'h100'\? \(known: a100-40gb"):
        gpu_named("h10")
    with pytest.raises(KvsimError, match="model '' is unknown"):
        model_named("")
    with pytest.raises(KvsimError, match=r"model 'none/x.json': x.json cannot be read: No such file"):
        model_named("none/x.json")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"block_size": 24}, "block_size must be a power of two, got 24"),
        ({"block_size": 0}, "block_size must be a whole number of at least 1, got 0"),
        ({"block_size": 16.0}, "block_size must be a whole number of at least 1, got 16.0"),
        ({"max_num_seqs": True}, "max_num_seqs must be a whole number of at least 1, got True"),
        ({"reserve": "all"}, "reserve must be one of max, pow2, oracle, predicted:MODEL, got 'all'"),
        (
            {"max_num_seqs": 4096},
            r"max_num_batched_tokens must be at least max_num_seqs \(4096\), got 2048",
        ),
        ({"max_model_len": 0}, "max_model_len must be a whole number of at least 1, got 0"),
    ],
)
def test_an_engine_that_cannot_be_is_refused(settings, message):
    with pytest.raises(KvsimError, match=message):
        EngineConfig(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tensor_parallel_size": 3}, "must divide the 32 heads of llama-3.1-8b .* 8 KV heads, got 3"),
        ({"tensor_parallel_size": 0}, "tensor_parallel_size must be a whole number of at least 1, got 0"),
        ({"gpu_memory_utilization": 0}, "gpu_memory_utilization must be .* above 0 and at most 1, got 0"),
        ({"gpu_memory_utilization": 1.1}, "at most 1, got 1.1"),
        ({"gpu_memory_utilization": float("nan")}, "at most 1, got nan"),
        ({"num_gpu_blocks": 0}, "num_gpu_blocks must be a whole number of at least 1, got 0"),
        ({"kv_tokens": -1}, "kv_tokens must be a whole number of at least 1, got -1"),
        ({"num_gpu_blocks": 1, "kv_tokens": 16}, "give one, got 1 and 16"),
        ({"kv_cache_dtype": "int4"}, "kv_cache_dtype must be one of auto, fp8, .* fp32, got 'int4'"),
    ],
)
def test_a_scenario_that_cannot_be_is_refused(settings, message):
    with pytest.raises(KvsimError, match=message):
        scenario(**settings)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": 0}, "layers must be a whole number of at least 1, got 0"),
        ({"kv_heads": 3}, r"kv_heads must divide heads \(32\), got 3"),
        ({"dtype_bytes": 3}, "dtype_bytes must be 1, 2 or 4, got 3"),
        ({"kv_dtype_bytes": 3}, "kv_dtype_bytes must be 1, 2, 4 or None, got 3"),
        ({"kv_latent_dim": 576}, "kv_rope_dim must be a whole number of at least 1, got None"),
        ({"kv_latent_dim": 64, "kv_rope_dim": 64}, r"below kv_latent_dim \(64\), got 64"),
        ({"window": 1024}, "window and window_layers need each other, got 1024 and 0"),
        ({"window_layers": 8}, "window and window_layers need each other, got None and 8"),
        ({"window": 0, "window_layers": 8}, "window must be a whole number of at least 1, got 0"),
        ({"window": 1024, "window_layers": 33}, r"window_layers must be at most layers \(32\), got 33"),
        ({"parameters": 1}, r"parameters must exceed the embeddings \(262144000\), got 1"),
        ({"active_parameters": 10**12}, "active_parameters must be at most parameters"),
    ],
)
def test_a_model_that_cannot_be_is_refused(change, message):
    with pytest.raises(KvsimError, match=message):
        replace(model_named("llama-2-7b"), **change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"memory_bytes": 40e9}, "memory_bytes must be a whole number of at least 1, got 40000000000.0"),
        ({"flops_per_s": float("inf")}, "flops_per_s must be a finite number above 0, got inf"),
        ({"link_bytes_per_s": 0}, "link_bytes_per_s must be a finite number above 0, got 0"),
        ({"matmul_efficiency": 1.5}, "matmul_efficiency must be .* at most 1, got 1.5"),
    ],
)
def test_a_gpu_that_cannot_be_is_refused(change, message):
    with pytest.raises(KvsimError, match=message):
        replace(gpu_named("h100"), **change)


def test_the_longest_sequence_is_the_engines_choice_else_the_models():
    assert scenario().max_model_len == 131_072
    assert scenario(engine=EngineConfig(max_model_len=2048)).max_model_len == 2048


def test_specs_are_frozen():
    for spec, field in ((EngineConfig(), "policy"), (gpu_named("h100"), "name"), (scenario(), "cost")):
        assert isinstance(spec, EngineConfig | GpuSpec | ModelSpec | Deployment)
        with pytest.raises(FrozenInstanceError):
            setattr(spec, field, "best")
