"""Any Hugging Face `config.json` -> ModelSpec.

The same fact has many keys (num_hidden_layers, n_layer, num_layers, ...): `KEYS` lists them, first found
wins. Parameters are counted from the geometry:

    embeddings   vocab * hidden, twice unless tied; + positions * hidden where positions are learned
    attention    layers * hidden * head_dim * (2 * heads + 2 * kv_heads)
    or latent    layers * (hidden * q_rank + q_rank * heads * (nope + rope)      query, in two steps or one
    (MLA)                  + hidden * (kv_rank + rope) + kv_rank * heads * (nope + v) + heads * v * hidden)
    MLP          layers * hidden * intermediate * 3 (gated: gate, up, down) or 2 (up, down)
    experts      an MLP each, and the shared ones, and hidden * experts for the router

Left out: norms and biases (about 0.1 % of a model of a billion and more), heads that predict further
tokens, the stretching of positions by rope_scaling, quantization other than to FP8. As in vLLM, 32-bit
weights are served as 16-bit. Windowed layers are those of `layer_types`, else of the model's pattern.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from kvsim.sim.config import ModelSpec
from kvsim.sim.errors import KvsimError
from kvsim.sim.reading import read_object, understood

KEYS: dict[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num"),
    "head_dim": ("head_dim",),
    "intermediate_size": ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size"),
    "vocab_size": ("vocab_size", "padded_vocab_size"),
    "max_model_len": ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx"),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "experts_per_token": ("num_experts_per_tok", "num_experts_per_token"),
    "expert_size": ("moe_intermediate_size",),
    "shared_experts": ("n_shared_experts", "num_shared_experts"),
    "shared_size": ("shared_expert_intermediate_size",),
    "dense_layers": ("first_k_dense_replace",),
    "embedding_size": ("word_embed_proj_dim",),
    "kv_rank": ("kv_lora_rank",),
    "query_rank": ("q_lora_rank",),
    "rope_dim": ("qk_rope_head_dim",),
    "nope_dim": ("qk_nope_head_dim",),
    "value_dim": ("v_head_dim",),
    "window": ("sliding_window",),
    "window_pattern": ("sliding_window_pattern", "_sliding_window_pattern"),
    "unwindowed_layers": ("max_window_layers",),
}

MAY_BE_ZERO = ("experts", "shared_experts", "dense_layers", "shared_size", "unwindowed_layers")

DTYPE_BYTES = {
    "float32": 2,
    "float16": 2,
    "half": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}

UNGATED = frozenset(
    (
        *("opt", "gpt2", "gpt_neo", "gpt_neox", "gpt_neox_japanese", "gptj", "gpt_bigcode", "codegen"),
        *("bloom", "falcon", "refinedweb", "refinedwebmodel", "mpt", "phi", "starcoder2", "persimmon"),
        *("nemotron", "xglm", "biogpt"),
    )
)
"""Families whose MLP has two matrices, up and down."""

GATED = frozenset(("gemma", "gemma2", "gemma3", "gemma3_text", "chatglm", "glm"))
"""Families with a gate whose activation does not tell: hidden_act is a GELU, or is not given."""

WINDOW_PATTERN = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4}
"""Families of which every so many-th layer is full and the others windowed; elsewhere all are windowed."""

WINDOW_SWITCHED = frozenset(("qwen2", "qwen2_moe", "qwen3", "qwen3_moe"))
"""Families that state a window and use it only if `use_sliding_window` says so."""

DEFAULTS: dict[str, dict[str, int]] = {
    "gemma3_text": {
        **{"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256},
        **{"vocab_size": 262_208, "max_position_embeddings": 131_072},
    }
}
"""What the published configs of a family leave to transformers' defaults."""

LEARNED_POSITIONS = frozenset(("opt", "gpt2", "gpt_neo", "gpt_bigcode"))

DEFAULT_MODEL_LEN = 2048
"""What vLLM assumes of a config that states no maximum (Falcon, some of Bloom)."""


def read_model(path: Path) -> ModelSpec:
    """The model of a config.json, or of a folder that holds one."""
    file = path / "config.json" if path.is_dir() else path
    what = f"model {str(path)!r}"
    config = read_object(file, f"{what}: {file.name}")
    try:
        with understood(what):
            return model_of(config, folder=file.resolve().parent.name)
    except KvsimError as error:
        raise KvsimError(str(error) if str(error).startswith(what) else f"{what}: {error}") from error


