"""PyTorch's caching allocator of CUDA memory, rule for rule: bytes, addresses and counters as in torch.

    a tensor's bytes --settings: round up--> caching: a free block of its pool, split, merged
        --none fits--> card: a segment of 2 MiB, 20 MiB or whole 2 MiB (or expandable: grow a virtual range)

Equal to c10/cuda/CUDACachingAllocator.cpp of PyTorch 2.6.0, which was run with a fake card.
"""

from kvsim.allocators.pytorch.caching import CachingAllocator
from kvsim.allocators.pytorch.settings import Settings

__all__ = ["CachingAllocator", "Settings"]
