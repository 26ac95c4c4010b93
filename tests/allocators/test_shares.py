"""Slots dealt out to sequences in turn: shares are what giving them one by one comes to."""

from collections import defaultdict

from hypothesis import example, given
from hypothesis import strategies as st

from kvsim.allocators.llama import search
from kvsim.allocators.shares import shares


@given(st.lists(st.integers(0, 5), max_size=6), st.integers(1, 4), st.lists(st.integers(0, 5), max_size=3))
@example([1, 2, 3], 3, [])
@example([1, 2, 3], 2, [1, 2])
@example([], 1, [])
def test_each_gets_what_it_would_one_by_one(seqs, rounds, rest):
    seqs = seqs * rounds + rest
    slots = list(range(100, 100 + len(seqs)))
    one_by_one, dealt = defaultdict(list), defaultdict(list)
    for seq, slot in zip(seqs, slots, strict=True):
        one_by_one[seq].append(slot)
    for seq, share in shares(seqs, slots):
        dealt[seq] += share
    assert dealt == one_by_one


@given(st.binary(min_size=1, max_size=60), st.integers(1, 70), st.data())
def test_cells_are_those_of_the_runs(cells, count, data):
    empty = bytearray(byte % 2 for byte in cells)
    head = data.draw(st.integers(0, len(empty)))
    found, runs = search.cells(empty, count, head), search.anywhere(empty, count, head)
    if runs is None:
        assert len(found) == sum(empty) < count
    else:
        assert found == [cell for run in runs for cell in run]
