"""Where every slot is: the kinds of the ledger, and ranges of addresses.

    kind       held by               contents
    token      a living sequence     keys and values, or a recurrent state
    reserved   a sequence            nothing yet
    internal   a sequence            nothing, ever
    cached     none                  a prefix that may be hit again
    idle       none                  nothing, but the allocator keeps it ready: mapped pages, cached segments
    external   none                  nothing, in pieces too small
    free       none                  nothing

Arenas are counted in slots (allocators/base.py); if a slot is a grain of bytes, a token takes several. If
layers are kept in groups, a range names its layers, and so does a free range that only these may use.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, repeat
from typing import NamedTuple


class Ledger(NamedTuple):
    """Every slot of the arena is exactly one of these; they sum to the capacity."""

    token: int
    """hold the key and value of a living sequence (a shared slot counts once), or its recurrent state"""
    reserved: int
    """allocated, empty, will be written by their owner later"""
    internal: int
    """allocated, will never be written again: the tail of the last block, rounding, over-reservation"""
    cached: int
    """hold a prefix that no sequence uses now but that may still be hit"""
    external: int
    """free, but in extents too small for the request at the head of the queue"""
    free: int
    """the rest"""
    idle: int = 0
    """empty, mapped or cached by the allocator: can be reclaimed for any use, at a cost"""

    @property
    def total(self) -> int:
        """The sum of all kinds: the capacity."""
        return sum(self)


Slots = tuple[int, int, int, int, int]
"""Slots held by one kind of layer, in the order of `Held`; a plain tuple for speed."""


class Held(NamedTuple):
    """What one kind of layer holds of an arena, in slots."""

    used: int
    """allocated"""
    tables: int
    """of whole tables, including tokens freed behind a window; 0 if sequences have states"""
    internal: int
    """allocated, will never be written"""
    cached: int
    """hold a prefix that no sequence uses"""
    idle: int = 0
    """empty in large pages of this kind"""


class Region(NamedTuple):
    """A range of addresses: `owners` holds the ids of the sequences there, empty if it is free."""

    start: int
    size: int
    owners: tuple[int, ...]
    first: int = 0
    """index of the token at `start`; the next tokens follow in order"""
    cached: bool = False
    """free, but it still holds a prefix that may be hit"""
    idle: bool = False
    """free and empty, but mapped or cached by the allocator"""
    per_token: int = 1
    """slots per token here"""
    layers: str = ""
    """its layers, if layers are kept in groups: `full`, `window 1,024`; "" for any"""

    def filled(self, lengths: Mapping[int, int]) -> int:
        """Slots from `start` on that hold a token, given the token count of each living sequence."""
        longest = max([lengths.get(seq, 0) for seq in self.owners], default=0)
        return max(0, min((longest - self.first) * self.per_token, self.size))


def as_regions(rows: Iterable[tuple[object, ...]]) -> Iterator[Region]:
    """Regions from rows with a value per field; faster than calling `Region` for each."""
    return map(tuple.__new__, repeat(Region), rows)


def equal_regions(
    size: int,
    owners: Sequence[tuple[int, ...]],
    firsts: Sequence[int],
    *,
    cached: Iterable[bool] = repeat(False),
    idle: Iterable[bool] = repeat(False),
    per_token: Iterable[int] = repeat(1),
    layers: Iterable[str] = repeat(""),
) -> Iterator[Region]:
    """Regions of `size` slots each, the first at 0, from columns."""
    starts = range(0, len(owners) * size, size)
    columns = (starts, repeat(size), owners, firsts, cached, idle, per_token, layers)
    return as_regions(zip(*columns, strict=False))


class Layout(NamedTuple):
    """Regions as columns, which is faster if there are many: ranges, arrays, or lists."""

    starts: Sequence[int]
    sizes: Sequence[int]
    which: Sequence[int]
    """the owners, as an index into `owners`"""
    owners: Sequence[tuple[int, ...]]
    """distinct owner tuples, each once; the empty one comes first"""
    firsts: Sequence[int]
    cached: Sequence[int]
    """1 or 0"""
    idle: Sequence[int] = ()
    """1 or 0; empty: nothing is"""
    per_token: Sequence[int] = ()
    """slots per token; empty: one everywhere"""
    layers: Sequence[str] = ()
    """the layers; empty: all"""

    @classmethod
    def of(cls, regions: Iterator[Region]) -> "Layout":
        """Convert regions to columns."""
        starts, sizes, owners, firsts, cached, idle, per_token, layers = zip(*regions, strict=True)
        place = {each: at for at, each in enumerate(dict.fromkeys([(), *owners]))}
        which = [place[each] for each in owners]
        return cls(starts, sizes, which, list(place), firsts, cached, idle, per_token, layers)

    def regions(self) -> Iterator[Region]:
        """The regions, one by one."""
        count = len(self.starts)
        idle = map(bool, self.idle) if self.idle else iter([False] * count)
        per_token = self.per_token or [1] * count
        owners, cached = map(self.owners.__getitem__, self.which), map(bool, self.cached)
        layers = self.layers or [""] * count
        columns = (self.starts, self.sizes, owners, self.firsts, cached, idle, per_token, layers)
        return as_regions(zip(*columns, strict=False))


_LENT, _CACHED = 1, 2
_TOGETHER = re.compile(rb"\x01|\x02+|\x00+")
"""Joins slots into a region: one allocated block, consecutive cached blocks, or consecutive free blocks."""


class Table(NamedTuple):
    """A block table of a sequence, starting at a token."""

    seq: int
    first: int
    """the token at the start of the first block"""
    blocks: Sequence[int | None]
    """None: that block was freed"""
    per_token: int = 1
    """slots per token"""
    layers: str = ""
    """as in `Region`"""


def layout_of_tables(
    blocks: range,
    size: int,
    tables: Iterable[Table],
    cached: Iterable[int | None] = (),
    pools: Sequence[tuple[str, int]] = (),
) -> Layout:
    """A layout of blocks of `size`, the first at 0: each allocated block, and the free ranges between them.

    A block may be in the tables of several sequences. `cached` are blocks that hold a prefix, if no
    sequence holds them. `pools` are the separate parts of the arena, as in `Allocator.pools`. Owners come in
    the order of their first addresses.
    """
    which, firsts, kinds = [0] * blocks.stop, [0] * blocks.stop, bytearray(blocks.stop)
    for block in cached:
        if block is not None:
            kinds[block] = _CACHED
    owners: list[tuple[int, ...]] = [()]
    joined: dict[int, dict[int, int]] = {}  # owners of a block -> owners together with this sequence
    many: dict[int, int] = {}
    named: dict[int, str] = {}
    for seq, first, table, per_token, layers in tables:
        token, after = first, joined.setdefault(seq, {})
        for block in table:
            if block is not None:
                before = which[block]
                if before not in after:
                    after[before] = len(owners)
                    owners.append((*owners[before], seq))
                which[block], firsts[block], kinds[block] = after[before], token, _LENT
                if per_token > 1:
                    many[block] = per_token
                if layers:
                    named[block] = layers
            token += size // per_token
    places = [each.start() for each in _TOGETHER.finditer(kinds, blocks.start)]
    layers_of: list[str] = []
    if pools:
        edges = list(accumulate([slots // size for _, slots in pools], initial=blocks.start))
        places = sorted({*places, *edges[:-1]})
        firsts_of = [bisect_left(places, edge) for edge in edges]
        for (layers, _), start, end in zip(pools, firsts_of, firsts_of[1:], strict=False):
            layers_of += [layers] * (end - start)
    place = {owner: at for at, owner in enumerate(dict.fromkeys([0, *[which[block] for block in places]]))}
    starts = [(block - blocks.start) * size for block in places]
    ends = [*starts[1:], len(blocks) * size]
    return Layout(
        starts,
        [end - start for start, end in zip(starts, ends, strict=True)],
        [place[which[block]] for block in places],
        [owners[owner] for owner in place],
        [firsts[block] for block in places],
        [kinds[block] == _CACHED for block in places],
        per_token=[many.get(block, 1) for block in places] if many else (),
        layers=layers_of or ([named.get(block, "") for block in places] if named else ()),
    )


def layout_of_slots(
    capacity: int, allocated: Iterable[tuple[int, Sequence[int]]], cached: Iterable[int]
) -> Layout:
    """A layout of single slots, given as (sequence, its slots): equal neighbours form one region."""
    each = layout_of_tables(range(capacity), 1, (Table(seq, 0, slots) for seq, slots in allocated), cached)
    alike = list(zip(each.which, each.cached, strict=True))
    kept = [at for at, now in enumerate(alike) if not at or now != alike[at - 1]]
    starts = [each.starts[at] for at in kept]
    return Layout(
        starts,
        [end - start for start, end in zip(starts, [*starts[1:], capacity], strict=True)],
        [each.which[at] for at in kept],
        each.owners,
        [0] * len(kept),
        [each.cached[at] for at in kept],
    )
