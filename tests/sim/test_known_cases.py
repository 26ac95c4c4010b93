"""The small cases whose numbers are known from the PagedAttention paper and real engines, each a fact."""

import numpy as np
import pytest

from kvsim.allocators.base import Ledger, Region
from kvsim.allocators.buddy import Buddy
from kvsim.allocators.contiguous import Contiguous
from kvsim.allocators.dynamic import Dynamic
from kvsim.allocators.paged import Paged
from kvsim.sim.models.catalog import model_named
from kvsim.sim.models.spec import ModelSpec

ARENA = 15_744
"""Slots of OPT-13B on an A100 of 40 GB in the paper: 984 blocks of 16."""


def lengths_of(batch: int, seed: int = 0) -> list[int]:
    drawn = np.random.default_rng(seed).normal(500, 200, batch)
    return [int(length) for length in np.clip(np.rint(drawn), 200, 2_048)]


def filled(allocator, lengths: list[int], bound: int = 2_048):
    for seq, length in enumerate(lengths):
        assert allocator.admit(seq, length, bound)
    return allocator


# -- the waste of one sequence ------------------------------------------------------------------------


def test_a_reservation_of_2048_with_825_tokens_used_wastes_1223():
    contiguous = filled(Contiguous(ARENA), [825])
    assert contiguous.ledger({0: 825}, {0: 825}) == Ledger(825, 0, 1_223, 0, 0, ARENA - 2_048)


def test_what_a_reservation_will_still_be_filled_with_is_reserved_not_internal():
    contiguous = filled(Contiguous(ARENA), [825])
    assert contiguous.ledger({0: 825}, {0: 1_000})[:3] == (825, 175, 1_048)


def test_825_tokens_take_52_blocks_of_16_and_waste_7():
    paged = filled(Paged(ARENA, 16), [825])
    assert len(paged.block_table(0)) == 52
    assert paged.ledger({0: 825}, {0: 825}) == Ledger(825, 0, 7, 0, 0, ARENA - 832)


# -- the memory of a batch ----------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [10, 20, 50, 100, 200])
def test_reserving_2048_uses_about_a_quarter_and_blocks_of_16_nearly_all(batch):
    shares = {"reserved": [], "paged": []}
    for seed in range(20):
        lengths = lengths_of(batch, seed)
        reserved = filled(Contiguous(batch * 2_048), lengths)
        paged = filled(Paged(batch * 2_048, 16), lengths)
        shares["reserved"].append(sum(lengths) / reserved.used_slots)
        shares["paged"].append(sum(lengths) / paged.used_slots)
    assert 0.24 < np.mean(shares["reserved"]) < 0.255
    assert np.mean(shares["paged"]) == pytest.approx(0.985, abs=0.002)


