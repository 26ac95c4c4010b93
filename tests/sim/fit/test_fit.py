"""`fit` says where memory goes and how many requests fit; the surprises of the published cases are in it."""

from dataclasses import replace

import pytest

from kvsim.sim.errors import KvsimError
from kvsim.sim.fit.answer import fit
from kvsim.sim.fit.capacity import GIB, capacity_of
from kvsim.sim.fit.lengths import held_blocks, length_fits, parse_lengths, uniform_waste
from kvsim.sim.fit.what_if import what_ifs
from kvsim.sim.kv.blocks import KvSettings, paged
from kvsim.sim.kv.groups import groups_of
from kvsim.sim.kv.pages import Group, Page, Request
from kvsim.sim.models.catalog import model_named
from kvsim.sim.models.kv_layers import KvLayers, RecurrentState


def full(block=16, token_bytes=1024, **more):
    return Page(kind="full_attention", block_size=block, bytes_each=token_bytes, **more)


def window(seen, block=16, token_bytes=1024):
    return Page(kind="sliding_window", block_size=block, bytes_each=token_bytes, window=seen)


def alike(page, count):
    return [page] * count


# -- what surprises -----------------------------------------------------------------------------------


def test_the_printed_size_of_the_same_blocks_depends_on_the_tokens_in_flight():
    h100, a100 = (fit("mistral-7b", gpu, kv_memory=40) for gpu in ("h100", "a100-80gb"))
    assert h100.capacity.num_blocks == a100.capacity.num_blocks == 20_480
    assert (h100.capacity.kv_tokens, a100.capacity.kv_tokens) == (523_878, 1_308_164)
    assert (h100.request.in_flight_tokens, a100.request.in_flight_tokens) == (16_384, 4_096)
    assert any("16,384 tokens in flight (twice the token budget" in note for note in h100.notes)


def test_one_block_is_the_null_block_so_a_cache_of_exactly_one_request_is_refused():
    exact = fit("llama-3.1-70b", kv_memory=40)
    assert exact.capacity.num_blocks == exact.capacity.blocks_per_request == 8192
    assert "5.00 MiB more; or --max-model-len 131056" in (exact.capacity.refusal or "")
    assert fit("llama-3.1-70b", kv_memory=40 + 5 / 1024).capacity.refusal is None


@pytest.mark.parametrize(
    ("model", "gpu", "caching", "block"),
    [
        ("qwen3-next-80b-a3b", "h100", True, 576),
        ("qwen3-next-80b-a3b", "h100", False, 544),
        ("qwen3-next-80b-a3b", "a100-80gb", True, 544),
        ("jamba-1.5-mini", "h100", True, 80),
        ("nemotron-h-56b", "h100", True, 4128),
    ],
)
def test_a_recurrent_state_decides_the_block(model, gpu, caching, block):
    found = fit(model, gpu, kv_memory=40, enable_prefix_caching=caching)
    assert found.paged.block_size == block


def test_a_latent_in_fp8_takes_blocks_of_64():
    assert fit("deepseek-v3", kv_memory=40).paged.block_size == 16
    assert fit("deepseek-v3", kv_memory=40, kv_cache_dtype="fp8").paged.block_size == 64


def test_gpt_oss_120b_fits_an_h100_because_its_experts_have_four_bits():
    found = fit("gpt-oss-120b", "h100")
    assert found.weights_bytes / GIB == pytest.approx(64.55, abs=0.01)  # 60.77 and the padding of experts
    assert (
        found.capacity.refusal is not None
    )  # 1,024 seats leave the cache too little for the longest request
    assert fit("gpt-oss-120b", "h100", max_num_seqs=256).capacity.refusal is None
    assert fit("gpt-oss-120b", "h100", quantization="none").weights_bytes > 3 * found.weights_bytes
    assert sum(line.bytes for line in found.lines) == found.gpu.memory_bytes


def test_what_does_not_fit_says_by_how_much_and_what_would_help():
    found = fit("llama-3.1-70b", "h100")
    assert "GiB more would make one usable block; it would with --tensor-parallel-size 4" in found.notes[-1]
    assert fit("llama-3.1-70b", "h100", tensor_parallel_size=4).capacity.refusal is None


