"""Groups of different pages in one block: if blocks are outermost, pages of one block lie side by side.

    group 0: | block 0 [ A | B  | pad ] | block 1 [ A | B  | pad ] | ...
    group 1: | block 0 [  C  |    D   ] | block 1 [  C  |    D   ] | ...

Pages need not be equal, but a block is as wide as the widest group, so groups should have equal widths.
Layers that need the same slots form a bucket. A bucket with equally many pages of every size repeats a
pattern, and is split into groups with the least wasteful number of repeats; states, down to one per group,
are split to fit the others' block (vllm/v1/core/kv_cache_planning.py, _get_packed_kv_cache_groups).
"""

from collections.abc import Sequence

from kvsim.sim.kv.pages import Group, Layers, Page, same_slots

Bucket = list[tuple[int, Page]]
Sizes = dict[int, Bucket]


def packed_groups(layers: Layers) -> list[Group]:
    """The groups of layers that cannot form a single group."""
    buckets = _buckets(layers)
    sizes = [_by_size(bucket) for bucket in buckets]
    balanced = [len({len(alike) for alike in by_size.values()}) == 1 for by_size in sizes]
    mixed = [_repeats(each) for each, even in zip(sizes, balanced, strict=True) if even and len(each) > 1]
    counts = [_repeats(each) for each, even in zip(sizes, balanced, strict=True) if even]
    repeats = least_padding(counts, max(mixed)) if mixed else None

    numbers = [
        -(-_repeats(each) // repeats) if even and repeats is not None else 1
        for each, even in zip(sizes, balanced, strict=True)
    ]
    states = [
        bucket[0][1].kind == "mamba" or (repeats is None and bucket[0][1].kind == "sliding_window")
        for bucket in buckets
    ]
    anchor = max(
        _widest(each, len(bucket) if state else number)
        for bucket, each, number, state in zip(buckets, sizes, numbers, states, strict=True)
    )
    groups = []
    for bucket, each, number, state in zip(buckets, sizes, numbers, states, strict=True):
        count = number
        if state:
            count = max(count, -(-len(bucket) // max(anchor // bucket[0][1].bytes, 1)))
        groups += _cut(bucket, each, count)
    return groups


def _cut(bucket: Bucket, sizes: Sizes, count: int) -> list[Group]:
    if count == 1:
        return [_group(bucket)]
    pattern = list(zip(*sizes.values(), strict=False))
    return [_group([layer for repeat in pattern[first::count] for layer in repeat]) for first in range(count)]


def _group(layers: Bucket) -> Group:
    return Group(tuple(number for number, _ in layers), tuple(page for _, page in layers))


def _buckets(layers: Layers) -> list[Bucket]:
    """Layers that need the same slots; each goes into the first bucket that it fits."""
    buckets: list[Bucket] = []
    for layer in layers:
        for bucket in buckets:
            if same_slots([*(page for _, page in bucket), layer[1]]):
                bucket.append(layer)
                break
        else:
            buckets.append([layer])
    return buckets


def _by_size(bucket: Bucket) -> Sizes:
    sizes: Sizes = {}
    for layer in bucket:
        sizes.setdefault(layer[1].bytes, []).append(layer)
    return sizes


def _repeats(sizes: Sizes) -> int:
    """Repeats of the pattern: the most layers that share a page size."""
    return max(len(alike) for alike in sizes.values())


def _widest(sizes: Sizes, groups: int) -> int:
    """Bytes of the widest of `groups` groups."""
    return sum(-(-len(alike) // groups) * page for page, alike in sizes.items())


def least_padding(counts: Sequence[int], least: int) -> int:
    """The size, at least `least`, to whose multiples `counts` round up most cheaply; ties: the larger."""
    best, cost = least, None
    for size in range(least, max(*counts, least) + 1):
        padding = sum(-count % size for count in counts)
        if cost is None or padding <= cost:
            best, cost = size, padding
    return best
