"""Decode attention against float64."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install -e .[test]")
pytest.importorskip("triton", reason="triton is not installed: pip install -e .[test]")

from support.decode_case import assert_right, decoded, shuffled
from support.paged_case import DEVICE, TOLERANCE, Batch, padded, poison, relative_error

from kvsim.kernels.decode import decode_attention
from kvsim.kernels.launch import Tiling

pytestmark = pytest.mark.slow

HALVES = pytest.mark.parametrize("dtype", TOLERANCE, ids=["fp16", "bf16"])


@HALVES
@pytest.mark.parametrize("block_size", [1, 8, 16, 24, 64, 256])
def test_any_mix_of_lengths_in_shuffled_blocks(block_size, dtype):
    lengths = [0, 1, max(block_size - 1, 1), block_size, block_size + 1, 300]
    batch = shuffled(lengths, block_size, dtype=dtype)
    query = batch.queries(len(lengths))
    assert_right(batch, query, decoded(batch, query))


@HALVES
@pytest.mark.parametrize("head_dim", [32, 64, 80, 96, 128, 256])
def test_head_sizes(head_dim, dtype):
    batch = shuffled([0, 1, 150], head_dim=head_dim, dtype=dtype)
    query = batch.queries(3)
    assert_right(batch, query, decoded(batch, query))


@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 3), (8, 2), (14, 2), (16, 2), (20, 1)])
def test_head_groups(heads, kv_heads):
    batch = shuffled([17, 0, 90], heads=heads, kv_heads=kv_heads)
    query = batch.queries(3)
    assert_right(batch, query, decoded(batch, query))


@HALVES
@pytest.mark.parametrize("splits", [1, 2, 3, 7])
def test_however_the_context_is_split(splits, dtype):
    batch = shuffled([0, 1, 64, 65, 450], dtype=dtype)
    query = batch.queries(5)
    assert_right(batch, query, decoded(batch, query, splits=splits))


@pytest.mark.parametrize("window", [None, 300])
def test_a_long_sequence_among_short_ones_is_shared_by_many_programs(window):
    lengths = [20, 0, 33, 1400, 5, 0]
    batch = shuffled(lengths, heads=4, kv_heads=2, window=window)
    query = batch.queries(len(lengths))
    out = decoded(batch, query, tokens=sum(lengths), splits=7, tiling=Tiling(64, 4, 1))
    assert_right(batch, query, out)


def test_more_pieces_than_the_reduction_takes_at_once():
    """40 pieces of 16 tokens, 16 at a time; the largest scores come late, so that earlier pieces fade."""
    batch = shuffled([0, 640, 16 * 17, 30], heads=2, kv_heads=1, head_dim=32)
    late = batch.slots[1][600:].to(DEVICE)
    batch.keys.flatten(0, 1)[late] *= 3
    query = batch.queries(4)
    out = decoded(batch, query, splits=40, tiling=Tiling(16, 4, 1))
    assert_right(batch, query, out)


@pytest.mark.parametrize("window", [1, 15, 64, 100, 1000])
@pytest.mark.parametrize("splits", [1, 3])
def test_a_window_reads_nothing_behind_it(window, splits):
    """What lies behind the window is NaN, and the table entries of blocks wholly behind it are traps."""
    batch = shuffled([0, 1, 99, 130, 330], window=window)
    table = padded(batch.tables)
    for row, length in enumerate(batch.lengths):
        table[row, : max(0, length - window) // batch.block_size] = 2**28
    query = batch.queries(5)
    assert_right(batch, query, decoded(batch, query, block_table=table, splits=splits))


@pytest.mark.parametrize("kv_dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=["e4m3", "e5m2"])
@HALVES
def test_eight_bit_keys_and_values(kv_dtype, dtype):
    batch = shuffled([0, 40, 200], dtype=dtype, kv_dtype=kv_dtype, head_dim=128)
    query = batch.queries(3)
    scales = {"key_scale": 0.5, "value_scale": 3.0}
    assert_right(batch, query, decoded(batch, query, **scales), **scales)


@pytest.mark.parametrize("power", [60, -60])
def test_eight_bit_keys_take_queries_of_any_size(power):
    """Beyond the range of float16, in units of a power of two: the same bits; a head may be all zeros."""
    batch = shuffled([0, 40, 200], dtype=torch.bfloat16, kv_dtype=torch.float8_e4m3fn, head_dim=128)
    query = batch.queries(3)
    query[1, 0] = 0
    usual = decoded(batch, query, scale=2.0**-4)
    large = decoded(batch, query * 2.0**power, scale=2.0 ** (-4 - power))
    assert torch.equal(usual, large)
    assert_right(batch, query, usual, scale=2.0**-4)


def test_the_contiguous_twin_gives_the_same_bits():
    """The same numbers at linear and at paged addresses: only the addressing differs."""
    paged = shuffled([0, 5, 140])
    query = paged.queries(3)
    starts, keys, values = [], [], []
    for slots in paged.slots:
        starts.append(sum(map(len, keys)) + 3)
        for pool, rows in ((paged.keys, keys), (paged.values, values)):
            rows.append(pool.flatten(0, 1)[slots.to(DEVICE)])
    lead = poison(torch.empty_like(paged.keys.flatten(0, 1)[:3]))
    tail = poison(torch.empty_like(paged.keys.flatten(0, 1)[:16]))
    linear_keys = torch.cat([lead, *keys, tail])[:, None]
    linear_values = torch.cat([lead, *values, tail])[:, None]
    linear = decode_attention(
        query, linear_keys, linear_values, paged.integers(paged.lengths), longest=140,
        starts=paged.integers(starts), out=poison(torch.empty_like(query)),
    )  # fmt: skip
    assert torch.equal(linear, decoded(paged, query))
    assert_right(paged, query, linear)


def test_sequences_may_share_blocks():
    tables = [[4, 1, 2], [4, 1, 0, 3], [4]]
    batch = Batch([40, 64, 16], tables, 6)
    query = batch.queries(3)
    assert_right(batch, query, decoded(batch, query))


def test_long_tables_of_64_bit_integers_and_a_bound_that_is_not_met():
    batch = shuffled([33, 7])
    query = batch.queries(2)
    assert_right(batch, query, decoded(batch, query, index=torch.int64, longest=48))


def test_a_scale_of_its_own_and_large_scores():
    """Scores of hundreds: the maximum is taken off before the exponential."""
    batch = shuffled([0, 200, 3])
    query = batch.queries(3)
    out = decoded(batch, query, scale=8.0)
    error = relative_error(out, batch.expected(query, scale=8.0))
    assert error <= 5e-3  # one weight is nearly 1: its rounding is the error


def test_nothing_to_do_is_done():
    batch = shuffled([5])
    query = batch.queries(1)[:0]
    lengths = batch.integers([])
    table = torch.empty((0, 1), dtype=torch.int32, device=DEVICE)
    out = decode_attention(query, batch.keys, batch.values, lengths, longest=0, block_table=table)
    assert out.shape == query.shape


def test_only_empty_sequences_give_zeros():
    batch = shuffled([16])
    query = batch.queries(2)
    lengths, table = batch.integers([0, 0]), padded([[], []])
    out = poison(torch.empty_like(query))
    decode_attention(query, batch.keys, batch.values, lengths, longest=0, block_table=table, out=out)
    assert not out.any()


@HALVES
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("softcap", [0.5, 50.0])
def test_scores_are_capped(softcap, splits, dtype):
    """Also scores of hundreds, which the cap brings down to its own size."""
    batch = shuffled([0, 1, 65, 300], dtype=dtype, window=200)
    query = batch.queries(4)
    for scale in (None, 8.0):
        out = decoded(batch, query, splits=splits, softcap=softcap, scale=scale)
        assert relative_error(out, batch.expected(query, softcap=softcap, scale=scale)) <= 5e-3
    assert_right(batch, query, decoded(batch, query, splits=splits, softcap=softcap), softcap=softcap)


@pytest.mark.parametrize("sink_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("splits", [1, 3, 7])
@pytest.mark.parametrize("window", [None, 100])
def test_sinks_take_their_share_of_the_softmax_once(window, splits, sink_dtype):
    """Next to none, some, or nearly all of it; however the context is cut; of no token nothing."""
    batch = shuffled([0, 1, 65, 300, 64], window=window)
    sinks = torch.tensor([-1e4, -2, 0, 1, 5, 20, 3, 200.0]).to(DEVICE, sink_dtype)
    query = batch.queries(5)
    out = decoded(batch, query, splits=splits, sinks=sinks)
    assert_right(batch, query, out, sinks=sinks)
    assert not out[:, 7].any()
    capped = decoded(batch, query, splits=splits, sinks=sinks, softcap=2.0)
    assert_right(batch, query, capped, sinks=sinks, softcap=2.0)


@pytest.mark.parametrize("bound", [-torch.inf, torch.finfo(torch.float32).min])
@pytest.mark.parametrize("splits", [1, 3])
def test_sinks_below_all_bounds_change_nothing(splits, bound):
    """Nor do they of a sequence without tokens."""
    batch = shuffled([5, 0, 200])
    query = batch.queries(3)
    sinks = torch.full((8,), bound, device=DEVICE)
    assert torch.equal(
        decoded(batch, query, sinks=sinks, splits=splits), decoded(batch, query, splits=splits)
    )
