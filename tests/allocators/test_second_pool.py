"""A second pool of blocks against a plain queue of blocks that are freed one by one."""

from random import Random

import pytest

from kvsim.allocators.records import InvariantError
from kvsim.allocators.tiers.second_pool import SecondPool


class OneByOne:
    """The same with a list of free blocks, the next to be taken first."""

    def __init__(self, blocks):
        self.queue, self.holders, self.keys, self.known = [*range(blocks)], {}, {}, {}

    def find(self, pieces):
        found = []
        for _, first, count in pieces:
            for key in range(first, first + count):
                if not self.known.get(key):
                    return found
                found.append(self.known[key][0])
        return found

    def take(self, count):
        taken = [self.queue.pop(0) for _ in range(count)]
        had = 0
        for block in taken:
            self.holders[block] = 1
            if block in self.keys:
                had += 1
                self.known[self.keys.pop(block)].remove(block)
        return taken, had

    def enter(self, block, key):
        self.keys[block] = key
        self.known.setdefault(key, []).append(block)

    def hold(self, block):
        if block not in self.holders:
            self.queue.remove(block)
        self.holders[block] = self.holders.get(block, 0) + 1

    def leave(self, block):
        self.holders[block] -= 1
        if not self.holders[block]:
            del self.holders[block]
            self.queue.append(block)


def in_order(blocks, backward):
    return [*reversed(blocks)] if backward else blocks


@pytest.mark.parametrize("backward", [False, True])
def test_a_block_without_holders_is_not_freed_again(backward):
    pool = SecondPool(4)
    pool.know(4)
    blocks, _ = pool.take(3)
    pool.enter(0, blocks)
    pool.leave([(0, [*blocks])], backward)
    with pytest.raises(InvariantError, match="block 1 with key 1 is freed again"):
        pool.leave([(1, [blocks[1]])], backward)


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_rows_are_blocks_one_by_one(seed, lazy):
    """Also if two stores have the same keys, and if rows are hit and reused in part."""
    rng, blocks, texts = Random(seed), 24, 6
    pool, plain = SecondPool(blocks), OneByOne(blocks)
    pool.know(texts * 10)
    stores, held = [], []
    for _ in range(600):
        first, doing = 10 * rng.randrange(texts), rng.random()
        start, count = rng.randrange(3), rng.randint(1, 7)
        if doing < 0.4 and count <= len(plain.queue):
            key, (there, had) = first + start, pool.take(count)
            assert (there, had) == plain.take(count)
            stores.append((key, in_order(there, lazy)))
        elif doing < 0.6 and stores:
            key, there = stores.pop(rng.randrange(len(stores)))
            for at, block in in_order([*enumerate(there)], lazy):
                plain.enter(block, key + at)
            for block in in_order(there, lazy):
                plain.leave(block)
            pool.enter(key, there)
            pool.leave([(key, [*there])], lazy)
        elif doing < 0.8:
            pieces = [(0, first + start, count), (count, 10 * rng.randrange(texts), rng.randint(1, 4))]
            rows = pool.find(pieces)
            found = [block for _, row in rows for block in row]
            assert found == plain.find(pieces)
            pool.hold(rows)
            for block in found:
                plain.hold(block)
            held.append(rows)
        elif held:
            rows = held.pop(rng.randrange(len(held)))
            pool.leave(rows)
            for _, row in rows:
                for block in row:
                    plain.leave(block)
        assert list(pool.pool.queue()) == plain.queue
        assert pool.free == len(plain.queue)
        assert pool.held == blocks - len([block for block in plain.queue if block not in plain.keys])
        assert pool.extra == {block: count - 1 for block, count in plain.holders.items() if count > 1}
        for key in range(texts * 10):
            assert pool.knows(key) == bool(plain.known.get(key)) == (not pool.unknown(key, 1))