# -- the published cases of hybrid models -------------------------------------------------------------


def test_uniform_allocation_wastes_what_vllm_issue_11382_published():
    cross = Page(kind="cross_attention", block_size=16, bytes_each=1)
    vision = uniform_waste([(full(), 32), (cross, 8)], tokens=43, encoder_tokens=6193)
    gemma = uniform_waste([(full(), 21), (window(4096), 21)], tokens=8192)
    ministral = uniform_waste([(full(), 9), (window(32_768), 27)], tokens=131_072)
    assert round(100 * vision, 1) == 79.6
    assert gemma == 0.25
    assert ministral == 0.5625


def hybrid(state_bytes, token_bytes, recurrent, attention=1):
    """A model whose states have so many bytes, and whose attention caches so many per token."""
    state = RecurrentState(kind="linear", heads=1, head_values=state_bytes, dtype_bytes=1, chunk_tokens=256)
    kept = (
        KvLayers(kind="mamba", layers=tuple(range(recurrent)), state=state),
        KvLayers(
            kind="full_attention",
            layers=tuple(range(recurrent, recurrent + attention)),
            kv_heads=1,
            head_dim=token_bytes // 4,
            value_dim=token_bytes // 4,
        ),
    )
    return replace(model_named("llama-3.1-8b"), kv_layers=kept)


def test_a_state_of_788_kb_needs_394_tokens_and_takes_512_as_in_vllm_25752():
    found = paged(hybrid(788_000, 2_000, 3), KvSettings(mamba_cache_mode="all"))
    assert (found.aligned_from, found.step, found.block_size) == (394, 256, 512)


def test_blocks_of_7808_tokens_let_a_prompt_of_12_take_32_9_percent_of_the_pool_as_in_vllm_54458():
    model = hybrid(7_808 * 1_000, 1_000, recurrent=22)
    found = paged(model, KvSettings())
    groups = groups_of(found.layers)
    assert found.block_size == 7_808
    assert len(groups) == 23
    (short,) = length_fits(groups, 71, found.block_size * 1_000, [(12, 1)])  # 70 blocks and the null block
    assert (short.blocks, short.requests) == (23, 3)
    assert round(short.pool_percent, 1) == 32.9


# -- requests of given lengths ------------------------------------------------------------------------


def test_windows_and_chunks_hold_the_blocks_that_are_still_seen():
    held = [held_blocks(window(32), tokens) for tokens in (1, 16, 32, 33, 48, 49, 64)]
    assert held == [1, 1, 2, 3, 2, 3, 2]
    chunk = Page(kind="chunked_local_attention", block_size=16, bytes_each=1, chunk=64)
    assert [held_blocks(chunk, tokens) for tokens in (16, 64, 65, 128, 129)] == [1, 4, 1, 4, 1]
    assert [held_blocks(full(), tokens) for tokens in (1, 16, 17)] == [1, 1, 2]


def test_states_take_one_block_without_prefixes_and_at_most_two_and_the_checkpoint_with_them():
    state = Page(kind="mamba", block_size=16, bytes_each=1, aligned=True, checkpoints=1)
    assert [held_blocks(state, tokens) for tokens in (1, 16, 17, 33, 1000)] == [1, 1, 2, 3, 3]
    assert held_blocks(replace(state, aligned=False), 1000) == 1


