"""Which leaf of a radix tree is evicted first: the smallest key.

    lru       least recently used                  mru       most recently used
    fifo      created first                        filo      created last
    lfu       fewest hits, then lru                slru      fewer than two hits first, then lru
    priority  lowest priority, then lru

`tlru`, which must know how much the next turn of a conversation adds, is left out.
Source: SGLang 0.5.23, `mem_cache/evict_policy.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from kvsim.allocators.option import option
from kvsim.allocators.sglang.nodes import Node

Strategy = Callable[[Node], tuple[int, ...]]

PROTECTED_HITS = 2

STRATEGIES: dict[str, Strategy] = {
    "lru": lambda node: (node.last,),
    "lfu": lambda node: (node.hits, node.last),
    "fifo": lambda node: (node.created,),
    "mru": lambda node: (-node.last,),
    "filo": lambda node: (-node.created,),
    "priority": lambda node: (node.priority, node.last),
    "slru": lambda node: (int(node.hits >= PROTECTED_HITS), node.last),
}
"""By name, as in `--eviction`."""


@dataclass(frozen=True, kw_only=True)
class EvictionOptions:
    """Options of a radix tree that evicts leaves."""

    eviction: str = option(
        "Which leaf of the radix tree is evicted first.",
        default="lru",
        value="NAME",
        allowed=tuple(STRATEGIES),
    )
