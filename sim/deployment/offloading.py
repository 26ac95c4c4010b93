"""A tier below the GPU's memory, built from the scheduler's options: size, link and rules.

    --kv-offloading-size 100GiB --kv-offloading-link pcie

Link figures are per GPU and direction: each GPU copies its own part of a block over its own link.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from kvsim.allocators.base import Allocator
from kvsim.allocators.eviction import EVICTION
from kvsim.allocators.eviction.base import Eviction
from kvsim.allocators.paged import Paged
from kvsim.allocators.tiers.lmcache import ORDERS, LmcacheMemory
from kvsim.allocators.tiers.second_pool import SecondPool
from kvsim.allocators.tiers.vllm import VllmTier
from kvsim.sim.classes import class_named
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.deployment.sharing import ChunkSize, SharedTiers
from kvsim.sim.deployment.speculation import CONFIG, SHORT
from kvsim.sim.deployment.tier_words import (
    NEED_SIZE,
    NONE,
    SPELLED,
    TierWords,
    either,
    in_flags,
    tier_words,
)
from kvsim.sim.errors import KvsimError, unknown
from kvsim.sim.models.sizes import size_bytes
from kvsim.sim.option import taken
from kvsim.sim.schedulers.vllm_options import VllmV1Options
from kvsim.sim.serving.connector import Connector
from kvsim.sim.serving.link import Link, Way
from kvsim.sim.serving.lmcache import Lmcache
from kvsim.sim.serving.lower_tier import LowerTier
from kvsim.sim.serving.offload import Offload, OffloadRules
from kvsim.sim.serving.secondary import Secondary, Sharers
from kvsim.sim.serving.server import Server
from kvsim.sim.serving.simple_offload import SimpleOffload
from kvsim.sim.serving.stack import Stack
from kvsim.sim.serving.steps import Limits
from kvsim.sim.serving.uplink import Uplink, Uplinks

PCIE_SHARE: Final = 0.78
"""Share of a PCIe link's rate that copies reach: 50 of 64 GB/s on H100 (vLLM blog, January 2026)."""
LATENCY_PS: Final = 10_000_000
"""Latency of a job on the host's own link: 10 us, to start a copy and its event."""

TAKEN: Final = re.compile(r"host|gpu|.+_of_(all|\d+)")
"""Tier names that have other meanings in the columns of a timeline."""


class Figures(NamedTuple):
    """Rates and latency of a built-in link."""

    load_gb_per_s: float
    store_gb_per_s: float
    latency_us: float
    source: str


LINKS: Mapping[str, Figures] = {
    "pcie4": Figures(25.0, 25.0, 10, "0.78 of 32 GB/s, the share that H100 reaches of PCIe 5"),
    "pcie5": Figures(50.0, 50.0, 10, "vLLM blog, January 2026: about 50 GB/s one way, H100"),
    "nvlink-c2c": Figures(375.0, 297.0, 10, "Schieffer et al., ICPP 2024: measured on GH200"),
    "nvme": Figures(6.9, 4.1, 100, "Samsung PM9A3 (PCIe 4), datasheet: sequential read, write"),
    "nvme5": Figures(14.0, 7.1, 100, "Samsung PM1743 (PCIe 5), datasheet: sequential read, write"),
    "100gb": Figures(12.5, 12.5, 20, "line rate of 100 Gb/s"),
    "200gb": Figures(25.0, 25.0, 20, "line rate of 200 Gb/s"),
    "400gb": Figures(50.0, 50.0, 20, "line rate of 400 Gb/s"),
}
"""Besides these, `pcie`: the GPU's own, as measured by `sim calibrate`, or `PCIE_SHARE` of its datasheet."""

NAMES: Final = ("pcie", *LINKS)

OFFLOADING_ONLY: Final = (
    *("kv_offloading_policy", "offload_prompt_only", "blocks_per_chunk", "store_threshold"),
    *("sync_load_budget_bytes", "secondary_tiers"),
)
"""Options that vLLM's second pool does not have."""
BY: Final = {"offloading": ("lru", "arc"), "simple": ("lru",), "lmcache": tuple(ORDERS)}
"""Backend that uses the host's memory -> its eviction policies there."""
ALL_AT_ONCE: Final = 1 << 62
"""Bytes that a step loads and waits for, if requests do not wait outside of steps."""

RATE: Final = re.compile(r"\s*(-?[0-9]*\.?[0-9]+)(?:gb/s)?(?::(-?[0-9]*\.?[0-9]+)(?:gb/s)?)?\s*")


