"""KV-cache allocators: pure bookkeeping on integers. One file each, one line each in `ALLOCATORS`."""

ALLOCATORS: dict[str, str] = {
    "contiguous": "kvsim.allocators.contiguous:Contiguous",
    "dynamic": "kvsim.allocators.dynamic:Dynamic",
    "buddy": "kvsim.allocators.buddy:Buddy",
    "paged": "kvsim.allocators.paged:Paged",
    "radix": "kvsim.allocators.radix:Radix",
    "dynamic-cache": "kvsim.allocators.pytorch.dynamic_cache:DynamicCache",
    "static-cache": "kvsim.allocators.pytorch.static_cache:StaticCache",
    "llama-contiguous": "kvsim.allocators.llama.contiguous:LlamaContiguous",
    "llama-scattered": "kvsim.allocators.llama.scattered:LlamaScattered",
    "vattention": "kvsim.allocators.virtual_memory.vattention:VAttention",
    "vattention-128k": "kvsim.allocators.virtual_memory.vattention:VAttention128K",
    "vattention-256k": "kvsim.allocators.virtual_memory.vattention:VAttention256K",
    "vattention-2m": "kvsim.allocators.virtual_memory.vattention:VAttention2M",
    "vattention-best": "kvsim.allocators.virtual_memory.vattention:VAttentionBestFit",
    "vattention-eager": "kvsim.allocators.virtual_memory.vattention:VAttentionEager",
    "kvcached": "kvsim.allocators.virtual_memory.kvcached:Kvcached",
    "offset": "kvsim.allocators.size_classes.offset:Offset",
    "offset-exact": "kvsim.allocators.size_classes.offset:OffsetExact",
    "tlsf": "kvsim.allocators.size_classes.tlsf:Tlsf",
    "segregated": "kvsim.allocators.size_classes.segregated:Segregated",
    "slab": "kvsim.allocators.size_classes.slab:Slab",
}
"""Name on the command line -> where the class is."""
