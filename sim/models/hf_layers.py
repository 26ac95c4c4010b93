"""What each layer of a Hugging Face model caches: from its config.json to KvLayers.

`layer_types` decides if it is given. Otherwise, `READERS` has a function for each family with its own
notation (a pattern, a period, a list of numbers). All families in PLAIN have one kind of layer: full
attention, windowed if the config states a window that the family uses. Anything unknown is an error that
names it: mistaking one layer for another would change sizes by a factor, unnoticed.

Layers are numbered as in vLLM 0.33.0, so that groups can be compared with vLLM's. A Falcon-H1 layer has
attention and Mamba in parallel: its Mamba half counts after all attention layers.
"""

from kvsim.sim.errors import KvsimError
from kvsim.sim.models.hf_attention import Attention, latent_layers, types_of
from kvsim.sim.models.hf_families import READERS
from kvsim.sim.models.hf_keys import Config, family_of, find
from kvsim.sim.models.kv_layers import KvLayers

PLAIN = frozenset(
    (
        *(
            "llama",
            "mistral",
            "mixtral",
            "ministral",
            "ministral3",
            "mistral3",
            "qwen2",
            "qwen2_moe",
            "qwen3",
        ),
        *(
            "qwen3_moe",
            "qwen",
            "gemma",
            "gemma2",
            "gemma3",
            "gemma3_text",
            "cohere",
            "cohere2",
            "phi",
            "phi3",
        ),
        *(
            "phimoe",
            "opt",
            "gpt2",
            "gpt_neo",
            "gpt_neox",
            "gpt_neox_japanese",
            "gptj",
            "gpt_bigcode",
            "bloom",
        ),
        *("codegen", "falcon", "refinedweb", "refinedwebmodel", "mpt", "starcoder2", "persimmon", "nemotron"),
        *("xglm", "biogpt", "chatglm", "glm", "glm4", "glm4_moe", "gpt_oss", "minimax_m2", "olmo", "olmo2"),
        *(
            "olmo3",
            "olmoe",
            "flex_olmo",
            "granite",
            "granitemoe",
            "granitemoeshared",
            "internlm",
            "internlm2",
        ),
        *(
            "internlm3",
            "baichuan",
            "stablelm",
            "exaone",
            "exaone4",
            "exaone_moe",
            "smollm3",
            "apertus",
            "arcee",
        ),
        *("seed_oss", "ernie4_5", "ernie4_5_moe", "hunyuan_v1_dense", "hunyuan_v1_moe", "dots1", "dbrx"),
        *(
            "deepseek",
            "deepseek_v2",
            "deepseek_v3",
            "deepseek_v32",
            "kimi_k2",
            "glm_moe_dsa",
            "glm4_moe_lite",
        ),
        *("minicpm", "minicpm3", "orion", "solar", "bitnet", "aquila", "arctic", "grok-1", "grok", "step3p5"),
        *("step3p7", "step3_text", "afmoe", "bailing_moe", "bailing_moe_v2", "ling", "mimo", "longcat_flash"),
        *("decilm", "xverse", "yi", "zephyr", "jais", "telechat", "qwen2_vl_text", "qwen2_5_vl_text"),
        *("qwen3_vl_text", "qwen3_vl_moe_text", "llada", "youtu", "pangu", "iquest", "mellum", "laguna"),
    )
)
"""Families whose layers are all alike, or are told apart by layer_types, a window or a latent."""

WINDOW_PATTERN = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4, "gpt_oss": 2}
"""Families in which every n-th layer is full and the others windowed; in other families all are windowed."""

WINDOW_SWITCHED = frozenset(("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "smollm3"))
"""Families that state a window but use it only with `use_sliding_window`."""


def kv_layers_of(config: Config, heads: int, kv_heads: int, head_dim: int) -> tuple[KvLayers, ...]:
    """What each layer of a model caches.

    Parameters
    ----------
    config : mapping
        The language model's part of a config.json.
    heads, kv_heads, head_dim : int
        As read from it.

    Raises
    ------
    KvsimError
        Names the field, for an unknown family or kind of layer, or a contradiction.
    """
    family = family_of(config)
    attention = Attention(config, kv_heads, head_dim)
    reader = READERS.get(family)
    if reader is not None:
        return tuple(reader(config, attention))
    if family and family not in PLAIN:
        raise KvsimError(
            f"model_type {family!r} is unknown; for a plain transformer (all layers attend to all tokens, "
            'or as layer_types says) set model_type to "llama" in a copy of the config'
        )
    return tuple(_by_types(config, attention))


def _by_types(config: Config, attention: Attention) -> list[KvLayers]:
    """Plain families: a latent, layer_types, a window with or without a pattern, or full attention."""
    family, count = family_of(config), attention.layers
    if find(config, "kv_rank"):
        return latent_layers(config, count)
    types = types_of(config, count)
    if types is not None and not set(types) <= {
        "full_attention",
        "sliding_window",
        "chunked_local_attention",
    }:
        raise KvsimError(
            f"layer_types of model_type {family!r} holds recurrent layers, and how large their state is "
            "is not known for this family"
        )
    used = config.get("use_sliding_window", family not in WINDOW_SWITCHED)
    if used and not attention.window and "sliding_window" in (types or ()) and "sliding_window" not in config:
        raise KvsimError("sliding_window is missing: layer_types holds layers of kind sliding_attention")
    if not attention.window or not used:
        if types is None or "chunked_local_attention" not in types:
            types = ["full_attention"] * count
    elif types is None:
        types = _windowed(config, count)
    return attention.of_kinds(types)


def _windowed(config: Config, count: int) -> list[str]:
    """The kinds of layers of a model that has a window and does not list its layers."""
    family = family_of(config)
    if family in WINDOW_SWITCHED:
        full = min(count, find(config, "unwindowed_layers") or 0)
        return ["full_attention"] * full + ["sliding_window"] * (count - full)
    pattern = find(config, "window_pattern") or WINDOW_PATTERN.get(family)
    if pattern is None:
        return ["sliding_window"] * count
    return ["sliding_window" if (number + 1) % pattern else "full_attention" for number in range(count)]
