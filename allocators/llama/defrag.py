"""Defragmentation, as it was until August 2025: cells from the end fill the holes at the front.

|aa..bbb.cc|   used 7: the holes below cell 7 are filled from the back
|aaccbbb...|   2 cells, 1 move (a run counts as one)
"""

from struct import pack, unpack

from kvsim.allocators.llama.cells import Cells

SMALLEST = 2048
"""cells in use, holes included, below which no threshold is looked at"""


def moves_of(cells: Cells, most: int) -> list[tuple[int, int]]:
    """The (from, to) of one defragmentation of at most `most` runs, by source."""
    top, used = cells.top, cells.used
    target: dict[int, int] = {}
    runs, hole = 0, 0
    while hole < used:
        if not cells.is_empty(hole):
            hole += 1
            continue
        length = 1
        while hole + length < used and cells.is_empty(hole + length):
            length += 1
        source = _nth_from_the_end(cells, target, top, hole, length)
        filled, in_run = 0, False
        while filled < length and source < top:
            if cells.is_empty(source) or source in target:
                if runs == most:
                    break
                in_run = False
            else:
                target[source] = hole + filled
                runs += not in_run
                in_run = True
                filled += 1
            source += 1
        if filled < length or runs == most:
            break
        hole += length
    return sorted(target.items())


def worth_moving(cells: Cells, threshold: float, padding: int) -> bool:
    """Whether the share of holes below `top` is above the threshold (0 or less: never), in 32-bit floats."""
    top = cells.top
    if threshold <= 0 or top < SMALLEST:
        return False
    holes = _single(1.0 - _single((cells.used + padding) / top))
    return max(0.0, holes) > _single(threshold)


def _nth_from_the_end(cells: Cells, target: dict[int, int], top: int, hole: int, count: int) -> int:
    """Walk back from the end until `count` cells in use, not moved yet, are behind: where that is."""
    cell = top - 1
    while cell > hole:
        if not cells.is_empty(cell) and cell not in target:
            count -= 1
            if not count:
                break
        cell -= 1
    return cell


def _single(number: float) -> float:
    """A number as a 32-bit float has it."""
    return float(unpack("f", pack("f", number))[0])
