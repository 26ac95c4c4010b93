"""Where every slot is: the kinds of the ledger, and ranges of addresses.

    kind       who has it            what is in it
    token      a living sequence     keys and values, or a recurrent state
    reserved   a sequence            nothing yet
    internal   a sequence            nothing, ever
    cached     nobody                a prefix that may be hit again
    idle       nobody                nothing, but the allocator holds it ready: mapped pages, cached segments
    external   nobody                nothing, in pieces too small
    free       nobody                nothing

Arenas are counted in slots (allocators/base.py); where a slot is a grain of bytes, a token takes several.
"""

from array import array
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from itertools import count, groupby, repeat
from types import MappingProxyType
from typing import NamedTuple


class Ledger(NamedTuple):
    """Every slot of the arena is exactly one of these; they sum to the capacity."""

    token: int
    """hold the key and value of a living sequence (a shared slot counts once), or its recurrent state"""
    reserved: int
    """lent, empty, will be written by their owner later"""
    internal: int
    """lent, will never be written again: the tail of the last block, rounding, over-reservation"""
    cached: int
    """hold a prefix that nobody uses now but may still be hit"""
    external: int
    """free, but in extents too small for the request at the head of the queue"""
    free: int
    """the rest"""
    idle: int = 0
    """empty, mapped or cached by the allocator: can be taken back for any use, at a price"""

    @property
    def total(self) -> int:
        """The sum of all kinds: the capacity."""
        return sum(self)


class Region(NamedTuple):
    """A range of addresses: `owners` holds the ids of the sequences there, none when it is free."""

    start: int
    size: int
    owners: tuple[int, ...]
    first: int = 0
    """which token of its owners lies at `start`; those behind it follow in order"""
    cached: bool = False
    """free, but it still holds a prefix that may be hit"""
    idle: bool = False
    """free and empty, but mapped or cached by the allocator"""
    per_token: int = 1
    """slots that a token takes here"""

    def filled(self, lengths: Mapping[int, int]) -> int:
        """Slots from `start` on that hold a token, when each living sequence has `lengths` of them."""
        longest = max([lengths.get(seq, 0) for seq in self.owners], default=0)
        return max(0, min((longest - self.first) * self.per_token, self.size))


def as_regions(rows: Iterable[tuple[object, ...]]) -> Iterator[Region]:
    """Regions of rows that hold a value for each field; quicker than to call `Region` for each."""
    return map(tuple.__new__, repeat(Region), rows)


def equal_regions(
    size: int,
    owners: Sequence[tuple[int, ...]],
    firsts: Sequence[int],
    *,
    cached: Iterable[bool] = repeat(False),
    idle: Iterable[bool] = repeat(False),
    per_token: Iterable[int] = repeat(1),
) -> Iterator[Region]:
    """Regions of `size` each, the first at 0, of columns."""
    starts = range(0, len(owners) * size, size)
    return as_regions(zip(starts, repeat(size), owners, firsts, cached, idle, per_token, strict=False))


def regions_of_tables(
    tables: Mapping[int, Sequence[int]], blocks: range, size: int, is_cached: Callable[[int], bool]
) -> Iterator[Region]:
    """A region of `size` for each of `blocks`, the first at 0, where sequences have tables of blocks."""
    owners: dict[int, tuple[int, ...]] = {}
    firsts: dict[int, int] = {}
    for seq in sorted(tables):
        table = tables[seq]
        for block in table:
            owners[block] = (*owners.get(block, ()), seq)
        firsts.update(zip(table, range(0, len(table) * size, size), strict=True))
    held = list(map(owners.get, blocks, repeat(())))
    cached = [not seqs and is_cached(block) for seqs, block in zip(held, blocks, strict=True)]
    return equal_regions(size, held, list(map(firsts.get, blocks, repeat(0))), cached=cached)


def regions_of_slots(
    capacity: int, lent: Iterable[tuple[int, Sequence[int]]], cached: Container[int]
) -> Iterator[Region]:
    """Slots lent one by one, as (sequence, its slots): neighbours that are alike are one region."""
    owners: list[tuple[int, ...]] = [()] * capacity
    for seq, slots in lent:
        for slot in slots:
            owners[slot] += (seq,)
    start = 0
    for (seqs, is_cached), same in groupby(zip(owners, map(cached.__contains__, count()), strict=False)):
        size = sum(1 for _ in same)
        yield Region(start, size, seqs, cached=is_cached)
        start += size


class Layout(NamedTuple):
    """Regions as columns, which is quicker where there are many: ranges, arrays, or lists."""

    starts: Sequence[int]
    sizes: Sequence[int]
    which: Sequence[int]
    """the owners, as a place in `owners`"""
    owners: Sequence[tuple[int, ...]]
    """different ones, each once; nobody comes first"""
    firsts: Sequence[int]
    cached: Sequence[int]
    """1 or 0"""
    idle: Sequence[int] = ()
    """1 or 0; empty: nothing is"""
    per_token: Sequence[int] = ()
    """slots that a token takes; empty: one everywhere"""

    @classmethod
    def of(cls, regions: Iterator[Region]) -> "Layout":
        """Regions put into columns."""
        starts, sizes, owners, firsts, cached, idle, per_token = zip(*regions, strict=True)
        place = {each: at for at, each in enumerate(dict.fromkeys([(), *owners]))}
        which = [place[each] for each in owners]
        return cls(starts, sizes, which, list(place), firsts, cached, idle, per_token)

    def regions(self) -> Iterator[Region]:
        """One by one."""
        count = len(self.starts)
        idle = map(bool, self.idle) if self.idle else iter([False] * count)
        per_token = self.per_token or [1] * count
        owners, cached = map(self.owners.__getitem__, self.which), map(bool, self.cached)
        columns = (self.starts, self.sizes, owners, self.firsts, cached, idle, per_token)
        return as_regions(zip(*columns, strict=False))


def layout_of_tables(
    blocks: int,
    size: int,
    tables: Iterable[tuple[int, int, Sequence[int]]],
    shared: Mapping[int, tuple[int, ...]] = MappingProxyType({}),
    cached: Iterable[int] = (),
) -> Layout:
    """A layout of so many blocks of `size`.

    `tables` are (sequence, the token that comes first, blocks), those of a sequence one after the other;
    `shared` has the sequences of blocks that stand in several.
    """
    which, firsts = [0] * blocks, [0] * blocks
    starts, is_cached = range(0, blocks * size, size), bytearray(blocks)
    owners: list[tuple[int, ...]] = [()]
    for seq, first, table in tables:
        if owners[-1] != (seq,):
            owners.append((seq,))
        owner, token = len(owners) - 1, first
        for block in table:
            which[block] = owner
            firsts[block] = token
            token += size
    place: dict[tuple[int, ...], int] = {}
    for block, seqs in shared.items():
        if seqs not in place:
            place[seqs] = len(owners)
            owners.append(seqs)
        which[block] = place[seqs]
    for block in cached:
        is_cached[block] = 1
    sizes = array("q", [size]) * blocks
    return Layout(starts, sizes, array("q", which), owners, array("q", firsts), is_cached)
