"""Jenga's large pages and a fixed split: who gets which page, what is idle, and that bytes add up."""

import random
from typing import NamedTuple

import pytest

from kvsim.allocators.hybrid.large_pages import CACHED, HELD, IDLE, LargePages
from kvsim.allocators.hybrid.memory import SplitPools


class Ledger(NamedTuple):
    """The bytes of an arena by use, counted page by page."""

    held: int
    cached: int
    idle: int
    free: int

    @classmethod
    def of(cls, arena):
        counts = [
            sum(
                large.states.count(state) * arena.large_bytes // large.kind.each
                for large in arena._pages.values()
            )
            for state in (HELD, CACHED, IDLE)
        ]
        return cls(*counts, arena.free * arena.large_bytes)


def assert_counts_are_those_of_the_pages(arena):
    whole, partly, begun = 0, [0] * len(arena.kinds), [0] * len(arena.kinds)
    for large in arena._pages.values():
        held = large.states.count(HELD)
        assert (large.held, large.cached) == (held, large.states.count(CACHED))
        begun[large.kind.number] += 1
        whole += not held
        partly[large.kind.number] += large.kind.each - held if held else 0
    assert arena.whole == whole
    assert [(kind.partly, kind.begun) for kind in arena.kinds] == list(zip(partly, begun, strict=True))


def test_each_kinds_page_divides_the_large_page_and_nothing_is_padded():
    arena = LargePages(1000, [4, 6])
    assert (arena.large_bytes, arena.count) == (12, 83)
    assert [kind.each for kind in arena.kinds] == [3, 2]


def test_a_request_fills_the_large_pages_that_it_has_begun_and_another_begins_its_own():
    arena = LargePages(36, [4, 6])
    assert [arena.take(0, request) for request in (1, 1, 2, 1, 2)] == [(0, 0), (0, 1), (1, 0), (0, 2), (1, 1)]
    ledger = Ledger.of(arena)
    assert (ledger.held, ledger.idle, ledger.free) == (20, 4, 12)


def test_with_no_large_page_free_a_small_one_of_another_request_is_taken_and_no_other_kinds():
    arena = LargePages(12, [4, 6])
    assert arena.take(0, 1) == (0, 0)
    assert arena.take(0, 2) == (0, 1)
    assert arena.take(1, 3) is None
    arena.release((0, 0))
    arena.release((0, 1))
    assert arena.take(1, 3) == (0, 0)


def test_the_large_page_used_longest_ago_is_evicted_whole_before_any_small_one():
    evicted = []
    arena = LargePages(24, [4, 6], lambda *page: evicted.append(page))
    old, new = ([arena.take(0, request) for _ in range(3)] for request in (1, 2))
    for page in (*old, *new):
        arena.tick()
        arena.use(page)
        arena.release(page, keep=True)
    assert Ledger.of(arena).cached == 24
    assert arena.take(1, 3) == (0, 0)
    assert evicted == [(0, page) for page in old]
    assert Ledger.of(arena) == (6, 12, 6, 0)
    assert [arena.hit(page) for page in (old[0], new[0])] == [False, True]


def test_small_pages_are_evicted_by_last_use_and_the_longer_prefix_first():
    arena = LargePages(12, [4, 6])
    old, longer, shorter = (arena.take(0, 1) for _ in range(3))
    held = [old, longer, shorter]
    arena.release(old, keep=True)
    arena.tick()
    for page, prefix in ((shorter, 16), (longer, 32)):
        arena.use(page, prefix)
    arena.release(longer, keep=True)
    assert [arena.take(0, 2), arena.take(0, 2)] == [old, longer]
    arena.release(shorter, keep=True)
    arena.release(longer, keep=True)
    assert [arena.take(0, 2) for _ in range(3)] == [longer, shorter, None]
    assert len(set(held)) == 3


