"""Decode attention over latents against float64."""

import random as randoms

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install -e .[test]")
pytest.importorskip("triton", reason="triton is not installed: pip install -e .[test]")

from support.decode_case import told
from support.paged_case import (
    DEVICE,
    TOLERANCE,
    Batch,
    padded,
    poison,
    relative_error,
    shuffled_tables,
)

from kvsim.kernels import reference
from kvsim.kernels.latent import cut_latents, latent_attention
from kvsim.kernels.launch import REHEARSAL, Tiling
from kvsim.kernels.pieces import cut

pytestmark = pytest.mark.slow


def latents(lengths, block_size=16, seed=0, width=80, **more):
    """Sequences of one KV head of `width` numbers; the pool of values is not used."""
    tables, blocks = shuffled_tables(torch.Generator().manual_seed(seed), lengths, block_size)
    return Batch(
        lengths, tables, blocks, block_size=block_size, kv_heads=1, head_dim=width, seed=seed, **more
    )


def attended(batch, query, latent, index=torch.int32, scale=0.1, **more):
    """The kernel's result in a poisoned output, and the reference's."""
    cache_scale = more.get("cache_scale", 1.0)
    out = poison(query.new_empty((*query.shape[:2], latent)))
    options = {"longest": max(batch.lengths), "block_table": padded(batch.tables, index)} | more
    options = {"lengths": batch.integers(batch.lengths, index)} | options
    given = latent_attention(
        query, batch.keys[:, :, 0].contiguous(), latent=latent, scale=scale, out=out, **options
    )
    assert given is out
    expected = [
        reference.attention(
            query[i : i + 1], batch.keys, batch.keys[..., :latent], slots, scale=scale,
            key_scale=cache_scale, value_scale=cache_scale,
        )
        for i, slots in enumerate(batch.slots)
    ]  # fmt: skip
    return out, torch.cat(expected)


def assert_right(batch, query, latent, **more):
    out, expected = attended(batch, query, latent, **more)
    assert torch.isfinite(out).all()
    assert relative_error(out, expected) <= TOLERANCE[query.dtype]
    for row, length in enumerate(batch.lengths):
        if length == 0:
            assert not out[row].any()
        else:
            assert relative_error(out[row], expected[row]) <= 2 * TOLERANCE[query.dtype]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["fp16", "bf16"])
@pytest.mark.parametrize("heads", [16, 64])
def test_the_shape_of_deepseek(heads, dtype):
    """512 numbers and 64 of the position; 64 heads are two blocks of them."""
    batch = latents([0, 1, 33, 90], 64, width=576, heads=heads, dtype=dtype)
    assert_right(batch, batch.queries(4), 512, scale=192**-0.5)


@pytest.mark.parametrize("block_size", [1, 16, 24, 64, 256])
@pytest.mark.parametrize("splits", [1, 3])
def test_any_mix_of_lengths_in_shuffled_blocks(block_size, splits):
    lengths = [0, 1, block_size, block_size + 1, 200]
    batch = latents(lengths, block_size, heads=4)
    assert_right(batch, batch.queries(5), 64, splits=splits)


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2], ids=["e4m3", "e5m2"])
def test_eight_bit_latents(kind):
    """32 heads are two blocks of 16."""
    batch = latents([0, 40, 130], heads=32, kv_dtype=kind)
    assert_right(batch, batch.queries(3), 64, cache_scale=0.5, splits=2)


@pytest.mark.parametrize("seed", range(12))
def test_random_cases(seed):
    """Heads, sizes, blocks, cuts and skew drawn; what no sequence owns is NaN, tables end in traps."""
    draw = randoms.Random(seed)
    latent, rope = draw.choice([32, 64, 128]), draw.choice([16, 32, 64])
    longest = draw.choice([40, 150, 400])
    lengths = [draw.randint(0, draw.choice([2, longest])) for _ in range(draw.randint(1, 5))] + [longest]
    tiling = Tiling(draw.choice([16, 32, 64]), 4, 1, rows=draw.choice([8, 16]))
    heads = tiling.rows * draw.randint(1, 3) if draw.random() < 0.5 else draw.randint(1, tiling.rows)
    batch = latents(
        lengths, draw.choice([1, 16, 48, 64]), seed, latent + rope, heads=heads,
        dtype=draw.choice([torch.float16, torch.bfloat16]),
    )  # fmt: skip
    assert_right(
        batch, batch.queries(len(lengths)), latent, splits=draw.choice([1, 2, 5, 9]), tiling=tiling,
        index=draw.choice([torch.int32, torch.int64]), tokens=draw.choice([None, sum(lengths)]),
    )  # fmt: skip


