"""The states of recurrent layers in Hugging Face models; each family has its own names for the sizes."""

from kvsim.sim.errors import KvsimError
from kvsim.sim.models.hf_keys import Config, family_of, need, need_whole, whole
from kvsim.sim.models.kv_layers import RecurrentState

QWEN3_5 = ("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text")


def mamba2_state(
    config: Config,
    *,
    inner: int,
    groups: int,
    heads: int,
    head_dim: int,
    state: int,
    taps: int,
    dtype_bytes: int | None = None,
) -> RecurrentState:
    """The state of a Mamba 2 layer."""
    return RecurrentState(
        kind="mamba2",
        conv_taps=taps - 1,
        conv_channels=inner,
        groups=groups,
        group_channels=2 * state,
        heads=heads,
        head_values=head_dim * state,
        chunk_tokens=whole(config, "mamba_chunk_size") or whole(config, "chunk_size") or 256,
        dtype_bytes=dtype_bytes,
    )


def mamba1_state(inner: int, state: int, taps: int) -> RecurrentState:
    """The state of a Mamba 1 layer: every channel is a head."""
    return RecurrentState(
        kind="mamba1",
        conv_taps=taps - 1,
        conv_channels=inner,
        heads=inner,
        head_values=state,
        chunk_tokens=2048,
    )


def state_of(config: Config) -> RecurrentState:
    """The recurrent state, from sizes named mamba_*, linear_* or without a prefix."""
    family, hidden = family_of(config), need(config, "hidden_size")
    expanded = whole(config, "mamba_expand") or whole(config, "expand") or 2
    if family in ("qwen3_next", *QWEN3_5):
        key, value = need_whole(config, "linear_key_head_dim"), need_whole(config, "linear_value_head_dim")
        heads = need_whole(config, "linear_num_value_heads")
        return RecurrentState(
            kind="gdn",
            conv_taps=need_whole(config, "linear_conv_kernel_dim") - 1,
            conv_channels=2 * key * need_whole(config, "linear_num_key_heads") + value * heads,
            heads=heads,
            head_values=key * value,
            chunk_tokens=64,
            dtype_bytes=_dtype_bytes(config.get("mamba_ssm_dtype")),
        )
    if family == "jamba":
        return mamba1_state(
            expanded * hidden, need_whole(config, "mamba_d_state"), need_whole(config, "mamba_d_conv")
        )
    if family in ("mamba", "falcon_mamba"):
        inner = whole(config, "intermediate_size") or expanded * hidden
        return mamba1_state(inner, need_whole(config, "state_size"), need_whole(config, "conv_kernel"))
    if family == "mamba2":
        return mamba2_state(
            config,
            inner=expanded * hidden,
            groups=need_whole(config, "n_groups"),
            heads=need_whole(config, "num_heads"),
            head_dim=need_whole(config, "head_dim"),
            state=need_whole(config, "state_size"),
            taps=need_whole(config, "conv_kernel"),
        )
    if family in ("nemotron_h", "nemotron_h_puzzle"):
        heads, head_dim = need_whole(config, "mamba_num_heads"), need_whole(config, "mamba_head_dim")
        stated = config.get("mamba_ssm_cache_dtype") or "float32"  # vLLM's default for this family
        return mamba2_state(
            config,
            inner=heads * head_dim,
            groups=need_whole(config, "n_groups"),
            heads=heads,
            head_dim=head_dim,
            state=need_whole(config, "ssm_state_size"),
            taps=need_whole(config, "conv_kernel"),
            dtype_bytes=_dtype_bytes(stated),
        )
    if family == "zamba2":
        names = ("mamba_ngroups", "n_mamba_heads", "mamba_headdim")
    else:  # Bamba, Falcon-H1, Granite 4
        names = ("mamba_n_groups", "mamba_n_heads", "mamba_d_head")
    groups, heads, head_dim = (need_whole(config, name) for name in names)
    return mamba2_state(
        config,
        inner=whole(config, "mamba_d_ssm") or expanded * hidden,
        groups=groups,
        heads=heads,
        head_dim=head_dim,
        state=need_whole(config, "mamba_d_state"),
        taps=need_whole(config, "mamba_d_conv"),
    )


def _dtype_bytes(name: object) -> int | None:
    """Bytes per number of a state's data type; None: as the weights."""
    known = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1}
    if name in (None, "auto"):
        return None
    if name not in known:
        raise KvsimError(f"type of the recurrent state must be one of {', '.join(known)}, got {name!r}")
    return known[str(name)]
