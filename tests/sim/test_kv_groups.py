"""Layers in groups over one pool of blocks, and what is freed behind a window, as in vLLM 0.11.0."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.window_blocks import blocks_behind, blocks_held

from kvsim.sim.models.catalog import model_named
from kvsim.sim.models.kv_groups import KvGroups, kv_groups

LLAMA = model_named("llama-3.1-8b")
EXAMPLE = KvGroups(10, full_groups=1, window_groups=2, window=32)


def layers(full, windowed, window=32):
    return replace(LLAMA, layers=full + windowed, window=window if windowed else None, window_layers=windowed)


@pytest.mark.parametrize(
    ("model", "groups"),
    [
        (layers(10, 20), EXAMPLE),
        (layers(32, 0), KvGroups(32, 1, 0, None)),
        (layers(0, 32), KvGroups(32, 0, 1, 32)),
        (layers(12, 12), KvGroups(12, 1, 1, 32)),
        (layers(3, 2), KvGroups(2, 2, 1, 32)),
        (model_named("gemma-3-27b"), KvGroups(10, 1, 6, 1024)),
        (model_named("gemma-3-4b"), KvGroups(5, 1, 6, 1024)),
        (model_named("mistral-7b"), KvGroups(32, 0, 1, 4096)),
    ],
)
def test_groups_have_the_size_of_the_rarer_kind(model, groups):
    assert kv_groups(model) == groups
    assert groups.count == groups.full_groups + groups.window_groups


def test_without_the_hybrid_manager_mixed_models_keep_everything():
    assert kv_groups(layers(10, 20), disable_hybrid_kv_cache_manager=True) == KvGroups(30, 1, 0, None)
    assert kv_groups(layers(0, 32), disable_hybrid_kv_cache_manager=True) == KvGroups(32, 0, 1, 32)


def test_the_worked_example_holds_eleven_blocks():
    assert blocks_held(EXAMPLE, 16, 112) == 7 + 2 * 2 == 11


def test_a_block_goes_in_the_step_whose_query_no_longer_sees_its_last_token():
    held = [blocks_held(replace(EXAMPLE, full_groups=0, window_groups=1), 16, t) for t in range(1, 82)]
    changes = {t: held[t - 1] for t in range(2, 82) if held[t - 1] != held[t - 2]}
    assert changes == {17: 2, 33: 3, 48: 2, 49: 3, 64: 2, 65: 3, 80: 2, 81: 3}


def test_a_chunk_of_a_prompt_takes_blocks_for_all_of_it_and_gives_back_later():
    assert blocks_held(EXAMPLE, 16, 112, computed=0) == 3 * 7
    assert blocks_held(EXAMPLE, 16, 113) == 8 + 2 * (8 - 5)
    assert blocks_held(EXAMPLE, 16, 224, computed=112) == 14 + 2 * (14 - 5)


def test_a_window_of_one_token_sees_the_token_itself_only():
    alone = KvGroups(1, 0, 1, 1)
    assert [blocks_behind(alone, 4, computed) for computed in (0, 3, 4, 8)] == [0, 0, 1, 2]


@given(
    st.sampled_from((1, 4, 16)),
    st.integers(1, 70),
    st.lists(st.integers(1, 40), min_size=1, max_size=30),
)
def test_it_is_a_block_table_step_by_step(block_size, window, chunks):
    """Each step: drop blocks that no later query sees, take blocks for the chunk, drop no visible one."""
    groups, table, computed = KvGroups(1, 1, 2, window), [], 0
    for chunk in chunks:
        first_seen = max(0, computed - window + 1)
        for block in range(len(table)):
            table[block] = table[block] and (block + 1) * block_size > first_seen
        table += [True] * (-(-(computed + chunk) // block_size) - len(table))
        assert all(table[position // block_size] for position in range(first_seen, computed + chunk))
        expected = len(table) + 2 * sum(table)
        assert blocks_held(groups, block_size, computed + chunk, computed) == expected
        computed += chunk
