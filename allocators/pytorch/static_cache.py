"""static-cache: Hugging Face's StaticCache: tensors of the reservation's length, created once.

    K of a layer   |#### tokens ####|~~ reserved: answer to come ~~|.... internal: never written ....|
                   '------------------------------ bound tokens ------------------------------------'

Like `contiguous`, split into two tensors per layer, in PyTorch's segments. Nothing is copied, nothing grows.
Waste per sequence: `bound - tokens`, and rounding: 512 bytes, or up to 1 MiB per tensor above 1 MiB.
"""

from kvsim.allocators.pytorch.tensor_cache import TensorCache


class StaticCache(TensorCache):
    """Tensors for `bound` tokens; parameters as in `TensorCache`."""

    idea = "tensors of the reservation's length, made once"
    wastes = "bound - tokens, and rounding; free ends of segments"
    used_by = "Hugging Face transformers (StaticCache)"
    source = "transformers cache_utils.py; PyTorch 2.6, CUDACachingAllocator.cpp"

    reserves = True

    def tokens_of(self, tokens: int, bound: int) -> int:
        """The most tokens that the sequence may hold."""
        return max(tokens, bound)

    def grow(self, seq: int, tokens: int) -> bool:
        """Whether `tokens` are within the reservation."""
        return tokens <= self.capacity(seq)
