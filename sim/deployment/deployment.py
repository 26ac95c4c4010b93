"""What is simulated: a model, GPUs and an engine, with every name resolved.

    Scenario (sim/options/scenario.py), as its user describes it -> Deployment: everything that a run needs
    besides the traffic

The record is checked when it is built. The name of the cost model is checked by its registry.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Self

from kvsim.allocators.base import Allocator
from kvsim.sim.checks import check_int, check_number
from kvsim.sim.deployment.engine import MEMORY, EngineConfig
from kvsim.sim.deployment.registry import Classes, usual_scheduler
from kvsim.sim.errors import KvsimError
from kvsim.sim.models.spec import KV_CACHE_DTYPES, GpuSpec, ModelSpec, can_split
from kvsim.sim.option import option
from kvsim.sim.serving.fleet import ONE, FleetConfig

HARDWARE = "Model and GPU"


@dataclass(frozen=True, kw_only=True)
class ServerChoices:
    """A server's model, GPUs, memory and step times; None leaves a setting to its default."""

    model: str | ModelSpec = option(
        "See: sim models; or a name of the hub, or a config.json.",
        panel=HARDWARE,
        default="opt-13b",
        value="NAME|FILE",
        doc="one of `sim models`, or its name on the Hugging Face hub; "
        "or a `config.json` of Hugging Face, or its folder",
    )
    gpu: str | GpuSpec = option(
        "See: sim gpus; or your own: six numbers, or a profile.",
        panel=HARDWARE,
        default="a100-40gb",
        value="NAME|FILE",
        doc="one of `sim gpus`, by the name of a GPU or a profile; "
        "or a file: [your own GPU](cost.md#your-own-gpu) in six numbers, or a profile",
    )
    tensor_parallel_size: int = option(
        "GPUs that share every layer.",
        panel=HARDWARE,
        default=1,
        value="N",
        doc="GPUs that share every layer: weights and KV split, all-reduces added",
    )
    data_parallel_size: int = option(
        "Ranks of attention that share the experts.",
        panel=HARDWARE,
        default=1,
        value="N",
        doc="ranks that compute attention for their own requests and share the experts "
        "([how](cost.md#ranks-and-stages)); seats, budget and `--num-gpu-blocks` are per rank",
    )
    pipeline_parallel_size: int = option(
        "Stages of layers, each on its own GPUs.",
        panel=HARDWARE,
        default=1,
        value="N",
        doc="stages of layers, each on its own GPUs; as many batches are in flight "
        "([how](cost.md#ranks-and-stages))",
    )
    gpu_memory_utilization: float | None = option(
        "Share of the GPU's memory to use.",
        panel=MEMORY,
        default=None,
        value="X",
        shown="vLLM's release: 0.92",
        doc="share of the GPU's memory to use, above 0 and at most 1",
    )
    num_gpu_blocks: int | None = option(
        "KV memory in blocks, as engines print it.",
        panel=MEMORY,
        default=None,
        value="N",
        shown="computed",
        doc="KV memory in blocks of `--block-size`, as engines print it; "
        "with windows, blocks of one group of layers",
    )
    kv_tokens: int | None = option(
        "KV memory in tokens, instead.",
        panel=MEMORY,
        default=None,
        value="N",
        shown="computed",
    )
    kv_cache_dtype: str = option(
        "Type of a cached element; auto: the model's.",
        panel=MEMORY,
        default="auto",
        value="NAME",
        doc="type of a cached element: `fp8` (`fp8_e4m3`, `fp8_e5m2`), `fp16`, `bf16` (`bfloat16`), "
        "`fp32`; `auto`: the model's",
    )
    cost: str | type | None = option(
        "Step times: calibrated, measured-elsewhere, roofline, constant:SECONDS, logged:..., a profile.",
        panel=HARDWARE,
        default=None,
        value="NAME",
        shown="measured if the GPU was, else roofline",
        doc="[step times](cost.md): `calibrated`, `measured-elsewhere`, `roofline`, `constant:SECONDS`, "
        "`logged:MS+US+US` or a file from [`sim calibrate log`](calibration.md#from-a-servers-log), "
        "`a100-40gb-sosp23`, the [PagedAttention paper's servers](reproduce.md#step-times), "
        "`a100-80gb-osdi24:ENGINE`, [DistServe's](reproduce.md#distserve), or `dgx-isca24:RULE`, "
        "[Splitwise's](reproduce.md#splitwise); or your own `package.module:Class`",
    )
    frontend_latency: float | None = option(
        "HTTP, tokenizer and detokenizer per request; 0: the engine alone.",
        panel=HARDWARE,
        default=None,
        value="SECONDS",
        shown="the engine's, with measured GPU times",
        doc="time of HTTP, tokenizer and detokenizer per request, added only to its TTFT and E2E; 0: the "
        "engine alone",
    )
    frontend_load: str = option(
        "Front end: us per prompt token + us per client of a closed loop; auto: the engine's.",
        panel=HARDWARE,
        default="auto",
        value="auto|none|US+US",
        doc="what the [front end](cost.md#the-host) takes beside `--frontend-latency`: microseconds per "
        "prompt token, and per client of a closed loop; `auto`: the engine's, unless a latency is given",
    )
    enable_expert_parallel: bool = option(
        "Whole experts on each GPU, not a slice of each.",
        panel=HARDWARE,
        default=False,
        doc="each GPU holds whole experts instead of a slice of each; the same all-reduces, no imbalance",
    )
    peer_access: bool | None = option(
        "GPUs without NVLink reach each other over PCIe (--no-...: through the host's memory).",
        panel=HARDWARE,
        default=None,
        shown="as the GPU's: no for rtx-4090 and rtx-5090",
        doc="whether GPUs without NVLink reach each other over PCIe, as `nvidia-smi topo -p2p r` shows, or "
        "[through the host's memory](cost.md#without-peer-access)",
    )
    time_scale: float = option(
        "Multiply the time of every step by X, as sim replay --fit scale finds it.",
        panel=HARDWARE,
        default=1.0,
        value="X",
        doc="factor for the time of every step, as [`sim replay --fit scale`](replay.md#fit) finds it",
    )