def test_the_contiguous_twin_gives_the_same_bits():
    batch = latents([0, 5, 140], heads=4)
    query = batch.queries(3)
    cache = batch.keys[:, :, 0].flatten(0, 1)
    starts = [0, 1, 6]
    linear = torch.cat(
        [poison(torch.empty_like(cache[:1])), *(cache[slots.to(DEVICE)] for slots in batch.slots)]
    )
    out = latent_attention(
        query, linear[:, None].contiguous(), batch.integers(batch.lengths), latent=64, scale=0.1, longest=140,
        starts=batch.integers(starts),
    )  # fmt: skip
    assert torch.equal(out, attended(batch, query, 64)[0])


def test_shares_are_cut_once_for_all_layers():
    batch = latents([0, 300, 3, 64], heads=4)
    tiling = Tiling(32, 4, 1, rows=4)
    numbers = batch.integers(batch.lengths)
    pieces = cut(numbers, longest=300, kv_heads=1, head_dim=64, splits=5, tiling=tiling)
    assert_right(batch, batch.queries(4), 64, pieces=pieces, lengths=numbers, tiling=tiling)
    other = batch.integers([0, 300, 3, 63])
    with pytest.raises(ValueError, match="pieces are stale: sequence 3 has length 63"):
        attended(batch, batch.queries(4), 64, pieces=pieces, lengths=other, tiling=tiling)
        told()
    cut(other, longest=300, kv_heads=1, head_dim=64, tiling=tiling, out=pieces)
    attended(batch, batch.queries(4), 64, pieces=pieces, lengths=other, tiling=tiling)
    told()


def test_latents_are_cut_by_what_a_gpu_holds_of_their_programs():
    """Of 16-bit ones, 128 heads are two blocks: each of the interpreter's two programs has one of them."""
    lengths = [0, 300, 3, 640]
    batch = latents(lengths, heads=64, width=96)
    numbers = batch.integers(lengths)
    given = {"longest": 640, "tokens": 943, "gpu": REHEARSAL}
    pieces = cut_latents(numbers, heads=64, **given)
    assert (pieces.batch, pieces.tiling.tile, pieces.shares) == (4, 64, 2)
    assert [cut_latents(numbers, heads=heads, **given).shares for heads in (16, 128)] == [2, 1]
    assert cut_latents(numbers, heads=64, out=pieces, **given) is pieces
    assert_right(batch, batch.queries(4), 64, pieces=pieces, lengths=numbers)
    with pytest.raises(ValueError, match="heads must be up to 32 or a multiple of 32, got 48"):
        cut_latents(numbers, heads=48, longest=640)


def meta(*shape, dtype=torch.float16):
    return torch.empty(shape, dtype=dtype, device="meta")


RIGHT = {
    "query": meta(3, 32, 576), "cache": meta(10, 64, 576), "lengths": meta(3, dtype=torch.int32),
    "latent": 512, "scale": 0.1, "longest": 64, "block_table": meta(3, 1, dtype=torch.int32),
}  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"query": meta(3, 48, 576)}, "query: heads must be up to 32 or a multiple of 32, got 48"),
        (
            {"cache": meta(10, 64, 640)},
            r"cache must have shape \[num_blocks, block_size, 576\], got \[10, 64, 640",
        ),
        ({"latent": 500}, "latent must be a power of two, 32 to 512, got 500"),
        ({"latent": 256}, "query: width - latent must be a power of two, 16 to 128, got 320"),
        ({"longest": 65}, "longest must be 0 to 64, got 65"),
        ({"cache": meta(10, 257, 576)}, "cache: block_size must be 1 to 256, got 257"),
        ({"starts": meta(3, dtype=torch.int32)}, "block_table or starts must be given, one of them"),
    ],
)
def test_refused(wrong, says):
    with pytest.raises(ValueError, match=says):
        latent_attention(**RIGHT | wrong)
