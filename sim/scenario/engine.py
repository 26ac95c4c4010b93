"""The engine's settings: what a vLLM user sets with flags, in one frozen record that is checked when built.

Names of allocators and schedulers are not checked here: their registries do that.
"""

from dataclasses import dataclass

from kvsim.allocators.extents import FITS
from kvsim.allocators.sglang.eviction import STRATEGIES
from kvsim.sim.checks import check_int, check_number, check_one_of
from kvsim.sim.errors import KvsimError
from kvsim.sim.kv.blocks import CACHE_MODES
from kvsim.sim.scenario.prediction import PREFIX, predictor_named

RESERVES = ("max", "pow2", "oracle")
"""Beside these, `predicted:MODEL` (sim/scenario/prediction.py)."""
COMPACTIONS = ("eager", "lazy")
POLICIES = ("fcfs", "priority", "sjf", "lof", "lpm", "dfs-weight")
PREEMPTIONS = ("recompute", "swap")
KV_BITS = (1, 2, 4, 8)
CAPACITY_POLICIES = ("guaranteed-no-evict", "max-utilization", "static-batch")


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


def split_budget(text: str) -> tuple[int, int]:
    """`1024` or `20%` as (tokens, percent); KvsimError for anything else."""
    number, share = text.removesuffix("%"), text.endswith("%")
    if not number.isdecimal() or not (1 <= int(number) <= 100 if share else int(number) >= 2):
        raise KvsimError(f"kv_budget must be a number of tokens from 2 on, or 1% to 100%, got {text!r}")
    return (0, int(number)) if share else (int(number), 0)


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
    fit : "first", "best", "next" or "worst"
        Which free extent a contiguous reservation takes.
    kv_budget : "N", "P%" or None
        Tokens of a sequence that those keep that drop some, or a share of its prompt; None means their own.
    kv_bits : int or None
        Bits of an element, for those that quantise; None means 2.
    max_num_seqs, max_num_batched_tokens : int
        At most so many sequences run, and at most so many tokens are computed, in a step.
    max_model_len : int or None
        The longest sequence; None means the model's own.
    watermark : float
        Share of the memory that an admission must leave free while anything runs.
    reserve_full_prompt : bool or None
        Whether a request is admitted only when its whole prompt fits, not just the first chunk; None
        means as the scheduler's version does.
    policy : one of POLICIES
        The order of the queue (sim/serving/queues.py).
    enable_prefix_caching : bool
        Whether prompts share the memory of what they have in common, with whoever was there before too.
    async_scheduling : bool or None
        Whether a step is decided before the one before it has ended; None means as the scheduler's version
        does.
    preemption : "recompute", "swap" or None
        What happens to evicted sequences; None means as the scheduler does.
    num_cpu_blocks : int or None
        Blocks of the host pool for swapped sequences; None means 4 GiB, for schedulers that swap.
    capacity_policy : "guaranteed-no-evict", "max-utilization", "static-batch" or None
        Whom TensorRT-LLM admits; None means its default, the first.
    router_token_ratio, router_max_new_token_len, router_max_wait_tokens : float, int, int or None
        What LightLLM expects of answers, and how many decode steps it waits before it admits again
        (sim/schedulers/lightllm.py); None means its defaults.
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
    eviction : str
        Which leaf of a radix tree goes first, for allocators that choose (allocators/sglang/eviction.py).
    compaction : "eager" or "lazy"
        When holes are closed by moving pages, for allocators that choose.
    swa_full_tokens_ratio : float or None
        Tokens of the pool of windowed layers, as a share of those of the full ones, for allocators that split
        them; None means 0.8.
    swa_eviction_interval : int or None
        Tokens that must lie behind the window before such a pool gets them back; None means 128.
    schedule_conservativeness : float
        Factor of the share of answers that SGLang sets aside for those who run.
    enable_mixed_chunk : bool
        Whether SGLang decodes in the steps that compute prompts, too.
    max_tokens : int or None
        The longest answer that clients ask for, by which SGLang reckons; None means as long as it will be.
    ignore_eos : bool
        Whether SGLang is told that answers end at their length only, so that it reckons with all of it.
    preemption_threshold : int or None
        SGLang, by priority: the difference above which an urgent request preempts others; None: never.
    """

    allocator: str = "paged"
    scheduler: str | None = None
    block_size: int = 16
    reserve: str | None = None
    fit: str = "first"
    kv_budget: str | None = None
    kv_bits: int | None = None
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
    capacity_policy: str | None = None
    router_token_ratio: float | None = None
    router_max_new_token_len: int | None = None
    router_max_wait_tokens: int | None = None
    enforce_eager: bool = False
    mamba_cache_mode: str | None = None
    prefix_cache_retention_interval: int = 0
    disable_hybrid_kv_cache_manager: bool = False
    eviction: str = "lru"
    compaction: str = "eager"
    swa_full_tokens_ratio: float | None = None
    swa_eviction_interval: int | None = None
    schedule_conservativeness: float = 1.0
    enable_mixed_chunk: bool = False
    max_tokens: int | None = None
    ignore_eos: bool = False
    preemption_threshold: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.watermark < 1:
            raise KvsimError(f"watermark must be at least 0 and below 1, got {self.watermark!r}")
        for field in ("block_size", "max_num_seqs", "max_num_batched_tokens"):
            check_int(field, getattr(self, field))
        if self.block_size & (self.block_size - 1):
            raise KvsimError(f"block_size must be a power of two, got {self.block_size}")
        if self.reserve is not None:
            check_reserve(self.reserve)
        check_one_of("policy", self.policy, POLICIES)
        check_one_of("fit", self.fit, FITS)
        check_one_of("eviction", self.eviction, tuple(STRATEGIES))
        check_one_of("compaction", self.compaction, COMPACTIONS)
        choices = (
            ("preemption", PREEMPTIONS),
            ("mamba_cache_mode", CACHE_MODES),
            ("kv_bits", KV_BITS),
            ("capacity_policy", CAPACITY_POLICIES),
        )
        for field, allowed in choices:
            if getattr(self, field) is not None:
                check_one_of(field, getattr(self, field), allowed)
        if self.mamba_cache_mode in ("align", "all") and not self.enable_prefix_caching:
            raise KvsimError(f"mamba_cache_mode {self.mamba_cache_mode} needs enable_prefix_caching")
        check_int("prefix_cache_retention_interval", self.prefix_cache_retention_interval, least=-1)
        if self.num_cpu_blocks is not None:
            check_int("num_cpu_blocks", self.num_cpu_blocks, least=0)
        if self.kv_budget is not None:
            split_budget(self.kv_budget)
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise KvsimError(
                f"max_num_batched_tokens must be at least max_num_seqs ({self.max_num_seqs}), "
                f"got {self.max_num_batched_tokens}"
            )
        check_number("schedule_conservativeness", self.schedule_conservativeness)
        for field, least in (("max_tokens", 1), ("preemption_threshold", 0), ("max_model_len", 1)):
            if getattr(self, field) is not None:
                check_int(field, getattr(self, field), least)
        self._check_few()

    def _check_few(self) -> None:
        """What only SGLang, or LightLLM, knows."""
        if self.ignore_eos and self.max_tokens is not None:
            raise KvsimError(
                "max_tokens must be left out with ignore_eos, which makes each answer as long as asked, "
                f"got {self.max_tokens}"
            )
        if self.swa_full_tokens_ratio is not None:
            check_number("swa_full_tokens_ratio", self.swa_full_tokens_ratio)
        if self.swa_eviction_interval is not None:
            check_int("swa_eviction_interval", self.swa_eviction_interval)
        if self.router_token_ratio is not None and not self.router_token_ratio >= 0:
            raise KvsimError(f"router_token_ratio must be at least 0, got {self.router_token_ratio!r}")
        for field in ("router_max_new_token_len", "router_max_wait_tokens"):
            if getattr(self, field) is not None:
                check_int(field, getattr(self, field), least=0)
