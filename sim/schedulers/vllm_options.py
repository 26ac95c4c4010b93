"""User options of vLLM's schedulers: V0's and V1's.

They are separate from the schedulers, which are compiled: a compiled class has no readable `int | None`, and
could not be subclassed.
"""

from dataclasses import dataclass

from kvsim.allocators.option import option
from kvsim.sim.deployment.speculation import METHODS
from kvsim.sim.schedulers.transfer_link import transfer_link


@dataclass(frozen=True, kw_only=True)
class VllmV0Options:
    """Options of vLLM V0 only."""

    watermark: float = option(
        "Share of the memory that an admission leaves free.", default=0.01, value="X", least=0, below=1
    )
    preemption: str | None = option(
        "What happens to preempted requests: recompute, swap.",
        default=None,
        value="NAME",
        allowed=("recompute", "swap"),
        shown="recompute; swap for several samples",
        doc="what happens to preempted requests: `recompute` or `swap`",
    )
    num_cpu_blocks: int | None = option(
        "Blocks of host memory for swapped requests.",
        default=None,
        value="N",
        least=0,
        shown="what fits in 4 GiB per GPU",
    )


@dataclass(frozen=True, kw_only=True)
class VllmV1Options:
    """Options of vLLM V1, which early releases lack."""

    watermark: float = option(
        "Share of the memory that an admission leaves free.", default=0.0, value="X", least=0, below=1
    )
    reserve_full_prompt: bool | None = option(
        "Admit a request only when its whole prompt fits.", default=None, shown="on"
    )
    long_prefill_token_threshold: int = option(
        "Maximum tokens of one prompt per step while there are other requests.",
        default=0,
        value="N",
        least=0,
        shown="0: as many as the budget has",
    )
    speculative_config: str | None = option(
        "Speculative decoding, as vLLM's JSON: method, num_speculative_tokens, ...",
        default=None,
        value="JSON",
        shown="off",
        doc="[speculative decoding](speculation.md), as vLLM's JSON: `method`, `num_speculative_tokens`, ...",
    )
    speculative_method: str | None = option(
        "Short for its method: eagle3, mtp, ngram, ...",
        default=None,
        value="NAME",
        allowed=METHODS,
        shown="that of the JSON",
        doc="short for its `method`",
    )
    num_speculative_tokens: int | None = option(
        "Short for its number of drafts; 0: no speculation.",
        default=None,
        value="K",
        least=0,
        most=64,
        shown="that of the JSON",
        doc="short for its `num_speculative_tokens`; 0: no speculation",
    )
    acceptance_length: float | None = option(
        "Short for the mean tokens per verification.",
        default=None,
        value="X",
        least=1,
        most=65,
        shown="as the JSON says",
        doc="short for its `synthetic_acceptance_length`",
    )
    tier: str | None = option(
        "A tier below the GPU's memory: host:100GiB, then ssd:2TiB:read=6.5GB/s; repeatable.",
        default=None,
        value="TIER",
        shown="none",
        repeats=True,
        doc="a [tier below the GPU's memory](tiers.md#tier-by-tier), once per tier from the host down: "
        "`host:100GiB:lru`, `ssd:2TiB:read=6.5GB/s`, `remote:20TiB:100gb:shared`; for "
        "[engines on one machine](tiers.md#several-engines-on-one-machine) "
        "`host:100GiB:uplink=120:shared=8`, `ssd:2TiB:nvme:shared=8`",
    )
    kv_offloading_size: str | None = option(
        "Host memory below the GPU's, for prefixes: 100GiB, 2TiB.",
        default=None,
        value="SIZE",
        shown="none",
        doc="host memory for [prefixes below the GPU's](tiers.md), for all GPUs of a replica together: "
        "`100GiB`, `2TiB`; a bare number is GiB; 0: none",
    )
    kv_offloading_backend: str = option(
        "How that memory is used: offloading, simple, lmcache.",
        default="offloading",
        value="NAME",
        allowed=("offloading", "simple", "lmcache"),
        doc="what uses it: vLLM's OffloadingConnector, its SimpleCPUOffloadConnector, "
        "[a second pool of blocks](tiers.md#a-second-pool-of-blocks), or [LMCache](tiers.md#lmcache)",
    )
    lmcache_chunk_size: int = option(
        "lmcache: tokens of a chunk.",
        default=256,
        least=1,
        doc="with `lmcache`: tokens of a chunk, whole blocks",
    )
    lazy_offload: bool = option(
        "simple: store free blocks about to be reused, not all that is computed.",
        default=False,
        doc="with `simple`: store free blocks that are about to be reused, instead of all that is computed",
    )
    kv_offloading_policy: str = option(
        "How that memory evicts: lru, arc; lmcache: lru, lfu, fifo, mru.",
        default="lru",
        value="NAME",
        allowed=("lru", "arc", "lfu", "fifo", "mru"),
        doc="how that memory evicts: `lru`, `arc`; with `lmcache` `lru`, `lfu`, `fifo`, `mru`",
    )
    kv_offloading_link: str = option(
        "Its link: pcie (the GPU's), a name, or GB/s to load:to store.",
        default="pcie",
        value="NAME|GB/S",
        doc="the [link](tiers.md#links) of each GPU to it: `pcie` (the GPU's own), `pcie4`, `pcie5`, "
        "`nvlink-c2c`, `nvme`, `nvme5`, `100gb`, `200gb`, `400gb`, or GB/s: `50`, `6.5:4` (load, store)",
    )
    secondary_tiers: str | None = option(
        "Tiers below that memory: ssd:2TiB:nvme+remote:20TiB:100gb:arc.",
        default=None,
        value="TIERS",
        shown="none",
        doc="[tiers in a stack](tiers.md#a-stack) below that memory, in the order in which they are "
        "searched, as in `ssd:2TiB:nvme+remote:20TiB:100gb:arc`; an appended `:shared` makes one for all "
        "replicas",
    )
    kv_transfer_link: str = transfer_link()
    offload_prompt_only: bool = option(
        "Store prompts there, not answers; --no-...: both.",
        default=True,
        doc="whether only prompts are stored there, or answers too",
    )
    blocks_per_chunk: int = option(
        "Blocks that are stored and loaded together.", default=1, value="N", least=1
    )
    store_threshold: int = option(
        "Store a block when it is offered for the Nth time; below 2: the first time.",
        default=0,
        value="N",
        least=0,
    )
    sync_load_budget_bytes: int = option(
        "Maximum bytes that a step loads, and waits for, before it computes.",
        default=0,
        value="N",
        least=0,
        shown="0: requests wait, steps do not",
        doc="loads of up to this many bytes are part of a step, which waits for them; others run beside "
        "steps",
    )
