"""Two frozen records, of a model and of a GPU.

    ModelSpec     geometry of a transformer           (built in: models.toml; or any Hugging Face config.json)
    GpuSpec       memory and speeds of one GPU        (built in: gpus.toml; or a user's own file)

Each record is checked when it is built.
"""

from dataclasses import dataclass
from dataclasses import field as dataclass_field

from kvsim.sim.checks import check_int, check_number
from kvsim.sim.errors import KvsimError
from kvsim.sim.models.kv_layers import KvLayers, kv_layers_from

COUNTS = (
    *("layers", "hidden_size", "intermediate_size", "heads", "kv_heads", "head_dim"),
    *("parameters", "vocab_size", "max_model_len"),
)
KV_CACHE_DTYPES: dict[str, int | None] = {
    "auto": None,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "fp16": 2,
    "bf16": 2,
    "bfloat16": 2,
    "fp32": 4,
}
"""Values of `kv_cache_dtype` -> bytes per cached number; auto leaves it to the model."""
MOST_EXPERTS = 1 << 20
"""Limit on experts per layer; the largest published mixture has a million (arXiv:2407.04153)."""


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """The geometry of a decoder-only transformer.

    Attributes
    ----------
    name, source : str
        The user's name for it, and the origin of the numbers.
    layers, hidden_size, intermediate_size, heads, kv_heads, head_dim, vocab_size : int
        As in a Hugging Face config; `kv_heads` is below `heads` for grouped-query attention.
    parameters : int
        All parameters, including embeddings and all experts.
    active_parameters : int or None
        Parameters used by one token (mixture of experts); None: all.
    tie_word_embeddings : bool
        Whether the output matrix is the input embedding, held once.
    max_model_len : int
        The longest sequence in tokens, prompt and output together.
    dtype_bytes : int
        Bytes per weight, and per cached number unless `kv_dtype_bytes` differs.
    kv_dtype_bytes : int or None
        Bytes per cached number; None: same as a weight.
    kv_latent_dim, kv_rope_dim : int or None
        Multi-head latent attention (MLA, DeepSeek): the numbers cached per token and layer, one vector for
        all heads, and how many of them carry the position. `head_dim` is then the mean of the key's
        non-positional part and the value's size. None: keys and values of each KV head.
    window : int or None
        Tokens that a layer with a sliding window sees, including the newest.
    window_layers : int
        Number of windowed layers.
    quantization : str or None
        Quantization of the weights, by the engines' names (fp8, awq, mxfp4, ...).
    weight_bits : float or None
        Bits per quantized weight, including its share of scales and zero points.
    quantized_parameters : int
        Parameters stored in `weight_bits`; all others have `dtype_bytes`.
    experts, experts_per_token, expert_parameters : int
        Routed experts per layer, those used by one token, and the parameters of all routed experts in all
        layers; 0 without a mixture of experts.
    mtp_modules : int
        Modules of multi-token prediction, which can draft; not counted in layers and parameters.
    norms_over_heads : bool
        Whether queries and keys are normed over all heads together, on whichever GPUs (MiniMax-M2): GPUs
        that share the heads then sum their squares in every layer.
    router_bits : int
        Precision of the experts' scores: 16, or 32 (MiniMax-M2, GLM-4.5).
    sinks : bool
        Whether attention has sinks, a learned share of the softmax (gpt-oss), which not all kernels have.
    kv_layers : tuple of KvLayers
        What each layer caches, if layers differ; empty: given by the fields above.
    notes : tuple of str
        Notes on this model, printed with every result.
    hub_name : str or None
        The Hugging Face hub name by which a built-in model was requested; shown in results.
    """

    name: str
    layers: int
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    parameters: int
    vocab_size: int
    max_model_len: int
    dtype_bytes: int = 2
    active_parameters: int | None = None
    tie_word_embeddings: bool = False
    kv_dtype_bytes: int | None = None
    kv_latent_dim: int | None = None
    kv_rope_dim: int | None = None
    window: int | None = None
    window_layers: int = 0
    quantization: str | None = None
    weight_bits: float | None = None
    quantized_parameters: int = 0
    experts: int = 0
    experts_per_token: int = 0
    expert_parameters: int = 0
    mtp_modules: int = 0
    norms_over_heads: bool = False
    router_bits: int = 16
    sinks: bool = False
    kv_layers: tuple[KvLayers, ...] = ()
    notes: tuple[str, ...] = ()
    source: str
    hub_name: str | None = dataclass_field(default=None, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kv_layers", kv_layers_from(self.kv_layers))  # lists, in JSON
        object.__setattr__(self, "notes", tuple(self.notes))
        for field in COUNTS:
            check_int(field, getattr(self, field))
        self._check_weights()
        if self.dtype_bytes not in (1, 2, 4):
            raise KvsimError(f"dtype_bytes must be 1, 2 or 4, got {self.dtype_bytes!r}")
        if self.kv_dtype_bytes not in (None, 1, 2, 4):
            raise KvsimError(f"kv_dtype_bytes must be 1, 2, 4 or None, got {self.kv_dtype_bytes!r}")
        self._check_latent()
        self._check_window()
        if self.heads % self.kv_heads:
            raise KvsimError(f"kv_heads must divide heads ({self.heads}), got {self.kv_heads}")
        if self.active_parameters is not None:
            check_int("active_parameters", self.active_parameters)
            if self.active_parameters > self.parameters:
                raise KvsimError(
                    f"active_parameters must be at most parameters ({self.parameters}), "
                    f"got {self.active_parameters}"
                )
        if self.body_parameters < 1:
            raise KvsimError(
                f"parameters must exceed the embeddings "
                f"({self.parameters - self.body_parameters}), got {self.parameters}"
            )

    def _check_weights(self) -> None:
        for field in (
            "quantized_parameters",
            "experts",
            "experts_per_token",
            "expert_parameters",
            "mtp_modules",
        ):
            check_int(field, getattr(self, field), least=0)
        if (self.weight_bits is None) != (self.quantized_parameters == 0):
            raise KvsimError(
                f"weight_bits and quantized_parameters need each other, "
                f"got {self.weight_bits} and {self.quantized_parameters}"
            )
        if self.weight_bits is not None:
            check_number("weight_bits", self.weight_bits, most=32)
        for field in ("quantized_parameters", "expert_parameters"):
            if getattr(self, field) > self.parameters:
                raise KvsimError(
                    f"{field} must be at most parameters ({self.parameters}), got {getattr(self, field)}"
                )
        if self.experts > MOST_EXPERTS:
            raise KvsimError(f"experts must be at most {MOST_EXPERTS:,}, got {self.experts}")
        if self.experts_per_token > self.experts:
            raise KvsimError(
                f"experts_per_token must be at most experts ({self.experts}), got {self.experts_per_token}"
            )

    def _check_latent(self) -> None:
        if self.kv_latent_dim is None and self.kv_rope_dim is None:
            return
        check_int("kv_latent_dim", self.kv_latent_dim)
        check_int("kv_rope_dim", self.kv_rope_dim)
        if self.latent_values < 1:
            raise KvsimError(
                f"kv_rope_dim must be below kv_latent_dim ({self.kv_latent_dim}), got {self.kv_rope_dim}"
            )

    def _check_window(self) -> None:
        check_int("window_layers", self.window_layers, least=0)
        if self.window_layers > self.layers:
            raise KvsimError(
                f"window_layers must be at most layers ({self.layers}), got {self.window_layers}"
            )
        if self.window is not None:
            check_int("window", self.window)
        if (self.window is None) != (self.window_layers == 0):
            raise KvsimError(
                f"window and window_layers need each other, got {self.window} and {self.window_layers}"
            )

    @property
    def latent_values(self) -> int:
        """Numbers of MLA's latent that form the value, i.e. without the position; 0 without MLA."""
        return (self.kv_latent_dim or 0) - (self.kv_rope_dim or 0)

    @property
    def uniform_kv_layers(self) -> tuple[KvLayers, ...]:
        """The layers if all are alike; empty if it is unknown which ones are the `window_layers`."""
        if self.window_layers and self.window_layers < self.layers:
            return ()
        numbers = tuple(range(self.layers))
        if self.kv_latent_dim:
            return (KvLayers(kind="mla_attention", layers=numbers, kv_heads=1, head_dim=self.kv_latent_dim),)
        return (
            KvLayers(
                kind="sliding_window" if self.window_layers else "full_attention",
                layers=numbers,
                kv_heads=self.kv_heads,
                head_dim=self.head_dim,
                value_dim=self.head_dim,
                window=self.window,
            ),
        )

    @property
    def caching_layers(self) -> int:
        """Number of layers that cache every token: all, unless some are recurrent or share a cache."""
        if not self.kv_layers:
            return self.layers
        return sum(len(each.layers) for each in self.kv_layers if each.kind != "mamba")

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes cached per token, over all layers and KV heads."""
        return self.kv_bytes_per_token_per_gpu(1)

    def kv_bytes_per_token_per_gpu(self, tensor_parallel_size: int) -> int:
        """Bytes of one token on each GPU: kv_heads / tp heads, at least one (GPUs then hold copies).

        MLA's latent belongs to all heads: every GPU holds a copy.
        """
        size, tp = self.kv_dtype_bytes or self.dtype_bytes, tensor_parallel_size
        if self.kv_layers:
            return sum(
                len(each.layers) * each.numbers_per_token(tp) * (each.dtype_bytes or size)
                for each in self.kv_layers
            )
        if self.kv_latent_dim:
            return self.layers * self.kv_latent_dim * size
        return self.layers * 2 * self.head_dim * size * -(-self.kv_heads // tp)

    def state_bytes_per_sequence(self, tensor_parallel_size: int = 1) -> int:
        """Bytes of one sequence's recurrent states, on each GPU."""
        return sum(
            len(each.layers) * each.state.bytes_per_sequence(tensor_parallel_size, max(2, self.dtype_bytes))
            for each in self.kv_layers
            if each.state is not None
        )

    def scan_per_token(self, tensor_parallel_size: int = 1) -> tuple[int, float]:
        """Operations and bytes of the recurrent layers per prompt token, on each GPU."""
        flops, moved, width = 0, 0.0, max(2, self.dtype_bytes)
        for each in self.kv_layers:
            if each.state is not None:
                flops += len(each.layers) * each.state.scan_flops_per_token(tensor_parallel_size)
                moved += len(each.layers) * each.state.scan_bytes_per_token(tensor_parallel_size, width)
        return flops, moved

    @property
    def recurrent_layers(self) -> int:
        """Layers with a state; some attend too (Falcon-H1)."""
        return sum(len(each.layers) for each in self.kv_layers if each.state is not None)

    @property
    def attention_layers(self) -> int:
        """Layers that attend to cached tokens, their own or another's: all, unless some are recurrent."""
        recurrent = any(each.state is not None for each in self.kv_layers)
        return self.caching_layers if recurrent else self.layers

    @property
    def prefill_pair_flops(self) -> int:
        """Operations per (query, key) pair of a prompt, over all layers and heads: score and value."""
        return 2 * self.attention_layers * self.heads * (2 * self.head_dim + (self.kv_rope_dim or 0))

    @property
    def decode_pair_flops(self) -> int:
        """The same while generating: MLA works on the latent itself, its matrices absorbed into the query."""
        if self.kv_latent_dim:
            return 2 * self.attention_layers * self.heads * (self.kv_latent_dim + self.latent_values)
        return self.prefill_pair_flops

    @property
    def weight_bytes(self) -> int:
        """Bytes of all parameters, each in its own precision."""
        if self.weight_bits is None:
            return self.parameters * self.dtype_bytes
        quantized = round(self.quantized_parameters * self.weight_bits / 8)
        return quantized + (self.parameters - self.quantized_parameters) * self.dtype_bytes

    @property
    def expert_bytes(self) -> float:
        """Bytes of the routed experts, which are quantized first."""
        return self.expert_parameters * (self.weight_bits or 8 * self.dtype_bytes) / 8

    @property
    def body_weight_bytes(self) -> int:
        """Bytes of the layers, without embeddings and output matrix, which are not quantized."""
        return self.weight_bytes - (self.parameters - self.body_parameters) * self.dtype_bytes

    @property
    def head_parameters(self) -> int:
        """Parameters of the output matrix (LM head): vocab_size x hidden_size."""
        return self.vocab_size * self.hidden_size

    @property
    def body_parameters(self) -> int:
        """Parameters of the layers: all except the input embedding and the output matrix."""
        return self.parameters - self.head_parameters * (1 if self.tie_word_embeddings else 2)


HOPPER_OR_LATER = ("h100", "h200", "h20", "h800", "gh200", "b100", "b200", "b300", "gb200", "gb300")
"""Prefixes of the names of GPUs with these kernels."""


@dataclass(frozen=True, kw_only=True)
class GpuSpec:
    """One GPU: capacity, datasheet speeds, and the shares of them that kernels reach.

    Attributes
    ----------
    memory_bytes : int
        Sold as "40 GB" and shown by nvidia-smi as about 40 GiB: counted in GiB (2**30).
    bandwidth_bytes_per_s, flops_per_s, pcie_bytes_per_s : float
        Decimal, as in datasheets: device memory; dense 16-bit matrix products; host link, one direction.
    link_bytes_per_s : float or None
        To other GPUs (NVLink, Infinity Fabric), one direction; None if there is none.
    node_gpus : int
        GPUs joined by these links, or sharing a host over PCIe; between nodes, the network is used.
    network_bytes_per_s : float
        Per GPU, one direction: 400 Gb/s by default.
    peer_access : bool
        Whether GPUs without links access each other's memory over PCIe, or go through the host's.
    bandwidth_efficiency, matmul_efficiency : float
        Achieved share of the two peaks.
    kernel_overhead_s : float
        Start and end of one kernel, inside a CUDA graph.
    attention_latency_s : float
        Least additional time of any attention: dependent reads (length, block table, keys, values), and the
        kernel that merges the parts of split contexts.
    """

    name: str
    memory_bytes: int
    bandwidth_bytes_per_s: float
    flops_per_s: float
    pcie_bytes_per_s: float
    link_bytes_per_s: float | None = None
    node_gpus: int = 8
    network_bytes_per_s: float = 50e9
    peer_access: bool = True
    bandwidth_efficiency: float = 0.89
    matmul_efficiency: float = 0.80
    kernel_overhead_s: float = 3e-6
    attention_latency_s: float = 9e-6
    source: str

    def __post_init__(self) -> None:
        check_int("memory_bytes", self.memory_bytes)
        check_int("node_gpus", self.node_gpus)
        for field in ("bandwidth_bytes_per_s", "flops_per_s", "pcie_bytes_per_s", "network_bytes_per_s"):
            check_number(field, getattr(self, field))
        check_number("kernel_overhead_s", self.kernel_overhead_s)
        check_number("attention_latency_s", self.attention_latency_s)
        if self.link_bytes_per_s is not None:
            check_number("link_bytes_per_s", self.link_bytes_per_s)
        check_number("bandwidth_efficiency", self.bandwidth_efficiency, most=1)
        check_number("matmul_efficiency", self.matmul_efficiency, most=1)

    @property
    def is_hopper_or_later(self) -> bool:
        """Whether kernels for Hopper or Blackwell run on it."""
        return self.name.lower().startswith(HOPPER_OR_LATER)


def can_split(model: ModelSpec, tensor_parallel_size: int) -> bool:
    """Whether each GPU gets the same number of whole heads, with KV heads split evenly or replicated."""
    tp, kv_heads = tensor_parallel_size, model.kv_heads
    return model.heads % tp == 0 and (kv_heads % tp == 0 or tp % kv_heads == 0)
