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
}
"""Name on the command line -> where the class is."""
