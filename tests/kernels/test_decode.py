"""Decode attention against float64."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install -e .[test]")
pytest.importorskip("triton", reason="triton is not installed: pip install -e .[test]")

from support.paged_case import (
    DEVICE,
    TOLERANCE,
    Batch,
    guarded,
    padded,
    poison,
    relative_error,
    shuffled_tables,
)

from kvsim.kernels.decode import decode_attention
from kvsim.kernels.faults import TOKENS, expect_no_faults, faults_on
from kvsim.kernels.launch import Tiling
from kvsim.kernels.pieces import cut

pytestmark = pytest.mark.slow

HALVES = pytest.mark.parametrize("dtype", TOLERANCE, ids=["fp16", "bf16"])


def shuffled(lengths, block_size=16, seed=0, **more):
    generator = torch.Generator().manual_seed(seed)
    tables, num_blocks = shuffled_tables(generator, lengths, block_size)
    return Batch(lengths, tables, num_blocks, block_size=block_size, seed=seed, **more)


def decoded(batch, query, index=torch.int32, **more):
    options = {"longest": max(batch.lengths), "block_table": padded(batch.tables, index)} | more
    options = {"lengths": batch.integers(batch.lengths, index)} | options
    with guarded(query) as guarded_out:
        out = options.pop("out", guarded_out)
        given = decode_attention(query, batch.keys, batch.values, out=out, window=batch.window, **options)
    assert given is out
    return out


def told():
    """Wait for the GPU, as where an engine waits for tokens, and ask what it found."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    expect_no_faults(DEVICE)


def assert_right(batch, query, out, **more):
    expected = batch.expected(query, **more)
    assert torch.isfinite(out).all()
    assert relative_error(out, expected) <= TOLERANCE[query.dtype]
    for row, length in enumerate(batch.lengths):
        if length == 0:
            assert not out[row].any()
        else:
            assert relative_error(out[row], expected[row]) <= 2 * TOLERANCE[query.dtype]


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


