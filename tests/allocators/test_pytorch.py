"""The caching allocator beyond its recordings: roundings, settings, oversize segments, blocks that tile."""

from itertools import pairwise
from random import Random

import pytest
from support.pytorch_conf import settings_of

from kvsim.allocators.pytorch import CachingAllocator, Settings
from kvsim.allocators.pytorch.settings import MIB, segment_bytes
from kvsim.allocators.pytorch.undo import Checkpoint


@pytest.mark.parametrize(
    ("size", "rounded"), [(1, 512), (511, 512), (512, 512), (513, 1024), (MIB + 1, MIB + 512)]
)
def test_requests_are_rounded_to_512_bytes(size, rounded):
    assert Settings().round_size(size) == rounded


@pytest.mark.parametrize(
    ("size", "rounded"),
    [(1200, 1536), (2048, 2048), (2049, 2560), (1200 * 1024, 1280 * 1024), (8 * MIB, 8 * MIB)],
)
def test_four_divisions_make_four_steps_between_powers_of_two(size, rounded):
    assert settings_of("roundup_power2_divisions:4").round_size(size) == rounded


def test_divisions_by_interval():
    settings = settings_of("roundup_power2_divisions:[2:1,4:2,8:4,>:8]")
    assert settings.divisions == (1, 1, 2) + (8,) * 13  # `>` overrides the last one named


@pytest.mark.parametrize(
    ("size", "segment"),
    [(512, 2), (MIB, 2), (MIB + 512, 20), (10 * MIB - 512, 20), (10 * MIB, 10), (10 * MIB + 512, 12)],
)
def test_segments(size, segment):
    assert segment_bytes(size) == segment * MIB


@pytest.mark.parametrize("conf", ["max_split_size_mb:20", "pinned:1"])
def test_what_is_no_setting_is_refused(conf):
    with pytest.raises(ValueError, match=r"max_split_size_mb|no such setting"):
        settings_of(conf)


def test_an_oversize_segment_is_neither_split_nor_allocated_to_small_requests_but_given_back_in_need():
    allocator = CachingAllocator(100 * MIB, settings_of("max_split_size_mb:40"))
    allocator.free(allocator.malloc(60 * MIB))
    small = allocator.malloc(30 * MIB)
    assert small.addr == 60 * MIB
    assert allocator.malloc(50 * MIB).size == 60 * MIB, "within 20 MiB: taken whole"
    assert allocator.malloc(20 * MIB) is None
    assert allocator.counters.ooms == 1


@pytest.mark.parametrize("conf", ["", "expandable_segments:True", "max_split_size_mb:30"])
@pytest.mark.parametrize("seed", range(3))
def test_blocks_tile_their_segments_and_all_comes_back(conf, seed):
    random, allocator = Random(seed), CachingAllocator(512 * MIB, settings_of(conf))
    allocated = []
    for _ in range(600):
        if allocated and random.random() < 0.45:
            allocator.free(allocated.pop(random.randrange(len(allocated))))
        else:
            block = allocator.malloc(int(2 ** random.uniform(0, 26)), random.choice((0, 0, 3)))
            allocated += [block] if block else []
        segments = allocator.segments()
        for segment in segments:
            end = segment.addr
            for block in segment.blocks:
                assert block.addr == end
                end += block.size
            frees = [not block.allocated for block in segment.blocks]
            assert not any(map(all, pairwise(frees))), "free neighbours are merged"
        counters = allocator.counters
        assert counters.reserved.current == sum(segment.size for segment in segments)
        assert counters.reserved.current == allocator.card.used_bytes <= 512 * MIB
        assert counters.allocated.current == sum(block.size for block in allocated)
        assert counters.requested.current == sum(block.requested for block in allocated)
        split = [
            block
            for segment in segments
            if len(segment.blocks) > 1 and not segment.expandable
            for block in segment.blocks
            if not block.allocated
        ]
        assert counters.inactive_split_bytes.current == sum(block.size for block in split)
        assert counters.inactive_split.current == len(split)
    for block in allocated:
        allocator.free(block)
    allocator.empty_cache()
    assert allocator.segments() == []
    assert allocator.card.used_bytes == 0


@pytest.mark.parametrize("conf", ["", "max_split_size_mb:30"])
@pytest.mark.parametrize("seed", range(3))
def test_what_is_undone_leaves_no_trace(conf, seed):
    random, allocator = Random(seed), CachingAllocator(128 * MIB, settings_of(conf))
    allocated = []

    def some_calls(count, allocated):
        for _ in range(count):
            if allocated and random.random() < 0.45:
                allocator.free(allocated.pop(random.randrange(len(allocated))))
            elif random.random() < 0.02:
                allocator.empty_cache()
            else:
                block = allocator.malloc(int(2 ** random.uniform(0, 25)))
                allocated += [block] if block else []

    def everything():
        card = {name: value for name, value in vars(allocator.card).items() if not name.startswith("_")}
        segments = [
            (
                segment[:5],
                [(b.addr, b.size, b.requested, b.allocated, b.born, id(b)) for b in segment.blocks],
            )
            for segment in allocator.segments()
        ]
        free = [pool.saved() for pool in allocator.pools]
        return segments, card, allocator.counters.saved(), free, {id(block) for block in allocator.allocated}

    for _ in range(20):
        some_calls(40, allocated)
        before, checkpoint = everything(), Checkpoint(allocator)
        some_calls(60, allocated.copy())
        checkpoint.restore()
        assert everything() == before
