"""How a context is split, and what the tables hold."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install -e .[test]")
pytest.importorskip("triton", reason="triton is not installed: pip install -e .[test]")

from kvsim.kernels.decode import plan_decode
from kvsim.kernels.launch import (
    DECODE,
    LEAST_CHUNK_TOKENS,
    PREFILL,
    PREFILL_IN_REGISTERS,
    PROGRAMS_PER_MULTIPROCESSOR,
    Gpu,
    decode_tiling,
    next_power_of_2,
    piece_tokens,
)

pytestmark = pytest.mark.slow

H200 = Gpu((9, 0), 132)


def in_pieces(lengths, kv_heads=8, gpu=H200, tile=64):
    """Tokens of every program."""
    chunk = piece_tokens(gpu, sum(lengths) * kv_heads, max(lengths), tile)
    assert chunk % tile == 0
    each = [min(chunk, length - start) for length in lengths for start in range(0, length, chunk)]
    return [tokens for tokens in each for _ in range(kv_heads)]


@pytest.mark.parametrize(
    ("batch", "tokens", "pieces"),
    [
        (64, 4096, 1),  # enough programs as it is
        (8, 256, 1),  # too short to cut
        (8, 4096, 8),
        (1, 131_072, 64),  # one long sequence fills the GPU
        (1, 1024, 4),
        (300, 100_000, 1),
    ],
)
def test_pieces_of_equal_contexts_on_an_h200(batch, tokens, pieces):
    assert len(in_pieces([tokens] * batch)) == 8 * batch * pieces


def test_no_context_is_no_piece():
    assert piece_tokens(H200, 0, 0, 64) == 64


@pytest.mark.parametrize(
    "lengths",
    [
        [512] * 63 + [65_536],
        [128] * 255 + [100_000],
        [1024] * 32 + [8192] * 32,
        [round(2.718 ** (6 + (i * 37 % 101) / 25)) for i in range(100)],
    ],
    ids=["one long", "one very long", "bimodal", "lognormal"],
)
def test_skewed_batches_are_balanced(lengths):
    """The longest program takes little more than what each place on the GPU must do at least."""
    programs = in_pieces(lengths)
    share = sum(programs) / (H200.multiprocessors * PROGRAMS_PER_MULTIPROCESSOR)
    assert max(programs) <= 1.1 * max(share, LEAST_CHUNK_TOKENS)


def test_the_longest_context_is_covered_and_no_piece_is_lost():
    def meta(*shape, dtype):
        return torch.empty(shape, dtype=dtype, device="meta")

    pool, query = meta(8192, 16, 8, 128, dtype=torch.bfloat16), meta(3, 32, 128, dtype=torch.bfloat16)
    where = {"lengths": meta(3, dtype=torch.int32), "block_table": meta(3, 8192, dtype=torch.int32)}
    counting, attention, reduction = plan_decode(
        query, pool, pool, out=query, longest=131_072, tokens=140_000, gpu=H200, **where
    )
    chunk, most = attention.arguments["chunk"], attention.grid[0] // 8
    assert chunk % attention.arguments["TILE"] == 0
    assert counting.grid == (1, 1, 1) and reduction.grid == (32, 3, 1)
    for lengths in ([131_072, 8928, 0], [131_072, 8927, 1], [46_667, 46_667, 46_666]):
        assert sum(-(-length // chunk) for length in lengths) <= most
    assert attention.arguments["out"].shape == (most, 32, 128)


@pytest.mark.parametrize("table", [DECODE, PREFILL, PREFILL_IN_REGISTERS])
def test_tables_have_every_head_size_in_8_and_16_bits(table):
    assert set(table) == {(head, size) for head in (32, 64, 128, 256) for size in (1, 2)}
    for tiling in table.values():
        assert tiling.tile == next_power_of_2(tiling.tile) >= 16
        assert tiling.rows == 0 or tiling.rows == next_power_of_2(tiling.rows) >= 16


def test_head_sizes_between_use_the_next_power_of_two():
    assert decode_tiling(80, 2) is decode_tiling(128, 2) is DECODE[128, 2]
