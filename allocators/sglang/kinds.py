"""What full and windowed layers hold, in pools of pages that are allocated together: the ledger by kind.

    tables    every page of each sequence, once in each group, as if none had been freed or shared
    gone      windowed pages that finished sequences, which still hold memory, have freed

The tables of all groups are equally long. So the slots of a kind that will never be written follow from those
of all layers: the tail of the last page in each group, and all slots of finished sequences.
"""

from collections.abc import Sequence

from kvsim.allocators.arena import Slots
from kvsim.allocators.options import Groups

Counts = tuple[int, int, int, int, int]
"""Slots in use of windowed layers; slots of the tables of one group; gone; cached, full and windowed."""


def kinds_of_groups(groups: Groups) -> list[tuple[str, int]]:
    """The names and slots per token of `InGroups.kinds`."""
    full, *_, windowed = groups.names
    return [(full, groups.full), (windowed, groups.windowed)]


def held_by_kinds(groups: Groups, used: int, internal: int, counts: Sequence[int]) -> list[Slots]:
    """As in `InGroups`, from `Counts` or their sums over time."""
    (full, windowed, *_), (of_windowed, table, gone, cached, cached_windowed) = groups, counts
    never = (internal + gone) // groups.each
    return [
        (used - of_windowed, full * table, full * never, cached, 0),
        (of_windowed, windowed * table - gone, windowed * never - gone, cached_windowed, 0),
    ]
