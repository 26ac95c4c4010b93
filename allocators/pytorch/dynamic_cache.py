"""dynamic-cache: Hugging Face's DynamicCache: every step concatenates into new tensors.

    step   for each layer   K' = cat(K, k): a new block one token larger, a full copy, K is freed
                            V' = cat(V, v): the same for V

Peak: everything, plus one tensor twice. Copies: the whole cache in every step, quadratic in the length.
Freed blocks are slightly too small for the same layer's next tensor: they become `inactive split`.
Waste per sequence: rounding to 512 bytes, and up to 1 MiB per tensor above 1 MiB; the rest stays free.
"""

from kvsim.allocators.pytorch.tensor_cache import TensorCache
from kvsim.allocators.pytorch.undo import Checkpoint


class DynamicCache(TensorCache):
    """Tensors that are recreated for every token; parameters as in `TensorCache`."""

    slow = True
    idea = "new tensors for every token, each a copy of the last one"
    wastes = "rounding; a tensor twice; freed blocks a little too small"
    used_by = "Hugging Face transformers (DynamicCache)"
    source = "transformers cache_utils.py; PyTorch 2.6, CUDACachingAllocator.cpp"

    def tokens_of(self, tokens: int, bound: int) -> int:
        """The current tokens."""
        return tokens

    def grow(self, seq: int, tokens: int) -> bool:
        """Concatenate each tensor in turn; if one finds no room, undo all."""
        held, blocks = self._held[seq]
        if tokens <= held:
            return True
        size, arena = tokens * self.tensor_bytes, self.arena
        before = None if self._plenty(size) else Checkpoint(arena)
        larger = []
        for block in blocks:
            new = arena.malloc(size)
            if new is None:
                if before is not None:
                    before.restore()
                return False
            arena.free(block)
            larger.append(new)
        if before is not None:
            before.keep()
        self._held[seq] = tokens, larger
        self.copied_slots += held * self.slots_per_token
        self.count()
        return True
