"""Which leaf of a radix tree goes first: the smallest key.

    lru       used longest ago                     mru       used last
    fifo      made first                           filo      made last
    lfu       found least often, then lru          slru      found once, then lru; those found twice, then lru
    priority  least important, then lru            tlru      what cannot help the next turn, then lru

`tlru` knows how long a conversation was (`history`) and how much the next prompt will add: of a cached path
more than `history + estimate - threshold` tokens cannot bring the next prefill below its time limit, so
what lies behind goes first (arXiv 2510.15152). Source: SGLang 0.5.23, `mem_cache/evict_policy.py`.
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
"""By name, as `--eviction` takes it."""


@dataclass(frozen=True, kw_only=True)
class EvictionOptions:
    """Of a radix tree that forgets leaves."""

    eviction: str = option(
        "The leaf of the radix tree that goes first.",
        default="lru",
        value="NAME",
        allowed=tuple(STRATEGIES),
    )


def tail_optimised(threshold: int, estimate: int) -> Strategy:
    """The strategy `tlru`: prompts of up to `threshold` tokens are quick, the next one adds `estimate`."""

    def key(node: Node) -> tuple[int, ...]:
        budget = max(node.history + estimate - threshold, 0)
        return (-1 if node.end - node.tokens >= budget else 0, node.last)

    return key
