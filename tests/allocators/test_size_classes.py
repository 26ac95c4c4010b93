"""Size classes, slabs and the four fits: hand-worked arenas, and closed forms of what rounding costs."""

import pytest

from kvsim.allocators.base import Region
from kvsim.allocators.contiguous import Contiguous
from kvsim.allocators.size_classes.bins import class_down, class_size, class_up
from kvsim.allocators.size_classes.offset import Offset, OffsetExact
from kvsim.allocators.size_classes.segregated import Segregated
from kvsim.allocators.size_classes.slab import Slab, chunk_sizes
from kvsim.allocators.size_classes.tlsf import Tlsf


def holes(allocator, sizes, kept):
    """Fill with loans of these sizes, then release those that are not kept: their places are free."""
    for seq, size in enumerate(sizes):
        assert allocator.admit(seq, size, size)
    for seq in set(range(len(sizes))) - set(kept):
        allocator.release(seq)
    return allocator


def starts(allocator):
    return {region.owners[0]: region.start for region in allocator.regions() if region.owners}


@pytest.mark.parametrize("bits", [0, 3, 5])
def test_classes_round_by_less_than_one_step(bits):
    for size in range(1, 5_000):
        up, down = class_size(class_up(size, bits), bits), class_size(class_down(size, bits), bits)
        assert down <= size <= up
        assert (up - size) * (1 << bits) < size
        assert (up == size) == (down == size) == (class_up(size, bits) == class_down(size, bits))


@pytest.mark.parametrize("bits", [0, 3, 5])
def test_class_numbers_ascend_with_sizes(bits):
    sizes = [class_size(number, bits) for number in range(1, 200)]
    assert sizes == sorted(set(sizes))


def test_offset_allocates_the_class_and_the_original_the_size():
    for size in (1, 8, 9, 17, 100, 1_025, 2_047):
        assert Offset(15_744).slots_needed(1, size) == class_size(class_up(size, 3), 3)
        assert OffsetExact(15_744).slots_needed(1, size) == size


def test_an_extent_of_the_exact_size_is_passed_over_by_the_original_only():
    """The hole of a loan of 1,025 slots is in the class of 1,024 when it has its own size."""
    for make, again in ((Offset, True), (OffsetExact, False), (Tlsf, False), (Segregated, True)):
        allocator = make(2_304)
        size = 1_025
        assert allocator.admit(1, size, size)
        rest = allocator.largest_free_extent()
        assert allocator.admit(2, rest, rest)
        allocator.release(1)
        assert allocator.can_admit(size, size) is again
        assert (allocator.external_slots(size) == 0) is again


def test_tlsf_passes_over_what_is_less_than_a_step_larger():
    allocator = holes(Tlsf(4_096), [1_000, 1_100, 1_984], kept=[0, 2])
    assert allocator.largest_free_extent() == 1_088
    assert allocator.can_admit(1_088, 1_088) and not allocator.can_admit(1_089, 1_089)
    assert holes(Segregated(4_096), [1_000, 1_100, 1_984], kept=[0, 2]).can_admit(1_089, 1_089)


@pytest.mark.parametrize(("fit", "start"), [("first", 100), ("best", 500), ("next", 1_200), ("worst", 800)])
def test_each_fit_takes_its_own_hole(fit, start):
    """Of the four holes, the last lies behind the last loan."""
    sizes = [100, 200, 200, 60, 240, 300, 100]
    allocator = holes(Contiguous(1_300, fit=fit), sizes, kept=[0, 2, 4, 6])
    free = [(region.start, region.size) for region in allocator.regions() if not region.owners]
    assert free == [(100, 200), (500, 60), (800, 300), (1_200, 100)]
    assert allocator.admit(9, 50, 50)
    assert starts(allocator)[9] == start


def test_next_fit_starts_over_at_the_lowest_address():
    allocator = holes(Contiguous(400, fit="next"), [100, 100, 100, 100], kept=[1, 3])
    assert allocator.admit(4, 60, 60)
    assert starts(allocator)[4] == 0
    assert allocator.admit(5, 60, 60) and not allocator.can_admit(60, 60)
    assert starts(allocator)[5] == 200


def test_chunks_of_a_slab_grow_by_a_quarter():
    assert chunk_sizes(100) == [16, 20, 25, 32, 40, 50, 63, 79, 99, 100]
    assert chunk_sizes(8) == [8]


def test_a_slab_belongs_to_a_class_until_it_is_empty():
    allocator = Slab(200, slab_slots=100, rebalances=False)
    assert allocator.admit(1, 16, 16) and allocator.admit(2, 60, 60)
    assert list(allocator.regions())[:2] == [Region(0, 16, (1,)), Region(16, 16, ())]
    assert not allocator.can_admit(100, 100)
    assert allocator.external_slots(16) == 200 - 16 - 63 - 5 * 16
    allocator.release(2)
    assert allocator.can_admit(100, 100)


def test_a_sparse_slab_is_given_up_by_moving_what_it_holds():
    allocator = Slab(200, slab_slots=100)
    for seq in range(4):
        assert allocator.admit(seq, 50, 50)
    for seq in (0, 3):
        allocator.release(seq)
    assert allocator.copied_slots == 0
    assert allocator.can_admit(100, 100) and allocator.admit(9, 100, 100)
    assert allocator.copied_slots == 50
    assert sorted(starts(allocator).values())[-1] == starts(allocator)[9] or starts(allocator)[9] == 0
    assert allocator.used_slots == 200
    kept = Slab(200, slab_slots=100, rebalances=False)
    for seq in range(4):
        kept.admit(seq, 50, 50)
    for seq in (0, 3):
        kept.release(seq)
    assert not kept.can_admit(100, 100)