def test_sizes_without_a_small_common_multiple_are_refused():
    with pytest.raises(ValueError, match="common multiple of at most 4096 times"):
        LargePages(10**9, [65_537, 65_539])
    with pytest.raises(ValueError, match="at least 1 each"):
        LargePages(100, [0])


def test_bytes_add_up_to_the_capacity_whatever_is_asked():
    rng = random.Random(7)
    arena = LargePages(5_003, [32, 48, 80])
    held = []
    for _ in range(5_000):
        action = rng.random()
        if action < 0.6:
            page = arena.take(kind := rng.randrange(3), rng.randrange(5))
            if page is not None:
                held.append(page)
                arena.use(page, rng.randrange(4))
                assert kind in (0, 1, 2)
        elif held:
            arena.release(held.pop(rng.randrange(len(held))), keep=rng.random() < 0.5)
        assert sum(Ledger.of(arena)) == 10 * 480 == arena.count * arena.large_bytes
        assert_counts_are_those_of_the_pages(arena)
        assert sum(large.held for large in arena._pages.values()) == len(held) == len(set(held))
    for page in held:
        arena.release(page)
    assert Ledger.of(arena).held == 0


def test_a_request_of_two_kinds_fits_wherever_some_order_makes_it_fit():
    """Two free large pages would go to the first kind, though it has room beside another request's pages."""
    arena = LargePages(48, [4, 6])
    assert [arena.take(0, 1), arena.take(1, 1)] == [(0, 0), (1, 0)]
    wanted = [2, 5]
    assert arena.room(wanted, [[], []])
    assert not arena.room([3, 5], [[], []])
    assert not arena.room([2, 6], [[], []])
    arena.plan(wanted)
    assert [arena.take(0, 2) for _ in range(2)] == [(0, 1), (0, 2)]
    assert [arena.take(1, 2) for _ in range(5)] == [(2, 0), (2, 1), (3, 0), (3, 1), (1, 1)]
    assert arena.take(0, 2) is None


def test_hits_keep_large_pages_that_could_have_been_evicted():
    arena = LargePages(24, [4, 6])
    pages = [arena.take(0, 1) for _ in range(4)]
    for page in pages:
        arena.release(page, keep=True)
    assert arena.room([0, 4], [[], []])
    assert arena.room([2, 2], [[pages[0]], []])
    assert not arena.room([0, 4], [[pages[0]], []])
    assert not arena.room([0, 2], [[pages[0], pages[3]], []])
    assert arena.room([4, 0], [[pages[0], pages[3]], []])
    assert not arena.room([5, 0], [[pages[0], pages[3]], []])


def test_a_picture_beside_little_text_fills_its_large_pages():
    """Llama-3.2-Vision: 32 layers keep 43 tokens of text, 8 of cross attention 6,193 of a picture."""
    arena = LargePages(200 * 16 * 32, [16 * 32, 16 * 8])
    pages = [
        arena.take(kind, 1) for kind, count in ((0, -(-43 // 16)), (1, -(-6193 // 16))) for _ in range(count)
    ]
    ledger = Ledger.of(arena)
    begun = 200 - ledger.free // arena.large_bytes
    assert (begun, len([page for page in pages if page]), ledger.idle) == (100, 391, 0)
    empty = 1 - (43 * 32 + 6193 * 8) / ledger.held
    uniform = 1 - (43 * 32 + 6193 * 8) / ((43 + 6193) * 40)
    assert (round(100 * empty, 1), round(100 * uniform, 1)) == (0.5, 79.6)


def test_what_one_kind_does_not_use_no_other_can_have_in_a_fixed_split():
    pools, none = SplitPools([50, 10], [1, 1], caching=False), [(), ()]
    assert pools.room([50, 10], none)
    assert not pools.room([51, 0], none)
    pools.pools[0].take(50)
    assert pools.room([0, 10], none)
    assert not pools.room([1, 0], none)
    jenga = LargePages(1000, [10, 50])
    assert sum(jenga.take(0, 1) is not None for _ in range(100)) == 100
