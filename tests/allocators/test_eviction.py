"""Eviction policies: one contract for all, what holds between them, and rules on streams worked by hand."""

import random
import sys
from itertools import pairwise
from math import exp

import pytest
from support.streams import stream_hits

from kvsim.allocators.eviction import EVICTION
from kvsim.allocators.eviction.base import Chain, Eviction
from kvsim.allocators.eviction.contract import check_eviction, random_chains
from kvsim.allocators.eviction.replay import next_uses, prefix_hits
from kvsim.allocators.records import InvariantError
from kvsim.sim.errors import KvsimError
from kvsim.sim.eviction import eviction_named, evictions_named

ONLINE = [name for name in EVICTION if not eviction_named(name).policy.offline]
EXACT = [name for name in EVICTION if not eviction_named(name).policy.overfills]
STACKS = [name for name in EVICTION if eviction_named(name).policy.stack]


def cache(name, capacity):
    return eviction_named(name).cache(capacity)


def hits(name, capacity, stream):
    return sum(stream_hits(cache(name, capacity), stream))


def stream_of(seed, count=3000):
    """Popular blocks, a loop, and runs that are never seen again."""
    rng = random.Random(seed)
    found, new = [], 10_000
    while len(found) < count:
        kind = rng.random()
        if kind < 0.6:
            found += [min(int(rng.paretovariate(0.7)), 500) for _ in range(20)]
        elif kind < 0.8:
            found += range(600, 600 + rng.randint(5, 60))
        else:
            found += range(new, new + 15)
            new += 15
    return found[:count]


def left_in_turn(policy, blocks):
    """What leaves, call by call."""
    return [list(policy.touch(block) if block in policy.held else policy.insert(block)) for block in blocks]


@pytest.mark.parametrize("name", EVICTION)
def test_every_policy_keeps_the_contract(name):
    check_eviction(eviction_named(name).policy, requests=120)


@pytest.mark.parametrize("name", EVICTION)
def test_every_policy_says_what_it_is(name):
    policy = eviction_named(name).policy
    assert 10 <= len(policy.idea) <= 70 and 3 <= len(policy.used_by) <= 40 and policy.source
    assert list(EVICTION)[-1] == "belady" and [each for each in EVICTION if each not in ONLINE] == ["belady"]


@pytest.mark.parametrize("name", EVICTION)
def test_no_cache_has_room_for_nothing(name):
    with pytest.raises(InvariantError, match="room for at least 1 block, got 0"):
        eviction_named(name).cache(0)


@pytest.mark.parametrize("name", EVICTION)
@pytest.mark.parametrize("capacity", [2, 5, 300])
def test_one_block_again_and_again_is_missed_once(name, capacity):
    refused = name == "libcachesim-s3-fifo" and capacity < 20  # as libCacheSim does
    assert hits(name, capacity, [7] * 50) == (0 if refused else 49)


@pytest.mark.parametrize("name", EVICTION)
def test_a_cache_as_large_as_the_stream_hits_whatever_was_there_before(name):
    stream = stream_of(1)
    blocks = len(set(stream))
    room = blocks * 10 // 9 if name == "mooncake-store" else blocks  # it leaves a tenth empty
    assert hits(name, room + 4 - room % 4, stream) == len(stream) - blocks


@pytest.mark.parametrize("seed", range(3))
def test_nobody_does_better_than_belady(seed):
    stream = stream_of(seed, 1500)
    chains = list(random_chains(250, 60, random.Random(seed)))
    for capacity in (1, 2, 5, 17, 40, 90):
        bound = hits("belady", capacity, stream)
        found = prefix_hits(cache("belady", capacity), chains)
        for name in EXACT:
            assert hits(name, capacity, stream) <= bound, (name, capacity)
            assert prefix_hits(cache(name, capacity), chains) <= found, (name, capacity)


@pytest.mark.parametrize("name", STACKS)
def test_a_larger_stack_hits_all_that_a_smaller_one_does(name):
    stream = stream_of(5)
    rows = [stream_hits(cache(name, capacity), stream) for capacity in (1, 3, 10, 50, 200)]
    assert all(few <= many for less, more in pairwise(rows) for few, many in zip(less, more, strict=True))


@pytest.mark.parametrize("name", ["t-lru", "workload-aware", "cost-aware"])
def test_policies_that_are_told_of_no_request_are_lru(name):
    stream = stream_of(2)
    assert stream_hits(cache(name, 40), stream) == stream_hits(cache("lru", 40), stream)


