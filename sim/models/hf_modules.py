"""The weight matrices of a Hugging Face model, one by one, counted from its geometry.

    embeddings   vocab * hidden, twice unless tied; + positions * hidden if positions are learned
    attention    hidden * head_dim * (2 * heads + 2 * kv_heads); some have a gate as wide as the heads
    or latent    hidden * q_rank + q_rank * heads * (nope + rope)      query, in two steps or one
    (MLA)        + hidden * (kv_rank + rope) + kv_rank * heads * (nope + v) + heads * v * hidden
    MLP          hidden * intermediate * 3 (gated: gate, up, down) or 2 (up, down)
    experts      one MLP each, plus the shared ones, plus hidden * experts for the router
    recurrent    the projections into and out of the state, and its convolution

Modules have their checkpoint names, so that a quantization_config can exclude some by name. Left out: norms
and biases (about 0.1 % of a model of a billion or more), and heads that predict further tokens.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from kvsim.sim.errors import KvsimError
from kvsim.sim.models.hf_keys import Config, family_of, find, listed, need, whole
from kvsim.sim.models.kv_layers import KvLayers

UNGATED = frozenset(
    (
        *("opt", "gpt2", "gpt_neo", "gpt_neox", "gpt_neox_japanese", "gptj", "gpt_bigcode", "codegen"),
        *("bloom", "falcon", "refinedweb", "refinedwebmodel", "mpt", "phi", "starcoder2", "persimmon"),
        *("nemotron", "nemotron_h", "xglm", "biogpt", "whisper"),
    )
)
"""Families whose MLP has only two matrices, up and down."""

GATED = frozenset(
    (
        *("gemma", "gemma2", "gemma3", "gemma3_text", "gemma3n", "gemma3n_text", "gemma4", "gemma4_text"),
        *("chatglm", "glm", "zamba2"),
    )
)
"""Families with a gate that the activation does not reveal: hidden_act is a GELU, or is missing."""

GATED_ATTENTION = frozenset(
    ("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "step3p7")
)
"""Families whose query projection also computes a gate for the output."""

LEARNED_POSITIONS = frozenset(("opt", "gpt2", "gpt_neo", "gpt_bigcode", "whisper"))


class Module(NamedTuple):
    """A weight matrix, or all routed experts' matrices of one layer.

    `role` is "embedding", "head", "router", "experts" or "linear".
    """

    name: str
    parameters: int
    role: str = "linear"


class Geometry(NamedTuple):
    """What `modules_of` needs besides the config."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    layers: int
    vocab: int
    max_model_len: int
    tied: bool


def modules_of(config: Config, shape: Geometry, kept: Sequence[KvLayers]) -> list[Module]:
    """All modules of a model whose layers cache `kept`."""
    return [
        *_embeddings(config, shape),
        *_mixers(config, shape, kept),
        *_mlps(config, shape),
    ]


def _embeddings(config: Config, shape: Geometry) -> Iterator[Module]:
    width = find(config, "embedding_size") or shape.hidden
    yield Module("model.embed_tokens", shape.vocab * width, "embedding")
    if not shape.tied:
        yield Module("lm_head", shape.vocab * width, "head")
    if width != shape.hidden:  # the embeddings of OPT-350M are narrower, and projected in and out
        yield Module("model.project", 2 * shape.hidden * width, "embedding")
    if family_of(config) in LEARNED_POSITIONS:
        yield Module("model.embed_positions", shape.max_model_len * shape.hidden, "embedding")
    per_layer = whole(config, "hidden_size_per_layer_input", 0)  # Gemma 3n and 4
    if per_layer:
        vocab = whole(config, "vocab_size_per_layer_input") or shape.vocab
        width = per_layer * shape.layers
        yield Module("model.embed_tokens_per_layer", vocab * width, "embedding")
        yield Module("model.per_layer_model_projection", shape.hidden * width)
        yield Module("model.per_layer_input_gate", 2 * shape.hidden * width)


# -- attention and states ----------------------------------------------------------------------------


