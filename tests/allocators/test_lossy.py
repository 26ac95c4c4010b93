"""Fewer tokens and fewer bits: the memory that is left, by closed forms and by the papers' own loops."""

import pytest

from kvsim import KvsimError, Scenario, simulate
from kvsim.allocators.lossy.budget import Budget
from kvsim.allocators.lossy.h2o import H2O
from kvsim.allocators.lossy.kivi import GROUP, RESIDUAL, Kivi
from kvsim.allocators.lossy.streaming_llm import SINKS, StreamingLLM
from kvsim.sim.run import side_by_side


def decoded(allocator, seq, prompt, tokens):
    """Admit a prompt and grow it to so many tokens, one by one as an engine does."""
    assert allocator.admit(seq, prompt, prompt)
    for length in range(prompt + 1, tokens + 1):
        assert allocator.grow(seq, length)


def held_blocks(allocator):
    return sum(1 for region in allocator.regions() if region.owners)


# -- StreamingLLM -----------------------------------------------------------------------------------


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize(("prompt", "tokens"), [(5, 60), (50, 51), (300, 500)])
def test_sinks_and_window_are_what_is_kept(block_size, prompt, tokens):
    budget = 40
    allocator = StreamingLLM(4_096, Budget(tokens=budget), block_size)
    decoded(allocator, 1, prompt, tokens)
    kept = [*range(SINKS), *range(tokens - (budget - SINKS), tokens)] if tokens > budget else range(tokens)
    assert {region.first // block_size for region in allocator.regions() if region.owners} == {
        token // block_size for token in kept
    }
    assert tokens - allocator.expired_slots == len(kept)


# -- H2O ----------------------------------------------------------------------------------------------


def test_slots_of_one_token_hold_just_the_budget():
    allocator = H2O(4_096, Budget(tokens=40), block_size=1)
    decoded(allocator, 1, 300, 500)
    assert allocator.used_slots == 40
    last = {region.first for region in allocator.regions() if region.owners}
    assert set(range(480, 500)) <= last, "half of the budget is recent"


@pytest.mark.parametrize("block_size", [2, 4, 16])
def test_blocks_get_empty_as_rarely_as_independent_drops_say(block_size):
    sequences, prompt, tokens, budget = 60, 960, 962, 192
    allocator = H2O(sequences * 1_024, Budget(tokens=budget), block_size)
    for seq in range(sequences):
        decoded(allocator, seq, prompt, tokens)
    older, heavy = tokens - budget // 2, budget // 2
    stay = 1 - (1 - heavy / older) ** block_size
    expected = sequences * (stay * older + budget // 2) / block_size
    assert held_blocks(allocator) == pytest.approx(expected, rel=0.03)
    assert sequences * tokens - allocator.expired_slots == sequences * budget


def test_a_share_of_the_prompt_is_the_budget_of_its_sequence():
    allocator = H2O(10_000, Budget(percent=20), block_size=1)
    decoded(allocator, 1, 100, 130)
    decoded(allocator, 2, 1_000, 1_030)
    assert allocator.used_slots == 20 + 200


# -- KIVI ---------------------------------------------------------------------------------------------


def bits_by_the_papers_loop(prompt, tokens, bits):
    """Keys are quantised when a residual is full, values one by one; as the published code appends them."""
    keys_full, values_full = prompt % RESIDUAL, min(prompt, RESIDUAL)
    keys, values = prompt - keys_full, prompt - values_full
    for _ in range(tokens - prompt):
        keys_full, values_full = keys_full + 1, values_full + 1
        if keys_full == RESIDUAL:
            keys, keys_full = keys + RESIDUAL, 0
        if values_full > RESIDUAL:
            values, values_full = values + 1, values_full - 1
    return 16 * (keys_full + values_full) + (bits + 2 * 16 / GROUP) * (keys + values)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize(
    ("prompt", "tokens"), [(1, 1), (127, 130), (128, 128), (200, 300), (256, 900), (1_000, 1_024)]
)
def test_keys_and_values_take_the_bits_of_the_papers_loop(bits, prompt, tokens):
    allocator = Kivi(10_000, bits=bits)
    decoded(allocator, 1, prompt, tokens)
    grain_bits = 16 / allocator.full
    assert allocator.used_slots * grain_bits == bits_by_the_papers_loop(prompt, tokens, bits)


def test_quantising_must_save_something():
    with pytest.raises(ValueError, match="bits must be at least 1 and save something, got 16 of 16"):
        Kivi(100, bits=16)


# -- in a run -----------------------------------------------------------------------------------------


def test_every_result_says_that_quality_is_not_modelled():
    run = simulate(allocator="h2o", kv_budget="50%", num_prompts=5)
    assert "Memory only: what the answers lose in quality is not modelled." in run.summary.notes


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"kv_budget": "20%"},
            "kv_budget must be left out for allocator paged: "
            "it belongs to allocator streaming-llm, h2o, got '20%'",
        ),
        (
            {"kv_bits": 2},
            "kv_bits must be left out for allocator paged: it belongs to allocator kivi, got 2",
        ),
        (
            {"allocator": "h2o", "kv_budget": "101%"},
            "kv_budget must be a number of tokens from 2 on, or 1% to 100%, got '101%'",
        ),
        ({"allocator": "kivi", "kv_bits": 3}, "kv_bits must be one of 1, 2, 4, 8, got 3"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, message):
    with pytest.raises(KvsimError, match=f"^{message}$"):
        simulate(num_prompts=2, **settings)


def test_a_comparison_gives_the_budget_to_those_that_take_it():
    server = Scenario(options={"kv_budget": "64"}).deployed()
    both = side_by_side(server, ["paged", "streaming-llm"])
    assert [each.engine.options.get("kv_budget") for each in both] == [None, "64"]
    with pytest.raises(KvsimError, match="kv_budget must be left out: none of paged, buddy takes it"):
        side_by_side(server, ["paged", "buddy"])