def leaves_at(cache, times):
    """What leaves, call by call, of (ms, block)."""
    found = []
    for now_ms, block in times:
        cache.meet(Chain((block,), 16, 0, now_ms))
        found.append(list(cache.touch(block) if block in cache.held else cache.insert(block)))
    return found


def test_a_store_with_leases_lets_go_of_what_was_read_longest_ago():
    """Of 20 blocks 18 may be there: the 19th lets a twentieth go, and as many as are above, 2 in all."""
    puts = [(place, place) for place in range(18)]
    store = cache("mooncake-store", 20)
    assert leaves_at(store, [*puts, (18, 0), (19, 1)])[-2:] == [[], []]
    assert leaves_at(store, [(20, 18)]) == [[2, 3]], "0 and 1 have leases"
    assert leaves_at(store, [(21, 19), (10_018, 20)]) == [[], [4, 5]]
    assert leaves_at(store, [(10_019, 21), (10_019, 22)]) == [[], [6, 7]]
    assert 0 in store.held and 1 in store.held


def test_in_a_store_where_all_has_leases_a_put_finds_no_room():
    store = cache("mooncake-store", 4)
    leaves_at(store, [(0, 0), (0, 0), (1, 1), (1, 1), (2, 2), (2, 2)])
    assert leaves_at(store, [(3, 3)]) == [[3]], "above the watermark only the put itself may leave"
    assert leaves_at(store, [(10_001, 4)]) == [[0]], "the lease of 0 has ended"


def test_a_store_without_a_watermark_drops_what_finds_no_room():
    store = cache("mooncake-store:watermark=1", 3)
    assert leaves_at(store, [(0, 0), (1, 0), (2, 1), (3, 2), (4, 3)])[-1] == [3, 1]
    assert leaves_at(store, [(5, 4)]) == [[]]


def test_a_length_aware_cache_that_is_told_of_no_request_is_lfu():
    stream = stream_of(2)
    assert stream_hits(cache("length-aware", 40), stream) == stream_hits(cache("lfu", 40), stream)


def test_the_rules_differ_on_a_few_blocks():
    """Three fit; 1 is used again, then 4 and 5 come."""
    expected = {"fifo": [1, 2], "lru": [2, 3], "mru": [1, 4], "lfu": [2, 3], "clock": [2, 3], "sieve": [2, 3]}
    for name, left in expected.items():
        assert left_in_turn(cache(name, 3), [1, 2, 3, 1, 4, 5])[-2:] == [[each] for each in left], name


def test_a_clock_moves_what_it_spares_and_a_sieve_does_not():
    calls = [1, 2, 3, 1, 4, 5, 6]
    assert left_in_turn(cache("clock", 3), calls)[-3:] == [[2], [3], [1]]
    assert left_in_turn(cache("sieve", 3), calls)[-3:] == [[2], [3], [4]]


def test_a_prefix_cache_hits_nothing_behind_a_gap():
    chains = [Chain((1, 2, 3)), Chain((9,)), Chain((1, 2, 3))]
    assert prefix_hits(cache("lru", 3), chains) == 2  # 3 made room for 9
    assert prefix_hits(cache("mru", 3), chains) == 0  # 1 did
    assert prefix_hits(cache("belady", 3), chains) == 2


def test_of_equally_distant_blocks_the_bound_keeps_the_beginning():
    rng = random.Random(4)
    chains = [Chain(tuple(range(start, start + 6))) for start in (rng.randrange(4) * 10 for _ in range(80))]
    for capacity in (3, 8, 11, 20):
        policy = cache("belady", capacity)
        prefix_hits(policy, chains)
        for start in (0, 10, 20, 30):
            held = [block in policy.held for block in range(start, start + 6)]
            if start != chains[-1].blocks[0]:
                assert held == sorted(held, reverse=True)


def test_the_future_is_told_in_places_of_the_stream():
    assert next_uses([5, 6, 5, 5, 6]) == [2, 4, 3, 8, 9]
    policy = cache("belady", 1)
    policy.foresee([1])
    policy.insert(3)
    with pytest.raises(InvariantError, match="call 2 of belady, but 1 were foreseen"):
        policy.touch(3)


