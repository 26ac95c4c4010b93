"""Pieces: chunks that are consecutive in a text and have consecutive keys.

Work is proportional to the number of pieces, whatever their length.

    piece      (at, key, count): chunks `at` up to `at + count` of a text have the keys from `key` on

`at` is the depth of a chunk in its text. allocators/texts.py cuts a text into pieces.
"""

from collections.abc import Iterator

Piece = tuple[int, int, int]


def split(state: bytearray, piece: Piece, mark: bytes) -> tuple[list[Piece], list[Piece]]:
    """Split a piece into the parts whose keys have the mark, and the others."""
    at, key, count = piece
    shift, end = at - key, key + count
    first = state.find(mark, key, end)
    if first < 0:
        return [], [piece]
    marked: list[Piece] = []
    others: list[Piece] = []
    while key < end:
        if first < 0:
            first = end
        if first > key:
            others.append((key + shift, key, first - key))
        rest = state[first:end]
        same = len(rest) - len(rest.lstrip(mark))
        if same:
            marked.append((first + shift, first, same))
        key = first + same
        first = state.find(mark, key, end)
    return marked, others


def keys_of(pieces: list[Piece]) -> Iterator[int]:
    """The keys, one by one."""
    return (each for _, key, count in pieces for each in range(key, key + count))


def one_by_one(pieces: list[Piece]) -> Iterator[Piece]:
    """Split the pieces into pieces of one chunk."""
    return ((at + each, key + each, 1) for at, key, count in pieces for each in range(count))


def size(pieces: list[Piece]) -> int:
    """Number of chunks in the pieces."""
    return sum([count for _, _, count in pieces])


def before(pieces: list[Piece], count: int) -> list[Piece]:
    """The first `count` chunks."""
    found: list[Piece] = []
    for at, key, length in pieces:
        if count > 0:
            found.append((at, key, min(count, length)))
        count -= length
    return found


def overlap(some: list[Piece], others: list[Piece]) -> bool:
    """Whether two pieces share a key."""
    return any(
        key < first + length and first < key + count for _, key, count in some for _, first, length in others
    )


def by_depth(pieces: list[Piece], larger_first: bool = False) -> list[Piece]:
    """Each chunk once, the deepest last; ties: the smaller key first, or the larger."""
    deep = 0
    for at, _, count in pieces:
        if at < deep:
            break
        deep = at + count
    else:  # usually already in this order
        return pieces
    sign = -1 if larger_first else 1
    ordered = sorted(dict.fromkeys(pieces), key=lambda piece: (piece[0], sign * piece[1]))
    deep = -1
    for at, _, count in ordered:
        if at < deep:  # rare
            alone = dict.fromkeys(one_by_one(ordered))
            return sorted(alone, key=lambda piece: (piece[0], sign * piece[1]))
        deep = at + count
    return ordered


def joined(pieces: list[Piece]) -> list[Piece]:
    """Merge pieces into as few as possible."""
    found: list[Piece] = []
    join(found, pieces)
    return found


def join(found: list[Piece], pieces: list[Piece]) -> None:
    """Append pieces to others, merging a piece that continues the last one."""
    for at, key, count in pieces:
        if found:
            before, first, length = found[-1]
            if first + length == key and before + length == at:
                found[-1] = before, first, length + count
                continue
        found.append((at, key, count))
