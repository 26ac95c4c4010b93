"""`fork_over` is a fork and a release in one, `branch` some of these and growths: the memory is the same."""

from random import Random

import pytest

from kvsim.allocators.base import InvariantError
from kvsim.allocators.options import Order
from kvsim.allocators.paged import Paged


class Apart(Paged):
    """One after the other, as the contract says it."""

    def fork_over(self, seq, parent, child, tokens):
        self.fork(parent, child, tokens)
        self.release(seq)
        return True

    branch = Paged._branch_one_by_one


def seen(allocator, seqs):
    return (
        {seq: allocator.block_table(seq) for seq in seqs},
        allocator.free_queue(),
        allocator.used_slots,
        allocator.shared_tokens,
        allocator.shared_tail_slots(),
        allocator.logical_slots(),
        allocator.copied_slots,
        allocator.cow_copies,
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


@pytest.mark.parametrize("order", [Order.STACK, Order.QUEUE])
@pytest.mark.parametrize("width", [2, 3, 5])
def test_steps_of_beam_search_leave_the_memory_that_forks_and_growths_leave(width, order):
    rng, both = Random(width), [kind(200 * 4, 4, order) for kind in (Paged, Apart)]
    searches = []  # (candidates, tokens)
    for first in (0, width):
        tokens = rng.randint(1, 9)
        searches.append((list(range(first, first + width)), tokens))
        for allocator in both:
            assert allocator.admit(first, tokens, tokens)
            for child in range(first + 1, first + width):
                assert allocator.fork(first, child, tokens)
    following, copies = 2 * width, set()
    for _ in range(60):
        forks = []
        for place, (candidates, tokens) in enumerate(searches):
            living = candidates
            parents = rng.sample(living, rng.randint(1, width)) if rng.random() < 0.7 else living
            for gone in [seq for seq in candidates if seq not in parents]:
                forks.append((gone, rng.choice(parents), following, tokens))
                living = [seq for seq in living if seq != gone] + [following]
                following += 1
            searches[place] = living, tokens + 1
        before = both[0].copied_slots
        for allocator in both:
            allocator.branch(forks, searches)
        copies.add(both[0].copied_slots - before)
        seqs = [seq for living, _ in searches for seq in living]
        assert seen(both[0], seqs) == seen(both[1], seqs)
    assert len(copies) > 3
    assert both[0].shared_tail_slots() == 0


@pytest.mark.parametrize("kind", [Paged, Apart])
def test_a_step_without_room_is_a_broken_promise(kind):
    allocator = kind(8, 4)
    assert allocator.admit(0, 3, 3)
    assert allocator.admit(1, 3, 3)
    with pytest.raises(InvariantError):
        allocator.branch([(1, 0, 2, 3)], [([0, 2], 6), ([0], 9)])


def test_a_parent_that_does_not_end_with_its_last_block_is_refused():
    allocator = Paged(64, 4)
    assert allocator.admit(0, 8, 8)
    assert allocator.admit(1, 8, 8)
    with pytest.raises(InvariantError, match="cannot hold 3 tokens"):
        allocator.fork_over(1, 0, 2, 3)
