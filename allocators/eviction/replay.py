"""What a cache with some eviction policy hits of requests that share beginnings.

    request   blocks    held before   hits   used then
       1      a b c     -             0      c b a
       2      a b d     a b c         2      d b a      the first block of a request is its newest
       3      a e       a b d         1      e a

A prefix cache finds the blocks of a request up to the first that it lacks. All of them are used then, the
last one first, as engines free them: so what leaves first is the end of a prompt. A block held behind a gap
is used as any other, though it is no hit.
"""

from collections.abc import Sequence

from kvsim.allocators.eviction.base import Chain, Eviction


def next_uses(stream: Sequence[int]) -> list[int]:
    """For each use of a stream, the place of the next one of its block; without one, beyond the end."""
    count = len(stream)
    found, last = [0] * count, dict[int, int]()
    for place in range(count - 1, -1, -1):
        block = stream[place]
        found[place] = last.get(block, count + place)
        last[block] = place
    return found


def prefix_hits(cache: Eviction, chains: Sequence[Chain]) -> int:
    """Blocks that a prefix cache finds for all requests together."""
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
    """The next uses in the order of the calls: they are those of look-ups, which go from the first block on.

    So of two blocks that the same request asks for next, the one that it finds first is the sooner one.
    """
    found = next_uses([block for chain in chains for block in chain.blocks])
    at = 0
    for chain in chains:
        end = at + len(chain.blocks)
        found[at:end] = found[at:end][::-1]
        at = end
    return found
