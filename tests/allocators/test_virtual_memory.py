"""vAttention and kvcached as allocators: what they waste, keep mapped, and call the driver for."""

from random import Random

import pytest

from kvsim.allocators.options import Options
from kvsim.allocators.virtual_memory.kvcached import Kvcached
from kvsim.allocators.virtual_memory.rows import NONE, Rows
from kvsim.allocators.virtual_memory.vattention import VAttention, VAttention2M, VAttentionEager

LLAMA = Options(max_sequences=8, max_model_len=8_192)
"""Llama-3-8B: 128 KiB a token, 2 KiB of it in one layer's K."""
OPT = Options(token_bytes=819_200, layers=40, kv_heads=40, max_sequences=8, max_model_len=2_048)
"""OPT-13B: 6.4 tokens in a page of 64 KiB."""


def rows_with(mapped, choice):
    """Rows without a sequence that have so many kvblocks mapped."""
    rows = Rows(len(mapped), 50, 64, 32, choice=choice)
    for count in mapped:
        rows.place(64 * count)
    rows.before_step([64 * count for count in mapped])
    for row in range(len(mapped)):
        rows.leave(row)
    return rows


@pytest.mark.parametrize(
    ("mapped", "need", "literal", "best"),
    [
        ([1, 10, 6], 5, 0, 2),  # a first row with too few is never replaced
        ([9, 10, 6], 5, 2, 2),
        ([9, 5, 6], 5, 1, 1),
        ([3, 4, 2], 5, 0, 1),
        ([6, 3, 2], 5, 0, 0),
    ],
)
def test_the_row_that_is_chosen_and_the_one_that_fits_best(mapped, need, literal, best):
    assert rows_with(mapped, "literal").row_for(need) == literal
    assert rows_with(mapped, "best").row_for(need) == best


def test_no_row_is_left_when_all_have_a_sequence():
    rows = Rows(1, 50, 64, 32)
    assert (rows.place(10), rows.place(10)) == (0, NONE)


