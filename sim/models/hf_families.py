"""Families with their own notation for what each layer caches: a pattern, a period, a list of numbers."""

from collections.abc import Callable

from kvsim.sim.errors import KvsimError
from kvsim.sim.models.hf_attention import Attention, Kinds, latent_layers, types_of
from kvsim.sim.models.hf_keys import Config, family_of, find, listed, need, need_whole, whole
from kvsim.sim.models.hf_states import QWEN3_5, state_of
from kvsim.sim.models.kv_layers import KvLayers, RecurrentState


def _interval(config: Config, attention: Attention) -> list[KvLayers]:
    """Qwen3-Next, Qwen3.5: layer_types, or every n-th layer is full and the others are gated delta nets."""
    kinds: Kinds | None = types_of(config, attention.layers)
    if kinds is None:
        every = whole(config, "full_attention_interval") or 4
        kinds = ["mamba" if (number + 1) % every else "full_attention" for number in range(attention.layers)]
    return attention.of_kinds(kinds, state_of(config))


def _jamba(config: Config, attention: Attention) -> list[KvLayers]:
    period, offset = need_whole(config, "attn_layer_period"), whole(config, "attn_layer_offset", 0) or 0
    kinds = ["full_attention" if number % period == offset else "mamba" for number in range(attention.layers)]
    return attention.of_kinds(kinds, state_of(config))


def _all_recurrent(config: Config, attention: Attention) -> list[KvLayers]:
    return attention.of_kinds(["mamba"] * attention.layers, state_of(config))


def _typed(config: Config, attention: Attention) -> list[KvLayers]:
    """Granite 4 and others that list every layer."""
    kinds = types_of(config, attention.layers)
    if kinds is None:
        raise KvsimError(f"layer_types is missing: a {config.get('model_type')} model needs it")
    return attention.of_kinds(kinds, state_of(config) if "mamba" in kinds else None)


def _indexed(config: Config, attention: Attention) -> list[KvLayers]:
    """Bamba: attention in the layers of attn_layer_indices."""
    full = listed(config, "attn_layer_indices") or []
    kinds = ["full_attention" if number in full else "mamba" for number in range(attention.layers)]
    return attention.of_kinds(kinds, state_of(config))


def _side_by_side(config: Config, attention: Attention) -> list[KvLayers]:
    """Falcon-H1: every layer has both; vLLM numbers the Mamba halves after all attention layers."""
    count = attention.layers
    state = KvLayers(kind="mamba", layers=tuple(range(count, 2 * count)), state=state_of(config))
    return [attention.full(range(count)), state]


def _zamba(config: Config, attention: Attention) -> list[KvLayers]:
    """Zamba2: Mamba everywhere, and a shared attention block before the hybrid layers."""
    types = listed(config, "layers_block_type", attention.layers)
    hybrid = (
        [number for number, kind in enumerate(types) if kind == "hybrid"]
        if types
        else [int(str(number)) for number in listed(config, "hybrid_layer_ids") or []]
    )
    state = KvLayers(kind="mamba", layers=tuple(range(attention.layers)), state=state_of(config))
    return [attention.full(hybrid), state] if hybrid else [state]


PATTERN = {"M": "mamba", "*": "full_attention", "-": None, "E": None}
"""Nemotron-H: one letter per layer; MLPs and experts cache nothing."""


def _nemotron(config: Config, attention: Attention) -> list[KvLayers]:
    letters = listed(config, "hybrid_override_pattern", attention.layers)
    if letters is None:
        named = {"mamba": "M", "attention": "*", "mlp": "-", "moe": "E"}
        types = listed(config, "layers_block_type", attention.layers) or []
        letters = [named.get(str(kind), kind) for kind in types]
    if not letters:
        raise KvsimError("hybrid_override_pattern is missing: a nemotron_h model needs it")
    unknown = sorted({str(letter) for letter in letters if letter not in PATTERN})
    if unknown:
        raise KvsimError(
            f"hybrid_override_pattern holds {', '.join(unknown)}, a kind of layer that is not known; "
            f"known are {' '.join(PATTERN)}"
        )
    return attention.of_kinds([PATTERN[str(letter)] for letter in letters], state_of(config))


