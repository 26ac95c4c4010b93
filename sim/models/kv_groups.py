"""Which layers share a block table: full and windowed layers in equal-size groups, over one pool of blocks.

    10 full and 20 windowed layers, block 16, window 32, 112 tokens: 7 + 2 * 2 = 11 blocks

    full     |1|2|3|4|5|6|7|      10 layers, every token kept
    window 1 |.|.|.|.|.|6|7|      10 layers, blocks behind the window freed
    window 2 |.|.|.|.|.|6|7|      10 layers

A layer that sees only the last `window` tokens need not keep the rest. So that one pool serves both kinds,
vLLM splits the layers of each kind into groups of g layers, g being the smaller of the two counts, and pads
the last group of a kind: a block holds `block_size` tokens of any one group, always the same bytes. A model
with one kind of layer is one group.

When blocks are freed (vLLM 0.11.0, `SlidingWindowManager.remove_skipped_blocks`): only when the request is
scheduled again, before its new blocks are allocated, and even if those do not fit. With `computed` tokens
done, the next query is at position `computed` (counted from 0) and sees positions `computed - window + 1`
and later; that is the first useful token, and every block entirely before it is freed:

    freed blocks = max(0, computed - window + 1) // block_size        per windowed group

A chunk of a prompt gets blocks for all of its tokens in every group, windowed or not: those behind the window
are freed at the next schedule. While decoding, a block is freed whenever `computed - window + 1` reaches a
multiple of block_size: with block 16 and window 32 in the steps that feed tokens 48, 64, 80, ... (counted
from 1). A finished or preempted request frees everything it still holds.

Left out: the bytes of padding layers are spent, as in vLLM; later releases of vLLM take the larger count if
it is less than 1.25 (then 1.5) times the smaller; windows of several sizes.
"""

from dataclasses import dataclass

from kvsim.sim.models.spec import ModelSpec


@dataclass(frozen=True)
class KvGroups:
    """The groups of a model's layers.

    Attributes
    ----------
    layers_per_group : int
        Layers whose keys and values one block holds.
    full_groups, window_groups : int
        Groups that keep every token, and groups that keep a window.
    window : int or None
        Tokens that a windowed layer sees, including the newest; None if none is windowed.
    """

    layers_per_group: int
    full_groups: int
    window_groups: int
    window: int | None

    @property
    def count(self) -> int:
        """Number of groups, which is also the number of blocks for the first token of a request."""
        return self.full_groups + self.window_groups


def kv_groups(model: ModelSpec, disable_hybrid_kv_cache_manager: bool = False) -> KvGroups:
    """The groups that vLLM 0.11.0 forms from a model's layers.

    Without the hybrid manager, a model with both kinds keeps every token in every layer, and a model with
    only windowed layers still frees behind the window, as in vLLM.
    """
    windowed, full = model.window_layers, model.caching_layers - model.window_layers
    if not windowed or (full and disable_hybrid_kv_cache_manager):
        return KvGroups(model.caching_layers, full_groups=1, window_groups=0, window=None)
    if not full:
        return KvGroups(windowed, full_groups=0, window_groups=1, window=model.window)
    size = min(full, windowed)
    return KvGroups(size, -(-full // size), -(-windowed // size), model.window)