def link_figures(text: str, deployment: Deployment, option: str = "kv_offloading_link") -> Figures:
    """A link by its name, or by its rates in GB/s: `50`, or `6.5:4` if loads and stores differ."""
    if text == "pcie":
        if found := _measured(deployment.profile):
            return found
        rate = PCIE_SHARE * deployment.gpu.pcie_bytes_per_s / 1e9
        return Figures(rate, rate, LATENCY_PS / 1e6, f"{PCIE_SHARE:g} of the GPU's PCIe")
    if text in LINKS:
        return LINKS[text]
    rates = _rates(text, option)
    if rates is None:
        raise unknown(option, text, list(NAMES))
    return Figures(*rates, LATENCY_PS / 1e6, "given")


def _measured(profile: Mapping[str, Any] | None) -> Figures | None:
    """Measured copies between the GPU and pinned host memory, from the profile; None if there are none."""
    ways = ("to_gpu", "to_host")
    if profile is None or not profile["parts"].keys() >= {*ways}:
        return None
    load, store = (profile["parts"][way]["form"] for way in ways)
    rates = [form["bandwidth_bytes_per_s"] / 1e9 for form in (load, store)]
    latency_us = 1e6 * max(load["t0_s"], store["t0_s"])
    return Figures(rates[0], rates[1], latency_us, f"measured: profile {profile['name']}")


def _rates(text: str, option: str) -> tuple[float, float] | None:
    """GB/s of loads and stores, as in `50` or `6.5:4`; None if the text has another form."""
    found = RATE.fullmatch(text.lower())
    if found is None:
        return None
    load, store = float(found[1]), float(found[2] or found[1])
    if int(min(load, store) * 1e9) < 1:  # whole bytes per second
        least = "above 0 GB/s" if min(load, store) <= 0 else "at least a byte per second"
        raise KvsimError(f"{option} must be {least} each way, got {text!r}")
    return load, store


def _uplinks(text: str, replicas: int) -> Uplinks:
    """Both directions of a link that a machine's `replicas` replicas share, as in `120` or `120/90`."""
    rates = _rates(text.replace("/", ":"), "tier: uplink")
    if rates is None:
        raise KvsimError(f"tier: uplink must be a rate in GB/s, as in 120 or 120/90, got {text!r}")
    ways = {loads: Uplink(int(rate * 1e9)) for loads, rate in zip((True, False), rates, strict=True)}
    return Uplinks(ways, replicas)


def link_of(text: str, deployment: Deployment, option: str, block_bytes: int) -> Link:
    """A link for blocks of `block_bytes` bytes."""
    figures = link_figures(text, deployment, option)
    latency_ps = int(figures.latency_us * 1e6)
    load, store = (
        Way(int(rate * 1e9), latency_ps) for rate in (figures.load_gb_per_s, figures.store_gb_per_s)
    )
    return Link(load, store, block_bytes)


class Below(NamedTuple):
    """A requested tier below the host: its description, and the tier."""

    words: TierWords
    text: str
    chunks: int
    eviction: type[Eviction]
    link: Link


class Asked(NamedTuple):
    """The tier requested by a server's options; `chunk` is the size of a chunk on all its GPUs."""

    own: VllmV1Options
    chunks: int
    chunk: ChunkSize
    link: Link
    below: Sequence[Below]
    option: str  # the option that describes the tier below the host
    host: TierWords | None  # the description of the host in `tier`


