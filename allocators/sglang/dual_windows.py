"""`sglang-dual`: two pools for a model with sliding windows, split at the start (windows.py).

    | full pool: a a a a b b . . . . . | SWA pool: a a b b . . |

Slots of one pool do not serve the other: what is left in one when the other is full is external. The SWA pool
has `swa_share` times the tokens of the full one (SGLang: 0.8). With prefixes, windowed.py is used.
Source: SGLang 0.5.23, `mem_cache/allocator/swa.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from kvsim.allocators.base import Allocator
from kvsim.allocators.option import option
from kvsim.allocators.options import Groups, Options
from kvsim.allocators.sglang.cached import SglangCached
from kvsim.allocators.sglang.eviction import EvictionOptions
from kvsim.allocators.sglang.pools import pool_of
from kvsim.allocators.sglang.windowed import SglangWindowed
from kvsim.allocators.sglang.windows import INTERVAL, Pages, SglangWindows

SWA_SHARE = 0.8


@dataclass(frozen=True, kw_only=True)
class DualOptions(EvictionOptions):
    """Options of two pools, each with a tree."""

    swa_full_tokens_ratio: float = option(
        "Size of the windowed layers' pool, as a share of the full one's tokens.",
        default=SWA_SHARE,
        value="X",
        above=0,
        doc="tokens in the pool of windowed layers, as a share of those in the full one",
    )
    swa_eviction_interval: int = option(
        "Tokens behind the window before their pages are freed.",
        default=INTERVAL,
        value="N",
        least=1,
        doc="tokens that must lie behind the window before their pages are freed",
    )


def split(capacity_slots: int, groups: Groups, page_size: int, swa_share: float) -> tuple[int, int]:
    """Pages of the full pool, and of the SWA pool, which has `swa_share` times its tokens."""
    pages = capacity_slots // page_size if page_size > 0 else 0
    full = max(1, int(pages / (groups.full + Fraction(str(swa_share)) * groups.windowed)))
    return full, max(1, (pages - full * groups.full) // max(1, groups.windowed))


class SglangDual(SglangWindows):
    """Two pools; the split is fixed at startup.

    Parameters
    ----------
    swa_share : float
        Tokens of the SWA pool, as a share of those of the full one.
    """

    idea = "a pool of full and one of windowed layers, split at the start"
    wastes = "less than a page in each layer; what only the other pool has"
    source = "SGLang 0.5.23, mem_cache/allocator/swa.py"
    declares = DualOptions
    keeps_prefixes = caches_windows = True

    @classmethod
    def from_options(cls, capacity_slots: int, options: Options) -> Allocator:
        groups, page, cache = options.groups, options.block_size, options.cache is not None
        own = options.chosen(DualOptions)
        if groups is None:
            return SglangCached(capacity_slots, page, cache, own.eviction)
        share, interval = own.swa_full_tokens_ratio, own.swa_eviction_interval
        if cache:
            pages = split(capacity_slots, groups, page, share)
            return SglangWindowed(groups, pages, page, interval, eviction=own.eviction)
        return cls(capacity_slots, groups, page, interval, share)

    def __init__(
        self,
        capacity_slots: int,
        groups: Groups,
        page_size: int = 1,
        interval: int = INTERVAL,
        swa_share: float = SWA_SHARE,
    ) -> None:
        full, swa = split(capacity_slots, groups, page_size, swa_share)
        super().__init__(
            min(capacity_slots, (full * groups.full + swa * groups.windowed) * page_size),
            groups,
            page_size,
            interval,
        )
        self.full, self.swa = pool_of(full, page_size), pool_of(swa, page_size)
        self.pools = groups.apart((full, swa), page_size)
        self._boundary = full * groups.full * page_size

    def fits(self, tokens: int, bound: int) -> bool:
        return self._count(tokens) <= self.full.pages and self._seen(tokens) <= self.swa.pages

    def _room(self, full: int, swa: int) -> bool:
        return full <= len(self.full.free) and swa <= len(self.swa.free)

    def _pairs(self) -> int:
        return min(len(self.full.free), len(self.swa.free))

    def _allocate(self, held: Pages, count: int) -> None:
        held.full += self.full.take(count) or ()
        held.swa += self.swa.take(count) or ()

    def _take_back(self, full: Sequence[int], swa: Sequence[int]) -> None:
        self.full.give(full)
        self.swa.give(swa)

    def _places(self, held: Pages) -> tuple[list[int], list[int]]:
        full, windowed, *_ = self.groups
        behind = self._boundary // self.page_size
        return (
            [(page - 1) * full for page in held.full],
            [behind + (page - 1) * windowed for page in held.swa],
        )
