"""Caches of Hugging Face's transformers: one tensor for the keys and one for the values of each layer.

    sequence   layer 0 |K tensor| |V tensor|   layer 1 |K tensor| |V tensor|   ...     [heads, tokens, dim]
    each tensor is a block of PyTorch's caching allocator, which owns the whole arena

Slots are grains of bytes. `idle` slots are in segments that are entirely free, which the caching allocator
could return to the card. Free blocks beside allocated ones (torch: inactive split) cannot be returned; those
too small for a tensor of the next request are `external`. Rounding is `internal`.

Each sequence has its own cache of batch size 1, as continuous batching over these caches would need. In
practice they serve static batches, padded to the longest sequence, in one tensor for all. Only cache tensors
are modelled, no activations.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from math import gcd
from typing import Self

from kvsim.allocators.base import Allocator, Holdings, Region
from kvsim.allocators.options import Options
from kvsim.allocators.pytorch.blocks import Block
from kvsim.allocators.pytorch.caching import CachingAllocator
from kvsim.allocators.pytorch.settings import GRAIN, SMALL, SMALL_SEGMENT, Settings, segment_bytes
from kvsim.allocators.pytorch.undo import Checkpoint

Blocks = tuple[int, list[Block]]
"""Tokens of each tensor, and the tensors' blocks: K and V of the first layer, of the second, ..."""


