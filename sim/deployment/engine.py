"""The engine's settings: what a vLLM user sets with flags, in one frozen record that is checked when built.

Names of allocators and schedulers are not checked here: their registries do that.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from kvsim.sim.checks import check_int, check_one_of
from kvsim.sim.deployment.prediction import PREFIX, predictor_named
from kvsim.sim.errors import KvsimError
from kvsim.sim.kv.blocks import CACHE_MODES

RESERVES = ("max", "pow2", "oracle")
"""Beside these, `predicted:MODEL` (sim/deployment/prediction.py)."""
POLICIES = ("fcfs", "priority", "sjf", "lof", "lpm", "dfs-weight")


def check_reserve(reserve: str) -> None:
    """Raise KvsimError unless it is one of `RESERVES`, or `predicted:MODEL`."""
    if reserve.startswith(PREFIX):
        predictor_named(reserve.removeprefix(PREFIX))
    elif reserve not in RESERVES:
        raise KvsimError(f"reserve must be one of {', '.join(RESERVES)}, {PREFIX}MODEL, got {reserve!r}")


def split_reserve(text: str) -> tuple[str, str | None]:
    """An allocator and its reservation, of `name[:reserve]` or `module:Class[:reserve]`."""
    name, mark, model = text.strip().partition(f":{PREFIX}")
    if mark:
        return name, PREFIX + model
    name, _, last = text.strip().rpartition(":")
    return (name, last) if name and last in RESERVES else (text.strip(), None)


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """The engine's settings, named as vLLM names its flags.

    Attributes
    ----------
    allocator, scheduler : str
        Names in their registries; scheduler None means the one that belongs to the allocator.
    block_size : int
        Tokens of a KV block, a power of two.
    reserve : "max", "pow2", "oracle", "predicted:MODEL" or None
        What allocators that reserve ahead set aside; None leaves it to the allocator.
    max_num_seqs, max_num_batched_tokens : int
        At most so many sequences run, and at most so many tokens are computed, in a step.
    max_model_len : int or None
        The longest sequence; None means the model's own.
    policy : one of POLICIES
        The order of the queue (sim/serving/queues.py).
    enable_prefix_caching : bool
        Whether prompts share the memory of what they have in common, with whoever was there before too.
    async_scheduling : bool or None
        Whether a step is decided before the one before it has ended; None means as the scheduler's version
        does.
    enforce_eager : bool
        Whether all kernels are launched one by one, without CUDA graphs; calibrated costs know what it takes.
    mamba_cache_mode : "none", "align", "all" or None
        Which states of recurrent layers are kept for prefixes; None means align with the prefix cache, else
        none.
    prefix_cache_retention_interval : int
        Which ends of windows and states are kept: 0 where prompts end and part, -1 all, else one in so many
        tokens too.
    disable_hybrid_kv_cache_manager : bool
        Whether windowed layers keep all tokens where others do (sim/models/kv_groups.py).
    options : mapping
        Options that a part of the run declares itself, by name (sim/parts.py): its scheduler, allocator,
        cost or router.
    """

    allocator: str = "paged"
    scheduler: str | None = None
    block_size: int = 16
    reserve: str | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    enable_chunked_prefill: bool = True
    max_model_len: int | None = None
    policy: str = "fcfs"
    enable_prefix_caching: bool = False
    async_scheduling: bool | None = None
    enforce_eager: bool = False
    mamba_cache_mode: str | None = None
    prefix_cache_retention_interval: int = 0
    disable_hybrid_kv_cache_manager: bool = False
    options: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """The engine with these settings; one that is no field is an option of a part."""
        common = {each.name for each in fields(cls)}
        given = {name: value for name, value in settings.items() if name in common}
        own = {name: value for name, value in settings.items() if name not in common and value is not None}
        return cls(**given | {"options": {**given.get("options", {}), **own}})

    def __post_init__(self) -> None:
        for name in ("block_size", "max_num_seqs", "max_num_batched_tokens"):
            check_int(name, getattr(self, name))
        if self.block_size & (self.block_size - 1):
            raise KvsimError(f"block_size must be a power of two, got {self.block_size}")
        if self.reserve is not None:
            check_reserve(self.reserve)
        check_one_of("policy", self.policy, POLICIES)
        if self.mamba_cache_mode is not None:
            check_one_of("mamba_cache_mode", self.mamba_cache_mode, CACHE_MODES)
        if self.mamba_cache_mode in ("align", "all") and not self.enable_prefix_caching:
            raise KvsimError(f"mamba_cache_mode {self.mamba_cache_mode} needs enable_prefix_caching")
        check_int("prefix_cache_retention_interval", self.prefix_cache_retention_interval, least=-1)
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise KvsimError(
                f"max_num_batched_tokens must be at least max_num_seqs ({self.max_num_seqs}), "
                f"got {self.max_num_batched_tokens}"
            )
        if self.max_model_len is not None:
            check_int("max_model_len", self.max_model_len)
