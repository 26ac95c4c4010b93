"""Recordings of LightLLM and TGI: sequences, their tokens as runs, and LightLLM's table of requests."""

from collections import deque
from functools import cache

import pytest

from support.zoo import recording


@cache
def recorded(path: str) -> dict:
    """The sequences of a file of the zoo, by their names; nothing if there are no goldens."""
    return recording(f"{path}.json.gz")


def names(path: str) -> list[str]:
    """The names in a file, to be tried one by one; without the file, a name that fails or is skipped."""
    try:
        return list(recorded(path))
    except (pytest.skip.Exception, pytest.fail.Exception):
        return ["none"]


def runs(tokens: list[int]) -> list[tuple[int, int, int]]:
    """Token ids as runs of one stream: equal ids, equal tokens."""
    found: list[tuple[int, int, int]] = []
    for token in tokens:
        if found and sum(found[-1][1:]) == token:
            found[-1] = (0, found[-1][1], found[-1][2] + 1)
        else:
            found.append((0, token, 1))
    return found


class Cell:
    """A place in the table of requests; the tree keeps the place, not its content."""

    def __init__(self) -> None:
        self.slot = -1


class Rows:
    """LightLLM's table of requests: one row of slots per request, taken in turn.

    In the recording the tree's slots change when a row is taken by another request. On a GPU LightLLM copies
    a row to the host before it enters the tree; on the CPU of the recording that copy was the row itself.
    """

    COUNT, LONGEST = 64, 4096

    def __init__(self) -> None:
        self._free = deque([Cell() for _ in range(self.LONGEST)] for _ in range(self.COUNT))

    def take(self, slots: list[int]) -> list[Cell]:
        """The next row, with these slots in it."""
        self.write(slots)
        return self._free.popleft()

    def write(self, slots: list[int]) -> None:
        """Write into the next row without taking it, like a request that is then refused."""
        for cell, slot in zip(self._free[0], slots, strict=False):
            cell.slot = slot

    def give_back(self, row: list[Cell]) -> None:
        """The request is gone."""
        self._free.append(row)
