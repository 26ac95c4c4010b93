"""The columns of a picture: as long as what is allocated, whatever the size of the memory."""

from collections import Counter

import pytest

from kvsim.allocators.arena import Region, Table, layout_of_slots, layout_of_tables
from kvsim.allocators.hybrid.groups import Hybrid
from kvsim.allocators.hybrid.kinds import Jenga, Split
from kvsim.allocators.options import CacheRules, Groups, Options
from kvsim.allocators.paged import Paged
from kvsim.allocators.radix import Radix
from kvsim.allocators.sglang.cached import SglangCached
from kvsim.allocators.sglang.dual_windows import SglangDual
from kvsim.allocators.sglang.unified_windows import SglangUnified
from kvsim.allocators.sglang.windowed import SglangWindowed
from kvsim.allocators.tensorrt_llm import TensorRTLLM
from kvsim.allocators.tgi import Tgi
from kvsim.allocators.windowed import Windowed

HUGE = 1_000_000
MEMORIES = {
    "paged": lambda: Paged(HUGE, 1),
    "radix": lambda: Radix(HUGE),
    "sglang": lambda: SglangCached(HUGE, 1),
    "sglang-dual": lambda: SglangWindowed(Groups(1, 3, 128, 512), (HUGE, HUGE), 1, 4),
    "tgi": lambda: Tgi(HUGE, 1),
    "tensorrt-llm": lambda: TensorRTLLM(HUGE, 1),
}


@pytest.mark.parametrize("name", MEMORIES)
def test_a_picture_of_a_huge_memory_is_as_long_as_what_is_allocated(name):
    memory = MEMORIES[name]()
    assert memory.admit(1, 50, 50) and memory.admit(2, 30, 30)
    layout = memory.layout()
    assert len(layout.starts) <= 80 * memory.slots_per_token + 2 * memory.slots_per_token
    assert sum(layout.sizes) == memory.capacity_slots
    allocated = [region for region in memory.regions() if region.owners]
    assert sum(region.size for region in allocated) == memory.used_slots == 80 * memory.slots_per_token


def test_blocks_of_several_sequences_lost_blocks_and_cached_ones():
    tables = [Table(7, 0, [4, 1]), Table(9, 0, [4, None, 2]), Table(3, 16, [5], 8)]
    layout = layout_of_tables(range(1, 9), 8, tables, cached=[7, 8, 2])
    assert list(layout.regions()) == [
        *(Region(0, 8, (7,), first=8), Region(8, 8, (9,), first=16), Region(16, 8, ())),
        *(Region(24, 8, (7, 9)), Region(32, 8, (3,), first=16, per_token=8), Region(40, 8, ())),
        Region(48, 16, (), cached=True),
    ]
    assert layout.owners == [(), (7,), (9,), (7, 9), (3,)]


def test_what_only_some_layers_use_is_named_and_apart_though_it_is_free():
    tables = [Table(7, 0, [0, 1], layers="full"), Table(7, 0, [3], layers="window 8")]
    shared = layout_of_tables(range(6), 4, tables)
    assert list(shared.layers) == ["full", "full", "", "window 8", ""]
    apart = layout_of_tables(range(6), 4, tables, pools=[("full", 12), ("window 8", 12)])
    assert list(apart.starts) == [0, 4, 8, 12, 16]
    assert list(apart.layers) == ["full", "full", "full", "window 8", "window 8"]
    assert list(layout_of_tables(range(6), 4, [], pools=[("full", 12), ("window 8", 12)]).regions()) == [
        *(Region(0, 12, (), layers="full"), Region(12, 12, (), layers="window 8")),
    ]


OPTIONS = Options(block_size=16)  # a full group, and one with a window of 32
GROUPED = {
    "hybrid": Hybrid.from_options(3_200, OPTIONS),
    "hybrid with prefixes": Hybrid.from_options(3_200, OPTIONS._replace(cache=CacheRules())),
    "jenga": Jenga.from_options(3_200, OPTIONS),
    "split": Split.from_options(3_200, OPTIONS),
    "windowed": Windowed(3_200, Groups(1, 3, 32), 16),
    "sglang-dual": SglangDual(3_200, Groups(1, 3, 32, 512), 16),
    "sglang-dual with prefixes": SglangWindowed(Groups(1, 3, 32, 512), (60, 40), 16, 16),
    "sglang-unified": SglangUnified(3_200, Groups(1, 3, 32, 512), 16),
}


@pytest.mark.parametrize("name", GROUPED)
def test_free_memory_names_its_layers_where_only_these_may_use_it(name):
    memory = GROUPED[name]
    assert memory.admit(1, 40, 40)
    assert {region.layers for region in memory.regions() if region.owners} == {"full", "window 32"}
    memory.release(1)
    free = Counter[str]()
    for region in memory.layout().regions():
        free[region.layers] += region.size
    assert free == (dict(memory.pools) or {"": memory.capacity_slots})
    assert bool(memory.pools) == name.startswith(("split", "sglang-dual"))


def test_slots_that_lie_together_and_are_alike_are_one_region():
    layout = layout_of_slots(10, [(1, [3, 2]), (2, [3, 4, 5])], cached=[8, 9])
    assert list(layout.regions()) == [
        *(Region(0, 2, ()), Region(2, 1, (1,)), Region(3, 1, (1, 2)), Region(4, 2, (2,))),
        *(Region(6, 2, ()), Region(8, 2, (), cached=True)),
    ]
