"""Distributes slots among sequences that grow in turn: the share of each, in the order of its tokens.

    seqs     3 7 9 3 7 9 3 7 9      three steps of the same three
    slots    0 1 2 3 4 5 6 7 8      3 gets 0 3 6, 7 gets 1 4 7, 9 gets 2 5 8

Many steps in one call are mostly such rounds: the work is then proportional to sequences, not to tokens.
"""

from collections.abc import Iterator, Sequence


def rounds(seqs: Sequence[int]) -> int:
    """Number of sequences in a round, if every round has the same order; else all."""
    try:
        each = seqs.index(seqs[0], 1)
    except (IndexError, ValueError):  # no sequence grows, or the first one grows only once
        return len(seqs)
    if len(seqs) % each:
        return len(seqs)
    alike = seqs[each:] == seqs[:-each] and len(set(seqs[:each])) == each
    return each if alike else len(seqs)


def shares(seqs: Sequence[int], slots: Sequence[int]) -> Iterator[tuple[int, Sequence[int]]]:
    """(sequence, its next slots), as if `slots[i]` went to `seqs[i]`, one after another."""
    each = rounds(seqs)
    if each < len(seqs):
        for at in range(each):
            yield seqs[at], slots[at::each]
        return
    for seq, slot in zip(seqs, slots, strict=True):
        yield seq, (slot,)
