"""The engine's settings, named as vLLM's flags: a frozen record, checked when it is built.

Names of allocators and schedulers are checked by their registries.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from kvsim.sim.checks import check_int, check_one_of
from kvsim.sim.deployment.prediction import PREFIX, predictor_named
from kvsim.sim.errors import KvsimError, unknown
from kvsim.sim.kv.blocks import CACHE_MODES
from kvsim.sim.option import option
from kvsim.sim.policies import POLICIES as KEYED

RESERVES = ("max", "pow2", "oracle")
"""Besides these: `predicted:MODEL` (sim/deployment/prediction.py)."""
POLICIES = (
    *("fcfs", "priority", "sjf", "lof", "lpm", "dfs-weight", "hrrn", "shortest-prefill-first", "random"),
    *("routing-key", "priority-lof"),
)


def check_reserve(reserve: str) -> None:
    """Raise KvsimError unless it is one of `RESERVES`, or `predicted:MODEL`."""
    if reserve.startswith(PREFIX):
        predictor_named(reserve.removeprefix(PREFIX))
    elif reserve not in RESERVES:
        raise KvsimError(f"reserve must be one of {', '.join(RESERVES)}, {PREFIX}MODEL, got {reserve!r}")


def split_reserve(text: str) -> tuple[str, str | None]:
    """Split `name[:reserve]` or `module:Class[:reserve]` into an allocator and its reservation."""
    name, mark, model = text.strip().partition(f":{PREFIX}")
    if mark:
        return name, PREFIX + model
    name, _, last = text.strip().rpartition(":")
    return (name, last) if name and last in RESERVES else (text.strip(), None)


ENGINE, MEMORY = "Engine", "Memory"


@dataclass(frozen=True, kw_only=True)
class EngineChoices:
    """The engine's settings, named as vLLM's flags; None: decided by release, model and GPU."""

    allocator: str | type = option(
        "See: sim allocators; or your own package.module:Class.",
        panel=ENGINE,
        default="paged",
        value="NAME",
        doc="an [allocator](allocators.md), or your own `package.module:Class`; `NAME:RESERVE` for short",
    )
    scheduler: str | type | None = option(
        "See: sim schedulers; a release as in vllm-v1@0.12.0.",
        panel=ENGINE,
        default=None,
        value="NAME",
        shown="vllm-v1 for paged and radix, else orca",
        doc="a [scheduler](schedulers.md), or your own `package.module:Class`",
    )
    block_size: int | None = option(
        "Tokens per KV block.",
        panel=MEMORY,
        default=None,
        value="N",
        shown="16",
        doc="tokens per KV block, a power of two",
    )
    reserve: str | None = option(
        "How much reserving allocators set aside: max, pow2, oracle, predicted:MODEL.",
        panel=MEMORY,
        default=None,
        value="NAME",
        shown="max",
        doc="how much reserving allocators set aside: `max`, `pow2` (a power of two), `oracle` (the exact "
        "length), or `predicted:MODEL` ([predictors](allocators.md#predicted-lengths))",
    )
    max_num_seqs: int | None = option(
        "Maximum sequences computed in a step.",
        panel=ENGINE,
        default=None,
        value="N",
        shown="vLLM's for the GPU",
    )
    max_num_batched_tokens: int | None = option(
        "Maximum tokens per step; prompts are split to fit.",
        panel=ENGINE,
        default=None,
        value="N",
        shown="vLLM's for the GPU",
        doc="maximum tokens per step; at least `--max-num-seqs`; for `vllm-v0`, by default, also at least "
        "the longest sequence",
    )
    enable_chunked_prefill: bool | None = option(
        "Split prompts to fit a step; --no-...: never.",
        panel=ENGINE,
        default=None,
        shown="on",
        doc="whether prompts are split to fit a step",
    )
    max_model_len: int | None = option(
        "Maximum tokens per request.",
        panel=ENGINE,
        default=None,
        value="N",
        shown="the model's maximum",
        doc="maximum tokens per request, prompt and answer together; beyond the model's maximum with a note",
    )
    policy: str | type = option(
        "Who is next: fcfs, priority, sjf, srpt, vtc, ...: see sim policies.",
        panel=ENGINE,
        default="fcfs",
        value="NAME",
        doc="who is next: the earliest arrival, the lowest priority number of the trace, the shortest "
        "answer, a [policy](policies.md), or your own `package.module:Class`",
    )
    enable_prefix_caching: bool | None = option(
        "Share and keep common prefixes of prompts; --no-...: never.",
        panel=ENGINE,
        default=None,
        shown="vLLM's for the model: on",
        doc="whether the memory of common prefixes is [shared and kept](allocators.md#prefix-cache)",
    )
    async_scheduling: bool | None = option(
        "Schedule a step before the previous one has ended (vllm-v1; --no-...: not).",
        panel=ENGINE,
        default=None,
        shown="on for vllm-v1@0.33.0",
        doc="whether a step is scheduled before the previous one has ended",
    )
    enforce_eager: bool | None = option(
        "Launch all kernels without CUDA graphs (--cost calibrated).",
        panel=ENGINE,
        default=None,
        shown="off",
        doc="launch all kernels one by one, without CUDA graphs "
        "([`--cost calibrated`](cost.md#calibrated) only)",
    )
    mamba_cache_mode: str | None = option(
        "States kept for prefixes: none, at block ends (align), in all blocks.",
        panel=MEMORY,
        default=None,
        value="NAME",
        allowed=CACHE_MODES,
        shown="align with the prefix cache, else none",
        doc="which states of recurrent layers are kept for prefixes ([hybrid models](hybrid.md))",
    )
    prefix_cache_retention_interval: int = option(
        "Ends of windows and states to keep: 0 where prompts end and diverge, -1 all.",
        panel=MEMORY,
        default=0,
        value="N",
        doc="which ends of windows and states are kept for prefixes: 0, where prompts end and diverge; -1, "
        "all; N, also one every N tokens ([hybrid models](hybrid.md))",
        short="--cache-retention",
    )
    disable_hybrid_kv_cache_manager: bool = option(
        "Keep all tokens in windowed layers where other layers do (vLLM).",
        panel=MEMORY,
        default=False,
        doc="keep all tokens in windowed layers where other layers do "
        "([sliding windows](allocators.md#sliding-windows))",
        short="--no-hybrid-kv",
    )


@dataclass(frozen=True, kw_only=True)
class EngineConfig(EngineChoices):
    """`EngineChoices` with every default filled in: names, and the numbers on which a step depends.

    Attributes
    ----------
    options : mapping
        Options that parts of the run declare, by name (sim/parts.py): its scheduler, allocator, cost or
        router.
    """

    allocator: str = "paged"
    scheduler: str | None = None
    policy: str = "fcfs"
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = False
    enforce_eager: bool = False
    options: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """The engine with these settings; names that are not fields are options of parts."""
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
        if ":" not in self.policy and self.policy not in KEYED and self.policy not in POLICIES:
            raise unknown("policy", self.policy, [*POLICIES, *KEYED])
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
