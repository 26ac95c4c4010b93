"""Idle memory, calls to the driver, work after steps and a bound on sequences: the suite knows them all."""

import pytest
from support.pages import BROKEN, Forward, Mapped, Packed

from kvsim.allocators.arena import Layout, Region
from kvsim.allocators.base import InvariantError, Ledger
from kvsim.allocators.contract import check_allocator


@pytest.mark.slow
@pytest.mark.parametrize("sound", [Mapped, Forward, Packed])
def test_the_contract_holds(sound):
    for seed in range(3):
        check_allocator(sound, seed, arenas=[1_000, 37])


@pytest.mark.parametrize(("broken", "rule"), BROKEN, ids=lambda value: getattr(value, "__name__", ""))
def test_a_broken_one_is_caught_by_the_rule_that_it_breaks(broken, rule):
    with pytest.raises(InvariantError) as caught:
        for seed in range(3):
            check_allocator(broken, seed, arenas=[1_000])
    assert str(caught.value).startswith(rule), caught.value


def test_every_slot_has_a_kind_and_a_page_given_back_stays_idle_until_it_is_unmapped():
    pages = Mapped(80)
    assert pages.admit(1, 12, 40)
    assert pages.admit(2, 8, 40)
    assert pages.ledger({1: 12, 2: 8}, {1: 40, 2: 40}) == Ledger(20, 4, 0, 0, 0, 56)
    pages.release(1)
    assert pages.ledger({2: 8}, {2: 40}) == Ledger(8, 0, 0, 0, 0, 56, idle=16)
    assert (pages.maps, pages.unmaps) == (3, 0)
    pages.after_step({2: 8})
    assert pages.ledger({2: 8}, {2: 40}) == Ledger(8, 8, 0, 0, 0, 64, idle=0)
    assert (pages.maps, pages.unmaps) == (3, 1)


def test_regions_of_grains_are_filled_by_tokens_of_several_slots():
    region = Region(64, 32, (3,), first=4, per_token=8)
    assert [region.filled({3: tokens}) for tokens in (4, 5, 7, 9)] == [0, 8, 24, 32]


def test_columns_keep_every_mark_of_a_region():
    regions = [Region(0, 8, (1,), per_token=2), Region(8, 8, (), idle=True), Region(16, 4, (), cached=True)]
    assert list(Layout.of(iter(regions)).regions()) == regions
