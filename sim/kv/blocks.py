"""The block size that vLLM 0.33.0 chooses, and the resulting page of every layer.

1. The attention kernel decides: 16 tokens (or as requested), but 64 for a latent in fp8 (FlashMLA) or with an
   index, and 32 for packed types.
2. If attention and recurrent layers share the pool, a block must hold a whole state: the block grows in steps
   until an attention page is at least as large as a state, and the state is padded to the page.

       Qwen3-Next, one GPU: state 1,097,728 bytes, attention 2,048 bytes per token
       536 tokens, in steps of 16: 544      in steps of 64 (FlashInfer's gated delta net on Hopper): 576
       page 576 * 2,048 = 1,179,648 bytes, of which 81,920 pad the state

   With prefix caching a state is kept at the end of every block ("align"); without it each sequence has one
   state, and its "block" is as long as the longest sequence.

(vllm/platforms/interface.py, _align_hybrid_block_size.) Earlier releases also had "all": a state in every
block, whose size is then a multiple of the kernel's scan chunk: 394 tokens in steps of 256 are 512.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import lcm
from operator import itemgetter

from kvsim.sim.errors import KvsimError
from kvsim.sim.kv.kv_types import TURBO_BITS, check_kv_type, is_fp8, token_bytes
from kvsim.sim.kv.pages import Page
from kvsim.sim.models.kv_layers import KvLayers, RecurrentState
from kvsim.sim.models.spec import GpuSpec, ModelSpec

KERNEL_TOKENS = 16
"""The smallest block of the attention kernels, and the step in which blocks grow."""

GDN_GRID = 64
"""Tokens between the states that FlashInfer's gated delta net can save within a prompt."""

CACHE_MODES = ("none", "align", "all")


CAPABILITY = {
    "t4": 75,
    "a100": 80,
    "a10": 86,
    "l4": 89,
    "l40s": 89,
    "rtx-4090": 89,
    "h100": 90,
    "h200": 90,
    "b200": 100,
    "gb200": 100,
    "b300": 103,
}
"""Prefix of a GPU's name -> compute capability."""


def compute_capability(gpu: GpuSpec) -> int:
    """80: A100, 90: H100 and H200, 100: B200; 90 for others."""
    known = [value for name, value in CAPABILITY.items() if gpu.name.lower().startswith(name)]
    return known[0] if known else 90


@dataclass(frozen=True, kw_only=True)
class KvSettings:
    """User settings of the KV cache.

    Attributes
    ----------
    tensor_parallel_size : int
    kv_cache_dtype : str
    block_size : int or None
        None leaves it to the engine.
    prefix_caching : bool
    mamba_cache_mode : "none", "align", "all" or None
        When states of recurrent layers are kept for reuse; None: align with prefix caching.
    max_model_len : int or None
        None: the model's own.
    disable_hybrid : bool
        --disable-hybrid-kv-cache-manager.
    compute_capability : int
        80: A100, 90: H100 and H200, 100: B200.
    """

    tensor_parallel_size: int = 1
    kv_cache_dtype: str = "auto"
    block_size: int | None = None
    prefix_caching: bool = True
    mamba_cache_mode: str | None = None
    max_model_len: int | None = None
    disable_hybrid: bool = False
    compute_capability: int = 90

    def __post_init__(self) -> None:
        check_kv_type(self.kv_cache_dtype)
        if self.mamba_cache_mode not in (None, *CACHE_MODES):
            raise KvsimError(
                f"mamba_cache_mode must be one of {', '.join(CACHE_MODES)}, got {self.mamba_cache_mode!r}"
            )
        if self.mamba_cache_mode in ("align", "all") and not self.prefix_caching:
            raise KvsimError(f"mamba_cache_mode {self.mamba_cache_mode} needs prefix caching")
        for field in ("tensor_parallel_size", "block_size", "max_model_len"):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise KvsimError(f"{field} must be at least 1, got {value}")

    @property
    def cache_mode(self) -> str:
        """The mode in effect."""
        return self.mamba_cache_mode or ("align" if self.prefix_caching else "none")


