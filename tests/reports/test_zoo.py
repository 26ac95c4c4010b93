"""The family tree and the cards of allocators, as a user sees them."""

import pytest

from kvsim import cli
from kvsim.allocators import ALLOCATORS
from kvsim.reports.zoo import CELLS, card, families


def test_the_tree_has_every_allocator_once_and_fits_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["allocators"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    listed = [line.split()[1] for line in lines if line[:2] in ("├─", "└─")]
    assert sorted(listed) == sorted(ALLOCATORS)
    assert [line.split()[0] for line in lines if line[:1].isalpha()][: len(families())] == list(families())


def test_a_card_draws_the_waste_of_reserving_and_that_of_blocks():
    assert "AAAAAAAAAAaaaaaaaaBBBBBBbbbbbbCCCCCCCCCccccc" in card("contiguous")
    assert "AAAAAAAAAAaaBBBBBBbbCCCCCCCCCccc" in card("paged")
    assert "AAAAAAAAAAAADDDDDDDDCCCCCCCCCcccAAAa" in card("paged")


@pytest.mark.parametrize("name", ALLOCATORS)
def test_every_card_has_a_picture_of_the_whole_arena(name):
    *_, come, end, grow, key = card(name).splitlines()
    assert come.startswith("A, B, C come") and end.startswith("B ends") and grow.startswith("D; A grows")
    assert key.endswith("A holds a token, a is empty, : cached, . free")
    for line in (come, end, grow):
        drawn = line[14:].partition("  ")[0]
        assert 0 < len(drawn) <= CELLS
        assert {letter for letter in drawn if letter.isupper()} >= {"A", "C"} or "no room" in line


def test_an_allocator_that_is_not_there_is_one_line(capsys):
    assert cli.main(["allocators", "pagd"]) == 2
    assert capsys.readouterr().err.startswith("error: allocator 'pagd' is unknown; did you mean 'paged'?")