def test_tails_that_are_quick_to_compute_leave_first():
    policy = eviction_named("t-lru:threshold_tokens=48:next_prompt_tokens=16").cache(8)
    policy.meet(Chain((0, 1, 2, 3, 4, 5), 16))  # 6 + 1 - 3: four must stay
    for block in (0, 1, 2, 3, 4, 5):
        policy.insert(block)
    policy.meet(Chain((10, 11), 16))  # nothing of it must stay
    assert left_in_turn(policy, [10, 11]) == [[], []]
    policy.meet(Chain((20, 21, 22, 23, 24, 25), 16))
    assert left_in_turn(policy, [20, 21, 22, 23, 24]) == [[4], [5], [10], [11], [0]]


def test_the_end_of_a_prompt_leaves_before_its_beginning():
    policy = cache("length-aware", 3)
    policy.meet(Chain((1, 2, 3)))
    for block in (3, 2, 1):
        policy.insert(block)
    policy.touch(3)
    policy.meet(Chain((4, 5)))
    assert left_in_turn(policy, [5, 4]) == [[2], [5]]


def test_what_is_cheap_to_compute_and_old_leaves_first():
    policy = cache("cost-aware", 4)
    policy.meet(Chain((1, 2, 3), 16, 0, 0))  # they save 3, 2 and 1
    for block in (3, 2, 1):
        policy.insert(block)
    policy.meet(Chain((4,), 16, 0, 90_000))  # 1.2, 0.8, 0.4 by now; 4 saves 1
    policy.insert(4)
    policy.meet(Chain((5, 6, 7), 16, 0, 90_000))
    assert left_in_turn(policy, [7, 6, 5]) == [[3], [2], [4]]


def test_the_block_that_is_least_likely_to_come_back_leaves():
    """The table of the module: kind 0 comes back after 40 s, kind 1 seldom and after 20 s."""
    policy = cache("workload-aware", 2)
    for kind, uses, reuses, mean_ms in ((0, 998, 599, 40_000), (1, 998, 99, 20_000)):
        policy.meet(Chain((kind,), 16, kind, (10_000, 95_000)[kind]))
        policy.insert(kind)
        seen = policy._kinds[kind]
        seen.uses, seen.reuses, seen.reused_after_ms = uses, reuses, reuses * mean_ms
    policy._evicted, policy._lasted_ms = 1, 60_000
    policy.meet(Chain((2,), 16, 1, 100_000))
    chances = [policy._chance(0, 10_000), policy._chance(1, 95_000)]
    assert chances == pytest.approx([0.6 * (exp(-90 / 40) - exp(-150 / 40)), 0.1 * (exp(-0.25) - exp(-3.25))])
    assert [round(100 * each, 1) for each in chances] == [4.9, 7.4]
    assert left_in_turn(policy, [2]) == [[0]]


def test_an_own_policy_is_a_class(tmp_path, monkeypatch):
    (tmp_path / "mine_evicts.py").write_text(
        "from kvsim.allocators.eviction.lru import Lru\nclass Mine(Lru): pass\nclass Other: pass\n"
    )
    monkeypatch.chdir(tmp_path)
    try:
        assert issubclass(eviction_named("mine_evicts:Mine").policy, Eviction)
        with pytest.raises(KvsimError, match=r"must be a subclass of kvsim\.allocators\.eviction\.base"):
            eviction_named("mine_evicts:Other")
    finally:
        sys.modules.pop("mine_evicts", None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lrv", "did you mean 'lru'?"),
        ("slru:parts=2", "option 'parts' is unknown (known: segments)"),
        ("slru:segments=0", "segments must be at least 1"),
        ("slru:segments=x", "segments of eviction slru must be int, got 'x'"),
        ("lru:5", "option"),
    ],
)
def test_a_mistake_in_a_policy_is_told_in_one_line(text, said):
    with pytest.raises(KvsimError) as told:
        eviction_named(text)
    assert said in str(told.value) and "\n" not in str(told.value)


def test_all_are_those_built_in_each_once():
    assert [each.name for each in evictions_named(["lru", "all"])] == [
        "lru",
        *(n for n in EVICTION if n != "lru"),
    ]


class Forgetful(eviction_named("lru").policy):
    """Says that somebody left who stays."""

    def touch(self, block):
        super().touch(block)
        return (block,)


class Greedy(eviction_named("lru").policy):
    """Never lets go."""

    def insert(self, block):
        self.held[block] = None
        return ()


@pytest.mark.parametrize(
    ("policy", "rule"),
    [(Forgetful, "held_is_what_came_and_did_not_leave"), (Greedy, "never_more_than_fit")],
)
def test_the_contract_finds_who_breaks_it(policy, rule):
    with pytest.raises(InvariantError, match=rule):
        check_eviction(policy)