@dataclass(frozen=True)
class Paged:
    """The pages of a model's layers, and the derivation of their block size.

    Attributes
    ----------
    layers : tuple of (int, Page)
        In the engine's order.
    block_size : int
        Tokens per attention block.
    state_bytes, token_bytes : int
        Bytes of a recurrent layer's state, and per token in an attention layer; 0 if absent.
    aligned_from : int or None
        Tokens whose page is as large as a state, before rounding up; None if no state is in the pool.
    step : int
        The block was rounded up to a multiple of this many tokens.
    """

    layers: tuple[tuple[int, Page], ...]
    block_size: int
    state_bytes: int = 0
    token_bytes: int = 0
    aligned_from: int | None = None
    step: int = KERNEL_TOKENS


def paged(model: ModelSpec, settings: KvSettings) -> Paged:
    """The pages of every layer.

    Raises
    ------
    KvsimError
        If GPUs cannot share the model like this, or no kernel serves it: vLLM refuses too.
    """
    kept = kv_layers_of_model(model)
    _check_split(model, kept, settings.tensor_parallel_size)
    attention = [each for each in kept if each.kind != "mamba"]
    recurrent = [each for each in kept if each.state is not None]
    block, sparse = settings.block_size or _kernel_block(attention, settings), _is_sparse(attention)
    if settings.kv_cache_dtype == "fp8_ds_mla" and not sparse:
        raise KvsimError(
            f"kv_cache_dtype fp8_ds_mla is for latents that an index reads, as in DeepSeek-V3.2, not for "
            f"{model.name}"
        )
    if sparse and settings.compute_capability < 90:
        raise KvsimError(
            f"{model.name} needs a GPU of compute capability 9.0 (Hopper) or later: vLLM has no kernel for "
            "its index before"
        )
    if sparse and is_fp8(settings.kv_cache_dtype) and settings.compute_capability < 100:
        settings = replace(settings, kv_cache_dtype="fp8_ds_mla")  # FlashMLA's only one; Blackwell has both
    least = 64 if sparse else KERNEL_TOKENS
    if settings.block_size is not None and attention and block % least:
        raise KvsimError(f"block_size must be a multiple of {least} for {model.name}, got {block}")
    empty = Paged((), block)
    if attention and recurrent:
        empty = _aligned(model, attention, recurrent, block, settings)
    layers = [
        layer
        for each in kept
        for layer in (
            _attention_pages(model, each, empty.block_size, settings)
            if each.state is None
            else _state_pages(model, each, each.state, empty, settings)
        )
    ]
    if sparse:  # a layer builds its latent's cache together with that of its index
        layers.sort(key=itemgetter(0))
    return replace(empty, layers=tuple(layers))


def native_pages(model: ModelSpec, settings: KvSettings) -> list[tuple[int, Page]]:
    """The pages in each layer's own size: the kernels' smallest blocks, and unpadded states."""
    found = paged(model, settings)
    attention = [each for each in kv_layers_of_model(model) if each.kind != "mamba"]
    block = settings.block_size or _kernel_block(attention, settings)
    return [
        (
            number,
            replace(page, padded_bytes=None) if page.kind == "mamba" else replace(page, block_size=block),
        )
        for number, page in found.layers
    ]


def kv_layers_of_model(model: ModelSpec) -> tuple[KvLayers, ...]:
    """What the layers of a model cache."""
    kept = model.kv_layers or model.uniform_kv_layers
    if not kept:
        raise KvsimError(
            f"model {model.name} does not say which of its layers are windowed: name its config.json"
        )
    return kept


def _check_split(model: ModelSpec, kept: Sequence[KvLayers], tp: int) -> None:
    """Raise KvsimError if this many GPUs cannot share every layer evenly."""
    if any(each.kind != "mamba" for each in kept):
        if model.heads % tp:
            raise KvsimError(
                f"tensor_parallel_size must divide the {model.heads} heads of {model.name}, got {tp}"
            )
        for each in kept:
            heads = each.kv_heads
            if each.kind not in ("mamba", "mla_attention") and heads % tp and tp % heads:
                raise KvsimError(
                    f"tensor_parallel_size must divide or be a multiple of the {heads} KV heads of "
                    f"{model.name}, got {tp}"
                )
    for each in kept:
        refusal = each.state.refusal(tp) if each.state else None
        if refusal:
            raise KvsimError(refusal)


