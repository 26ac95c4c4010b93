"""llama.cpp's cells: a refused prompt finds room when a token fills a hole, or behind a window, as there."""

from functools import partial

import pytest

from kvsim.allocators.base import InvariantError
from kvsim.allocators.contract import check_allocator
from kvsim.allocators.llama import CellCache, Window, WindowPair
from kvsim.allocators.llama.batches import Token
from kvsim.allocators.llama.contiguous import LlamaContiguous
from kvsim.allocators.llama.defrag import moves_of


def genuine(layout: str) -> CellCache:
    """The cells that the recordings of July 2025 are played on: x holds a token."""
    cache = CellCache(len(layout), contiguous=True)
    for cell, mark in enumerate(layout):
        if mark == "x":
            cache.arrays[0].write(cell, 0, (cell,))
    return cache


def finds_room(cache: CellCache, tokens: int, most: int) -> bool:
    """As llama_decode: try; if there is no slot, defragment, and try once more."""
    prompt = [Token(position, (99,)) for position in range(tokens)]
    if cache.decode(prompt):
        return True
    (cells,) = cache.arrays
    cache.moved(0, moves_of(cells.empty, cells.used, most))
    return cache.decode(prompt) is not None


@pytest.mark.parametrize(("layout", "found"), [(".x..xx.", False), ("xx..xx.", True)])
def test_a_token_more_saves_the_move_that_was_lacking(layout, found):
    assert finds_room(genuine(layout), 3, most=1) == found
    assert finds_room(genuine(layout), 3, most=2)


def test_a_refused_prompt_is_admitted_after_a_loan():
    allocator = LlamaContiguous(7, most=1, threshold=0)
    for seq in range(7):
        allocator.admit(seq, 1, 1)
    for seq in (0, 2, 3, 6):  # .x..xx.
        allocator.release(seq)
    assert not allocator.can_admit(3, 3)
    assert allocator.grow(5, 2)
    assert next(allocator.regions())[:3] == (0, 1, (5,))
    assert allocator.admit(9, 3, 3)
    assert allocator.copied_slots == 2  # in one move


class Undeclared(LlamaContiguous):
    moves_in_part = False


class Promising(LlamaContiguous):
    growth_unit = 1

    def growth_budget(self):
        return self.free_slots


@pytest.mark.parametrize("broken", [Undeclared, Promising])
def test_random_calls_find_it_where_a_class_does_not_say_so_or_promises_growth(broken):
    with pytest.raises(InvariantError, match="no_stays_no"):
        for seed in range(30):
            check_allocator(partial(broken, most=2), seed, arenas=[37], calls=150)


@pytest.mark.parametrize("most", [1, 2, 3, 341])
def test_random_calls_find_nothing_else(most):
    for seed in (6, 7):
        check_allocator(partial(LlamaContiguous, most=most), seed, arenas=[37], calls=150)


@pytest.mark.parametrize(("window", "placed"), [(Window(24), 10), (None, 8)])
def test_a_prompt_longer_than_the_windowed_cache_fits_where_the_window_hides_what_is_behind(window, placed):
    pair = WindowPair(512, 1, 24, window, padding=256, most=32, unified=True)
    assert (pair.base.size, pair.window.size) == (512, 256)
    pieces = [[Token(at, (0,)) for at in range(start, start + 32)] for start in range(0, 320, 32)]
    assert sum([pair.decode(piece) is not None for piece in pieces]) == placed
    assert pair.base.arrays[0].used == 32 * placed
    assert pair.window.arrays[0].used <= 256
