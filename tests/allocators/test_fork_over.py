"""`fork_over` is a fork and a release, in one: everything that can be seen of the memory is the same."""

from random import Random

import pytest

from kvsim.allocators.base import Allocator, InvariantError
from kvsim.allocators.options import Order
from kvsim.allocators.paged import Paged


class Apart(Paged):
    """One after the other, as the contract says it."""

    fork_over = Allocator.fork_over


def seen(allocator, seqs):
    return (
        {seq: allocator.block_table(seq) for seq in seqs},
        allocator.free_queue(),
        allocator.used_slots,
        allocator.shared_tokens,
        allocator.shared_tail_slots(),
        allocator.logical_slots(),
        allocator.copied_slots,
        list(allocator.regions()),
    )


@pytest.mark.parametrize("order", [Order.STACK, Order.QUEUE])
@pytest.mark.parametrize("seed", range(20))
def test_candidates_that_take_places_leave_the_memory_that_forks_and_releases_leave(seed, order):
    rng, both = Random(seed), [kind(40 * 4, 4, order) for kind in (Paged, Apart)]
    living, tokens = [0, 1, 2], rng.randint(1, 9)
    for allocator in both:
        assert allocator.admit(0, tokens, tokens)
        assert allocator.fork(0, 1, tokens)
        assert allocator.fork(0, 2, tokens)
    following, branches = 3, 0
    while tokens < 30:
        tokens += 1
        for seq in living:
            assert {allocator.grow(seq, tokens) for allocator in both} == {True}
        while rng.random() < 0.6:
            gone, parent = rng.sample(living, 2)
            assert {each.fork_over(gone, parent, following, tokens) for each in both} == {True}
            living = [seq for seq in living if seq != gone] + [following]
            following, branches = following + 1, branches + 1
            assert seen(both[0], living) == seen(both[1], living)
    assert branches > 9
    for seq in living:
        for allocator in both:
            allocator.release(seq)
    assert seen(both[0], []) == seen(both[1], [])
    assert both[0].used_slots == both[0].shared_tokens == 0


def test_a_parent_that_does_not_end_with_its_last_block_is_refused():
    allocator = Paged(64, 4)
    assert allocator.admit(0, 8, 8)
    assert allocator.admit(1, 8, 8)
    with pytest.raises(InvariantError, match="cannot hold 3 tokens"):
        allocator.fork_over(1, 0, 2, 3)
