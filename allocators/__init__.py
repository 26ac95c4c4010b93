"""KV-cache allocators: pure bookkeeping on integers. One file each, one line each in `ALLOCATORS`."""

ALLOCATORS: dict[str, str] = {
    "contiguous": "kvsim.allocators.contiguous:Contiguous",
    "dynamic": "kvsim.allocators.dynamic:Dynamic",
    "buddy": "kvsim.allocators.buddy:Buddy",
    "paged": "kvsim.allocators.paged:Paged",
    "radix": "kvsim.allocators.radix:Radix",
    "mlc": "kvsim.allocators.mlc:Mlc",
    "tensorrt-llm": "kvsim.allocators.tensorrt_llm:TensorRTLLM",
    "tgi": "kvsim.allocators.tgi:Tgi",
    "lightllm": "kvsim.allocators.lightllm:LightLLM",
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
