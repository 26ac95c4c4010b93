"""Defragmentation, as until August 2025: cells from the end fill the holes at the front.

    |aa..bbb.cc|   used 7: the holes below cell 7 are filled from the back
    |aaccbbb...|   2 cells, 1 move: contiguous cells count as one

A graph has room for `(nodes - 2 layers) / (6 layers)` moves. If more are needed, holes remain, and a prompt
may find no room although enough cells are empty (llama.cpp#10873).
"""

from struct import pack, unpack
from typing import NamedTuple

SMALLEST = 2048
"""used cells, including holes, below which the threshold is ignored"""


class Move(NamedTuple):
    """Contiguous cells that are moved together."""

    source: int
    to: int
    length: int


def most_moves(nodes: int, layers: int) -> int:
    """Moves that fit into a graph of `nodes` nodes."""
    return (nodes - 2 * layers) // (6 * layers)


def moves_of(empty: bytearray, used: int, most: int) -> list[Move]:
    """One defragmentation of at most `most` moves; `empty` has a 1 per empty cell."""
    moves: list[Move] = []
    tail = len(empty)
    hole = empty.find(1, 0, used)
    while hole >= 0:
        end = empty.find(0, hole, used)
        length = (used if end < 0 else end) - hole
        pieces = _last(empty, tail, length)
        tail, to = pieces[-1].start, hole
        for piece in reversed(pieces):
            if len(moves) == most:
                return moves
            moves.append(Move(piece.start, to, len(piece)))
            to += len(piece)
        if len(moves) == most or end < 0:
            return moves
        hole = empty.find(1, end, used)
    return moves


def worth_moving(used: int, top: int, threshold: float, padding: int) -> bool:
    """Whether the share of holes below `top` exceeds the threshold (0 or less: never), in 32-bit floats."""
    if threshold <= 0 or top < SMALLEST:
        return False
    holes = _single(1.0 - _single((used + padding) / top))
    return max(0.0, holes) > _single(threshold)


def _last(empty: bytearray, tail: int, count: int) -> list[range]:
    """The last `count` used cells before `tail`, as runs, the last one first."""
    pieces = []
    while count:
        end = empty.rfind(0, 0, tail) + 1
        start = max(empty.rfind(1, 0, end) + 1, end - count)
        pieces.append(range(start, end))
        count -= end - start
        tail = start
    return pieces


def _single(number: float) -> float:
    """Round to a 32-bit float."""
    return float(unpack("f", pack("f", number))[0])