class TensorCache(Allocator):
    """Tensors of `tensor_bytes` per token, `tensors` of them per sequence.

    Parameters
    ----------
    capacity_tokens : int
        Size of the card's memory, in tokens.
    tensor_bytes : int
        Bytes of a token in one tensor: heads x head dimension x bytes per element.
    tensors : int
        Two per layer; one if keys and values are one latent.

    Attributes
    ----------
    arena : CachingAllocator
        With torch's counters: allocated, reserved, inactive split, and their peaks.
    """

    family = "tensors"
    note = "Each request has tensors of its own (batch size 1, no padding); activations are left out."

    idles = True
    windows = True

    @classmethod
    def from_options(cls, capacity_slots: int, options: Options) -> Self:
        """Build it for the model's tensors; ValueError if the layers differ."""
        tensor_bytes = options.kv_heads * options.head_dim * options.dtype_bytes
        tensors, rest = divmod(options.token_bytes, tensor_bytes)
        if rest:
            raise ValueError(
                f"needs equal layers: {options.token_bytes} bytes per token are not tensors of {tensor_bytes}"
            )
        return cls(capacity_slots, tensor_bytes, tensors)

    def __init__(self, capacity_tokens: int, tensor_bytes: int = 2_048, tensors: int = 64) -> None:
        whole = tensor_bytes % GRAIN == 0  # then no block is rounded up
        self.grain_bytes = gcd(SMALL_SEGMENT if whole else GRAIN, tensor_bytes)
        total_bytes = capacity_tokens * tensor_bytes * tensors
        super().__init__(total_bytes // self.grain_bytes)
        self.slots_per_token = tensors * tensor_bytes // self.grain_bytes
        self.tensor_bytes, self.tensors = tensor_bytes, tensors
        self.arena = CachingAllocator(total_bytes, Settings())
        self._held: Holdings[Blocks] = Holdings()

    @abstractmethod
    def tokens_of(self, tokens: int, bound: int) -> int:
        """Tokens for which the tensors of a new sequence are created."""

    def memory_stats(self) -> Mapping[str, int]:
        """As in `torch.cuda.memory_stats()`."""
        return self.arena.counters.peaks()

    def slots_needed(self, tokens: int, bound: int) -> int:
        """Slots of the tensors, rounded up."""
        size = self.arena.settings.round_size(self.tokens_of(tokens, bound) * self.tensor_bytes)
        return self.tensors * size // self.grain_bytes

    def fits(self, tokens: int, bound: int) -> bool:
        """Whether new segments for all its tensors fit the card."""
        size = self.arena.settings.round_size(self.tokens_of(tokens, bound) * self.tensor_bytes)
        segment = segment_bytes(size)
        return -(-self.tensors // (segment // size)) * segment <= self.arena.card.total_bytes

    def can_admit(self, tokens: int, bound: int) -> bool:
        """Whether all tensors would find room; checked, if not obvious, by creating them and undoing it."""
        size = self.tokens_of(tokens, bound) * self.tensor_bytes
        if not self.fits(tokens, bound) or not self._bytes_are_enough(size):
            return False
        if self._plenty(size):
            return True
        before = Checkpoint(self.arena)
        found = self._make(size) is not None
        if not found:
            before.restore()
            before = Checkpoint(self.arena)
            self.arena.empty_cache()
            found = self._make(size) is not None
        before.restore()
        return found

    def admit(self, seq: int, tokens: int, bound: int) -> bool:
        """Create the tensors; if one finds no room, retry once after `torch.cuda.empty_cache()`."""
        self._held.expect_new(seq, tokens)
        held = self.tokens_of(tokens, bound)
        if not self.fits(tokens, bound) or not self._bytes_are_enough(held * self.tensor_bytes):
            return False
        for emptied in (False, True):
            before = Checkpoint(self.arena)
            if emptied:
                self.arena.empty_cache()
            blocks = self._make(held * self.tensor_bytes)
            if blocks is not None:
                before.keep()
                self._held[seq] = held, blocks
                self.count()
                return True
            before.restore()
        return False

    def capacity(self, seq: int) -> int:
        """Tokens for which its tensors were created."""
        return self._held[seq][0]

    def surplus(self, seq: int, tokens: int) -> int:
        """Slots left empty by `tokens` tokens; if it must grow, the rounding, which is never filled."""
        capacity, blocks = self._held[seq]
        return self._slots(blocks) - min(tokens, capacity) * self.slots_per_token

    def retire(self, seq: int) -> int:
        return self._slots(self._held[seq][1])

    def release(self, seq: int) -> None:
        """Free its tensors; their segments stay allocated."""
        for block in self._held[seq][1]:
            self.arena.free(block)
        del self._held[seq]
        self.count()

    def external_slots(self, need: int) -> int:
        """Free split blocks in the other pool, or too small for a tensor of the next request."""
        size = need * self.grain_bytes // self.tensors
        if not size:
            return 0
        unfit = 0
        for pool in self.arena.pools:
            serves = pool.small == (size <= SMALL)
            unfit += sum(
                length
                for length, _, block in pool.free_of(0)
                if block.is_split and not (serves and length >= size)
            )
        return unfit // self.grain_bytes

    def largest_free_extent(self) -> int:
        """The largest piece the card could give after freeing free segments, or the largest split block."""
        card, counters = self.arena.card, self.arena.counters
        allocated = counters.allocated.current + counters.inactive_split_bytes.current
        split = (pool.free_of(0)[-1][0] for pool in self.arena.pools if pool.free_of(0))
        return max(card.total_bytes - allocated, *split, 0) // self.grain_bytes

    def regions(self) -> Iterator[Region]:
        """The segments by address, then what is left of the card."""
        owner = {block: seq for seq, (_, blocks) in self._held.items() for block in blocks}
        grain, per_token, end = self.grain_bytes, self.tensor_bytes // self.grain_bytes, 0
        for segment in self.arena.segments():
            for block in segment.blocks:
                seqs = (owner[block],) if block.allocated else ()
                idle = not block.allocated and not block.is_split
                yield Region(end, block.size // grain, seqs, idle=idle, per_token=per_token)
                end += block.size // grain
        if end < self.capacity_slots:
            yield Region(end, self.capacity_slots - end, ())

    # -- tensors ------------------------------------------------------------------------------

    def count(self) -> None:
        counters, card = self.arena.counters, self.arena.card
        allocated = counters.allocated.current
        self.used_slots = allocated // self.grain_bytes
        self.idle_slots = (
            counters.reserved.current - allocated - counters.inactive_split_bytes.current
        ) // self.grain_bytes
        self.maps, self.unmaps = card.mallocs, card.frees

    def _make(self, size: int) -> list[Block] | None:
        """Create all tensors of a sequence, of `size` bytes each; None as soon as one finds no room."""
        blocks = []
        for _ in range(self.tensors):
            block = self.arena.malloc(size)
            if block is None:
                return None
            blocks.append(block)
        return blocks

    def _slots(self, blocks: list[Block]) -> int:
        return sum(block.size for block in blocks) // self.grain_bytes

    def _bytes_are_enough(self, size: int) -> bool:
        wanted = self.tensors * self.arena.settings.round_size(size)
        return wanted <= self.arena.card.total_bytes - self.arena.counters.allocated.current

    def _plenty(self, size: int) -> bool:
        """Whether free blocks and new segments are sure to hold all tensors of `size` bytes.

        Counts how many whole tensors fit into each block or segment.
        """
        size = self.arena.settings.round_size(size)
        card, segment = self.arena.card, segment_bytes(size)
        found = (card.total_bytes - card.used_bytes) // segment * (segment // size)
        for length, _, _ in reversed(self.arena.pools[size > SMALL].free_of(0)):
            if found >= self.tensors or length < size:
                break
            found += length // size
        return found >= self.tensors
