"""Facts from a Hugging Face config.json: a fact has several keys, and the first one that is set counts."""

from collections.abc import Mapping

from kvsim.sim.errors import KvsimError

Config = Mapping[str, object]

KEYS: dict[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers"),
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "decoder_attention_heads", "num_heads"),
    "kv_heads": (
        *("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num"),
        "num_attention_groups",
    ),
    "head_dim": ("head_dim", "attention_head_dim"),
    "intermediate_size": (
        *("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "decoder_ffn_dim"),
    ),
    "vocab_size": ("vocab_size", "padded_vocab_size"),
    "max_model_len": (
        *("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx"),
        "max_target_positions",
    ),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
    "experts_per_token": (
        "num_experts_per_tok",
        "num_experts_per_token",
        "top_k_experts",
        "moe_top_k",
        "moe_k",
    ),
    "expert_size": ("moe_intermediate_size", "expert_ffn_hidden_size"),
    "shared_experts": ("n_shared_experts", "num_shared_experts"),
    "shared_size": (
        *("shared_expert_intermediate_size", "share_expert_dim", "moe_shared_expert_intermediate_size"),
        "shared_intermediate_size",
    ),
    "dense_layers": ("first_k_dense_replace",),
    "dense_size": ("intermediate_size_mlp",),
    "embedding_size": ("word_embed_proj_dim",),
    "kv_rank": ("kv_lora_rank",),
    "query_rank": ("q_lora_rank",),
    "rope_dim": ("qk_rope_head_dim",),
    "nope_dim": ("qk_nope_head_dim",),
    "value_dim": ("v_head_dim",),
    "window": ("sliding_window", "sliding_window_size"),
    "window_pattern": ("sliding_window_pattern", "_sliding_window_pattern"),
    "unwindowed_layers": ("max_window_layers",),
}
"""Fact -> the keys that may hold it, in order of preference."""

MAY_BE_ZERO = (
    *("experts", "experts_per_token", "shared_experts", "dense_layers", "shared_size"),
    *("unwindowed_layers", "window"),
)

MOST_PARTS = 1 << 16
"""Limit on layers, and on experts per layer, as they are iterated one by one."""


def whole(config: Config, key: str, least: int = 1) -> int | None:
    """The integer under a key; None if not set."""
    value = config.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise KvsimError(f"{key} must be a whole number of at least {least}, got {value!r}")
    if value > MOST_PARTS and ("layer" in key or key in (*KEYS["experts"], "num_mem_blocks")):
        raise KvsimError(f"{key} must be at most {MOST_PARTS:,}, got {value}")
    return value


def need_whole(config: Config, key: str, default: int | None = None) -> int:
    """Like `whole`, for a number without which the model is not understood."""
    value = whole(config, key)
    if value is None:
        value = default
    if value is None:
        raise KvsimError(f"{key} is missing: a {config.get('model_type')} model needs it")
    return value


def find(config: Config, fact: str) -> int | None:
    """The first of a fact's keys that is set; None if none is."""
    for key in KEYS[fact]:
        value = whole(config, key, 0 if fact in MAY_BE_ZERO else 1)
        if value is not None:
            return value
    return None


def need(config: Config, fact: str) -> int:
    """Like `find`, for a fact that every config must state."""
    value = find(config, fact)
    if value is None:
        raise KvsimError(f"{fact} is missing: none of the keys {', '.join(KEYS[fact])} is set")
    return value


def listed(config: Config, key: str, count: int | None = None) -> list[object] | None:
    """The list (or text, letter by letter) under a key, with one entry per layer; None if not set."""
    value = config.get(key)
    if value is None:
        return None
    if not isinstance(value, list | str):
        raise KvsimError(f"{key} must be a list, got {value!r}")
    if count is not None and len(value) != count:
        raise KvsimError(f"{key} must hold one entry for each of the {count} layers, got {len(value)}")
    return list(value)


def family_of(config: Config) -> str:
    """The model_type in lower case; empty if not stated."""
    return str(config.get("model_type") or "").lower()
