"""KV-cache allocators: pure bookkeeping on integers. One file each, one line each in `ALLOCATORS`."""

ALLOCATORS: dict[str, str] = {
    "contiguous": "kvsim.allocators.contiguous:Contiguous",
    "dynamic": "kvsim.allocators.dynamic:Dynamic",
    "buddy": "kvsim.allocators.buddy:Buddy",
    "paged": "kvsim.allocators.paged:Paged",
    "hybrid": "kvsim.allocators.hybrid.groups:Hybrid",
    "radix": "kvsim.allocators.radix:Radix",
    "sglang": "kvsim.allocators.sglang.cached:SglangCached",
    "sglang-dual": "kvsim.allocators.sglang.dual_windows:SglangDual",
    "sglang-unified": "kvsim.allocators.sglang.unified_windows:SglangUnified",
    "mlc": "kvsim.allocators.mlc:Mlc",
    "tensorrt-llm": "kvsim.allocators.tensorrt_llm:TensorRTLLM",
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
    "tgi": "kvsim.allocators.tgi:Tgi",
    "lightllm": "kvsim.allocators.lightllm:LightLLM",
    "dynamic-cache": "kvsim.allocators.pytorch.dynamic_cache:DynamicCache",
    "static-cache": "kvsim.allocators.pytorch.static_cache:StaticCache",
    "llama-contiguous": "kvsim.allocators.llama.contiguous:LlamaContiguous",
    "llama-scattered": "kvsim.allocators.llama.scattered:LlamaScattered",
    "streaming-llm": "kvsim.allocators.lossy.streaming_llm:StreamingLLM",
    "h2o": "kvsim.allocators.lossy.h2o:H2O",
    "kivi": "kvsim.allocators.lossy.kivi:Kivi",
}
"""Name on the command line -> where the class is."""

FAMILIES: dict[str, str] = {
    "extents": "one run of slots for each sequence, as large as it may become",
    "classes": "runs of a few sizes, each with a free list of its own",
    "tensors": "tensors of a deep-learning framework, one for each layer",
    "blocks": "fixed blocks anywhere in memory, found through a table",
    "tokens": "slots of one token, found through a table",
    "virtual": "one run of virtual addresses, pages mapped behind it as it fills",
    "layers": "layers of several kinds in one memory",
    "lossy": "fewer tokens or fewer bits than were computed",
}
"""Family -> what its members have in common, for `sim allocators`; docs/zoo/FAMILY.md has their cards."""
