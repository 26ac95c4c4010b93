"""Hits of prefix caches with eviction policies other than LRU, by simulating each of many sizes.

    blocks   2,048   4,096   8,192 ...      sizes: the one that holds everything, halved down to a thousandth
    arc      7.1 %  10.3 %  15.4 %          each a separate cache, looked up as in workloads/miss_ratio.py

Informed policies see a request's blocks, its arrival and, if the trace has turns, which turn it is, since
reuse times vary by turn.
"""

import numpy as np

from kvsim.sim.eviction import Chain
from kvsim.workloads.lengths import Lengths
from kvsim.workloads.miss_ratio import Cut

MOST_LOOKUPS = 300_000
"""Maximum number of blocks in a trace when the default block size for these simulations is chosen."""
LEAST_BLOCKS, MOST_SIZES = 16, 11
LAST_TURN = 10
"""All later turns count as one kind."""


def requests(lengths: Lengths, prompts: Cut) -> list[Chain]:
    """The requests as eviction policies see them."""
    now_ms = np.zeros(len(lengths), dtype=np.int64)
    if lengths.arrival_s is not None:
        now_ms = np.round(1000 * lengths.arrival_s).astype(np.int64)
    turns = lengths.labels.get("turn")
    kinds = np.zeros(len(lengths), dtype=np.int64)
    if turns is not None and np.issubdtype(turns.dtype, np.integer):
        kinds = np.minimum(turns, LAST_TURN)
    rows = zip(prompts.chains, kinds.tolist(), now_ms.tolist(), strict=True)
    return [Chain(blocks, prompts.block_tokens, kind, at_ms) for blocks, kind, at_ms in rows]


def capacities(prompts: Cut) -> list[int]:
    """Cache sizes in blocks, on a log axis: repeated halves of the size that holds all blocks."""
    sizes = [-(-prompts.blocks >> halved) for halved in range(1, MOST_SIZES + 1)]
    return sorted({size for size in sizes if size >= LEAST_BLOCKS} or {max(1, prompts.blocks)})