def model_of(config: Mapping[str, object], folder: str) -> ModelSpec:
    """The model of a parsed config.json; `folder` names it where the config does not."""
    outer, config = config, _text_part(config)
    family = str(config.get("model_type", "")).lower()
    config = {**DEFAULTS.get(family, {}), **config}
    hidden, heads = _need(config, "hidden_size"), _need(config, "heads")
    layers, vocab = _need(config, "layers"), _need(config, "vocab_size")
    kv_heads = _kv_heads(config, heads)
    latent = _latent(config)
    head_dim = latent.head_dim if latent else _find(config, "head_dim") or _exact(hidden, heads)
    intermediate = _find(config, "intermediate_size") or 4 * hidden
    stated_len = _find(config, "max_model_len")
    max_model_len = stated_len or DEFAULT_MODEL_LEN
    tied = bool(config.get("tie_word_embeddings", outer.get("tie_word_embeddings", True)))

    embedding = _find(config, "embedding_size") or hidden
    embeddings = vocab * embedding * (1 if tied else 2)
    if embedding != hidden:  # OPT-350M embeds narrower and projects, in and out
        embeddings += 2 * hidden * embedding
    if family in LEARNED_POSITIONS:
        embeddings += max_model_len * hidden
    if latent:
        attention = layers * latent.parameters(hidden, heads)
    else:
        attention = layers * hidden * head_dim * 2 * (heads + kv_heads)
    mlp, active_mlp = _mlp(config, hidden, intermediate, layers, 3 if _gated(config, family) else 2)
    notes = [] if stated_len else [f"it states no maximum length: {DEFAULT_MODEL_LEN}, as vLLM assumes"]
    other = sorted({str(kind) for kind in _layer_types(config)} - {"full_attention", "sliding_attention"})
    if other:
        notes.append(f"its {', '.join(other)} layers count as full attention")
    dtype_bytes, kv_dtype_bytes = _dtype_bytes(config, outer), None
    quantization = outer.get("quantization_config")
    if isinstance(quantization, dict) and quantization.get("quant_method") == "fp8":
        dtype_bytes, kv_dtype_bytes = 1, dtype_bytes
    elif quantization is not None:
        notes.append("its quantization_config is ignored")
    window, window_layers = _window(config, family, layers, max_model_len)
    return ModelSpec(
        name=_name(outer, folder),
        layers=layers,
        hidden_size=hidden,
        intermediate_size=intermediate,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        parameters=embeddings + attention + mlp,
        active_parameters=embeddings + attention + active_mlp if active_mlp != mlp else None,
        vocab_size=vocab,
        max_model_len=max_model_len,
        dtype_bytes=dtype_bytes,
        kv_dtype_bytes=kv_dtype_bytes,
        kv_latent_dim=latent.kv_rank + latent.rope if latent else None,
        kv_rope_dim=latent.rope if latent else None,
        window=window,
        window_layers=window_layers,
        tie_word_embeddings=tied,
        source="; ".join(["config.json", *notes]),
    )


class _Latent(NamedTuple):
    """The sizes of multi-head latent attention: a head's, and the ranks between which it goes."""

    kv_rank: int
    query_rank: int | None
    rope: int
    nope: int
    value: int

    @property
    def head_dim(self) -> int:
        """The mean of key (its position apart) and value, both 128 in DeepSeek."""
        return (self.nope + self.value) // 2

    def parameters(self, hidden: int, heads: int) -> int:
        """Those of one layer."""
        query = heads * (self.nope + self.rope)
        return (
            (self.query_rank * (hidden + query) if self.query_rank else hidden * query)
            + hidden * (self.kv_rank + self.rope)
            + self.kv_rank * heads * (self.nope + self.value)
            + heads * self.value * hidden
        )


def _latent(config: Mapping[str, object]) -> _Latent | None:
    """What DeepSeek and its kin cache instead of keys and values; None for all others."""
    kv_rank = _find(config, "kv_rank")
    if kv_rank is None:
        return None
    rope, nope, value = (_need(config, fact) for fact in ("rope_dim", "nope_dim", "value_dim"))
    return _Latent(kv_rank, _find(config, "query_rank"), rope, nope, value)


