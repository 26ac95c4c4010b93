"""TensorRT-LLM's blocks worked by hand: priorities, leaves first, expiry, partial reuse."""

import pytest

from kvsim.allocators.base import InvariantError
from kvsim.allocators.retention import Retention
from kvsim.allocators.tensorrt_llm import TensorRTLLM

SYSTEM, QUESTION, OTHER = (0, 0, 8), (1, 0, 8), (2, 0, 8)


def place(blocks, seq, content, tokens):
    """Admit a sequence and compute all its tokens; how many were there already."""
    match = blocks.match(content, seq, tokens - 1)
    assert blocks.can_admit_after(match, tokens, tokens)
    assert blocks.admit_after(match, seq, tokens, tokens)
    blocks.fill(seq, tokens)
    return match.tokens


def found(blocks, content):
    return blocks.match(content, 99, sum(length for _, _, length in content)).tokens


# -- the order in which blocks go -----------------------------------------------------------------


def test_the_lowest_priority_goes_first_then_the_block_freed_first():
    order = Retention(4)
    allocated = [order.take(lambda _: True) for _ in range(4)]
    assert allocated == [0, 1, 2, 3]
    order.retain(2, 80)
    order.retain(3, 20)
    for block in (1, 2, 3, 0):
        order.give_back(block)
    assert order.order() == [3, 1, 0, 2]
    assert [order.take(lambda block: block != 1) for _ in range(4)] == [3, 0, 2, 1]
    assert order.priority == [35, 35, 35, 35]


def test_blocks_are_taken_at_once_as_one_by_one_where_all_are_leaves():
    orders = [Retention(9), Retention(9)]
    for order in orders:
        allocated = order.take_first(7)
        order.retain(4, 80)
        order.retain(1, 20, lasts=5)
        for block in reversed(allocated):
            order.give_back(block)
    one, other = orders
    assert one.take_first(8) == [other.take(lambda _: True) for _ in range(8)] == [1, 7, 8, 6, 5, 3, 2, 0]
    for order in orders:
        assert (order.order(), order.free, order.priority) == ([4], 1, [35] * 4 + [80] + [35] * 4)
        order.refresh(99)
        assert order.order() == [4]


def test_a_priority_that_is_over_goes_back_to_the_default_as_if_just_freed():
    order = Retention(3)
    for _ in range(3):
        order.take(lambda _: True)
    order.retain(0, 90, lasts=10)
    order.retain(1, 10, lasts=30)
    order.refresh(100)
    for block in (0, 1, 2):
        order.give_back(block)
    assert order.order() == [1, 2, 0]
    order.refresh(109)
    assert order.order() == [1, 2, 0]
    order.refresh(110)
    assert (order.order(), order.priority[0]) == ([1, 2, 0], 35)
    order.refresh(130)
    assert order.order() == [2, 0, 1]


def test_a_block_that_is_used_again_keeps_its_priority_and_forgets_its_end():
    order = Retention(2)
    order.take(lambda _: True)
    order.retain(0, 90, lasts=10)
    order.give_back(0)
    order.claim(0)
    order.refresh(50)
    assert order.priority[0] == 90
    with pytest.raises(ValueError, match="priority must be 0 to 100, got 101"):
        order.retain(0, 101)


# -- blocks and texts -----------------------------------------------------------------------------


def test_full_blocks_are_shared_while_they_are_in_use_and_cached_afterwards():
    blocks = TensorRTLLM(64, 4, caches=True)
    assert place(blocks, 1, (SYSTEM,), 10) == 0
    assert place(blocks, 2, (SYSTEM,), 10) == 8
    assert (blocks.block_table(1), blocks.block_table(2)) == ((0, 1, 2), (0, 1, 3))
    assert (blocks.used_slots, blocks.shared_tokens, blocks.cached_slots) == (16, 8, 0)
    blocks.release(1)
    assert (blocks.used_slots, blocks.shared_tokens, blocks.cached_slots) == (12, 0, 0)
    blocks.release(2)
    assert (blocks.used_slots, blocks.cached_slots) == (0, 8)
    assert blocks.ledger({}, {})[:6] == (0, 0, 0, 8, 0, 56)


def test_the_start_of_a_block_in_use_is_copied():
    blocks = TensorRTLLM(64, 4, caches=True)
    place(blocks, 1, (SYSTEM,), 9)
    assert place(blocks, 2, ((0, 0, 6), OTHER), 14) == 6
    assert (blocks.copied_slots, blocks.block_table(2)[:2]) == (2, (0, 3))
    assert blocks.used_slots == 24


def test_the_start_of_a_leaf_that_nobody_uses_is_taken_in_place():
    blocks = TensorRTLLM(64, 4, caches=True)
    place(blocks, 1, (SYSTEM,), 8)
    blocks.release(1)
    assert place(blocks, 2, ((0, 0, 6), OTHER), 14) == 6
    assert (blocks.copied_slots, blocks.block_table(2)[:2]) == (0, (0, 1))
    assert found(blocks, (SYSTEM,)) == 6  # its end is overwritten; the start can be copied again


def test_texts_go_from_their_end_and_those_of_high_priority_last():
    blocks = TensorRTLLM(32, 4, caches=True)
    place(blocks, 1, (SYSTEM,), 8)
    place(blocks, 2, (OTHER,), 8)
    blocks.retain(1, 8, 90)
    for seq in (1, 2):
        blocks.release(seq)
    assert blocks.admit(3, 20, 20)  # four blocks never used, and one cached
    assert (found(blocks, (SYSTEM,)), found(blocks, (OTHER,))) == (8, 4)
    assert blocks.admit(4, 8, 8)
    assert (found(blocks, (SYSTEM,)), found(blocks, (OTHER,))) == (4, 0)


def test_what_follows_a_text_that_goes_is_found_no_more():
    blocks = TensorRTLLM(24, 4, caches=True)
    for seq in (1, 2):  # both compute the system prompt: the second's blocks are not those that are found
        match = blocks.match((SYSTEM, QUESTION)[:seq], seq, 0)
        assert blocks.admit_after(match, seq, 4 + 4 * seq, 0)
    blocks.fill(1, 8)
    blocks.fill(2, 12)
    blocks.release(1)
    assert (blocks.cached_slots, found(blocks, (SYSTEM, QUESTION))) == (8, 12)
    assert blocks.admit(3, 12, 12)
    assert (blocks.cached_slots, found(blocks, (SYSTEM, QUESTION))) == (0, 0)
    blocks.release(2)
    blocks.release(3)
    assert (blocks.used_slots, blocks.cached_slots, blocks.shared_tokens) == (0, 0, 0)


def test_growth_says_which_growths_took_cached_blocks():
    blocks = TensorRTLLM(16, 4, caches=True)
    place(blocks, 1, (SYSTEM,), 8)
    blocks.release(1)
    assert blocks.admit(2, 4, 4)
    blocks.grow_many([2, 2, 2])
    assert (blocks.evicted_by, blocks.cached_slots, blocks.capacity(2)) == ([1, 2], 0, 16)
    with pytest.raises(InvariantError, match="1 growths were asked for, 0 promised"):
        blocks.grow_many([2])


def test_mistakes_are_told_with_their_numbers():
    blocks = TensorRTLLM(16, 4, caches=True)
    old = blocks.match((SYSTEM,), 1, 8)
    place(blocks, 1, (SYSTEM,), 8)
    with pytest.raises(InvariantError, match="a match of 0 tokens after 0 changes, now 2"):
        blocks.admit_after(old, 2, 2, 2)
    with pytest.raises(ValueError, match="block_size must be at least 1, got 0"):
        TensorRTLLM(9, 0)
