"""The products of a layer with its weights on one of its GPUs, and their precision.

    dense     QKV, out, up and gate, down: inputs x outputs
    experts   the same attention; a router (router.py); everything else (shared experts, dense layers) as one
              more gated MLP, spread over all layers; the routed experts themselves
    latent    (MLA) besides experts and router: the latent, which every GPU computes whole; two products that
              project queries into it and values out of it; out; the rest (queries, shared experts, dense
              layers) as four products with as many parameters, whose shapes are not known

The precision chooses the part of the profile: products in 16 bits, in 8 (fp8 weights and inputs) or in 4
(nvfp4). Weights of 4 bits whose inputs stay 16-bit (awq, gptq, mxfp4), and of 8 bits if the GPU has no part
for them, are read in their own size and computed in 16 bits.
"""

from dataclasses import dataclass

from kvsim.sim.models.spec import ModelSpec

FP4_BITS = 5.5
"""Weights with more bits than this count as 8-bit, including their scales."""
MARLIN = ("_int4_wo", "_w4a16_mxfp4", "")
"""Experts whose kernel unpacks weights of any bit width as it reads them, and computes in 16 bits."""
WEIGHT_ONLY = ("awq", "gptq", "mxfp4", "int4", "bitsandbytes", "wna16")
"""Quantizations that compute in 16 bits, by name or part of a name."""


@dataclass(frozen=True)
class Experts:
    """The routed experts of a layer on one GPU."""

    hidden: int
    inner: float
    top_k: int
    experts: int
    local: int
    ranks: int = 1
    """attention ranks (data parallel) whose tokens they compute"""

    @property
    def shared(self) -> float:
        """1 if whole experts are distributed over GPUs, 0 if every GPU has a part of each expert."""
        return float(self.local < self.experts)


@dataclass(frozen=True)
class Layer:
    """The weights of a layer on one GPU.

    Attributes
    ----------
    products : tuple of (inputs, outputs)
        Dense products.
    router : (inputs, outputs) or None
        The product that scores the experts; never quantized.
    experts : Experts or None
        Routed experts.
    """

    products: tuple[tuple[int, int], ...]
    router: tuple[int, int] | None = None
    experts: Experts | None = None


def layer_of(model: ModelSpec, tp: int, expert_parallel: bool = False, ranks: int = 1) -> Layer | None:
    """A layer of the model; None if its matrices cannot be derived from the model's numbers.

    Each of `ranks` computes attention and dense layers on `tp` GPUs; the experts are spread over all GPUs.
    """
    hidden, heads, kv_heads = model.hidden_size, model.heads // tp, -(-model.kv_heads // tp)
    attention = heads * model.head_dim
    qkv = attention + 2 * kv_heads * model.head_dim
    if not model.experts:
        matrices = _matrices(model)
        if model.active_parameters not in (None, model.parameters) or model.kv_latent_dim:
            return None
        if matrices not in (2, 3):
            return None
        inner = model.intermediate_size // tp
        upward = (matrices - 1) * inner
        return Layer(((hidden, qkv), (attention, hidden), (hidden, upward), (inner, hidden)))
    moe_inner = model.expert_parameters / (3 * model.layers * model.experts * hidden)
    gpus = tp * ranks
    local = -(-model.experts // gpus) if expert_parallel else model.experts
    experts = Experts(
        hidden,
        moe_inner if expert_parallel else moe_inner / gpus,
        model.experts_per_token,
        model.experts,
        local,
        ranks,
    )
    router = hidden, model.experts
    rest = (model.body_parameters - model.expert_parameters) / model.layers - hidden * model.experts
    if model.kv_latent_dim:
        return Layer(_latent_products(model, tp, rest), router, experts)
    rest -= 2 * hidden * model.head_dim * (model.heads + model.kv_heads)
    products = [(hidden, qkv), (attention, hidden)]
    shared = int(rest / 3 / hidden / tp)
    if shared * 16 >= hidden:  # the rest is biases and norms
        products += [(hidden, 2 * shared), (shared, hidden)]
    return Layer(tuple(products), router, experts)


def _latent_products(model: ModelSpec, tp: int, rest: float) -> tuple[tuple[int, int], ...]:
    """Products of a latent-attention layer with `rest` parameters besides experts and router."""
    hidden, values, latent = model.hidden_size, model.latent_values, model.kv_latent_dim or 0
    heads = model.heads // tp * model.head_dim
    known = 2 * values * model.heads * model.head_dim + model.heads * model.head_dim * hidden
    rest -= known + hidden * latent
    width = max(int(rest / 4 / hidden / tp), 1)
    absorbed = (model.head_dim, model.heads // tp * values), (values, heads)
    left = (hidden, width), (width, hidden)
    return ((hidden, latent), *absorbed, (heads, hidden), *left, *left)


def _matrices(model: ModelSpec) -> int:
    """The number of matrices of hidden x intermediate in a layer: 2, or 3 with a gate; more with experts."""
    attention = 2 * model.hidden_size * model.head_dim * (model.heads + model.kv_heads)
    rest = model.body_parameters / model.layers - attention
    return round(rest / (model.hidden_size * model.intermediate_size))


@dataclass(frozen=True)
class Precision:
    """How weights are stored and computed with.

    Attributes
    ----------
    parts : tuple of str
        Suffixes of a part's name in a profile, in order of preference: `_fp8`; "" is 16 bits.
    weight_bytes : float
        Bytes per weight.
    like : tuple of str
        Suffixes to use if none of `parts` is present, in order of preference: parts for other weights.
    """

    parts: tuple[str, ...]
    weight_bytes: float
    like: tuple[str, ...] = ("",)


def dense_precision(model: ModelSpec) -> Precision:
    """Precision of the dense products: 16 bits if only the experts are quantized."""
    bits = model.weight_bits
    if bits is None:
        return Precision(("_fp8", "") if model.dtype_bytes == 1 else ("",), float(model.dtype_bytes))
    if model.quantized_parameters <= model.expert_parameters:
        return Precision(("",), float(model.dtype_bytes))
    if weight_only(model):
        return Precision(("",), bits / 8)
    return Precision(("_fp8", "") if bits > FP4_BITS else ("_nvfp4", ""), bits / 8)


def expert_precision(model: ModelSpec) -> Precision:
    """Precision of the routed experts; fp8 experts have scales by block in all current models.

    mxfp4 computes in 8 bits if the GPU can: the measured servers on Blackwell show it.
    """
    bits, name = model.weight_bits, (model.quantization or "").lower()
    if bits is None:
        sizes = ("_fp8_block", "_fp8") if model.dtype_bytes == 1 else ("",)
        return Precision(sizes, float(model.dtype_bytes))
    if "mxfp4" in name:
        return Precision(("_w4a8_mxfp4_mxfp8", "_w4a16_mxfp4"), bits / 8, MARLIN)
    if bits > FP4_BITS:
        return Precision(() if weight_only(model) else ("_fp8_block", "_fp8"), bits / 8, MARLIN)
    return Precision(("_int4_wo",) if weight_only(model) else ("_nvfp4",), bits / 8, MARLIN)


def weight_only(model: ModelSpec) -> bool:
    """Whether products with its quantized weights are computed in 16 bits."""
    name = (model.quantization or "").lower()
    return any(each in name for each in WEIGHT_ONLY)
