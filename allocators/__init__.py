"""KV-cache allocators: pure bookkeeping on integers. One file each, one line each in `ALLOCATORS`."""

ALLOCATORS: dict[str, str] = {
    "contiguous": "kvsim.allocators.contiguous:Contiguous",
    "dynamic": "kvsim.allocators.dynamic:Dynamic",
    "buddy": "kvsim.allocators.buddy:Buddy",
    "paged": "kvsim.allocators.paged:Paged",
    "radix": "kvsim.allocators.radix:Radix",
    "sglang": "kvsim.allocators.sglang.cached:SglangCached",
    "sglang-dual": "kvsim.allocators.sglang.windows:SglangDual",
    "sglang-unified": "kvsim.allocators.sglang.windows:SglangUnified",
}
"""Name on the command line -> where the class is."""
