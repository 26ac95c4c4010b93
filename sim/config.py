"""What is simulated, in four frozen records: a model, a GPU, an engine and the scenario that joins them.

    ModelSpec     geometry of a transformer           (built in: models.toml; or any Hugging Face config.json)
    GpuSpec       memory and speeds of one GPU        (built in: gpus.toml)
    EngineConfig  what a vLLM user sets with flags
    Scenario      model + GPU + engine, and how much of it: everything that a run needs beside the traffic

Each record is checked when it is built, so whoever holds one need not check again. Names of
allocators, schedulers and costs are not checked here: their registries do that.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from math import isfinite
from typing import Any

from kvsim.sim.errors import KvsimError
from kvsim.sim.kv_layers import KvLayers, kv_layers_from

RESERVES = ("max", "pow2", "oracle")
FITS = ("first", "best")
POLICIES = ("fcfs", "priority", "sjf")
PREEMPTIONS = ("recompute", "swap")
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
"""What `kv_cache_dtype` may be -> bytes of a cached number; auto leaves it to the model."""


def _check_int(field: str, value: object, least: int = 1) -> None:
    """Raise unless value is a real int (True is none) of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise KvsimError(f"{field} must be a whole number of at least {least}, got {value!r}")


def _check_number(field: str, value: object, most: float | None = None) -> None:
    """Raise unless value is a finite number above zero and, if `most` is given, at most that."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) and value > 0
    if not number or (most is not None and isinstance(value, int | float) and value > most):
        limit = "" if most is None else f" and at most {most:g}"
        raise KvsimError(f"{field} must be a finite number above 0{limit}, got {value!r}")


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """The geometry of a decoder-only transformer.

    Attributes
    ----------
    name, source : str
        What the user calls it, and where the numbers come from.
    layers, hidden_size, intermediate_size, heads, kv_heads, head_dim, vocab_size : int
        As in a Hugging Face config; `kv_heads` is below `heads` for grouped-query attention.
    parameters : int
        All parameters, embeddings and all experts included.
    active_parameters : int or None
        Those one token passes through (mixture of experts); None means all.
    tie_word_embeddings : bool
        Whether the output matrix is the input embedding, held once.
    max_model_len : int
        The longest sequence in tokens, prompt and output together.
    dtype_bytes : int
        Bytes of a weight, and of a cached number unless `kv_dtype_bytes` differs.
    kv_dtype_bytes : int or None
        Bytes of a cached number; None means as a weight.
    kv_latent_dim, kv_rope_dim : int or None
        Multi-head latent attention (MLA, DeepSeek): the numbers cached per token and layer, one vector for
        all heads, and how many of them carry the position. `head_dim` is then the mean of the key's part
        without position and the value's size. None: keys and values of each KV head.
    window : int or None
        Sliding window: the tokens that a windowed layer sees, the newest included.
    window_layers : int
        How many of the layers are windowed.
    quantization : str or None
        How the weights are quantized, by the name that engines give it (fp8, awq, mxfp4, ...).
    weight_bits : float or None
        Bits of a quantized weight, its share of scales and zero points included.
    quantized_parameters : int
        Parameters stored in `weight_bits`; all others have `dtype_bytes`.
    experts, experts_per_token, expert_parameters : int
        Routed experts of a layer, how many of them a token passes through, and the parameters of all
        routed experts of all layers; 0 without a mixture of experts.
    kv_layers : tuple of KvLayers
        What each layer caches, where not all layers do the same; empty: as the fields above say.
    notes : tuple of str
        What a user of the numbers should know about this model; printed with every result.
    hub_name : str or None
        The name on the Hugging Face hub that a built-in model was asked for by; results tell it.
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
    kv_layers: tuple[KvLayers, ...] = ()
    notes: tuple[str, ...] = ()
    source: str
    hub_name: str | None = dataclass_field(default=None, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kv_layers", kv_layers_from(self.kv_layers))  # lists, in JSON
        object.__setattr__(self, "notes", tuple(self.notes))
        for field in COUNTS:
            _check_int(field, getattr(self, field))
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
            _check_int("active_parameters", self.active_parameters)
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
        for field in ("quantized_parameters", "experts", "experts_per_token", "expert_parameters"):
            _check_int(field, getattr(self, field), least=0)
        if (self.weight_bits is None) != (self.quantized_parameters == 0):
            raise KvsimError(
                f"weight_bits and quantized_parameters need each other, "
                f"got {self.weight_bits} and {self.quantized_parameters}"
            )
        if self.weight_bits is not None:
            _check_number("weight_bits", self.weight_bits, most=32)
        for field in ("quantized_parameters", "expert_parameters"):
            if getattr(self, field) > self.parameters:
                raise KvsimError(
                    f"{field} must be at most parameters ({self.parameters}), got {getattr(self, field)}"
                )
        if self.experts_per_token > self.experts:
            raise KvsimError(
                f"experts_per_token must be at most experts ({self.experts}), got {self.experts_per_token}"
            )

    def _check_latent(self) -> None:
        if self.kv_latent_dim is None and self.kv_rope_dim is None:
            return
        _check_int("kv_latent_dim", self.kv_latent_dim)
        _check_int("kv_rope_dim", self.kv_rope_dim)
        if self.latent_values < 1:
            raise KvsimError(
                f"kv_rope_dim must be below kv_latent_dim ({self.kv_latent_dim}), got {self.kv_rope_dim}"
            )

    def _check_window(self) -> None:
        _check_int("window_layers", self.window_layers, least=0)
        if self.window_layers > self.layers:
            raise KvsimError(
                f"window_layers must be at most layers ({self.layers}), got {self.window_layers}"
            )
        if self.window is not None:
            _check_int("window", self.window)
        if (self.window is None) != (self.window_layers == 0):
            raise KvsimError(
                f"window and window_layers need each other, got {self.window} and {self.window_layers}"
            )

    @property
    def latent_values(self) -> int:
        """Numbers of MLA's latent that stand for the value, all but the position's; 0 without MLA."""
        return (self.kv_latent_dim or 0) - (self.kv_rope_dim or 0)

    @property
    def uniform_kv_layers(self) -> tuple[KvLayers, ...]:
        """What the layers cache where all do the same, or all but `window_layers` of unknown place."""
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
        """Layers that keep something of every token; all, unless some are recurrent or share."""
        if not self.kv_layers:
            return self.layers
        return sum(len(each.layers) for each in self.kv_layers if each.kind != "mamba")

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of what is cached of one token, over all layers and KV heads."""
        return self.kv_bytes_per_token_per_gpu(1)

    def kv_bytes_per_token_per_gpu(self, tensor_parallel_size: int) -> int:
        """Bytes of one token on each GPU: kv_heads / tp heads, at least one (then GPUs hold copies).

        The latent of MLA belongs to all heads: every GPU holds a copy.
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
        """Bytes of the recurrent layers' states of one sequence, on each GPU."""
        return sum(
            len(each.layers) * each.state.bytes_per_sequence(tensor_parallel_size, max(2, self.dtype_bytes))
            for each in self.kv_layers
            if each.state is not None
        )

    @property
    def prefill_pair_flops(self) -> int:
        """Operations of one (query, key) pair in a prompt, over all layers and heads: score and value."""
        return 2 * self.layers * self.heads * (2 * self.head_dim + (self.kv_rope_dim or 0))

    @property
    def decode_pair_flops(self) -> int:
        """The same while generating: MLA works on the latent itself, its matrices absorbed by the query."""
        if self.kv_latent_dim:
            return 2 * self.layers * self.heads * (self.kv_latent_dim + self.latent_values)
        return self.prefill_pair_flops

    @property
    def weight_bytes(self) -> int:
        """Bytes of all parameters, each in its own precision."""
        if self.weight_bits is None:
            return self.parameters * self.dtype_bytes
        quantized = round(self.quantized_parameters * self.weight_bits / 8)
        return quantized + (self.parameters - self.quantized_parameters) * self.dtype_bytes

    @property
    def body_weight_bytes(self) -> int:
        """Bytes of the layers: embeddings and output matrix, which are not quantized, left out."""
        return self.weight_bytes - (self.parameters - self.body_parameters) * self.dtype_bytes

    @property
    def head_parameters(self) -> int:
        """Parameters of the output matrix (LM head): vocab_size x hidden_size."""
        return self.vocab_size * self.hidden_size

    @property
    def body_parameters(self) -> int:
        """Parameters of the layers: all but the input embedding and the output matrix."""
        return self.parameters - self.head_parameters * (1 if self.tie_word_embeddings else 2)


@dataclass(frozen=True, kw_only=True)
class GpuSpec:
    """One GPU: capacity, datasheet speeds and the share of them that kernels reach.

    Attributes
    ----------
    memory_bytes : int
        What vendors sell as "40 GB" and nvidia-smi shows as about 40 GiB: counted as GiB (2**30).
    bandwidth_bytes_per_s, flops_per_s, pcie_bytes_per_s : float
        Decimal, as in datasheets: device memory; dense 16-bit matrix products; host link, one direction.
    link_bytes_per_s : float or None
        To other GPUs (NVLink, Infinity Fabric), one direction; None when there is none.
    bandwidth_efficiency, matmul_efficiency : float
        Achieved share of the two peaks.
    kernel_overhead_s : float
        Start and end of one kernel, inside a CUDA graph.
    """

    name: str
    memory_bytes: int
    bandwidth_bytes_per_s: float
    flops_per_s: float
    pcie_bytes_per_s: float
    link_bytes_per_s: float | None = None
    bandwidth_efficiency: float = 0.89
    matmul_efficiency: float = 0.80
    kernel_overhead_s: float = 3e-6
    source: str

    def __post_init__(self) -> None:
        _check_int("memory_bytes", self.memory_bytes)
        for field in ("bandwidth_bytes_per_s", "flops_per_s", "pcie_bytes_per_s", "kernel_overhead_s"):
            _check_number(field, getattr(self, field))
        if self.link_bytes_per_s is not None:
            _check_number("link_bytes_per_s", self.link_bytes_per_s)
        _check_number("bandwidth_efficiency", self.bandwidth_efficiency, most=1)
        _check_number("matmul_efficiency", self.matmul_efficiency, most=1)


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """The engine's settings, named as vLLM names its flags.

    Attributes
    ----------
    allocator, scheduler : str
        Names in their registries; scheduler None means the one that belongs to the allocator.
    block_size : int
        Tokens of a KV block, a power of two.
    reserve : "max", "pow2", "oracle" or None
        What allocators that reserve ahead set aside; None leaves it to the allocator.
    fit : "first" or "best"
        Which free extent a contiguous reservation takes.
    max_num_seqs, max_num_batched_tokens : int
        At most so many sequences run, and at most so many tokens are computed, in a step.
    max_model_len : int or None
        The longest sequence; None means the model's own.
    watermark : float
        Share of the memory that an admission must leave free while anything runs.
    reserve_full_prompt : bool or None
        Whether a request is admitted only when its whole prompt fits, not just the first chunk; None
        means as the scheduler's version does.
    policy : "fcfs", "priority" or "sjf"
        The order of the queue (sim/queues.py).
    enable_prefix_caching : bool
        Whether prompts share the memory of what they have in common, with whoever was there before too.
    async_scheduling : bool or None
        Whether a step is decided before the one before it has ended; None means as the scheduler's version
        does.
    preemption : "recompute", "swap" or None
        What happens to evicted sequences; None means as the scheduler does.
    num_cpu_blocks : int or None
        Blocks of the host pool for swapped sequences; None means 4 GiB, for schedulers that swap.
    enforce_eager : bool
        Whether all kernels are launched one by one, without CUDA graphs; calibrated costs know what it takes.
    disable_hybrid_kv_cache_manager : bool
        Whether windowed layers keep all tokens where others do (sim/kv_groups.py).
    """

    allocator: str = "paged"
    scheduler: str | None = None
    block_size: int = 16
    reserve: str | None = None
    fit: str = "first"
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    enable_chunked_prefill: bool = True
    max_model_len: int | None = None
    watermark: float = 0.0
    reserve_full_prompt: bool | None = None
    policy: str = "fcfs"
    enable_prefix_caching: bool = False
    async_scheduling: bool | None = None
    preemption: str | None = None
    num_cpu_blocks: int | None = None
    enforce_eager: bool = False
    disable_hybrid_kv_cache_manager: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.watermark < 1:
            raise KvsimError(f"watermark must be at least 0 and below 1, got {self.watermark!r}")
        for field in ("block_size", "max_num_seqs", "max_num_batched_tokens"):
            _check_int(field, getattr(self, field))
        if self.block_size & (self.block_size - 1):
            raise KvsimError(f"block_size must be a power of two, got {self.block_size}")
        if self.reserve is not None and self.reserve not in RESERVES:
            raise KvsimError(f"reserve must be one of {', '.join(RESERVES)}, got {self.reserve!r}")
        if self.policy not in POLICIES:
            raise KvsimError(f"policy must be one of {', '.join(POLICIES)}, got {self.policy!r}")
        if self.preemption is not None and self.preemption not in PREEMPTIONS:
            raise KvsimError(f"preemption must be one of {', '.join(PREEMPTIONS)}, got {self.preemption!r}")
        if self.num_cpu_blocks is not None:
            _check_int("num_cpu_blocks", self.num_cpu_blocks, least=0)
        if self.fit not in FITS:
            raise KvsimError(f"fit must be one of {', '.join(FITS)}, got {self.fit!r}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise KvsimError(
                f"max_num_batched_tokens must be at least max_num_seqs ({self.max_num_seqs}), "
                f"got {self.max_num_batched_tokens}"
            )
        if self.max_model_len is not None:
            _check_int("max_model_len", self.max_model_len)


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A server: so many GPUs of one kind, one model split over them, one engine.

    Attributes
    ----------
    tensor_parallel_size : int
        GPUs that share every layer.
    gpu_memory_utilization : float
        Share of each GPU's memory that the engine may take.
    num_gpu_blocks, kv_tokens : int or None
        The KV capacity given exactly, in blocks or in tokens: at most one of them; None for both means
        computed from the memory (sim/memory.py).
    kv_cache_dtype : str
        Type of a cached number, one of KV_CACHE_DTYPES.
    cost : str
        How long a step takes: a name that sim/cost.py knows.
    profile : mapping or None
        What `cost` needs of a measured profile, in JSON's types (sim/profile_files.py).
    host_time : str
        The host's time of a step: "none", "MS+US" (milliseconds, and microseconds a sequence), or "auto",
        the engine's where the GPU's times are measured (sim/host.py).
    frontend_latency : float or None
        Seconds that a request spends outside of the engine; None means the engine's, as above.
    expert_skew : float or None
        How uneven tokens choose their experts, the exponent of a power law; None means even in the
        roofline, 1.2 in measured profiles.
    enable_expert_parallel : bool
        Whether the GPUs share the experts of a layer, whole ones each, instead of splitting every expert.
    time_scale : float
        By what every step's time is multiplied.
    """

    model: ModelSpec
    gpu: GpuSpec
    engine: EngineConfig
    tensor_parallel_size: int = 1
    gpu_memory_utilization: float = 0.9
    num_gpu_blocks: int | None = None
    kv_tokens: int | None = None
    kv_cache_dtype: str = "auto"
    cost: str = "roofline"
    profile: Mapping[str, Any] | None = None
    host_time: str = "auto"
    frontend_latency: float | None = None
    expert_skew: float | None = None
    enable_expert_parallel: bool = False
    time_scale: float = 1.0

    def __post_init__(self) -> None:
        if self.kv_cache_dtype not in KV_CACHE_DTYPES:
            raise KvsimError(
                f"kv_cache_dtype must be one of {', '.join(KV_CACHE_DTYPES)}, got {self.kv_cache_dtype!r}"
            )
        _check_int("tensor_parallel_size", self.tensor_parallel_size)
        if not can_split(self.model, self.tensor_parallel_size):
            raise KvsimError(
                f"tensor_parallel_size must divide the {self.model.heads} heads of {self.model.name} "
                f"and divide or be a multiple of its {self.model.kv_heads} KV heads, "
                f"got {self.tensor_parallel_size}"
            )
        if self.engine.enforce_eager and self.cost not in ("calibrated", "measured-elsewhere"):
            raise KvsimError(f"enforce_eager must be left out for cost {self.cost}, which knows no launches")
        _check_number("gpu_memory_utilization", self.gpu_memory_utilization, most=1)
        if self.enable_expert_parallel and not self.model.experts:
            raise KvsimError(
                f"enable_expert_parallel must be left out for model {self.model.name}, which has no experts"
            )
        for field, most in (("frontend_latency", 3600), ("expert_skew", 4)):
            if getattr(self, field):
                _check_number(field, getattr(self, field), most=most)
        _check_number("time_scale", self.time_scale, most=1000)
        for field in ("num_gpu_blocks", "kv_tokens"):
            if getattr(self, field) is not None:
                _check_int(field, getattr(self, field))
        if self.num_gpu_blocks is not None and self.kv_tokens is not None:
            raise KvsimError(
                f"num_gpu_blocks and kv_tokens both give the KV capacity: give one, "
                f"got {self.num_gpu_blocks} and {self.kv_tokens}"
            )

    @property
    def served_model(self) -> ModelSpec:
        """The model with the type of cached number that it is served with."""
        kv_bytes = KV_CACHE_DTYPES[self.kv_cache_dtype]
        return replace(self.model, kv_dtype_bytes=kv_bytes) if kv_bytes else self.model

    @property
    def max_model_len(self) -> int:
        """The longest sequence in tokens: the engine's setting, else the model's maximum."""
        return self.model.max_model_len if self.engine.max_model_len is None else self.engine.max_model_len


def can_split(model: ModelSpec, tensor_parallel_size: int) -> bool:
    """Whether each GPU gets the same whole number of heads, KV heads split evenly or replicated."""
    tp, kv_heads = tensor_parallel_size, model.kv_heads
    return model.heads % tp == 0 and (kv_heads % tp == 0 or tp % kv_heads == 0)
