"""MLC's forks worked by hand, beside copy-on-write."""

from kvsim.allocators.mlc import Mlc
from kvsim.allocators.options import Order
from kvsim.allocators.paged import Paged


def forked(cls, answers, tokens=6, slots=64):
    """A sequence of so many tokens in pages of 4 and its forks, each of which then writes one token."""
    pages = cls(slots, 4, Order.STACK)
    assert pages.admit(0, tokens, tokens)
    for seq in range(1, answers):
        assert pages.fork(0, seq, tokens)
    before = pages.copied_slots, pages.used_slots
    for seq in range(answers):
        assert pages.grow(seq, tokens + 1)
    return pages, before


def test_a_fork_copies_the_page_that_is_not_full_and_the_first_write_none():
    pages, before = forked(Mlc, 3)
    assert before == (4, 16)
    assert (pages.copied_slots, pages.cow_copies, pages.used_slots, pages.shared_tokens) == (4, 0, 16, 8)
    assert [pages.block_table(seq) for seq in range(3)] == [(0, 1), (0, 2), (0, 3)]


def test_copy_on_write_ends_with_the_same_memory_and_begins_with_less():
    pages, before = forked(Paged, 3)
    assert before == (0, 8)
    assert (pages.copied_slots, pages.cow_copies, pages.used_slots) == (4, 2, 16)


def test_where_the_last_page_is_full_nothing_is_copied():
    pages, before = forked(Mlc, 3, tokens=8)
    assert (before, pages.copied_slots, pages.used_slots) == ((0, 8), 0, 20)


def test_without_a_free_page_the_last_one_is_shared_until_somebody_writes():
    pages = Mlc(8, 4)
    assert pages.admit(0, 6, 6) and pages.fork(0, 1, 6)
    assert (pages.copied_slots, pages.shared_tokens, pages.shared_tail_slots()) == (0, 6, 2)
    assert not pages.grow(1, 7)
    pages.release(0)
    assert pages.grow(1, 7)
    assert pages.copied_slots == 0


def test_what_two_pages_hold_is_released_page_by_page():
    pages, _ = forked(Mlc, 2)
    pages.release(0)
    assert (pages.used_slots, pages.shared_tokens) == (8, 0)
    pages.release(1)
    assert (pages.used_slots, pages.free_slots) == (0, 64)