@pytest.mark.parametrize(("make", "page"), [(VAttention, 32), (VAttention2M, 1_024)])
def test_a_sequence_wastes_less_than_a_kvblock(make, page):
    allocator = make(8_192, LLAMA)
    for tokens in range(1, 2_100, 7):
        assert allocator.admit(0, tokens, tokens)
        assert allocator.used_slots == -(-tokens // page) * page == allocator.capacity(0)
        allocator.release(0)


def test_pages_of_a_sequence_that_is_gone_serve_the_next_one():
    allocator = VAttention(8_192, LLAMA)
    allocator.admit(0, 100, 100)
    assert (allocator.maps, allocator.idle_slots) == (4 * 64, 0)
    allocator.release(0)
    assert (allocator.maps, allocator.unmaps, allocator.idle_slots) == (4 * 64, 0, 128)
    allocator.admit(1, 128, 128)
    assert (allocator.maps, allocator.idle_slots) == (4 * 64, 0)


def test_pages_are_mapped_ahead_of_the_tokens_and_taken_back_in_need():
    allocator = VAttention(96, LLAMA)  # 3 kvblocks
    allocator.admit(0, 30, 60)
    allocator.after_step({0: 30})
    assert (allocator.used_slots, allocator.idle_slots, allocator.maps) == (32, 32, 2 * 64)
    assert allocator.admit(1, 64, 64)  # takes the page ahead
    assert (allocator.used_slots, allocator.idle_slots, allocator.unmaps) == (96, 0, 64)
    assert not allocator.grow(0, 33) and allocator.capacity(0) == 32


def test_where_a_page_is_no_multiple_of_a_token_whole_tokens_are_counted():
    allocator = VAttention(15_744, OPT)
    assert (allocator.slots_per_token, allocator.kvblock_slots, allocator.page_tokens) == (5, 32, 6)
    assert allocator.admit(0, 600, 600)
    assert allocator.used_slots == 100 * 32
    assert allocator.surplus(0, 600) == 100 * 2  # a sixteenth
    allocator.release(0)
    assert allocator.admit(1, 2_048, 2_048), "the longest sequence has all addresses of its row"
    assert allocator.used_slots == 2_048 * 5


def test_as_many_sequences_as_there_are_rows():
    allocator = VAttention(8_192, LLAMA)
    assert all(allocator.admit(seq, 1, 1) for seq in range(8))
    assert not allocator.can_admit(1, 1)


def test_kvcached_maps_a_page_in_every_layer_and_keeps_ten():
    allocator = Kvcached(65_536, LLAMA)  # 64 pages of 1,024 tokens
    assert allocator.admit(0, 20_000, 20_000)
    assert (allocator.maps, allocator.used_slots) == (20 * 64, 20_000)
    allocator.release(0)
    assert (allocator.unmaps, allocator.idle_slots) == (10 * 64, 10 * 1_024)


def test_kvcached_maps_pages_ahead_beside_the_step():
    allocator = Kvcached(65_536, LLAMA)
    allocator.admit(0, 1, 1)
    allocator.after_step({0: 1})
    assert (allocator.maps, allocator.idle_slots) == (6 * 64, 6 * 1_024 - 16)


def test_kvcached_loses_the_block_across_the_end_of_a_page():
    allocator = Kvcached(15_744, OPT)
    pages = allocator.blocks.pool.total
    assert allocator.most_blocks < pages * 12.8
    assert allocator.external_slots(1) == allocator.straddling > 0
    blocks = [block for page in range(pages) for block in allocator.blocks.blocks_of(page)]
    assert allocator.straddling == allocator.capacity_slots - len(blocks) * 16 * 5


@pytest.mark.parametrize("make", [VAttention2M, Kvcached])
def test_memory_below_one_page_in_every_layer_is_refused(make):
    with pytest.raises(ValueError, match=r"of 134,217,728 bytes .* which has 4,849,664 bytes"):
        make(37, LLAMA)


class Follower:
    """Takes the steps that another allocator takes at once, one by one, and asks nothing that maps."""

    def __init__(self, allocator, lengths):
        self.allocator, self.lengths, self.idles = allocator, lengths, []

    def due(self, longer):
        """The sequences that grow when all are so many tokens longer."""
        return [seq for seq, tokens in self.lengths.items() if self.allocator.capacity(seq) < tokens + longer]

    def growths(self, steps, most_ns):
        """Who grows in each of the next steps; each was taken when the next is asked for."""
        allocator = self.allocator
        for step in range(steps):
            due = self.due(step + 1)
            yield due
            maps, unmaps = allocator.maps, allocator.unmaps
            allocator.after_step({seq: tokens + step for seq, tokens in self.lengths.items()})
            maps, unmaps = allocator.maps - maps, allocator.unmaps - unmaps
            assert maps * allocator.map_ns + unmaps * allocator.unmap_ns <= most_ns
            maps = allocator.maps
            assert allocator.grow_mapped(due)
            assert allocator.maps == maps
            self.idles.append(allocator.idle_slots)


@pytest.mark.slow
@pytest.mark.parametrize("options", [LLAMA, OPT])
@pytest.mark.parametrize(
    ("make", "slots"),
    [(VAttention, 1_500), (VAttentionEager, 1_500), (VAttention2M, 9_000), (Kvcached, 3_000)],
)
def test_many_steps_are_as_one_after_the_other(make, slots, options):
    """As far as none would take longer beside than it may, or have to wait for a map."""
    begun = asked = 0
    for seed in range(40):
        random, lengths = Random(seed), {}
        most_ns = random.choice((10**9, 2 * 10**6, 10**5))
        many, one = make(slots, options), make(slots, options)
        for seq in range(60):
            tokens = random.randint(1, 400)
            if random.random() < 0.7 and many.admit(seq, tokens, tokens):
                assert one.admit(seq, tokens, tokens)
                lengths[seq] = tokens
            elif lengths:
                gone = random.choice(sorted(lengths))
                del lengths[gone]
                many.release(gone)
                one.release(gone)
            many.after_step(lengths)
            one.after_step(lengths)
            due, lengths = (
                [seq for seq, tokens in lengths.items() if one.capacity(seq) < tokens + 1],
                {seq: tokens + 1 for seq, tokens in lengths.items()},
            )
            if not one.grow_mapped(due):
                assert not many.grow_mapped(due)
                break
            assert many.grow_mapped(due)
            steps, follower = random.randint(1, 20), Follower(one, lengths)
            found = many.pass_steps(follower.growths(steps, most_ns), most_ns)
            assert found == follower.idles
            begun, asked = begun + len(found), asked + steps
            lengths = {seq: tokens + len(found) for seq, tokens in lengths.items()}
            assert (many.maps, many.unmaps, many.used_slots) == (one.maps, one.unmaps, one.used_slots)
        assert list(many.regions()) == list(one.regions())
    assert asked / 9 < begun < asked
