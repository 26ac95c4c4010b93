"""SGLang's HiCache, built from the scheduler's options: host memory, link and rules.

--enable-hierarchical-cache --hicache-ratio 2 --hicache-write-policy write_through
"""

from typing import Final

from kvsim.allocators.base import Allocator
from kvsim.allocators.sglang.cached import SglangCached
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.deployment.host_memory import host_tokens
from kvsim.sim.deployment.offloading import link_of, secondary
from kvsim.sim.deployment.sharing import ChunkSize
from kvsim.sim.errors import KvsimError
from kvsim.sim.schedulers.sglang_options import SglangOptions
from kvsim.sim.serving.hicache import Hicache
from kvsim.sim.serving.hicache_retries import Retries
from kvsim.sim.serving.hicache_storage import StopPolicy, Storage
from kvsim.sim.serving.server import Server
from kvsim.sim.serving.sglang_parts import WaitingList

ALONE: Final = ("pipeline_parallel_size", "data_parallel_size")
"""Forms of parallelism whose GPUs do not share prompts or layers."""


def hicache_below(deployment: Deployment, server: Server, own: SglangOptions) -> Hicache:
    """The host memory requested by the options; KvsimError if the server cannot have it."""
    cached = _cached(deployment, server.allocator)
    for name in ALONE:
        if getattr(deployment, name) > 1:
            given = getattr(deployment, name)
            raise KvsimError(f"{name} must be 1 with enable_hierarchical_cache, got {given}")
    model, tp = deployment.served_model, deployment.tensor_parallel_size
    gpu_bytes = model.kv_bytes_per_token_per_gpu(tp)
    tokens = host_tokens(own, cached.capacity_slots, cached.page_size, gpu_bytes)
    tree = cached.put_below(tokens, own.hicache_write_policy)
    link = link_of(own.hicache_link, deployment, "hicache_link", gpu_bytes)
    found = Hicache(server, cached, tree, link, max(model.caching_layers, 1), gpu_bytes * tp)
    if own.hicache_storage_backend is not None:
        size = ChunkSize(model.name, cached.page_size, cached.page_size * gpu_bytes * tp)
        store = secondary(own.hicache_storage_backend, "hicache_storage_backend", deployment, size, None)
        server.memory.below.stack = [store]
        assert isinstance(server.waiting, WaitingList)
        stop, least = StopPolicy(own.hicache_storage_prefetch_policy), own.hicache_prefetch_threshold
        retries = Retries(
            own.hicache_storage_prefetch_retry_poll_interval, own.hicache_storage_prefetch_retry_max_attempts
        )
        parts = cached, tree, store, stop, least, retries
        found.storage = Storage(server, server.waiting, *parts, found.totals)
    return found


def _cached(deployment: Deployment, allocator: Allocator) -> SglangCached:
    """The allocator, if it keeps whole texts in a tree."""
    if type(allocator) is not SglangCached:
        raise KvsimError(
            f"enable_hierarchical_cache must be off for allocator {deployment.engine.allocator} with model "
            f"{deployment.model.name}: it needs allocator sglang, where all layers keep every token"
        )
    if not allocator.caches:
        raise KvsimError("enable_prefix_caching must be on with enable_hierarchical_cache, got False")
    return allocator
