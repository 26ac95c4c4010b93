"""Checks an eviction policy's contract: random streams of requests through caches of many sizes.

A plain set follows the answers and is compared with `held` after each call. The rules are those numbered in
allocators/eviction/base.py; the first broken one raises InvariantError with the call.
"""

import random
from collections.abc import Iterator, Sequence

from kvsim.allocators.eviction.base import Chain, Eviction
from kvsim.allocators.eviction.replay import next_uses
from kvsim.allocators.records import InvariantError

RULES: dict[str, str] = {
    "held_is_what_came_and_did_not_leave": "the blocks that came and did not leave are held, and no others",
    "never_more_than_fit": "no more blocks are held than there is room for",
    "who_leaves_was_there": "a block leaves once, and only if it was held or has just come",
    "nobody_leaves_without_need": "nothing leaves while there is room",
    "one_leaves_for_one": "a full cache stays full",
    "same_calls_same_answers": "the same calls give the same answers",
    "larger_holds_what_smaller_does": "a larger cache holds what a smaller one does, if the policy says so",
}
"""Name of a rule -> its text."""

CAPACITIES = (1, 2, 3, 7, 20, 101, 250)


def check_eviction(
    policy: type[Eviction], options: object = None, *, requests: int = 300, seed: int = 0
) -> None:
    """Check every rule on a class; InvariantError for the first broken one."""
    for number, blocks in enumerate((1, 9, 60, 400)):
        chains = list(random_chains(requests, blocks, random.Random(f"{seed}/{number}")))
        smaller: list[frozenset[int]] = []
        for capacity in CAPACITIES:
            first = _tried(policy(capacity, options), chains)
            if _tried(policy(capacity, options), chains) != first:
                raise InvariantError(f"same_calls_same_answers: {policy.__name__} of {capacity} blocks")
            if policy.stack and any(not few <= many for few, many in zip(smaller, first, strict=False)):
                raise InvariantError(
                    f"larger_holds_what_smaller_does: {policy.__name__} of {capacity} blocks"
                )
            smaller = first


def random_chains(requests: int, blocks: int, rng: random.Random) -> Iterator[Chain]:
    """Requests with common prefixes, and now and then a run that never recurs."""
    known: list[tuple[int, ...]] = [()]
    new, now_ms = blocks, 0
    for _ in range(requests):
        begin = rng.choice(known[-8:])
        more = [rng.randrange(blocks) for _ in range(rng.randint(1, 6))]
        if rng.random() < 0.1:
            more += range(new, new + 5)
            new += 5
        chain = tuple(dict.fromkeys((*begin, *more)))[: max(3, blocks // 3)]
        if rng.random() < 0.3:
            known.append(chain[: rng.randint(0, len(chain))])
        now_ms += rng.choice((0, 5, 900))
        if chain:
            yield Chain(chain, 16, rng.randrange(3), now_ms)


def _tried(cache: Eviction, chains: Sequence[Chain]) -> list[frozenset[int]]:
    """Make the calls; returns the blocks held after each."""
    policy, capacity = type(cache), cache.capacity
    if policy.offline:
        cache.foresee(next_uses([block for chain in chains for block in chain.blocks]))
    model: set[int] = set()
    known: set[int] = set()
    found: list[frozenset[int]] = []
    for chain in chains:
        known.update(chain.blocks)
        if policy.informed:
            cache.meet(chain)
        for block in chain.blocks:
            before = len(model)
            hit = block in model
            left = cache.touch(block) if hit else cache.insert(block)
            call = (
                f"{policy.__name__} of {capacity} blocks, {'touch' if hit else 'insert'} {block}, {left} left"
            )
            model.add(block)
            if len(set(left)) != len(left) or not model.issuperset(left):
                raise InvariantError(f"who_leaves_was_there: {call}")
            model.difference_update(left)
            if len(cache.held) != len(model) or {each for each in known if each in cache.held} != model:
                raise InvariantError(f"held_is_what_came_and_did_not_leave: {call}, {len(cache.held)} held")
            if len(model) > capacity and not policy.overfills:
                raise InvariantError(f"never_more_than_fit: {call}, {len(model)} held")
            if left and not policy.leaves_room:
                if hit or before < capacity:
                    raise InvariantError(f"nobody_leaves_without_need: {call}, {before} were held")
                if len(model) != capacity:
                    raise InvariantError(f"one_leaves_for_one: {call}, {len(model)} held")
            found.append(frozenset(model))
    return found