def _llama4(config: Config, attention: Attention) -> list[KvLayers]:
    """Llama 4: chunks in layers with rotated positions, i.e. all but every fourth, or by no_rope_layers."""
    types = types_of(config, attention.layers)
    if types is not None:
        return attention.of_kinds(types)
    rotated = listed(config, "no_rope_layers", attention.layers) if config.get("no_rope_layers") else None
    if rotated is None:
        every = whole(config, "no_rope_layer_interval") or 4
        rotated = [int((number + 1) % every != 0) for number in range(attention.layers)]
    if whole(config, "attention_chunk_size") is None:
        return attention.of_kinds(["full_attention"] * attention.layers)
    return attention.of_kinds(["chunked_local_attention" if each else "full_attention" for each in rotated])


def _mimo(config: Config, attention: Attention) -> list[KvLayers]:
    """MiMo-V2: layers with a 1 in the pattern are windowed, and have their own heads."""
    pattern = listed(config, "hybrid_layer_pattern", attention.layers)
    if pattern is None:
        raise KvsimError("hybrid_layer_pattern is missing: a mimo_v2 model needs it")
    windowed = [number for number, letter in enumerate(pattern) if letter == 1]
    head_dim = need_whole(config, "swa_head_dim", attention.head_dim)
    sliding = KvLayers(
        kind="sliding_window",
        layers=tuple(windowed),
        kv_heads=need_whole(config, "swa_num_key_value_heads", attention.kv_heads),
        head_dim=head_dim,
        value_dim=whole(config, "swa_v_head_dim") or head_dim,
        window=need(config, "window"),
    )
    full = attention.full(number for number, letter in enumerate(pattern) if letter != 1)
    found = [each for each in (full, sliding) if each.layers]
    return sorted(found, key=lambda each: each.layers[0])


def _gemma_shared(config: Config, attention: Attention) -> list[KvLayers]:
    """Gemma 3n and 4: the last layers read the caches of earlier ones; full layers have their own sizes."""
    types = types_of(config, attention.layers)
    if types is None:
        pattern = find(config, "window_pattern") or (5 if family_of(config).startswith("gemma3n") else 6)
        types = [
            "sliding_window" if (number + 1) % pattern else "full_attention"
            for number in range(attention.layers)
        ]
    shared = whole(config, "num_kv_shared_layers", 0) or 0
    own: Kinds = [kind if number < attention.layers - shared else None for number, kind in enumerate(types)]
    found = attention.of_kinds(own)
    head_dim = whole(config, "global_head_dim")
    if head_dim is None:
        return found
    kv_heads = attention.kv_heads
    if config.get("attention_k_eq_v"):
        kv_heads = whole(config, "num_global_key_value_heads") or kv_heads
    return [
        KvLayers(kind=each.kind, layers=each.layers, kv_heads=kv_heads, head_dim=head_dim, value_dim=head_dim)
        if each.kind == "full_attention"
        else each
        for each in found
    ]


def _encoder_decoder(config: Config, attention: Attention) -> list[KvLayers]:
    """Whisper: every decoder layer also attends to the encoder's output."""
    full = attention.full(range(attention.layers))
    cross = KvLayers(
        kind="cross_attention",
        layers=full.layers,
        kv_heads=full.kv_heads,
        head_dim=full.head_dim,
        value_dim=full.value_dim,
    )
    return [full, cross]


def _cross(config: Config, attention: Attention) -> list[KvLayers]:
    """Llama 3.2 Vision: some layers attend only to the image."""
    crossing = [int(str(number)) for number in listed(config, "cross_attention_layers") or []]
    full = attention.full(number for number in range(attention.layers) if number not in crossing)
    cross = KvLayers(
        kind="cross_attention",
        layers=tuple(crossing),
        kv_heads=full.kv_heads,
        head_dim=full.head_dim,
        value_dim=full.value_dim,
    )
    return [full, cross] if crossing else [full]