def _mixers(config: Config, shape: Geometry, kept: Sequence[KvLayers]) -> Iterator[Module]:
    """Token mixers: the attention of each layer, or the projections of its state."""
    attended: set[int] = set()
    for group in kept:
        if group.kind == "mamba":
            for number in group.layers:
                yield Module(
                    f"model.layers.{number % shape.layers}.mamba.in_proj", _recurrent(config, shape, group)
                )
            continue
        for number in group.layers:
            if group.dtype_bytes is None:
                attended.add(number)
            name = f"model.layers.{number}.self_attn"
            yield from (
                _latent(config, shape, name, group)
                if group.kind == "mla_attention"
                else _attention(config, shape, name, group)
            )
    shared = whole(config, "num_kv_shared_layers", 0) or 0  # these layers have their own query and output
    for number in range(shape.layers - shared, shape.layers):
        if number not in attended:
            width = shape.hidden * shape.heads * shape.head_dim
            yield Module(f"model.layers.{number}.self_attn.q_proj", width)
            yield Module(f"model.layers.{number}.self_attn.o_proj", width)
    if family_of(config) == "whisper":
        square, size = shape.hidden**2, find(config, "intermediate_size") or 4 * shape.hidden
        for number in range(whole(config, "encoder_layers") or 0):
            yield Module(f"model.encoder.layers.{number}", 4 * square + 2 * shape.hidden * size)


def _attention(config: Config, shape: Geometry, name: str, group: KvLayers) -> Iterator[Module]:
    query = shape.hidden * shape.heads * group.head_dim
    gate = 2 if family_of(config) in GATED_ATTENTION or config.get("attn_output_gate") is True else 1
    yield Module(f"{name}.q_proj", query * gate)
    yield Module(f"{name}.k_proj", shape.hidden * group.kv_heads * group.head_dim)
    yield Module(f"{name}.v_proj", shape.hidden * group.kv_heads * group.value_dim)
    yield Module(f"{name}.o_proj", shape.hidden * shape.heads * group.value_dim)


def _latent(config: Config, shape: Geometry, name: str, group: KvLayers) -> Iterator[Module]:
    """MLA, and the projections of DeepSeek-V3.2's index."""
    rank = find(config, "query_rank")
    if group.dtype_bytes is not None:
        heads, width = whole(config, "index_n_heads") or 64, whole(config, "index_head_dim") or 128
        yield Module(f"{name}.indexer.wq_b", (rank or shape.hidden) * heads * width)
        yield Module(f"{name}.indexer.wk", shape.hidden * (width + heads))
        return
    rope, nope, value = (need(config, fact) for fact in ("rope_dim", "nope_dim", "value_dim"))
    kv_rank, query = need(config, "kv_rank"), shape.heads * (nope + rope)
    if rank:
        yield Module(f"{name}.q_a_proj", shape.hidden * rank)
        yield Module(f"{name}.q_b_proj", rank * query)
    else:
        yield Module(f"{name}.q_proj", shape.hidden * query)
    yield Module(f"{name}.kv_a_proj_with_mqa", shape.hidden * (kv_rank + rope))
    yield Module(f"{name}.kv_b_proj", kv_rank * shape.heads * (nope + value))
    yield Module(f"{name}.o_proj", shape.heads * value * shape.hidden)