def _window(
    config: Mapping[str, object], family: str, layers: int, max_model_len: int
) -> tuple[int | None, int]:
    """The sliding window and how many layers have it; (None, 0) when it hides nothing."""
    window = _find(config, "window")
    used = config.get("use_sliding_window", family not in WINDOW_SWITCHED)
    if window is None or not used or window >= max_model_len:
        return None, 0
    if types := _layer_types(config):
        windowed = types.count("sliding_attention")
    elif pattern := _find(config, "window_pattern") or WINDOW_PATTERN.get(family):
        windowed = layers - layers // pattern
    elif family in WINDOW_SWITCHED:
        windowed = max(0, layers - (_find(config, "unwindowed_layers") or 0))
    else:
        windowed = layers
    return (window, windowed) if windowed else (None, 0)


def _layer_types(config: Mapping[str, object]) -> list[object]:
    """The kind of each layer, where the config lists them."""
    types = config.get("layer_types")
    return types if isinstance(types, list) else []


def _mlp(config: Mapping[str, object], hidden: int, size: int, layers: int, matrices: int) -> tuple[int, int]:
    """Parameters of all MLPs, and those that one token passes through."""
    experts = _find(config, "experts") or 1
    if experts == 1:
        return (layers * hidden * size * matrices,) * 2
    expert_size = _find(config, "expert_size") or size
    shared_size = _find(config, "shared_size") or (_find(config, "shared_experts") or 0) * expert_size
    listed = config.get("mlp_only_layers")
    dense = (_find(config, "dense_layers") or 0) + (len(listed) if isinstance(listed, list) else 0)
    if dense > layers:
        raise KvsimError(f"dense layers must be at most the {layers} layers, got {dense}")
    used = _need(config, "experts_per_token")
    if used > experts:
        raise KvsimError(f"num_experts_per_tok must be at most the {experts} experts, got {used}")

    def parameters(experts_counted: int) -> int:
        sparse = matrices * (experts_counted * expert_size + shared_size) + experts
        return hidden * (dense * matrices * size + (layers - dense) * sparse)

    return parameters(experts), parameters(used)


def _gated(config: Mapping[str, object], family: str) -> bool:
    """Whether the MLP has a gate matrix: by family, else by its activation."""
    if family in UNGATED or family in GATED:
        return family in GATED
    act = str(config.get("hidden_act") or config.get("activation_function") or "silu").lower()
    return act in ("silu", "swish", "swiglu", "geglu")


def _kv_heads(config: Mapping[str, object], heads: int) -> int:
    """Falcon-7B states 71 KV heads and multi_query; it caches one. ChatGLM states its groups."""
    if config.get("multi_query") is True and not config.get("new_decoder_architecture"):
        return 1
    return _find(config, "kv_heads") or heads


def _dtype_bytes(config: Mapping[str, object], outer: Mapping[str, object]) -> int:
    for part in (config, outer):
        for key in ("torch_dtype", "dtype"):
            if part.get(key) not in (None, "auto"):
                dtype = str(part[key]).removeprefix("torch.")
                if dtype not in DTYPE_BYTES:
                    raise KvsimError(f"{key} must be one of {', '.join(DTYPE_BYTES)}, got {dtype!r}")
                return DTYPE_BYTES[dtype]
    return 2


def _text_part(config: Mapping[str, object]) -> Mapping[str, object]:
    """The language model of a multimodal config, which sits under `text_config`."""
    text = config.get("text_config")
    return text if isinstance(text, dict) else config


def _name(config: Mapping[str, object], folder: str) -> str:
    """`facebook/opt-13b` as it is; of a local path only the last folder."""
    name = str(config.get("_name_or_path") or "").rstrip("/")
    return name.rsplit("/", 1)[-1] if name.startswith(("/", ".", "~")) else name or folder


def _find(config: Mapping[str, object], fact: str) -> int | None:
    """The first of the fact's keys that is set; None when none is."""
    for key in KEYS[fact]:
        value = config.get(key)
        if value is None:
            continue
        least = 0 if fact in MAY_BE_ZERO else 1
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise KvsimError(f"{key} must be a whole number of at least {least}, got {value!r}")
        return value
    return None


def _need(config: Mapping[str, object], fact: str) -> int:
    value = _find(config, fact)
    if value is None:
        raise KvsimError(f"{fact} is missing: none of the keys {', '.join(KEYS[fact])} is set")
    return value


def _exact(hidden: int, heads: int) -> int:
    """The size of a head when the config leaves it out."""
    if hidden % heads:
        raise KvsimError(f"head_dim is missing and hidden_size {hidden} is no multiple of the {heads} heads")
    return hidden // heads
