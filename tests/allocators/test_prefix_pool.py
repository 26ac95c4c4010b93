"""Free blocks that remember their text, where several sequences computed the same one: worked out by hand."""

import pytest

from kvsim.allocators.options import CacheRules, Order
from kvsim.allocators.paged import Paged
from kvsim.allocators.pool import FreeList
from kvsim.allocators.prefix_pool import PrefixPool
from kvsim.allocators.records import InvariantError

TEXT = ((1, 0, 16),)  # four blocks of four


def two_of_one_text(newest):
    """An arena of ten blocks; sequences 0 and 1 compute the same text, as neither found the other's."""
    memory = Paged(40, 4, Order.QUEUE, cache=CacheRules(newest=newest))
    for seq in (0, 1):
        assert memory.admit_after(memory.match(TEXT, seq, 16), seq, 16, 16)
    assert (memory.block_table(0), memory.block_table(1)) == ((0, 1, 2, 3), (4, 5, 6, 7))
    return memory


def test_a_text_that_was_freed_in_one_piece_is_replaced_in_its_middle():
    memory = two_of_one_text(newest=True)
    memory.fill(0, 4)
    memory.fill(1, 12)
    memory.release(1)
    assert memory.cached_slots == 12
    memory.fill(0, 8)  # its second block is found now, and no more that of sequence 1
    assert memory.cached_slots == 8
    assert memory.free_queue() == (8, 9, 7, 6, 5, 4)
    found = memory.match(TEXT, 2, 15)
    assert (found.blocks, found.tokens, found.woken_slots) == ([4, 1, 6], 12, 8)
    assert memory.admit_after(found, 2, 16, 16)
    assert memory.block_table(2) == (4, 1, 6, 8)
    assert (memory.free_queue(), memory.cached_slots) == ((9, 7, 5), 0)


@pytest.mark.parametrize("newest", [False, True])
def test_blocks_that_were_not_computed_are_not_taken_for_those_of_another_sequence(newest):
    memory = two_of_one_text(newest)
    memory.fill(1, 16)
    memory.release(0)
    assert (memory.free_queue(), memory.cached_slots) == ((8, 9, 3, 2, 1, 0), 0)
    assert memory.match(TEXT, 2, 16).blocks == [4, 5, 6, 7]
    memory.release(1)
    assert (memory.free_queue()[-4:], memory.cached_slots) == ((7, 6, 5, 4), 16)


def test_a_free_block_that_no_span_has_is_an_error_that_names_its_key():
    pool = PrefixPool(4, CacheRules())
    pool.know(2)
    pool.enter(0, pool.allocate(2))
    pool._state[:] = b"\2\2"
    with pytest.raises(InvariantError, match="key 0 is of a free block, but of none of 0 spans"):
        pool.wake(0, 2)


def test_it_is_a_pool_block_by_block():
    pool, tables = PrefixPool(4, CacheRules()), {7: [], 8: []}
    assert pool.allocate_one() == 0
    pool.allocate_each([7, 8], tables)
    assert (tables, pool.free) == ({7: [1], 8: [2]}, 1)
    pool.give_back([0])
    assert (tuple(pool.queue()), pool.free) == ((3, 0), 2)


@pytest.mark.parametrize("order", [Order.STACK, Order.QUEUE])
def test_every_pool_allocates_one_as_it_allocates_several(order):
    """The pool of texts is a pool like the list of free blocks."""
    pools = [FreeList(6, order), FreeList(6, order), PrefixPool(6, CacheRules()), PrefixPool(6, CacheRules())]
    one, several, one_of_texts, several_of_texts = pools
    for pool in pools:
        pool.give_back(pool.allocate(4)[1:3])
    assert [one.allocate_one() for _ in range(4)] == several.allocate(4)
    assert [one_of_texts.allocate_one() for _ in range(4)] == several_of_texts.allocate(4)
    assert [pool.free for pool in pools] == [0, 0, 0, 0]