def test_shares_are_cut_once_for_all_layers():
    """15 tiles in 13 shares: they begin with tile floor(i * 15 / 13) of all."""
    lengths = [0, 700, 3, 64, 65]
    batch = shuffled(lengths)
    numbers = batch.integers(lengths)
    pieces = cut(numbers, longest=700, tokens=sum(lengths), kv_heads=2, head_dim=64, splits=11)
    assert (pieces.batch, pieces.tile, pieces.shares) == (5, 64, 13)
    starts = [[0, 0], *([1, i] for i in (1, 2, 3, 4, 5, 6, 8, 9, 10)), [2, 0], [3, 0], [4, 0], [5, 0]]
    assert pieces.starts[:, :2].tolist() == starts
    assert pieces.starts[:, 2].tolist() == [i * 15 // 13 for i in range(14)]
    query = batch.queries(len(lengths))
    for layer in range(2):
        out = decoded(batch, query, pieces=pieces, lengths=numbers[:] if layer else numbers)
        assert_right(batch, query, out)


CUT = {"longest": 700, "kv_heads": 2, "head_dim": 64}
STALE = "pieces are stale"


def test_pieces_of_the_step_before_are_refused_before_anything_is_launched():
    """Also where no length crosses a tile, or where each sequence has a program of its own."""
    batch = shuffled([0, 700, 3, 64, 65])
    query = batch.queries(5)
    for splits in (1, 5):
        numbers = batch.integers(batch.lengths)
        before = numbers.clone()
        pieces = cut(numbers, splits=splits, **CUT)
        for lengths in (before, numbers[:].add_(1)):
            out = poison(torch.empty_like(query))
            with pytest.raises(ValueError, match=STALE):
                decoded(batch, query, pieces=pieces, lengths=lengths, out=out)
            assert out.isnan().all()


@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("others", [[700, 0, 0, 300, 64], [0, 0, 0, 0, 0], [1, 2, 3, 4, 5], [700] * 5])
def test_lengths_written_behind_torchs_back_are_told_late_and_the_result_is_right(others, window):
    """As by a replayed graph or a kernel: `.data` is not counted either. It is told once."""
    batch = shuffled([0, 700, 3, 64, 65], window=window)
    query = batch.queries(5)
    numbers = batch.integers(others)
    pieces = cut(numbers, splits=5, window=window, **CUT)
    numbers.data.copy_(batch.integers(batch.lengths))
    out = poison(torch.empty_like(query))
    with pytest.raises(ValueError, match=STALE):
        decoded(batch, query, pieces=pieces, lengths=numbers, out=out)
        told()
    assert_right(batch, query, out)
    told()


def test_lengths_that_torch_does_not_count_may_be_cut():
    batch = shuffled([0, 700, 3, 64, 65])
    query = batch.queries(5)
    with torch.inference_mode():
        numbers = batch.integers(batch.lengths)
        pieces = cut(numbers, splits=5, **CUT)
        assert_right(batch, query, decoded(batch, query, pieces=pieces, lengths=numbers))
        numbers.add_(70)
        with pytest.raises(ValueError, match=STALE):
            decoded(batch, query, pieces=pieces, lengths=numbers, block_table=wider(batch), longest=770)
            told()


def wider(batch):
    """Block tables with room for what sequences grow by."""
    return torch.zeros((len(batch.tables), 64), dtype=torch.int32, device=DEVICE)


@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize(("longest", "splits"), [(700, 3), (700, 1), (300, None), (700, None)])
def test_a_sum_above_tokens_is_told_late_and_the_result_is_right(longest, splits, window):
    """However contexts are cut: also where no number of programs depends on it."""
    lengths = [0, longest, 3, 64, 65]
    batch = shuffled(lengths, window=window)
    query = batch.queries(5)
    assert_right(batch, query, decoded(batch, query, tokens=sum(lengths), splits=splits))
    for tokens in (0, sum(lengths) - 1):
        out = poison(torch.empty_like(query))
        with pytest.raises(
            ValueError, match=f"tokens must be at least {sum(lengths)}, the sum of the lengths"
        ):
            decoded(batch, query, tokens=tokens, splits=splits, out=out)
            told()
        assert_right(batch, query, out)


def test_a_device_with_and_without_its_index_has_one_place_for_faults():
    kind = torch.device(DEVICE).type
    assert faults_on(torch.device(kind)) is faults_on(torch.device(kind, 0))


def test_a_sum_told_wrongly_is_told_by_the_next_call_of_anything_that_takes_one():
    """The GPU has not come so far when the call returns; so it may be anybody's call that finds out."""
    faults_on(DEVICE)[TOKENS] = 10**10
    numbers = torch.tensor([3], dtype=torch.int32, device=DEVICE)
    with pytest.raises(ValueError, match="tokens must be at least 10000000000"):
        cut(numbers, **CUT)
    cut(numbers, **CUT)


def test_pieces_of_other_sequences_tiles_heads_or_windows_are_refused():
    batch = shuffled([300, 20])
    numbers, query = batch.integers([300, 20]), batch.queries(2)
    wanted = "pieces must be of 2 sequences in tiles of 64 tokens, for 2 KV heads, window None; got those of "
    for lengths, other, said in (
        (numbers[:1], {}, "1 sequences in tiles of 64 tokens"),
        (numbers, {"tiling": Tiling(32, 4, 1)}, "2 sequences in tiles of 32"),
        (numbers, {"kv_heads": 1}, "2 sequences in tiles of 64 tokens, for 1 KV heads"),
        (numbers, {"window": 50}, "2 sequences in tiles of 64 tokens, for 2 KV heads, window 50"),
    ):
        pieces = cut(lengths, splits=3, **CUT | other)
        with pytest.raises(ValueError, match=wanted + said):
            decoded(batch, query, pieces=pieces, lengths=numbers)
    for more in ({"tokens": 320}, {"splits": 2}):
        with pytest.raises(ValueError, match="tokens and splits are what pieces are made with"):
            decoded(batch, query, pieces=cut(numbers, **CUT), lengths=numbers, **more)


@pytest.mark.parametrize(("batch", "shares"), [(2500, 40), (3, 2500), (1, 1), (1024, 1025)])
def test_any_number_of_sequences_and_shares(batch, shares):
    """More than are counted in one go, too: each share begins where an even cut of all tiles falls."""
    lengths = torch.arange(batch, dtype=torch.int32) % 7 * 40
    tokens = int(lengths.sum())
    each = 32 * max(1, tokens // (32 * shares))
    pieces = cut(
        lengths.to(DEVICE), longest=8 * each, tokens=tokens, kv_heads=1, head_dim=64, splits=8,
        tiling=Tiling(32, 4, 1),
    )  # fmt: skip
    assert pieces.shares == max(1, -(-tokens // each))
    tiles = (lengths.long() + 31) // 32
    before = torch.cat([torch.zeros(1, dtype=torch.long), tiles.cumsum(0)])
    first = torch.arange(pieces.shares + 1) * tiles.sum() // pieces.shares
    found = pieces.starts.cpu().long()
    assert torch.equal((before[found[:, 0]] + found[:, 1])[1:], first[1:])
    assert torch.equal(found[:, 2], first)
    assert found[0].tolist() == [0, 0, 0] and found[-1].tolist() == [batch, 0, tiles.sum()]
    inside = found[:-1][found[:-1, 1] > 0]
    assert (inside[:, 1] < tiles[inside[:, 0]]).all()


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


def test_sinks_below_all_bounds_change_nothing():
    batch = shuffled([5, 200])
    query = batch.queries(2)
    sinks = torch.full((8,), -torch.inf, device=DEVICE)
    assert torch.equal(decoded(batch, query, sinks=sinks), decoded(batch, query))
