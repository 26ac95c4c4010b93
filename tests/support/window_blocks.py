"""Number of blocks that a request holds in groups of layers with windows, by vLLM 0.11.0's rule."""

from kvsim.sim.models.kv_groups import KvGroups


def blocks_held(groups: KvGroups, block_size: int, tokens: int, computed: int | None = None) -> int:
    """Blocks of a request in all groups, in a step after which `tokens` of its tokens are stored.

    Parameters
    ----------
    groups : KvGroups
    block_size, tokens : int
    computed : int or None
        Tokens stored before the step, which decide what is freed; None for a step that feeds one token.
    """
    before = max(0, tokens - 1) if computed is None else computed
    taken = -(-tokens // block_size)
    return groups.count * taken - groups.window_groups * blocks_behind(groups, block_size, before)


def blocks_behind(groups: KvGroups, block_size: int, computed: int) -> int:
    """Blocks that each windowed group has freed once a request with `computed` tokens is scheduled."""
    return 0 if groups.window is None else max(0, computed - groups.window + 1) // block_size