def asked_for(deployment: Deployment, own: VllmV1Options) -> Asked | None:
    """The tier requested by the options, or None; KvsimError if it is already clear that it is impossible."""
    at_host, below_it, link_name = ("kv_offloading_size", "secondary_tiers", "kv_offloading_link")
    if own.tier is not None:
        at_host = below_it = "tier"
        link_name = "tier: link"
    said = own.tier is not None or own.kv_offloading_size is not None
    first = None if own.tier is None or own.tier.strip() == NONE else own.tier.split()[0]
    own = in_flags(own, NAMES, BY[own.kv_offloading_backend])
    asked = own.kv_offloading_size
    total = 0 if asked is None else size_bytes(str(asked), at_host)
    if not total:
        for name in NEED_SIZE[-1:] if said else NEED_SIZE:
            value = getattr(own, name)
            if value != getattr(VllmV1Options(), name):
                raise KvsimError(f"{name} must be left out without kv_offloading_size, got {value!r}")
        return None
    _check_others(deployment, own, at_host)
    _check_backend(own, below_it)
    block, backend = deployment.engine.block_size, own.kv_offloading_backend
    tp, simple = deployment.tensor_parallel_size, backend == "simple"
    gpu_bytes = deployment.served_model.kv_bytes_per_token_per_gpu(tp)
    chunk_tokens = own.lmcache_chunk_size if backend == "lmcache" else block * own.blocks_per_chunk
    if chunk_tokens % block:
        raise KvsimError(f"lmcache_chunk_size must be whole blocks of {block} tokens, got {chunk_tokens}")
    chunk_bytes = chunk_tokens * gpu_bytes * tp
    chunks = total // chunk_bytes - simple  # a second pool also has a null block
    if chunks < 1:
        least = f"two blocks of {block:,}" if simple else f"a chunk of {chunk_tokens:,}"
        raise KvsimError(
            f"{at_host} must hold {least} tokens, "
            f"{(1 + simple) * chunk_bytes / 2**20:,.1f} MiB, got {asked!r}"
        )
    link = link_of(own.kv_offloading_link, deployment, link_name, block * gpu_bytes)
    texts = [] if own.secondary_tiers is None else own.secondary_tiers.split("+")
    if texts and own.store_threshold > 1:
        raise KvsimError(
            f"store_threshold must be left out with tiers below the host, got {own.store_threshold}"
        )
    size = ChunkSize(deployment.served_model.name, chunk_tokens, chunk_bytes)
    below = [_below(text, below_it, deployment, size) for text in texts]
    names = [each.words.name for each in below]
    if len(set(names)) < len(names):
        raise KvsimError(f"{below_it} must name each tier once, got {' and '.join(names)}")
    taken_already = next((name for name in names if TAKEN.fullmatch(name)), None)
    if taken_already is not None:
        raise KvsimError(f"{below_it} must not be called {taken_already}: columns of other tiers are")
    host = None if first is None else tier_words(first, at_host, NAMES)
    if host is not None and host.uplink is not None:
        if backend == "lmcache":
            raise KvsimError(f"tier must have no uplink with kv_offloading_backend lmcache, got {first!r}")
        _uplinks(host.uplink, host.shared or 0)
    return Asked(own, chunks, size, link, below, below_it, host)


def check_tier(deployment: Deployment) -> None:
    """Raise KvsimError if the options request a tier that is clearly impossible."""
    asked_for(deployment, taken(VllmV1Options, deployment.options))