def _kernel_block(attention: Sequence[KvLayers], settings: KvSettings) -> int:
    """The smallest block that all layers' kernels accept."""
    latent = any(each.kind == "mla_attention" for each in attention)
    sparse = _is_sparse(attention)
    if latent and (sparse or (is_fp8(settings.kv_cache_dtype) and settings.compute_capability >= 90)):
        return 64
    if settings.kv_cache_dtype in TURBO_BITS:
        if any(each.kind != "full_attention" for each in attention):
            raise KvsimError(f"kv_cache_dtype {settings.kv_cache_dtype} has kernels for full attention only")
        return 32  # twice the kernel's, as unpacked layers take twice the bytes
    wide = not latent and any(each.head_dim == 512 for each in attention)
    if wide and is_fp8(settings.kv_cache_dtype) and settings.compute_capability == 90:
        return 64  # FlashAttention 4 reads fp8 in tiles of 64 tokens
    return KERNEL_TOKENS


def _is_sparse(attention: Sequence[KvLayers]) -> bool:
    """Whether an index selects the tokens that a latent attends to."""
    return any(each.kind == "mla_attention" and each.dtype_bytes is not None for each in attention)


def _aligned(
    model: ModelSpec,
    attention: Sequence[KvLayers],
    recurrent: Sequence[KvLayers],
    block: int,
    settings: KvSettings,
) -> Paged:
    """The block size that holds the largest state."""
    tp, width = settings.tensor_parallel_size, _model_bytes(model)
    per_token = token_bytes(attention[0], settings.kv_cache_dtype, tp, width)
    state = max(each.state.bytes_per_sequence(tp, width) for each in recurrent if each.state)
    step = max(KERNEL_TOKENS, block)
    if attention[0].kind == "mla_attention":
        step = max(step, 128)
    if settings.cache_mode == "align" and all(_leaves_states_on_grid(each, settings) for each in recurrent):
        step = lcm(step, GDN_GRID)
    if settings.cache_mode == "all":
        step = lcm(step, *(each.state.chunk_tokens for each in recurrent if each.state))
    needed = step * -(-state // (step * per_token))
    return Paged((), max(block, needed), state, per_token, -(-state // per_token), step)


def _leaves_states_on_grid(layers: KvLayers, settings: KvSettings) -> bool:
    """Whether the prefill kernel saves states within a prompt only at multiples of GDN_GRID."""
    return layers.state is not None and layers.state.kind == "gdn" and settings.compute_capability >= 90


def _model_bytes(model: ModelSpec) -> int:
    """Bytes per cached number if the type is auto."""
    return model.kv_dtype_bytes or max(2, model.dtype_bytes)


def _attention_pages(
    model: ModelSpec, layers: KvLayers, block: int, settings: KvSettings
) -> list[tuple[int, Page]]:
    tp, dtype = settings.tensor_parallel_size, settings.kv_cache_dtype

    def page(dtype: str) -> Page:
        return Page(
            kind=layers.kind,
            block_size=block,
            bytes_each=token_bytes(layers, dtype, tp, _model_bytes(model)),
            shape=(
                layers.numbers_per_token(tp),
                layers.head_dim,
                layers.value_dim,
                layers.dtype_bytes or dtype,
            ),
            window=layers.window,
            chunk=layers.chunk,
        )

    plain = page(dtype)
    if dtype not in TURBO_BITS:
        return [(number, plain) for number in layers.layers]
    spared = {*layers.layers[:2], *layers.layers[-2:]}  # where packing would cost the most accuracy
    edge = page("auto")
    return [(number, edge if number in spared else plain) for number in layers.layers]


def _state_pages(
    model: ModelSpec, layers: KvLayers, state: RecurrentState, paged: Paged, settings: KvSettings
) -> list[tuple[int, Page]]:
    tp, width = settings.tensor_parallel_size, max(2, model.dtype_bytes)
    held = state.bytes_per_sequence(tp, width)
    aligned = settings.cache_mode == "align"
    checkpoints = state.kind == "mamba2" or (aligned and _leaves_states_on_grid(layers, settings))
    longest = settings.max_model_len or model.max_model_len
    page_bytes = paged.block_size * paged.token_bytes or held
    page = Page(
        kind="mamba",
        block_size=longest if settings.cache_mode == "none" else paged.block_size,
        bytes_each=held,
        padded_bytes=page_bytes if page_bytes != held else None,
        shape=(*state.shapes(tp), state.kind, state.dtype_bytes),
        aligned=aligned,
        every_block=settings.cache_mode == "all",
        checkpoints=int(checkpoints),
    )
    return [(number, page) for number in layers.layers]