def test_a_state_in_every_block_takes_as_many_blocks_as_the_request_is_long():
    every, ends = (
        fit("granite-4.0-h-tiny", kv_memory=40, mamba_cache_mode=mode, lengths="8000+193")
        for mode in ("all", "align")
    )
    assert (every.paged.step, every.paged.block_size) == (256, 512)
    blocks = -(-8192 // 512)
    assert [each.lengths[0].blocks for each in (every, ends)] == [10 * blocks, 9 * 3 + -(-8192 // 400)]


def test_requests_share_the_blocks_beside_the_null_block():
    (each,) = length_fits([Group((0,), (full(),))], 101, 16 * 1024, [(1000, 25)])
    assert (each.blocks, each.requests, each.pool_percent) == (64, 1, 64.0)
    assert each.used_percent == 100 * 1024 / 1024  # 1,024 tokens stored of 64 x 16 slots


@pytest.mark.parametrize("text", ["", "100", "a+b", "0+5", "5+0", "1+2;3+4"])
def test_lengths_are_prompt_plus_answer(text):
    with pytest.raises(KvsimError, match="lengths must be PROMPT"):
        parse_lengths(text)


# -- groups by hand -----------------------------------------------------------------------------------


def test_kinds_are_cut_into_groups_of_the_smaller_count_or_of_the_larger_where_it_is_near():
    layers = list(enumerate([*alike(window(32), 12), *alike(full(), 13)]))
    assert [len(group.layers) for group in groups_of(layers)] == [12, 13]
    layers = list(enumerate([*alike(window(32), 20), *alike(full(), 10)]))
    assert [group.layers[:2] for group in groups_of(layers)] == [(0, 2), (1, 3), (20, 21)]


def test_a_smaller_page_holds_more_tokens_and_one_that_does_not_divide_is_padded():
    groups = groups_of(list(enumerate([full(token_bytes=512), window(32)])))
    assert [group.page.block_size for group in groups] == [32, 16]
    groups = groups_of(list(enumerate([full(token_bytes=768), window(32)])))
    assert [(group.page.block_size, group.page.bytes) for group in groups] == [(16, 16384), (16, 16384)]
    latent = Page(kind="mla_attention", block_size=16, bytes_each=1152)
    chunk = Page(kind="chunked_local_attention", block_size=16, bytes_each=2000, chunk=64)
    with pytest.raises(KvsimError, match="a latent cannot be padded"):
        groups_of([(0, latent), (1, chunk)])


def test_without_the_hybrid_manager_windows_keep_every_token_and_states_cannot():
    layers = list(enumerate([window(32), full()]))
    (group,) = groups_of(layers, disable_hybrid=True)
    assert (group.kind, group.layers) == ("full_attention", (0, 1))
    state = Page(kind="mamba", block_size=16, bytes_each=16384)
    with pytest.raises(KvsimError, match="disable_hybrid_kv_cache_manager must be left out"):
        groups_of([(0, state), (1, full())], disable_hybrid=True)


def test_concurrency_is_blocks_over_the_blocks_of_the_longest_request():
    group = Group((0,), (full(),))
    found = capacity_of([group], 100 * 16384, Request(1000, 0))
    assert (found.num_blocks, found.blocks_per_request, found.max_concurrency) == (100, 63, 100 / 63)
    assert found.kv_tokens == int(100 / 63 * 1000)
    assert capacity_of([group], 63 * 16384, Request(1000, 0)).longest == 62 * 16


# -- other settings -------------------------------------------------------------------------


def test_what_ifs_are_the_same_question_with_one_thing_different():
    base = fit("mistral-7b", "h100")
    found = {each.name: each.fit for each in what_ifs(base)}
    assert found["fp8 cache"].capacity.num_blocks == pytest.approx(2 * base.capacity.num_blocks, abs=1)
    assert found["synchronous scheduling"].capacity.num_blocks == base.capacity.num_blocks
    assert found["4-bit weights"].kv_memory_bytes > base.kv_memory_bytes + 9 * GIB
    refused = {
        each.name: each.error for each in what_ifs(fit("falcon-h1-34b", "h100", tensor_parallel_size=2))
    }
    assert "2 groups of Mamba 2 heads" in refused["tensor parallel 4"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv_memory": 0}, "kv_memory must be above 0, got 0"),
        ({"gpu_memory_utilization": 1.5}, "at most 1, got 1.5"),
        ({"engine": "sglang"}, "engine must be vllm-v1@RELEASE"),
        ({"mamba_cache_mode": "some"}, "mamba_cache_mode must be one of none, align"),
        ({"tensor_parallel_size": 5}, "tensor_parallel_size must divide the 32 heads"),
        ({"colour": "red"}, "fit knows no option colour"),
        ({"max_num_seqs": 0}, "max_num_seqs must be at least 1"),
    ],
)
def test_what_cannot_be_asked_is_named(options, message):
    with pytest.raises(KvsimError, match=message):
        fit("llama-3.1-8b", **options)