def tier_below(
    deployment: Deployment, server: Server, options: VllmV1Options, limits: Limits, shared: SharedTiers
) -> LowerTier | None:
    """The tier requested by the options, or None; KvsimError if the server cannot have it."""
    asked = asked_for(deployment, options)
    if asked is None:
        return None
    _check_allocator(deployment, server.allocator)
    own, host = asked.own, asked.host
    if host is not None and host.uplink is not None and host.shared is not None:
        said, replicas = host.uplink, host.shared
        uplinks = shared.uplinks(replicas, f"{said}:shared={replicas}", lambda: _uplinks(said, replicas))
        asked.link.gpus, asked.link.shared = deployment.tensor_parallel_size, uplinks.ways
        server.memory.below.links.append(uplinks)
    connector = BUILDERS[own.kv_offloading_backend](asked, server, limits, shared)
    at_once = ALL_AT_ONCE if own.kv_offloading_backend == "lmcache" else own.sync_load_budget_bytes
    return LowerTier(connector, limits, at_once, asked.chunk.total_bytes // asked.chunk.tokens)


def _offloading(asked: Asked, server: Server, _: Limits, shared: SharedTiers) -> Connector:
    """vLLM's OffloadingConnector, and the tiers below its host."""
    own, chunk = asked.own, asked.chunk
    tier = VllmTier(asked.chunks, own.kv_offloading_policy, own.store_threshold, numbered=False)
    rules = OffloadRules(chunk.tokens, own.offload_prompt_only, server.rules.known_late, chunk.total_bytes)
    offload = Offload(server, tier, asked.link, rules, shared.texts(chunk.tokens))
    if asked.below:
        stack = [_made(each, asked.option, chunk, shared) for each in asked.below]
        offload.stack = Stack(server, tier, stack, chunk.tokens, chunk.total_bytes, offload.totals)
    return offload


def _second_pool(asked: Asked, server: Server, limits: Limits, _: SharedTiers) -> Connector:
    """vLLM's SimpleCPUOffloadConnector."""
    chunk, late = asked.chunk, server.rules.known_late
    if not server.allocator.caches:
        raise KvsimError("enable_prefix_caching must be on with kv_offloading_backend simple, got False")
    lazy_blocks = 2 * -(-limits.budget // chunk.tokens) if asked.own.lazy_offload else 0
    return SimpleOffload(server, SecondPool(asked.chunks), asked.link, lazy_blocks, late, chunk.total_bytes)


def _lmcache(asked: Asked, server: Server, _: Limits, __: SharedTiers) -> Connector:
    """LMCache in vLLM's process."""
    memory, chunk = LmcacheMemory(asked.chunks, asked.own.kv_offloading_policy), asked.chunk
    return Lmcache(server, memory, asked.link, chunk.tokens, chunk.total_bytes, server.rules.known_late)


BUILDERS: Final = {"offloading": _offloading, "simple": _second_pool, "lmcache": _lmcache}
"""Backend that uses the host's memory -> its builder; eviction policies are in `BY`."""


def secondary(
    text: str, option: str, deployment: Deployment, chunk: ChunkSize, shared: SharedTiers | None
) -> Secondary:
    """A tier below a host, as in `ssd:2TiB:nvme:arc`, or a fleet's, as in `remote:20TiB:100gb:shared`."""
    return _made(_below(text, option, deployment, chunk), option, chunk, shared)


def _below(text: str, option: str, deployment: Deployment, chunk: ChunkSize) -> Below:
    """Parse the description of a tier; KvsimError if it is invalid."""
    words = tier_words(text, option, NAMES)
    if words.link is None:
        raise KvsimError(f"{option} must be as in {SPELLED}, got {text!r}")
    if words.uplink is not None:
        raise KvsimError(f"{option} must have no uplink, got {text!r}")
    policy = words.policy or "lru"
    chunks = size_bytes(words.size, option) // chunk.total_bytes
    if chunks < 1:
        raise KvsimError(
            f"{option} must hold a chunk of {chunk.tokens:,} tokens each, "
            f"{chunk.total_bytes / 2**20:,.1f} MiB, got {text!r}"
        )
    found = class_named("eviction", policy, EVICTION, Eviction)  # type: ignore[type-abstract]
    if found.offline:
        raise KvsimError(f"{option} must evict without knowing the future, got {policy} in {text!r}")
    link = link_of(words.link.replace("/", ":"), deployment, f"{option}: link", chunk.total_bytes)
    return Below(words, text, chunks, found, link)


def _made(asked: Below, option: str, chunk: ChunkSize, shared: SharedTiers | None) -> Secondary:
    """Build the tier: the server's own, or one that its fleet shares."""
    words, text, chunks, eviction, link = asked
    if words.shared is None:
        return Secondary(words.name, eviction(chunks), link)
    if shared is None:
        raise KvsimError(f"{option} must be of one replica, got {text!r}")

    def make(sharers: Sharers) -> Secondary:
        return Secondary(words.name, eviction(chunks), link, sharers)

    return shared.tier(words.name, words.shared, text, chunk, make)


def _check_others(deployment: Deployment, own: VllmV1Options, option: str) -> None:
    """Raise KvsimError for settings that do not work with a tier."""
    policy = deployment.engine.policy
    if policy != "fcfs":
        raise KvsimError(f"policy must be fcfs with {option}, got {policy!r}")
    for name in (CONFIG, *SHORT, "long_prefill_token_threshold"):
        if getattr(own, name):
            raise KvsimError(f"{name} must be left out with {option}, got {getattr(own, name)!r}")


def _check_backend(own: VllmV1Options, below_it: str) -> None:
    """Raise KvsimError for settings that the backend lacks."""
    backend = own.kv_offloading_backend
    unknown_here = {
        "offloading": ("lmcache_chunk_size", "lazy_offload"),
        "simple": (*OFFLOADING_ONLY, "lmcache_chunk_size"),
        "lmcache": (*(name for name in OFFLOADING_ONLY if name != "kv_offloading_policy"), "lazy_offload"),
    }
    for name in unknown_here[backend]:
        value = getattr(own, name)
        if value != getattr(VllmV1Options(), name):
            in_tier = name == "secondary_tiers" and below_it == "tier"
            what = "tier must be the host only" if in_tier else f"{name} must be left out"
            raise KvsimError(f"{what} with kv_offloading_backend {backend}, got {value!r}")
    policy, known = own.kv_offloading_policy, BY[backend]
    if policy not in known:
        by = f"{either(known)} with kv_offloading_backend {backend}"
        raise KvsimError(f"kv_offloading_policy must be {by}, got {policy!r}")


def _check_allocator(deployment: Deployment, allocator: Allocator) -> None:
    """Raise KvsimError if the allocator's blocks cannot be loaded."""
    if isinstance(allocator, Paged) and type(allocator).__name__ == "Paged":
        return
    raise KvsimError(
        f"kv_offloading_size must be left out for allocator {deployment.engine.allocator} with model "
        f"{deployment.model.name}: chunks are loaded into the blocks of allocator paged, where all layers "
        "keep every token"
    )
