"""Hits of a prefix cache with a given eviction policy, for requests that share prefixes.

    request   blocks    held before   hits   then used
       1      a b c     -             0      c b a
       2      a b d     a b c         2      d b a      the first block of a request is its newest
       3      a e       a b d         1      e a

A prefix cache finds the blocks of a request up to the first miss. Then all blocks of the request are used,
the last one first, as engines free them: so the end of a prompt is evicted first. A block held behind a gap
is used like any other, though it is not a hit.
"""

from collections.abc import Sequence

from kvsim.allocators.eviction.base import Chain, Eviction


def next_uses(stream: Sequence[int]) -> list[int]:
    """The position of the next use of each block in a stream; past the end if there is none."""
    count = len(stream)
    found, last = [0] * count, dict[int, int]()
    for place in range(count - 1, -1, -1):
        block = stream[place]
        found[place] = last.get(block, count + place)
        last[block] = place
    return found


def prefix_hits(cache: Eviction, chains: Sequence[Chain]) -> int:
    """Total blocks that a prefix cache hits over all requests."""
    if cache.offline:
        cache.foresee(_last_first(chains))
    held, touch, insert, informed = cache.held, cache.touch, cache.insert, cache.informed
    hits = 0
    for chain in chains:
        if informed:
            cache.meet(chain)
        blocks = chain.blocks
        for block in blocks:
            if block not in held:
                break
            hits += 1
        for block in reversed(blocks):
            if block in held:
                touch(block)
            else:
                insert(block)
    return hits


def _last_first(chains: Sequence[Chain]) -> list[int]:
    """The next uses in call order; look-ups start at the first block.

    So of two blocks that the same request uses next, the one that it looks up first counts as sooner.
    """
    found = next_uses([block for chain in chains for block in chain.blocks])
    at = 0
    for chain in chains:
        end = at + len(chain.blocks)
        found[at:end] = found[at:end][::-1]
        at = end
    return found
