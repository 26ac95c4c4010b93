"""Decode attention in one launch with the chunks of prompts, as FlashAttention 2 computes it.

Such a kernel is made for prompts: in every query head a decoding sequence is a tile of ROWS queries, only one
of them real, and no context is split. A program runs as fast as a prompt's, one per multiprocessor. The heads
of a group read the same keys in turn: again from memory, to the extent that one head's keys of all sequences
do not stay in the L2 cache.

    flops   4 * ROWS * head_dim * max(sum * heads, longest * multiprocessors), at prefill attention's rate
    reads   group * sequences / multiprocessors, from 1 to group, for keys that the cache lost; else 1
            lost = min(2 * (1 - l2_bytes / keys), 1), keys = sum * 2 * head_dim * element_bytes
    time    sqrt((reads * alone)^2 + (flops / rate)^2)

Against what LLMServingSim measured on two GPUs (batches of 1 to 128 beside a chunk of 256 tokens, medians)
the sum of two launches is 38 to 61 % short; this is 10 to 12 % off, and nothing in it was fitted to them.
"""

from math import sqrt
from typing import NamedTuple

from kvsim.sim.cost.step_cost import Spread

ROWS = 64
"""Queries per tile of FlashAttention 2 with a paged cache."""


class OneLaunch(NamedTuple):
    """A kernel that takes both prompts and decoding sequences."""

    l2_bytes: float
    multiprocessors: float
    heads: int
    """query heads"""
    group: int
    """query heads per KV head"""
    head_dim: int
    element_bytes: int
    flop_ps: float
    """one operation of prefill attention"""

    def decode_ps(self, alone_ps: float, seqs: int, total: int, spread: Spread | None, layers: int) -> float:
        """Decoding sequences beside prompts; they take `alone_ps` without."""
        reads, keys = 1.0, total * 2 * self.head_dim * self.element_bytes
        if keys > self.l2_bytes:
            again = min(max(self.group * seqs / self.multiprocessors, 1.0), self.group) - 1
            reads += again * min(2 * (1 - self.l2_bytes / keys), 1.0)
        serial = (total / seqs if spread is None else spread.longest) * self.multiprocessors
        computing = layers * 4 * ROWS * self.head_dim * max(total * self.heads, serial) * self.flop_ps
        return sqrt((reads * alone_ps) ** 2 + computing**2)
