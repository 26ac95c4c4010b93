"""Streams of single blocks, on which eviction policies are tried by hand and against recordings."""

from kvsim.allocators.eviction.replay import next_uses


def stream_hits(cache, stream):
    """Whether each block of a stream is held when its turn comes."""
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