def test_at_every_instant_paged_memory_is_whole_blocks_and_reserved_memory_whole_reservations():
    spec = {"name": "m", "source": "test", "parameters": 7_000_000_000, "vocab_size": 32_000}
    model = ModelSpec(
        **spec,
        **{"layers": 32, "heads": 32, "kv_heads": 32, "head_dim": 128, "dtype_bytes": 2},
        **{"hidden_size": 4_096, "intermediate_size": 11_008, "max_model_len": 2_048},
    )
    assert model.kv_bytes_per_token == model_named("llama-2-7b").kv_bytes_per_token == 524_288
    lengths = dict(enumerate(lengths_of(6)))
    paged, reserved = (
        filled(Paged(ARENA, 16), [*lengths.values()]),
        filled(Contiguous(ARENA), [*lengths.values()]),
    )
    for instant in range(200):
        for seq in list(lengths):
            lengths[seq] += 1
            assert paged.grow(seq, lengths[seq]) and reserved.grow(seq, lengths[seq])
            if instant == 100 + 10 * seq:
                paged.release(seq)
                reserved.release(seq)
                del lengths[seq]
        blocks = sum(-(-length // 16) * 16 for length in lengths.values())
        assert paged.used_slots * model.kv_bytes_per_token == blocks * 524_288
        assert reserved.used_slots * model.kv_bytes_per_token == len(lengths) * 2_048 * 524_288


# -- addresses ------------------------------------------------------------------------------------------


def test_a_slot_is_its_block_times_the_block_size_plus_the_offset():
    paged = Paged(1_000, 16)
    filled(paged, [40, 100, 7])
    paged.release(1)
    assert paged.admit(9, 150, 150)
    table = paged.block_table(9)
    assert table[:3] == (9, 8, 7)  # the last block freed is allocated first
    assert [paged.slot(9, i) for i in range(150)] == [table[i // 16] * 16 + i % 16 for i in range(150)]


def test_token_257_of_a_sequence_with_table_47_12_83_is_in_slot_3073():
    paged = Paged(256 * 84, 256)
    filled(paged, [1] * 84)  # sequence i holds block i
    for seq in (83, 12, 47):  # what is freed last is allocated first
        paged.release(seq)
    assert paged.admit(100, 600, 600)
    assert paged.block_table(100) == (47, 12, 83)
    assert paged.slot(100, 257) == 12 * 256 + 1 == 3_073
    assert [paged.slot(100, token) for token in (0, 255, 256, 599)] == [12_032, 12_287, 3_072, 21_335]


# -- sharing ----------------------------------------------------------------------------------------------


def test_10_requests_that_share_a_prompt_of_200_tokens_use_13_blocks_instead_of_130():
    paged = filled(Paged(ARENA, 16), [200])
    for child in range(1, 10):
        assert paged.fork(0, child, 200)
    assert paged.used_slots == 13 * 16
    assert sum(len(paged.block_table(seq)) for seq in range(10)) == 130
    assert paged.shared_tokens == 9 * 200
    lengths = dict.fromkeys(range(10), 200)
    assert paged.ledger(lengths, lengths) == Ledger(200, 0, 8, 0, 0, ARENA - 208)


def test_the_first_write_to_the_shared_last_block_copies_exactly_that_block():
    paged = filled(Paged(ARENA, 16), [200])
    for child in range(1, 10):
        paged.fork(0, child, 200)
    before = paged.block_table(4)
    assert paged.grow(4, 201)
    assert (paged.cow_copies, paged.copied_slots) == (1, 200 - 12 * 16)
    assert paged.block_table(4)[:12] == before[:12]
    assert paged.block_table(4)[12] == 13  # new; the nine others keep theirs
    assert {paged.block_table(seq) for seq in range(10) if seq != 4} == {before}
    assert (paged.references(12), paged.references(13), paged.references(0)) == (9, 1, 10)


def test_figure_8_two_samples_of_a_7_token_prompt_in_blocks_of_4_copy_once():
    paged = filled(Paged(40, 4), [7])
    assert paged.fork(0, 1, 7)
    assert paged.block_table(0) == paged.block_table(1) == (0, 1)
    assert (paged.references(0), paged.references(1), paged.shared_tokens) == (2, 2, 7)
    assert paged.capacity(0) == paged.capacity(1) == 7  # the empty slot is nobody's yet

    assert paged.grow(0, 8)  # the first writer copies 3 tokens
    assert (paged.block_table(0), paged.block_table(1)) == ((0, 2), (0, 1))
    assert (paged.cow_copies, paged.copied_slots, paged.shared_tokens) == (1, 3, 4)
    assert (paged.references(0), paged.references(1), paged.references(2)) == (2, 1, 1)

    assert paged.grow(1, 8)  # the second writes in place
    assert (paged.block_table(1), paged.cow_copies) == ((0, 1), 1)
    assert list(paged.regions()) == [
        *(Region(0, 4, (0, 1)), Region(4, 4, (1,), first=4)),
        *(Region(8, 4, (0,), first=4), Region(12, 28, ())),
    ]


@pytest.mark.parametrize(("prompt", "copies"), [(197, 3), (200, 3), (208, 0), (16, 0), (1, 3)])
def test_a_group_copies_once_for_each_member_but_one_unless_the_prompt_fills_its_blocks(prompt, copies):
    paged = filled(Paged(ARENA, 16), [prompt])
    for child in (1, 2, 3):
        paged.fork(0, child, prompt)
    for seq in range(4):
        assert paged.grow(seq, prompt + 1)
    assert paged.cow_copies == copies


def test_a_copy_that_finds_no_block_is_refused_and_nothing_changes():
    paged = filled(Paged(8, 4), [7])
    paged.fork(0, 1, 7)
    assert not paged.grow(1, 8)
    assert (paged.block_table(0), paged.block_table(1), paged.cow_copies) == ((0, 1), (0, 1), 0)
    paged.release(0)
    assert paged.grow(1, 8)  # the last holder writes in place
    assert (paged.block_table(1), paged.cow_copies, paged.free_slots) == ((0, 1), 0, 0)


# -- extents and chunks -----------------------------------------------------------------------------------


def test_buddy_holds_exactly_7_reservations_of_2048_and_leaves_1408_slots_external():
    buddy = Buddy(ARENA)
    filled(buddy, [300] * 7)
    assert not buddy.can_admit(300, 2_048) and not buddy.admit(7, 300, 2_048)
    assert [region[:2] for region in buddy.regions() if region.owners] == [
        (2_048 * i, 2_048) for i in range(7)
    ]
    lengths = dict.fromkeys(range(7), 300)
    assert buddy.ledger(lengths, lengths, need=2_048) == Ledger(2_100, 0, 7 * 1_748, 0, 1_408, 0)
    assert (buddy.external_slots(1_024), buddy.largest_free_extent()) == (384, 1_024)


def test_buddy_rounds_2049_slots_to_4096():
    buddy = filled(Buddy(ARENA), [300], bound=2_049)
    assert (buddy.used_slots, buddy.capacity(0)) == (4_096, 4_096)


def test_contiguous_too_holds_7_reservations_of_2048_and_the_same_1408_are_external():
    contiguous = filled(Contiguous(ARENA), [300] * 7)
    assert not contiguous.can_admit(300, 2_048)
    assert contiguous.external_slots(2_048) == contiguous.largest_free_extent() == 1_408
    assert contiguous.external_slots(1_408) == 0


@pytest.mark.parametrize(("fit", "start"), [("first", 0), ("best", 60)])
def test_best_fit_takes_the_smallest_hole_that_serves_and_first_fit_the_lowest(fit, start):
    contiguous = Contiguous(100, fit)
    for seq, size in enumerate((30, 10, 8, 12, 12, 28)):  # starts 0, 30, 40, 48, 60, 72
        contiguous.admit(seq, size, size)
    for seq in (0, 2, 4):  # holes: 30 at 0, 8 at 40, 12 at 60
        contiguous.release(seq)
    assert contiguous.admit(9, 11, 11)
    assert Region(start, 11, (9,)) in list(contiguous.regions())


@pytest.mark.parametrize("fit", ["first", "best"])
def test_of_equal_holes_the_lowest_is_taken(fit):
    contiguous = Contiguous(50, fit)
    for seq in range(5):
        contiguous.admit(seq, 10, 10)
    contiguous.release(3)
    contiguous.release(1)
    assert contiguous.admit(9, 10, 10)
    assert Region(10, 10, (9,)) in list(contiguous.regions())


def test_a_copy_and_a_new_block_take_two():
    paged = filled(Paged(12, 4), [7])
    paged.fork(0, 1, 7)
    assert not paged.grow(1, 9)  # one block is free
    assert (paged.cow_copies, paged.free_slots) == (0, 4)
    assert paged.grow(1, 8)


def test_dynamic_doubles_in_place_while_its_neighbour_is_free_and_copies_nothing():
    dynamic = Dynamic(1_000)
    dynamic.admit(0, 33, 1_000)
    assert dynamic.capacity(0) == 64
    assert dynamic.grow(0, 65)
    assert (dynamic.capacity(0), dynamic.copied_slots) == (128, 0)


def test_dynamic_moves_and_copies_its_extent_when_the_neighbour_is_taken():
    dynamic = Dynamic(1_000)
    dynamic.admit(0, 60, 1_000)
    dynamic.admit(1, 10, 1_000)
    assert dynamic.grow(0, 65)
    assert list(dynamic.regions()) == [
        *(Region(0, 64, ()), Region(64, 16, (1,))),
        *(Region(80, 128, (0,)), Region(208, 792, ())),
    ]
    assert (dynamic.copied_slots, dynamic.used_slots) == (64, 144)
    assert dynamic.external_slots(100) == 64  # the hole it left


def test_dynamic_merges_the_holes_that_moves_leave():
    dynamic = Dynamic(1_000)
    for seq in (0, 1, 2):
        dynamic.admit(seq, 64, 1_000)
    assert dynamic.grow(0, 65) and dynamic.grow(1, 65)  # both move up, behind sequence 2
    assert next(dynamic.regions()) == Region(0, 128, ())
    dynamic.release(2)
    assert next(dynamic.regions()) == Region(0, 192, ())
    assert dynamic.copied_slots == 128


def test_dynamic_takes_no_more_than_the_sequence_or_the_arena_can_need():
    dynamic = Dynamic(1_000)
    dynamic.admit(0, 65, 100)
    assert dynamic.capacity(0) == 100
    dynamic.release(0)
    dynamic.admit(1, 600, 2_048)
    assert dynamic.capacity(1) == 1_000


def test_dynamic_refuses_to_grow_where_old_and_new_extent_do_not_fit_side_by_side():
    dynamic = Dynamic(100)
    dynamic.admit(0, 32, 100)
    dynamic.admit(1, 32, 100)
    dynamic.release(0)
    assert not dynamic.grow(1, 70)  # 36 slots above it, 32 below it, and its own 32 in between
    assert (dynamic.capacity(1), dynamic.copied_slots) == (32, 0)
    assert dynamic.grow(1, 33) and dynamic.capacity(1) == 64
