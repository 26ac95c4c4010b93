"""Prefill attention against float64."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install -e .[test]")
pytest.importorskip("triton", reason="triton is not installed: pip install -e .[test]")

from support.paged_case import DEVICE, TOLERANCE, Batch, guarded, padded, relative_error, shuffled_tables

from kvsim.kernels.decode import decode_attention
from kvsim.kernels.launch import Tiling
from kvsim.kernels.prefill import plan_prefill, prefill_attention

pytestmark = pytest.mark.slow

HALVES = pytest.mark.parametrize("dtype", TOLERANCE, ids=["fp16", "bf16"])

SMALL = Tiling(16, 4, 1, rows=16)
"""Many small tiles where the table would have one: more borders for little interpreting."""


def shuffled(lengths, counts, block_size=16, seed=0, **more):
    generator = torch.Generator().manual_seed(seed)
    tables, num_blocks = shuffled_tables(generator, lengths, block_size)
    return Batch(lengths, tables, num_blocks, block_size=block_size, counts=counts, seed=seed, **more)


def prefilled(batch, query, **more):
    options = {"block_table": padded(batch.tables), "most_queries": max(batch.counts)} | more
    with guarded(query) as out:
        given = prefill_attention(
            query, batch.keys, batch.values, batch.integers(batch.lengths),
            batch.integers(batch.first_queries), out=out, window=batch.window, **options,
        )  # fmt: skip
    assert given is out
    return out


def assert_right(batch, query, out, **more):
    assert torch.isfinite(out).all()
    assert relative_error(out, batch.expected(query, **more)) <= TOLERANCE[query.dtype]


@HALVES
@pytest.mark.parametrize("block_size", [1, 16, 24, 256])
def test_chunks_behind_prefixes_of_any_length(block_size, dtype):
    """A whole prompt, a chunk behind a prefix, a single token, an empty chunk, a prompt of one token."""
    batch = shuffled([block_size + 1, 150, 90, 16, 1], [block_size + 1, 37, 1, 0, 1], block_size, dtype=dtype)
    query = batch.queries(sum(batch.counts))
    assert_right(batch, query, prefilled(batch, query))


@HALVES
@pytest.mark.parametrize("head_dim", [32, 64, 80, 96, 128, 256])
def test_head_sizes(head_dim, dtype):
    batch = shuffled([100, 33], [70, 33], head_dim=head_dim, dtype=dtype)
    query = batch.queries(103)
    assert_right(batch, query, prefilled(batch, query))


@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 3), (8, 2), (14, 2), (16, 2), (20, 1)])
def test_head_groups(heads, kv_heads):
    batch = shuffled([70, 5], [20, 5], heads=heads, kv_heads=kv_heads)
    query = batch.queries(25)
    assert_right(batch, query, prefilled(batch, query))


@pytest.mark.parametrize(("heads", "kv_heads", "blocks"), [(32, 1, 2), (20, 1, 2), (96, 2, 3), (17, 1, 17)])
def test_groups_of_more_heads_than_a_program_has_rows_are_taken_in_blocks(heads, kv_heads, blocks):
    batch = shuffled([40, 5], [7, 5], heads=heads, kv_heads=kv_heads, head_dim=32, block_size=24)
    query = batch.queries(12)
    arguments = planned(heads, kv_heads, SMALL).arguments
    assert (arguments["ROWS"], arguments["BLOCKS"]) == (16, blocks)
    assert_right(batch, query, prefilled(batch, query, tiling=SMALL))
    assert_right(batch, query, prefilled(batch, query, tiling=Tiling(16, 4, 1)))


def planned(heads, kv_heads, tiling):
    def meta(*shape, dtype=torch.int32):
        return torch.empty(shape, dtype=dtype, device="meta")

    query, pool = (meta(*shape, dtype=torch.float16) for shape in ((12, heads, 32), (9, 16, kv_heads, 32)))
    return plan_prefill(
        query, pool, pool, meta(2), meta(3), query, most_queries=7, block_table=meta(2, 3), tiling=tiling
    )


@pytest.mark.parametrize("heads", [2, 8, 14])
def test_tiles_smaller_than_the_chunk(heads):
    batch = shuffled([60, 17], [35, 17], heads=heads, kv_heads=2, head_dim=32)
    query = batch.queries(52)
    assert_right(batch, query, prefilled(batch, query, tiling=SMALL))


@pytest.mark.parametrize("window", [1, 16, 23, 64, 1000])
@pytest.mark.parametrize("tiling", [None, SMALL], ids=["table", "small"])
def test_a_window_reads_nothing_behind_it(window, tiling):
    """What lies behind every query's window is NaN, and the table entries of such blocks are traps."""
    batch = shuffled([95, 20], [30, 20], window=window, heads=2, head_dim=32)
    table = padded(batch.tables)
    for row, (length, count) in enumerate(zip(batch.lengths, batch.counts, strict=True)):
        table[row, : max(0, length - count - window + 1) // 16] = 2**28
    query = batch.queries(50)
    assert_right(batch, query, prefilled(batch, query, block_table=table, tiling=tiling))


@pytest.mark.parametrize("kv_dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=["e4m3", "e5m2"])
def test_eight_bit_keys_and_values(kv_dtype):
    batch = shuffled([90, 5], [20, 5], kv_dtype=kv_dtype, dtype=torch.bfloat16)
    query = batch.queries(25)
    scales = {"key_scale": 0.5, "value_scale": 3.0}
    assert_right(batch, query, prefilled(batch, query, **scales), **scales)


def test_sequences_may_share_blocks():
    batch = Batch([40, 64], [[4, 1, 2], [4, 1, 0, 3]], 6, counts=[8, 32])
    query = batch.queries(40)
    assert_right(batch, query, prefilled(batch, query))


def test_contiguous_addresses():
    """Blocks in ascending order, found through the slot of the first token."""
    batch = Batch([40, 64], [[0, 1, 2], [3, 4, 5, 6]], 7, counts=[8, 32])
    query = batch.queries(40)
    starts = torch.tensor([0, 48], dtype=torch.int64, device=DEVICE)
    out = prefilled(batch, query, block_table=None, starts=starts)
    assert torch.equal(out, prefilled(batch, query))
    assert_right(batch, query, out)


def test_chunks_of_one_token_are_a_decode():
    batch = shuffled([20, 75], [1, 1])
    query = batch.queries(2)
    decoded = decode_attention(
        query, batch.keys, batch.values, batch.integers(batch.lengths), longest=75,
        block_table=padded(batch.tables),
    )  # fmt: skip
    assert relative_error(prefilled(batch, query), decoded.cpu().double()) <= 1e-3
