"""Eviction policies: which block to evict from a full cache. One file each, one line each in `EVICTION`."""

EVICTION: dict[str, str] = {
    "fifo": "kvsim.allocators.eviction.fifo:Fifo",
    "lru": "kvsim.allocators.eviction.lru:Lru",
    "mru": "kvsim.allocators.eviction.mru:Mru",
    "lfu": "kvsim.allocators.eviction.lfu:Lfu",
    "clock": "kvsim.allocators.eviction.clock:Clock",
    "sieve": "kvsim.allocators.eviction.sieve:Sieve",
    "slru": "kvsim.allocators.eviction.slru:Slru",
    "twoq": "kvsim.allocators.eviction.twoq:TwoQ",
    "arc": "kvsim.allocators.eviction.arc:Arc",
    "lirs": "kvsim.allocators.eviction.lirs:Lirs",
    "s3-fifo": "kvsim.allocators.eviction.s3_fifo:S3Fifo",
    "w-tinylfu": "kvsim.allocators.eviction.w_tinylfu:WTinyLfu",
    "gdsf": "kvsim.allocators.eviction.gdsf:Gdsf",
    "t-lru": "kvsim.allocators.eviction.t_lru:TLru",
    "workload-aware": "kvsim.allocators.eviction.workload_aware:WorkloadAware",
    "length-aware": "kvsim.allocators.eviction.length_aware:LengthAware",
    "cost-aware": "kvsim.allocators.eviction.cost_aware:CostAware",
    "aibrix-fifo": "kvsim.allocators.eviction.aibrix:AibrixFifo",
    "aibrix-lru": "kvsim.allocators.eviction.aibrix:AibrixLru",
    "aibrix-s3-fifo": "kvsim.allocators.eviction.aibrix_s3_fifo:AibrixS3Fifo",
    "mooncake-store": "kvsim.allocators.eviction.mooncake_store:MooncakeStore",
    "libcachesim-s3-fifo": "kvsim.allocators.eviction.libcachesim_s3_fifo:LibCacheSimS3Fifo",
    "libcachesim-lirs": "kvsim.allocators.eviction.libcachesim_lirs:LibCacheSimLirs",
    "belady": "kvsim.allocators.eviction.belady:Belady",
}
"""Name on the command line -> location of the class."""
