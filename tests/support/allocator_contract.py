"""The built-in allocators, and the arenas on which the contract is tried over each of them.

For your own class: `kvsim.allocators.contract.check_allocator(Mine)`.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from kvsim.allocators.base import Allocator
from kvsim.allocators.buddy import Buddy
from kvsim.allocators.contiguous import Contiguous
from kvsim.allocators.dynamic import Dynamic
from kvsim.allocators.options import Groups
from kvsim.allocators.paged import Paged
from kvsim.allocators.radix import Radix
from kvsim.allocators.sglang.cached import SglangCached
from kvsim.allocators.sglang.windows import SglangDual, SglangUnified

GROUPS = Groups(full=1, windowed=2, window=32)

BUILT_IN: dict[str, Callable[[int], Allocator]] = {
    "contiguous first fit": Contiguous,
    "contiguous best fit": partial(Contiguous, fit="best"),
    "dynamic first fit": Dynamic,
    "dynamic best fit": partial(Dynamic, fit="best"),
    "buddy": Buddy,
    "paged 1": partial(Paged, block_size=1),
    "paged 16": partial(Paged, block_size=16),
    "paged 256": partial(Paged, block_size=256),
    "radix": Radix,
    "sglang 1": SglangCached,
    "sglang-dual": partial(SglangDual, groups=GROUPS, page_size=4),
    "sglang-unified eager": partial(SglangUnified, groups=GROUPS, page_size=4),
    "sglang-unified lazy": partial(SglangUnified, groups=GROUPS, page_size=4, interval=8, lazy=True),
    "sglang 16": partial(SglangCached, page_size=16, eviction="slru"),
}
FINE = ("paged 1", "radix", "sglang 1")
"""Those with many regions."""


class Case(NamedTuple):
    name: str
    arena: int
    calls: int

    @property
    def make(self) -> Callable[[int], Allocator]:
        return BUILT_IN[self.name]


def cases(arenas: tuple[int, ...], calls: int) -> list[Case]:
    """Each allocator on each arena that holds a unit of it; fewer calls for the fine ones."""
    return [
        Case(name, arena, max(20, calls * 1_000 // arena) if name in FINE and arena > 1_000 else calls)
        for name in BUILT_IN
        for arena in arenas
        if name != "paged 256" or arena >= 256
    ]