def _minimax_text(config: Config, attention: Attention) -> list[KvLayers]:
    """MiniMax-Text-01: lightning attention with a 32-bit matrix per head."""
    given = listed(config, "attn_type_list", attention.layers)
    kinds: Kinds | None = (
        ["full_attention" if each == 1 else "mamba" for each in given]
        if given
        else types_of(config, attention.layers)
    )
    if kinds is None:
        raise KvsimError("attn_type_list is missing: a minimax_text_01 model needs it")
    state = RecurrentState(
        kind="linear", heads=need(config, "heads"), head_values=attention.head_dim**2, dtype_bytes=4
    )
    return attention.of_kinds(kinds, state)


def _short_convolutions(config: Config, attention: Attention) -> list[KvLayers]:
    """LFM2: convolutions that keep their last inputs, with full attention between them."""
    kinds = types_of(config, attention.layers)
    if kinds is None:
        full = listed(config, "full_attn_idxs") or []
        kinds = ["full_attention" if number in full else "mamba" for number in range(attention.layers)]
    state = RecurrentState(
        kind="conv",
        conv_taps=need_whole(config, "conv_L_cache") - 1,
        conv_channels=whole(config, "conv_dim") or need(config, "hidden_size"),
    )
    return attention.of_kinds(kinds, state)


def _kimi_linear(config: Config, attention: Attention) -> list[KvLayers]:
    """Kimi-Linear: Kimi delta attention with 32-bit state, and MLA; layers are counted from 1."""
    linear = config.get("linear_attn_config")
    if not isinstance(linear, dict):
        raise KvsimError("linear_attn_config is missing: a kimi_linear model needs it")
    heads, head_dim = need_whole(linear, "num_heads"), need_whole(linear, "head_dim")
    recurrent = [int(str(number)) - 1 for number in listed(linear, "kda_layers") or []]
    state = RecurrentState(
        kind="gdn",
        conv_taps=need_whole(linear, "short_conv_kernel_size") - 1,
        conv_channels=3 * heads * head_dim,
        heads=heads,
        head_values=head_dim**2,
        dtype_bytes=4,
    )
    full = latent_layers(config, attention.layers)[0]
    rest = tuple(number for number in full.layers if number not in recurrent)
    latent = KvLayers(kind="mla_attention", layers=rest, kv_heads=1, head_dim=full.head_dim)
    return [KvLayers(kind="mamba", layers=tuple(recurrent), state=state), latent]


READERS: dict[str, Callable[[Config, Attention], list[KvLayers]]] = {
    **dict.fromkeys(("qwen3_next", *QWEN3_5), _interval),
    **dict.fromkeys(("mamba", "falcon_mamba", "mamba2"), _all_recurrent),
    **dict.fromkeys(("nemotron_h", "nemotron_h_puzzle"), _nemotron),
    **dict.fromkeys(("llama4", "llama4_text"), _llama4),
    **dict.fromkeys(("mimo_v2_flash", "mimo_v2"), _mimo),
    **dict.fromkeys(("gemma3n", "gemma3n_text", "gemma4", "gemma4_text"), _gemma_shared),
    **dict.fromkeys(("minimax_text_01", "minimax"), _minimax_text),
    **dict.fromkeys(("lfm2", "lfm2_moe"), _short_convolutions),
    **dict.fromkeys(("mllama", "mllama_text_model"), _cross),
    "jamba": _jamba,
    "granitemoehybrid": _typed,
    "bamba": _indexed,
    "falcon_h1": _side_by_side,
    "zamba2": _zamba,
    "whisper": _encoder_decoder,
    "kimi_linear": _kimi_linear,
}
"""Family -> function that reads its layers."""
