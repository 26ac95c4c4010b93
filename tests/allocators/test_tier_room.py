"""What a tier has room for, what it lacks, and what stays while others are stored."""

from random import Random

import pytest
from support.offloaded import evicted_keys

from kvsim.allocators.tiers.pieces import before, keys_of, size
from kvsim.allocators.tiers.vllm import VllmTier


def full_tier(policy):
    """Keys 0 to 7, whole, in a tier for 8: those of user 1, then those of user 2."""
    tier = VllmTier(8, policy)
    tier.know(100)
    for user, first in ((1, 0), (2, 4)):
        tier.introduce(user)
        pieces = [(0, first, 4)]
        tier.store(user, pieces)
        tier.stored(pieces)
        tier.leave(user)
    return tier


@pytest.mark.parametrize("policy", ["lru", "arc"])
def test_room_is_what_is_free_and_what_nobody_reads_or_keeps(policy):
    tier = full_tier(policy)
    assert tier.room([]) == 8
    assert tier.room([(0, 0, 3)]) == 5
    tier.load(3, [(0, 4, 2)])
    assert tier.room([(0, 0, 3)]) == tier.room([(0, 0, 3), (4, 4, 2)]) == 3
    assert tier.room([]) == 6, "asking keeps nothing"


@pytest.mark.parametrize("policy", ["lru", "arc"])
def test_a_store_takes_just_what_there_is_room_for(policy):
    tier, kept = full_tier(policy), [(0, 0, 3)]
    tier.introduce(3)
    assert tier.store(3, [(0, 50, 6)], kept) is None
    stored = tier.store(3, [(0, 50, tier.room(kept))], kept)
    assert sorted(evicted_keys(stored)) == [3, 4, 5, 6, 7]
    assert list(keys_of(stored.pieces)) == [50, 51, 52, 53, 54]
    assert tier.find(kept) == (3, False)


def test_what_is_kept_for_a_store_leaves_in_its_turn_later():
    tier = full_tier("lru")
    tier.introduce(3)
    assert tier.store(3, [(0, 50, 1)], [(0, 0, 4)]).evicted == [(7, 1)]
    assert tier.store(3, [(1, 51, 1)]).evicted == [(3, 1)]


def test_a_chain_lacks_what_comes_before_the_first_chunk_that_is_there():
    tier = full_tier("lru")
    assert tier.lacks([(0, 20, 2), (2, 30, 1), (3, 6, 4)]) == [(0, 20, 2), (2, 30, 1)]
    assert tier.lacks([(0, 0, 8)]) == []
    assert tier.lacks([(3, 6, 4)]) == []
    tier.store(1, [(0, 90, 1)])  # in the place of 3
    assert tier.lacks([(3, 3, 2)]) == [(3, 3, 1)]


@pytest.mark.parametrize("policy", ["lru", "arc"])
@pytest.mark.parametrize("seed", range(20))
def test_no_decision_depends_on_the_numbers_of_chunks(policy, seed):
    """With vLLM's numbers and without: the same hits, stores and evictions, in the same order."""
    rng, tiers = Random(seed), [VllmTier(12, policy, numbered=numbered) for numbered in (True, False)]
    reading, writing, left = [], [], 0
    for tier in tiers:
        tier.know(60)
    for step in range(400):
        user, first, other = step, rng.randrange(40), rng.randrange(50, 55)
        asked = [(first, first, rng.randint(1, 9)), (other, other, rng.randint(1, 5))]
        for tier in tiers:
            tier.introduce(user)
        found = [tier.find(asked) for tier in tiers]
        assert found[0] == found[1]
        count, written = found[0]
        hits = before(asked, count)
        if hits and not written:
            counts = {len(tier.load(user, hits)) for tier in tiers}
            assert counts == {size(hits)}
            reading.append(hits)
        one, two = (tier.store(user, asked) for tier in tiers)
        assert (one is None) == (two is None)
        if one is not None and two is not None:
            assert (one.pieces, one.evicted) == (two.pieces, two.evicted)
            assert len(one.chunks) == len(two.chunks) == size(one.pieces)
            left += len(evicted_keys(one))
            if one.pieces:
                writing.append(one.pieces)
        for jobs, end in ((reading, "loaded"), (writing, "stored")):
            while jobs and rng.random() < 0.6:
                pieces = jobs.pop(rng.randrange(len(jobs)))
                for tier in tiers:
                    getattr(tier, end)(pieces)
        for tier in tiers:
            tier.leave(user)
        assert tiers[0].held == tiers[1].held
    assert left > 100