def _recurrent(config: Config, shape: Geometry, group: KvLayers) -> int:
    """Parameters of one recurrent layer."""
    state = group.state
    if state is None:
        raise KvsimError(f"layers {group.layers} of kind mamba have no state")
    hidden, inner = shape.hidden, state.conv_channels
    convolved = inner + state.groups * state.group_channels
    convolution = convolved * (state.conv_taps + 1)
    if state.kind == "mamba2":
        return hidden * (inner + convolved + state.heads) + convolution + inner * hidden
    if state.kind == "mamba1":
        rank = whole(config, "mamba_dt_rank") or whole(config, "time_step_rank") or -(-hidden // 16)
        numbers = state.head_values
        return 3 * inner * hidden + convolution + inner * (2 * rank + 2 * numbers) + inner * (numbers + 1)
    if state.kind == "gdn":
        values = state.heads * (whole(config, "linear_value_head_dim") or inner // (3 * state.heads))
        return hidden * (inner + values + 2 * state.heads) + convolution + values * hidden
    if state.kind == "linear":
        return 5 * hidden * shape.heads * shape.head_dim
    return 4 * hidden * inner + convolution


# -- MLPs and experts --------------------------------------------------------------------------------


def _mlps(config: Config, shape: Geometry) -> Iterator[Module]:
    family, matrices = family_of(config), 3 if _gated(config) else 2
    size = find(config, "intermediate_size") or 4 * shape.hidden
    experts = find(config, "experts") or 0
    if experts <= 1:
        where: Iterable[int] = range(shape.layers)
        if family == "zamba2":  # only the shared blocks have MLPs
            where = range(whole(config, "num_mem_blocks") or 1)
        elif pattern := listed(config, "hybrid_override_pattern", shape.layers):
            where = [number for number, letter in enumerate(pattern) if letter == "-"]
        elif family in ("mamba", "mamba2", "falcon_mamba"):
            where = ()
        elif family == "granitemoehybrid":
            size = find(config, "shared_size") or size
        for number in where:
            yield Module(f"model.layers.{number}.mlp.up_proj", shape.hidden * size * matrices)
        return
    used = need(config, "experts_per_token")
    if used > experts:
        raise KvsimError(f"num_experts_per_tok must be at most the {experts} experts, got {used}")
    expert_size = find(config, "expert_size") or size
    shared = find(config, "shared_size") or (find(config, "shared_experts") or 0) * expert_size
    if shared == 0 and family in ("llama4", "llama4_text"):
        shared = expert_size
    sparse, dense = _sparse_layers(config, shape.layers)
    dense_size = find(config, "dense_size") or size
    for number in range(shape.layers):
        name = f"model.layers.{number}.mlp"
        if number in sparse:
            yield Module(f"{name}.gate", shape.hidden * experts, "router")
            yield Module(
                f"{name}.experts.0.down_proj", experts * matrices * shape.hidden * expert_size, "experts"
            )
            if shared:
                yield Module(f"{name}.shared_experts.down_proj", matrices * shape.hidden * shared)
        if number in dense:
            yield Module(f"{name}.down_proj", matrices * shape.hidden * dense_size)


def _sparse_layers(config: Config, count: int) -> tuple[Collection[int], Collection[int]]:
    """The numbers of the layers with experts, and of those with an MLP."""
    family, every = family_of(config), set(range(count))
    if pattern := listed(config, "hybrid_override_pattern", count):
        by_letter = {letter: {i for i, each in enumerate(pattern) if each == letter} for letter in ("E", "-")}
        return by_letter["E"], by_letter["-"]
    if flags := (
        listed(config, "moe_layer_freq", count) if isinstance(config.get("moe_layer_freq"), list) else None
    ):
        sparse = {number for number, flag in enumerate(flags) if flag}
    elif family in ("llama4", "llama4_text"):
        chosen = listed(config, "moe_layers")
        step = whole(config, "interleave_moe_layer_step") or 1
        sparse = (
            {int(str(number)) for number in chosen}
            if chosen
            else {number for number in every if (number + 1) % step == 0}
        )
    elif whole(config, "expert_layer_period"):
        period = whole(config, "expert_layer_period") or 1
        offset = whole(config, "expert_layer_offset", 0) or 0
        sparse = {number for number in every if number % period == offset}
    else:
        first = find(config, "dense_layers") or 0
        if first > count:
            raise KvsimError(f"dense layers must be at most the {count} layers, got {first}")
        step = whole(config, "decoder_sparse_step") or 1
        plain = set(range(first)) | {int(str(number)) for number in listed(config, "mlp_only_layers") or []}
        if isinstance(config.get("dense_layers"), list):
            plain |= {int(str(number)) for number in listed(config, "dense_layers") or []}
        if len(plain) > count:
            raise KvsimError(f"dense layers must be at most the {count} layers, got {len(plain)}")
        sparse = {number for number in every - plain if (number + 1) % step == 0}
    both = family in ("gemma4", "gemma4_text", "arctic")  # every layer has a dense MLP beside its experts
    return sparse, every if both else every - sparse


def _gated(config: Config) -> bool:
    """Whether the MLP has a gate matrix: by family, or else by its activation."""
    family = family_of(config)
    if family in UNGATED or family in GATED:
        return family in GATED
    act = str(config.get("hidden_act") or config.get("activation_function") or "silu").lower()
    return act in ("silu", "swish", "swiglu", "geglu")


def counted(modules: Iterable[Module]) -> Mapping[str, int]:
    """Parameters by role."""
    total: dict[str, int] = {}
    for module in modules:
        total[module.role] = total.get(module.role, 0) + module.parameters
    return total
