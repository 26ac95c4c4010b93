"""The size of a server's host memory, by its options; used for its price."""

from typing import TYPE_CHECKING, Final

from kvsim.sim.deployment.memory import kv_capacity
from kvsim.sim.deployment.tier_words import NONE, tier_words
from kvsim.sim.models.catalog import GIB
from kvsim.sim.models.sizes import size_bytes
from kvsim.sim.option import taken
from kvsim.sim.schedulers.sglang_options import SglangOptions

if TYPE_CHECKING:
    from kvsim.sim.deployment.deployment import Deployment

GB: Final = 10**9
"""SGLang's unit of `hicache_size`."""


def host_gib(server: "Deployment") -> float:
    """Host memory for all GPUs of a server, in GiB; 0 if there is none."""
    options = server.options
    if options.get("enable_hierarchical_cache"):
        page, tp = server.engine.block_size, server.tensor_parallel_size
        gpu_bytes = server.served_model.kv_bytes_per_token_per_gpu(tp)
        gpu_tokens = kv_capacity(server).slots // page * page
        return host_tokens(taken(SglangOptions, options), gpu_tokens, page, gpu_bytes) * gpu_bytes * tp / GIB
    asked, tiers = options.get("kv_offloading_size"), options.get("tier")
    if tiers is not None and str(tiers).strip() != NONE:
        from kvsim.sim.deployment.offloading import NAMES  # late: most runs do not need it

        return size_bytes(tier_words(str(tiers).split()[0], "tier", NAMES).size, "tier") / GIB
    return 0.0 if asked is None else size_bytes(str(asked)) / GIB


def host_tokens(own: SglangOptions, gpu_tokens: int, page: int, gpu_bytes: int) -> int:
    """Tokens that fit in HiCache's memory, in whole pages, one more than requested, as in SGLang."""
    asked = own.hicache_size * GB // gpu_bytes if own.hicache_size else int(gpu_tokens * own.hicache_ratio)
    return (asked // page + 1) * page
