"""What is simulated: a model, a GPU and an engine, and how much of each, with every name looked up.

    Scenario (sim/options/scenario.py), as its user describes it -> Deployment: everything that a run needs
    beside the traffic

The record is checked when it is built, so whoever holds one need not check again. The name of the cost model
is not checked here: its registry does that.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Self

from kvsim.allocators.base import Allocator
from kvsim.sim.checks import check_int, check_number
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.deployment.registry import Classes, usual_scheduler
from kvsim.sim.errors import KvsimError
from kvsim.sim.models.spec import KV_CACHE_DTYPES, GpuSpec, ModelSpec, can_split
from kvsim.sim.serving.fleet import ONE, FleetConfig


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """A server: so many GPUs of one kind, one model split over them, one engine.

    Attributes
    ----------
    tensor_parallel_size : int
        GPUs that share every layer.
    data_parallel_size : int
        Ranks of so many GPUs that compute attention and dense layers for requests of their own, and share
        the experts. `max_num_seqs`, `max_num_batched_tokens` and `num_gpu_blocks` are those of one rank.
    pipeline_parallel_size : int
        Stages of layers, each on GPUs of its own; as many batches are under way, each of
        `max_num_batched_tokens` at most.
    gpu_memory_utilization : float
        Share of each GPU's memory that the engine may take.
    num_gpu_blocks, kv_tokens : int or None
        The KV capacity given exactly, in blocks or in tokens: at most one of them; None for both means
        computed from the memory (sim/deployment/memory.py).
    kv_cache_dtype : str
        Type of a cached number, one of KV_CACHE_DTYPES.
    cost : str
        How long a step takes: a name that sim/cost/named.py knows.
    profile : mapping or None
        What `cost` needs of a measured profile, in JSON's types (sim/cost/profile_files.py).
    frontend_latency : float or None
        Seconds that a request spends outside of the engine; None means the engine's, as above.
    frontend_load : str
        What comes to that: "none", "US+US" (microseconds for each prompt token, and for each client of
        a closed loop), or "auto", the engine's, where `frontend_latency` is None (sim/cost/frontend.py).
    enable_expert_parallel : bool
        Whether the GPUs share the experts of a layer, whole ones each, instead of splitting every expert.
    peer_access : bool or None
        Whether GPUs without links reach each other's memory over PCIe; None: as the GPU's entry says.
    time_scale : float
        By what every step's time is multiplied.
    fleet : FleetConfig
        How many such servers there are, and how requests are spread over them.
    classes : Classes
        What the names of its parts stand for, as far as that was asked.
    """

    model: ModelSpec
    gpu: GpuSpec
    engine: EngineConfig
    tensor_parallel_size: int = 1
    data_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    gpu_memory_utilization: float = 0.9
    num_gpu_blocks: int | None = None
    kv_tokens: int | None = None
    kv_cache_dtype: str = "auto"
    cost: str = "roofline"
    profile: Mapping[str, Any] | None = None
    frontend_latency: float | None = None
    frontend_load: str = "auto"
    enable_expert_parallel: bool = False
    peer_access: bool | None = None
    time_scale: float = 1.0
    fleet: FleetConfig = ONE
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
                check_int(name, getattr(self, name))
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

    @classmethod
    def recorded(cls) -> list[str]:
        """The settings that `config.json` has; the fleet stands beside them."""
        return [each.name for each in fields(cls) if each.name not in ("fleet", "classes")]

    def as_json(self) -> dict[str, object]:
        """Those settings."""
        whole = asdict(self)
        return {name: whole[name] for name in self.recorded()}

    @property
    def allocator(self) -> type[Allocator]:
        """The allocator's class."""
        return self.classes.allocator(self.engine.allocator)

    @property
    def scheduler_name(self) -> str:
        """The scheduler asked for, else what engines pair with the allocator."""
        return self.engine.scheduler or usual_scheduler(self.allocator)

    def with_seed(self, seed: int) -> Self:
        """The same with this seed for routers that draw."""
        return replace(self, fleet=replace(self.fleet, seed=seed))

    @property
    def options(self) -> Mapping[str, object]:
        """Options that its parts declare themselves, by name."""
        return self.engine.options

    @property
    def gpus(self) -> int:
        """GPUs of the server."""
        return self.tensor_parallel_size * self.batches

    @property
    def served_gpu(self) -> GpuSpec:
        """The GPU as it reaches the others on this server."""
        told = self.peer_access
        return self.gpu if told in (None, self.gpu.peer_access) else replace(self.gpu, peer_access=told)

    @property
    def batches(self) -> int:
        """Batches that are under way at once: one for each rank of attention and stage of layers."""
        return self.data_parallel_size * self.pipeline_parallel_size

    @property
    def ranks_words(self) -> str:
        """The ranks and stages in a phrase; empty where there is one of each."""
        ranks, stages = self.data_parallel_size, self.pipeline_parallel_size
        words = [f"{ranks} data-parallel ranks"] if ranks > 1 else []
        return ", ".join([*words, f"{stages} pipeline stages"] if stages > 1 else words)

    @property
    def served_engine(self) -> EngineConfig:
        """The engine with the seats of all ranks, and the tokens that all batches of a round may have."""
        if self.batches == 1:
            return self.engine
        return replace(
            self.engine,
            max_num_seqs=self.engine.max_num_seqs * self.data_parallel_size,
            max_num_batched_tokens=self.engine.max_num_batched_tokens * self.batches,
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
