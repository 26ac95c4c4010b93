"""KV-cache allocators: pure bookkeeping on integers. One file each, one line each in `ALLOCATORS`."""

ALLOCATORS: dict[str, str] = {
    "contiguous": "allocators.contiguous:Contiguous",
    "dynamic": "allocators.dynamic:Dynamic",
    "buddy": "allocators.buddy:Buddy",
    "paged": "allocators.paged:Paged",
    "radix": "allocators.radix:Radix",
}
"""Name on the command line -> where the class is."""
