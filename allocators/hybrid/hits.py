"""What of a text is cached in every group of layers.

    full       |####|####|####|####|....|      reaches 4 blocks
    window     |    |    |####|    |            has the end of 3
    hit        |----|----|----|                 3 blocks; the junction is behind the fourth

A hit is the longest beginning of a text that every group holds: full groups say how far it can reach, windows
and states shorten it, and the question is asked again until nobody does. Where a full group reached further
than the hit, two texts part there: that place (the junction) is kept from now on.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kvsim.allocators.hybrid.tables import GroupTables, Text


@dataclass(frozen=True)
class Hit:
    """What of a text is cached: the blocks of each group, and how many tokens they hold."""

    blocks: tuple[list[int], ...]
    tokens: int
    junction: int = 0


def longest_hit(groups: Sequence[GroupTables], alike: Sequence[Sequence[int]], text: Text) -> Hit:
    """The longest beginning of a text that all groups hold; `alike` are the groups that are asked as one."""
    blocks: list[list[int]] = [[] for _ in groups]
    reached, longest = text.tokens - 1, 0
    full_length: dict[int, int] = {}
    full = [type(groups[numbers[0]]) is GroupTables for numbers in alike]
    single = len(alike) == 2 and full[0]
    while True:
        length = reached
        for numbers, is_full in zip(alike, full, strict=True):
            first = numbers[0]
            if is_full and first in full_length:
                length = min(length, full_length[first])
                continue
            found, length = groups[first].hit(text, length, numbers)
            for number, each in zip(numbers, found, strict=True):
                blocks[number] = each
            if is_full:
                full_length[first] = length
            longest = max(longest, length)
        if length >= reached:
            break
        reached = length
        if single:
            break
    for numbers, is_full in zip(alike, full, strict=True):
        if is_full:
            for number in numbers:
                del blocks[number][-(-reached // groups[number].block_size) :]
    return Hit(tuple(blocks), reached, longest if longest > reached and len(groups) > 1 else 0)
