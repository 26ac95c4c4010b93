"""Any Hugging Face `config.json` -> ModelSpec.

    hf_keys.py           one fact under its many keys
    hf_layers.py         which layers cache what
    hf_modules.py        the weight matrices, counted
    hf_quantization.py   their precision

As in vLLM, 32-bit weights are served in 16 bits, and heads that predict further tokens are not loaded. The
model's `notes` tell what was assumed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from kvsim.sim.errors import KvsimError
from kvsim.sim.files.reading import read_object, understood
from kvsim.sim.models.hf_keys import Config, family_of, find, need, whole
from kvsim.sim.models.hf_layers import kv_layers_of
from kvsim.sim.models.hf_modules import Geometry, Module, counted, modules_of
from kvsim.sim.models.hf_quantization import quantization_of
from kvsim.sim.models.kv_layers import KvLayers
from kvsim.sim.models.spec import ModelSpec

DTYPE_BYTES = {
    "float32": 2,
    "float16": 2,
    "half": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}

DEFAULTS: dict[str, dict[str, int]] = {
    "gemma3_text": {
        **{"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256},
        **{"vocab_size": 262_208, "max_position_embeddings": 131_072},
    }
}
"""Values that a family's published configs leave to the defaults of transformers."""

WIDE_ROUTERS = ("minimax_m2", "glm4_moe")
"""Families whose routers vLLM computes in 32 bits (models/minimax_m2.py and glm4_moe.py)."""

UNTIED = frozenset(
    (
        *("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next", "llama4"),
        *("llama4_text", "gpt_oss", "glm4_moe", "minimax_m2", "jamba", "nemotron_h", "falcon_h1", "phi3"),
        *("deepseek_v2", "deepseek_v3", "kimi_k2", "mimo_v2_flash", "step3p7", "qwen3_5_moe_text"),
        *("qwen3_5_text", "qwen3_5_moe", "qwen3_5", "bamba", "glm4"),
    )
)
"""Families with a separate output matrix unless tie_word_embeddings is set."""

DEFAULT_MODEL_LEN = 2048
"""The maximum length that vLLM assumes if a config has none (Falcon, some of Bloom)."""

UNSCALED_ROPE = ("su", "longrope", "llama3", "yarn", "deepseek_yarn", "mrope", "default", "proportional")
"""Types of rope_scaling whose factor max_position_embeddings already includes, or that do not lengthen."""


def read_model(path: Path) -> ModelSpec:
    """The model of a config.json, or of a folder with one."""
    file = path / "config.json" if path.is_dir() else path
    what = f"model {str(path)!r}"
    config = read_object(file, f"{what}: {file.name}")
    try:
        with understood(what):
            whole = file.resolve()
            return model_of(config, folder=whole.parent.name if whole.name == "config.json" else whole.stem)
    except KvsimError as error:
        raise KvsimError(str(error) if str(error).startswith(what) else f"{what}: {error}") from error


def model_of(config: Mapping[str, object], folder: str) -> ModelSpec:
    """The model of a parsed config.json; `folder` is its name if the config has none."""
    outer, config = config, _text_part(config)
    family = family_of(config)
    config = {**DEFAULTS.get(family, {}), **config}
    shape, notes = _geometry(config, outer)
    kept = kv_layers_of(config, shape.heads, shape.kv_heads, shape.head_dim)
    modules = modules_of(config, shape, kept)
    roles = counted(modules)
    total, experts = sum(roles.values()), find(config, "experts") or 1
    used = (find(config, "experts_per_token") or 0) if experts > 1 else 0
    routed = roles.get("experts", 0)
    latent = next((layers for layers in kept if layers.kind == "mla_attention"), None)
    window, window_layers = _window(kept, shape.max_model_len)
    notes += _notes(config, outer, kept)
    given = outer.get("quantization_config") or config.get("quantization_config")
    model = ModelSpec(
        name=_name(outer, folder),
        layers=shape.layers,
        hidden_size=shape.hidden,
        intermediate_size=find(config, "intermediate_size") or 4 * shape.hidden,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        parameters=total,
        active_parameters=total - routed + routed * used // experts if routed and used < experts else None,
        vocab_size=shape.vocab,
        max_model_len=shape.max_model_len,
        dtype_bytes=_dtype_bytes(config, outer),
        kv_latent_dim=latent.head_dim if latent else None,
        kv_rope_dim=need(config, "rope_dim") if latent else None,
        window=window,
        window_layers=window_layers,
        experts=experts if routed else 0,
        experts_per_token=used if routed else 0,
        expert_parameters=routed,
        mtp_modules=_mtp_modules(config),
        norms_over_heads=config.get("qk_norm_type") == "per_layer",
        router_bits=32 if family in WIDE_ROUTERS else 16,
        sinks=family == "gpt_oss",
        tie_word_embeddings=shape.tied,
        notes=tuple(notes),
        source="config.json",
    )
    if kept != model.uniform_kv_layers:
        model = replace(model, kv_layers=kept)
    return _quantized(model, given, modules)


