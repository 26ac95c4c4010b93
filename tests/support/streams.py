"""Streams of single blocks, to test eviction policies by hand and against recordings."""

from kvsim.allocators.eviction.replay import next_uses


def stream_hits(cache, stream):
    """For each block of a stream, whether it is held when its turn comes."""
    if cache.offline:
        cache.foresee(next_uses(stream))
    held, found = cache.held, []
    for block in stream:
        hit = block in held
        found.append(hit)
        if hit:
            cache.touch(block)
        else:
            cache.insert(block)
    return found
