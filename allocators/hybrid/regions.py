"""Where the pages of unlike layers lie, if each group has its own pool: in use, cached, and what is between.

| f 7 | f 7 | w 7 | w 7 |     |     | w c |     |      f, w: the layers; 7: the owner; c: cached
            |- a large page --|                        its empty slots are idle, all others free
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import itemgetter

from kvsim.allocators.arena import Region, Table
from kvsim.allocators.hybrid.cache import HybridCache
from kvsim.allocators.hybrid.pool import NULL
from kvsim.allocators.hybrid.specs import GroupSpec


def tables_of(group: GroupSpec, cache: HybridCache, at: int) -> Iterator[Table]:
    """The block tables of group `at`; a state counts as one token that fills its page."""
    tables, size = cache.groups[at], cache.memory.sizes[at]
    for seq, table in tables.tables.items():
        if tables.of_state:
            yield from (Table(seq, 0, [page], size, group.layers) for page in table if page != NULL)
        else:
            yield Table(seq, 0, [page or None for page in table], size // tables.block_size, group.layers)


def regions(groups: Sequence[GroupSpec], cache: HybridCache) -> Iterator[Region]:
    """Every range of slots, by address."""
    memory, found, parts = cache.memory, list[Region](), list(_parts(groups, cache))
    for at, (group, pool, size) in enumerate(zip(groups, memory.pools, memory.sizes, strict=True)):
        used: dict[int, Region] = {}
        for seq, _, table, per_token, layers in tables_of(group, cache, at):
            for place, page in enumerate(table):
                if page is not None:
                    owners = (*used[page].owners, seq) if page in used else (seq,)
                    first, start = place * (size // per_token), memory.place(at, page)
                    used[page] = Region(start, size, owners, first, per_token=per_token, layers=layers)
        name = group.layers if len(groups) > 1 else ""
        cached = pool.cached_pages()
        found += used.values()
        found += [Region(memory.place(at, page), size, (), cached=True, layers=name) for page in cached]
    end = 0
    for region in sorted(found):
        yield from _empty(end, region.start, parts)
        yield region
        end = region.start + region.size
    yield from _empty(end, memory.slots, parts)


def _parts(groups: Sequence[GroupSpec], cache: HybridCache) -> Iterator[tuple[int, bool, str]]:
    """(end, idle, layers) of the empty slots of each part; idle: inside a large page begun by a kind."""
    memory, end = cache.memory, 0
    for name, slots in memory.apart([group.layers for group in groups]):
        end += slots
        yield end, False, name
    for start, slots in memory.begun():
        yield start, False, ""
        yield start + slots, True, ""
    yield memory.slots, False, ""


def _empty(start: int, end: int, parts: Sequence[tuple[int, bool, str]]) -> Iterator[Region]:
    """Slots without an owner between two pages, part by part."""
    at = bisect_right(parts, start, key=itemgetter(0))
    while start < end:
        upto, idle, layers = parts[at]
        if start < upto:
            yield Region(start, min(upto, end) - start, (), idle=idle, layers=layers)
            start = min(upto, end)
        at += 1