@dataclass(frozen=True, kw_only=True)
class Deployment(ServerChoices):
    """A server: GPUs of one kind, one model split over them, one engine; and how many such servers there are.

    Attributes
    ----------
    profile : mapping or None
        The parts of a measured profile that `cost` needs, in JSON types (sim/cost/profile_files.py).
    fleet : FleetConfig
        The number of such servers, and how requests are distributed among them.
    pools : tuple of Pool
        All pools of a fleet of unlike servers; all other attributes are those of the first. Empty: all
        servers are equal.
    classes : Classes
        The classes of its parts, by name, as looked up so far.
    """

    model: ModelSpec = field()
    gpu: GpuSpec = field()
    engine: EngineConfig
    gpu_memory_utilization: float = 0.9
    cost: str = "roofline"
    profile: Mapping[str, Any] | None = None
    fleet: FleetConfig = ONE
    pools: "tuple[Pool, ...]" = ()
    classes: Classes = field(default_factory=Classes, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.kv_cache_dtype not in KV_CACHE_DTYPES:
            raise KvsimError(
                f"kv_cache_dtype must be one of {', '.join(KV_CACHE_DTYPES)}, got {self.kv_cache_dtype!r}"
            )
        check_int("tensor_parallel_size", self.tensor_parallel_size)
        if not can_split(self.model, self.tensor_parallel_size):
            raise KvsimError(
                f"tensor_parallel_size must divide the {self.model.heads} heads of {self.model.name} "
                f"and divide or be a multiple of its {self.model.kv_heads} KV heads, "
                f"got {self.tensor_parallel_size}"
            )
        self._check_ranks()
        self._check_pools()
        check_number("gpu_memory_utilization", self.gpu_memory_utilization, most=1)
        if self.enable_expert_parallel and not self.model.experts:
            raise KvsimError(
                f"enable_expert_parallel must be left out for model {self.model.name}, which has no experts"
            )
        if self.frontend_latency:
            check_number("frontend_latency", self.frontend_latency, most=3600)
        check_number("time_scale", self.time_scale, most=1000)
        for name in ("num_gpu_blocks", "kv_tokens"):
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name), most=MOST_SLOTS)
        if self.num_gpu_blocks is not None and self.kv_tokens is not None:
            raise KvsimError(
                f"num_gpu_blocks and kv_tokens both give the KV capacity: give one, "
                f"got {self.num_gpu_blocks} and {self.kv_tokens}"
            )

    def _check_ranks(self) -> None:
        model = self.model
        check_int("data_parallel_size", self.data_parallel_size)
        check_int("pipeline_parallel_size", self.pipeline_parallel_size)
        if self.data_parallel_size > 1 and not model.experts:
            raise KvsimError(
                f"data_parallel_size must be 1 for model {model.name}, which has no experts to share: "
                f"its ranks are servers of their own, as with --replicas; got {self.data_parallel_size}"
            )
        if self.pipeline_parallel_size > model.layers:
            raise KvsimError(
                f"pipeline_parallel_size must be at most the {model.layers} layers of {model.name}, "
                f"got {self.pipeline_parallel_size}"
            )

    def _check_pools(self) -> None:
        if not self.pools:
            return
        replicas = sum(pool.replicas for pool in self.pools)
        if replicas != self.fleet.replicas:
            raise KvsimError(f"replicas of the pools must sum to {self.fleet.replicas}, got {replicas}")
        check_roles([pool.role for pool in self.pools])
        for pool in self.pools:
            router, own = self.fleet.router, pool.server.fleet.router
            if own not in (router, ONE.router):
                raise KvsimError(f"router must be {router}, that of the fleet, in every pool, got {own}")
            if pool.server.model != self.model:
                raise KvsimError(
                    f"model must be the same in all pools, got {self.model.name} and {pool.server.model.name}"
                )

    @classmethod
    def recorded(cls) -> list[str]:
        """Names of the settings in `config.json`; the fleet is stored beside them."""
        return [each.name for each in fields(cls) if each.name not in ("fleet", "pools", "classes")]

    def as_json(self) -> dict[str, object]:
        """The recorded settings."""
        whole = asdict(replace(self, pools=()))
        return {name: whole[name] for name in self.recorded()}

    @property
    def allocator(self) -> type[Allocator]:
        """The allocator's class."""
        return self.classes.allocator(self.engine.allocator)

    @property
    def scheduler_name(self) -> str:
        """The requested scheduler, else the one that engines pair with the allocator."""
        return self.engine.scheduler or usual_scheduler(self.allocator)

    def with_seed(self, seed: int) -> Self:
        """The same deployment with this seed for random routers."""
        return replace(self, fleet=replace(self.fleet, seed=seed))

    @property
    def options(self) -> Mapping[str, object]:
        """The options declared by its parts, by name."""
        return self.engine.options

    @property
    def gpus(self) -> int:
        """GPUs of the server."""
        return self.tensor_parallel_size * self.batches

    @property
    def block_bytes_per_gpu(self) -> int:
        """Bytes of a KV block on each GPU; stages share the layers, rounded up."""
        token_bytes = self.served_model.kv_bytes_per_token_per_gpu(self.tensor_parallel_size)
        return -(-self.engine.block_size * token_bytes // self.pipeline_parallel_size)

    @property
    def every_pool(self) -> "tuple[Pool, ...]":
        """Its pools: only one if all servers are equal."""
        return self.pools or (Pool("", "both", self.fleet.replicas, self),)

    @property
    def sizes(self) -> list[tuple[str, int]]:
        """Role and number of replicas of each pool."""
        return [(pool.role, pool.replicas) for pool in self.every_pool]

    @property
    def apart(self) -> bool:
        """Whether prompts and answers are computed on different servers."""
        return any(pool.role == "prefill" for pool in self.pools)

    @property
    def all_gpus(self) -> int:
        """GPUs of all servers."""
        return sum(pool.gpus for pool in self.every_pool)

    @property
    def served_gpu(self) -> GpuSpec:
        """The GPU, with this server's setting of peer access."""
        told = self.peer_access
        return self.gpu if told in (None, self.gpu.peer_access) else replace(self.gpu, peer_access=told)

    @property
    def batches(self) -> int:
        """Batches in flight at once: one per attention rank and pipeline stage."""
        return self.data_parallel_size * self.pipeline_parallel_size

    @property
    def ranks_words(self) -> str:
        """The ranks and stages in words; empty if there is one of each."""
        ranks, stages = self.data_parallel_size, self.pipeline_parallel_size
        words = [f"{ranks} data-parallel ranks"] if ranks > 1 else []
        return ", ".join([*words, f"{stages} pipeline stages"] if stages > 1 else words)

    @property
    def served_engine(self) -> EngineConfig:
        """The engine with the seats of all ranks and the token budget of all batches of a round."""
        if self.batches == 1:
            return self.engine
        return replace(
            self.engine,
            max_num_seqs=self.engine.max_num_seqs * self.data_parallel_size,
            max_num_batched_tokens=self.engine.max_num_batched_tokens * self.batches,
        )

    @property
    def served_model(self) -> ModelSpec:
        """The model with the KV data type of this server."""
        kv_bytes = KV_CACHE_DTYPES[self.kv_cache_dtype]
        return replace(self.model, kv_dtype_bytes=kv_bytes) if kv_bytes else self.model

    @property
    def max_model_len(self) -> int:
        """The longest sequence in tokens: the engine's setting, else the model's maximum."""
        return self.model.max_model_len if self.engine.max_model_len is None else self.engine.max_model_len


MOST_SLOTS = 2**31 - 1
"""Limit on blocks or tokens of a KV memory: engines number blocks with 32 bits."""
ROLES = ("both", "prefill", "decode")


def check_roles(roles: Sequence[str]) -> None:
    """Raise KvsimError for pools whose roles do not form a fleet."""
    found = set(roles)
    if found not in ({"both"}, {"prefill", "decode"}):
        raise KvsimError(
            f"roles of pools must be both everywhere, or prefill and decode, got {', '.join(roles)}"
        )


@dataclass(frozen=True)
class Pool:
    """Equal servers of a fleet.

    Attributes
    ----------
    name : str
        How its servers differ from others: `h100 tp2`.
    role : str
        One of `ROLES`: the work of its servers.
    replicas : int
        Number of servers.
    server : Deployment
        One of the servers, or all of them as a fleet.
    """

    name: str
    role: str
    replicas: int
    server: Deployment

    def __post_init__(self) -> None:
        check_int("replicas", self.replicas)
        if self.role not in ROLES:
            raise KvsimError(f"role of a pool must be one of {', '.join(ROLES)}, got {self.role!r}")

    @property
    def gpus(self) -> int:
        """GPUs of its servers."""
        return self.server.gpus * self.replicas
