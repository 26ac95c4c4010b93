"""Splits a batch of tokens into ubatches, which are placed and computed one after another.

simple   the next `most` tokens, of any sequences              (one array of cells for all sequences)
equal    equally many tokens per sequence, in rows             (an array per sequence)
"""

from typing import NamedTuple


class Token(NamedTuple):
    """A token of a batch: its position, and the sequences that it belongs to."""

    position: int
    seqs: tuple[int, ...]


class Ubatch(NamedTuple):
    """Places in the batch, in `rows` rows of equal length, one per sequence (simple: one place each)."""

    places: tuple[int, ...]
    rows: int


def simple(tokens: list[Token], most: int) -> list[Ubatch]:
    """Split a batch in order."""
    pieces = (range(start, min(start + most, len(tokens))) for start in range(0, len(tokens), most))
    return [Ubatch(tuple(piece), len(piece)) for piece in pieces]


def equal(tokens: list[Token], most: int, ascending: bool) -> list[Ubatch] | None:
    """Split a batch into rows of equal length.

    Parameters
    ----------
    most : int
        Tokens per ubatch.
    ascending : bool
        Only sequences with consecutive ids form a ubatch, and none may share tokens with others.

    Returns
    -------
    list of Ubatch or None
        None if sequences share tokens but must not.
    """
    if ascending and any(len(token.seqs) > 1 for token in tokens):
        return None
    waiting: dict[frozenset[int], list[int]] = {}  # sequences -> places, in order
    for place, token in enumerate(tokens):
        waiting.setdefault(frozenset(token.seqs), []).append(place)
    ubatches = []
    while waiting:
        chosen = _chosen(tokens, waiting, most, ascending)
        length = min(len(waiting[who]) for who in chosen)
        length = min(length, max(1, most // len(chosen)))
        ubatches.append(Ubatch(tuple(at for who in chosen for at in waiting[who][:length]), len(chosen)))
        for who in chosen:
            waiting[who] = waiting[who][length:]
            if not waiting[who]:
                del waiting[who]
    return ubatches


def _chosen(
    tokens: list[Token], waiting: dict[frozenset[int], list[int]], most: int, ascending: bool
) -> list[frozenset[int]]:
    """The sequences of the next ubatch, in the order of their first waiting token."""
    chosen: list[frozenset[int]] = []
    last = -1
    for place in sorted(place for places in waiting.values() for place in places):
        who = frozenset(tokens[place].seqs)
        if any(who & other for other in chosen):
            continue
        if ascending and chosen and tokens[place].seqs[0] != last + 1:
            continue
        chosen.append(who)
        last = tokens[place].seqs[0]
        if len(chosen) > most:
            break
    return chosen
