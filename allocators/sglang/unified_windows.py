"""`sglang-unified`: one buffer for a model with sliding windows, a pool from each end (windows.py).

    | SWA a a b b >            gap            < full b b a a a a |

Each pool can take what the other leaves: less than a page of each is stranded. Instead, pages move at every
release (eager) or when room is short (lazy): `copied_slots`.
Source: SGLang 0.5.23, `mem_cache/allocator/unified_hybrid_swa.py`; sgl-project/sglang#29678.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvsim.allocators.base import Allocator, InvariantError
from kvsim.allocators.option import option
from kvsim.allocators.options import Groups, Options
from kvsim.allocators.sglang.cached import SglangCached
from kvsim.allocators.sglang.ends import End
from kvsim.allocators.sglang.unified import UnifiedPair
from kvsim.allocators.sglang.windows import INTERVAL, Pages, SglangWindows


@dataclass(frozen=True, kw_only=True)
class CompactionOptions:
    """Options of a buffer that is used from both ends."""

    compaction: str = option(
        "When pages move to close holes: at every release, or when room is short.",
        default="eager",
        allowed=("eager", "lazy"),
        doc="when pages move to close holes: at every release, or when room is short",
    )


class SglangUnified(SglangWindows):
    """One buffer, a pool from each end; pages move to close holes.

    Parameters
    ----------
    lazy : bool
        Whether holes are closed only when room is short, not at every release.
    """

    idea = "full and windowed pages from both ends of one buffer; pages move"
    wastes = "less than a page in each layer; moved pages"
    source = "SGLang 0.5.23, unified_sub_pool.py; sgl-project/sglang#29678"

    declares = CompactionOptions
    moves_on_release = True

    @classmethod
    def from_options(cls, capacity_slots: int, options: Options) -> Allocator:
        if options.groups is None:
            return SglangCached(capacity_slots, options.block_size, options.cache is not None)
        lazy = options.chosen(CompactionOptions).compaction == "lazy"
        return cls(capacity_slots, options.groups, options.block_size, lazy=lazy)

    def __init__(
        self,
        capacity_slots: int,
        groups: Groups,
        page_size: int = 1,
        interval: int = INTERVAL,
        lazy: bool = False,
    ) -> None:
        sizes = groups.full * page_size, groups.windowed * page_size
        if sizes[0]:
            capacity_slots -= capacity_slots % sizes[0]  # the full pages end at the end of the buffer
        super().__init__(capacity_slots, groups, page_size, interval)
        full = End(sizes[0], capacity_slots // sizes[0], 0, capacity_slots, up=False, lazy=lazy)
        swa = End(sizes[1], capacity_slots // sizes[1], 0, capacity_slots, up=True, lazy=lazy)
        full.free_virtual = list(range(full.pages))
        full.below, swa.above = swa, full
        for pool in (full, swa):
            pool.on_move = self._moved(pool.page_bytes)
        self.both = UnifiedPair(full, swa)

    def _moved(self, slots: int) -> Callable[[Sequence[int], Sequence[int]], None]:
        """A callback that counts the slots of pages that a pool moves."""

        def count(sources: Sequence[int], targets: Sequence[int]) -> None:
            self.copied_slots += slots * len(sources)

        return count

    def _room(self, full: int, swa: int) -> bool:
        free = self.capacity_slots - self.used_slots
        pair = self.both
        return full * pair.full.page_bytes + swa * pair.swa.page_bytes <= free

    def fits(self, tokens: int, bound: int) -> bool:
        return self.peak_slots(tokens, bound) <= self.capacity_slots

    def _pairs(self) -> int:
        return (self.capacity_slots - self.used_slots) // (self.groups.each * self.page_size)

    def _allocate(self, held: Pages, count: int) -> None:
        pages = self.both.take(count)
        if pages is None:
            raise InvariantError(f"{count} pages found no room among {self.free_slots} free slots")
        held.full += pages
        held.swa += pages

    def _take_back(self, full: Sequence[int], swa: Sequence[int]) -> None:
        if swa:
            self.both.swa.free(swa, owns_names=False)
        if full:
            self.both.full.free(full)

    def _places(self, held: Pages) -> tuple[list[int], list[int]]:
        full, windowed, *_ = self.groups
        return (
            [self.both.full.physical[page] * full for page in held.full],
            [self.both.swa.physical[page] * windowed for page in held.swa],
        )