def _geometry(config: Config, outer: Config) -> tuple[Geometry, list[str]]:
    """The sizes of a model, and the assumptions about them."""
    hidden, heads = need(config, "hidden_size"), need(config, "heads")
    layers, vocab = need(config, "layers"), need(config, "vocab_size")
    if find(config, "kv_rank"):
        _, nope, value = (need(config, fact) for fact in ("rope_dim", "nope_dim", "value_dim"))
        head_dim = (nope + value) // 2  # both 128 in DeepSeek
    else:
        head_dim = find(config, "head_dim") or _exact(hidden, heads)
    length, notes = _longest(config)
    tied = config.get("tie_word_embeddings", outer.get("tie_word_embeddings"))
    if tied is None:
        tied = family_of(config) not in UNTIED
    return Geometry(
        hidden, heads, _kv_heads(config, heads), head_dim, layers, vocab, length, bool(tied)
    ), notes


def _longest(config: Config) -> tuple[int, list[str]]:
    """The longest sequence, derived from the config as in vLLM."""
    stated = find(config, "max_model_len")
    if stated is None:
        return DEFAULT_MODEL_LEN, [f"it states no maximum length: {DEFAULT_MODEL_LEN}, as vLLM assumes"]
    rope = config.get("rope_scaling") or config.get("rope_parameters")
    if not isinstance(rope, Mapping) or "gemma3" in family_of(config):
        return stated, []
    kind, factor = str(rope.get("rope_type") or rope.get("type") or "default"), rope.get("factor")
    original = whole(config, "original_max_position_embeddings")
    if kind == "longrope" and original:
        return original, [
            f"vLLM serves {original} tokens unless told otherwise: its longrope reaches {stated}"
        ]
    if kind in UNSCALED_ROPE or not isinstance(factor, int | float) or factor <= 0:
        return stated, []
    return int(stated * factor), []


def _window(kept: Sequence[KvLayers], max_model_len: int) -> tuple[int | None, int]:
    """The sliding window, and the number of layers that have it; (None, 0) if it has no effect."""
    sliding = [layers for layers in kept if layers.window is not None]
    if not sliding or sliding[0].window is None or sliding[0].window >= max_model_len:
        return None, 0
    return sliding[0].window, sum(len(layers.layers) for layers in sliding)


def _quantized(model: ModelSpec, given: object, modules: Sequence[Module]) -> ModelSpec:
    """The model with its checkpoint's precision."""
    quantization = quantization_of(given, modules)
    scheme = given.get("kv_cache_scheme") if isinstance(given, Mapping) else None
    if isinstance(scheme, Mapping) and scheme.get("num_bits") == 8:
        note = "its checkpoint asks for an fp8 cache (kv_cache_scheme)"
        model = replace(model, kv_dtype_bytes=1, notes=(*model.notes, note))
    if quantization is None or not quantization.parameters:
        return model
    share = 100 * quantization.parameters / model.parameters
    bits = f"{quantization.bits:.4g} bits, scales included"
    note = f"{quantization.method}: {share:.1f} % of its parameters in {bits}, the rest in 16"
    return replace(
        model,
        quantization=quantization.method,
        weight_bits=quantization.bits,
        quantized_parameters=quantization.parameters,
        notes=(*model.notes, note),
    )


def _mtp_modules(config: Config) -> int:
    """Number of layers for multi-token prediction."""
    keys = "num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules"
    return next((found for key in keys if (found := whole(config, key, 0))), 0)


def _notes(config: Config, outer: Config, kept: Sequence[KvLayers]) -> list[str]:
    """Notes on surprising facts behind this model's numbers."""
    notes = []
    drafts = _mtp_modules(config)
    if drafts:
        notes.append(
            f"its {drafts} MTP draft layer{'s are' if drafts > 1 else ' is'} loaded for speculative "
            "decoding only and counted with speculative_config alone"
        )
    shared = whole(config, "num_kv_shared_layers", 0)
    if shared:
        notes.append(f"its last {shared} layers read the keys and values of earlier ones and keep none")
    count = sum(len(layers.layers) for layers in kept if layers.kind == "mamba")
    if count:
        notes.append(f"{count} of its layers keep a state of fixed size, whatever the length")
    if "vision_config" in outer:
        notes.append("its vision tower is not counted")
    return notes


def _kv_heads(config: Config, heads: int) -> int:
    """Falcon-7B has 71 KV heads and multi_query in its config, but caches one. ChatGLM states its groups."""
    if config.get("multi_query") is True and not config.get("new_decoder_architecture"):
        return 1
    return find(config, "kv_heads") or heads


def _dtype_bytes(config: Config, outer: Config) -> int:
    for part in (config, outer):
        for key in ("torch_dtype", "dtype"):
            if part.get(key) not in (None, "auto"):
                dtype = str(part[key]).removeprefix("torch.")
                if dtype not in DTYPE_BYTES:
                    raise KvsimError(f"{key} must be one of {', '.join(DTYPE_BYTES)}, got {dtype!r}")
                return DTYPE_BYTES[dtype]
    return 2


def _text_part(config: Config) -> Config:
    """The language model of a multimodal config, under `text_config`."""
    for key in ("text_config", "llm_config", "language_config"):
        text = config.get(key)
        if isinstance(text, dict):
            return text
    return config


def _name(config: Config, folder: str) -> str:
    """`facebook/opt-13b` unchanged; for a local path only the last folder."""
    name = str(config.get("_name_or_path") or "").rstrip("/")
    return name.rsplit("/", 1)[-1] if name.startswith(("/", ".", "~")) else name or folder


def _exact(hidden: int, heads: int) -> int:
    """The head size if the config leaves it out; KvsimError if it is not a whole number."""
    if hidden % heads:
        raise KvsimError(f"head_dim is missing and hidden_size {hidden} is no multiple of the {heads} heads")
    return hidden // heads
