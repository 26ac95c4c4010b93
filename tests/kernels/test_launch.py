"""How a context is split, and what the tables hold."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install -e .[test]")
pytest.importorskip("triton", reason="triton is not installed: pip install -e .[test]")

from kvsim.kernels.decode import plan_decode
from kvsim.kernels.launch import (
    DECODE,
    PREFILL,
    PREFILL_IN_REGISTERS,
    Gpu,
    decode_tiling,
    next_power_of_2,
    split_count,
)

pytestmark = pytest.mark.slow

H200 = Gpu((9, 0), 132)


@pytest.mark.parametrize(
    ("sequence_heads", "tokens", "splits"),
    [
        (64 * 8, 4096, 1),  # enough programs as it is
        (8 * 8, 256, 1),  # too short to cut
        (8 * 8, 4096, 8),
        (1 * 8, 131_072, 66),  # one long sequence fills the GPU
        (1 * 8, 1024, 4),
        (300 * 8, 100_000, 1),
        (0, 0, 1),
    ],
)
def test_pieces_of_a_context_on_an_h200(sequence_heads, tokens, splits):
    assert split_count(H200, sequence_heads, tokens, 64) == splits


def test_all_pieces_are_of_one_length_and_cover_the_longest_context():
    def meta(*shape, dtype):
        return torch.empty(shape, dtype=dtype, device="meta")

    pool, query = meta(8192, 16, 8, 128, dtype=torch.bfloat16), meta(1, 32, 128, dtype=torch.bfloat16)
    where = {"lengths": meta(1, dtype=torch.int32), "block_table": meta(1, 8192, dtype=torch.int32)}
    attention, reduction = plan_decode(query, pool, pool, out=query, longest=131_072, gpu=H200, **where)
    chunk, (kv_heads, pieces, batch) = attention.arguments["chunk"], attention.grid
    assert (kv_heads, batch, chunk % attention.arguments["TILE"]) == (8, 1, 0)
    assert (pieces - 1) * chunk < 131_072 <= pieces * chunk
    assert reduction.grid == (32, 1, 1)
    assert reduction.arguments["pieces"] == pieces


@pytest.mark.parametrize("table", [DECODE, PREFILL, PREFILL_IN_REGISTERS])
def test_tables_have_every_head_size_in_8_and_16_bits(table):
    assert set(table) == {(head, size) for head in (32, 64, 128, 256) for size in (1, 2)}
    for tiling in table.values():
        assert tiling.tile == next_power_of_2(tiling.tile) >= 16
        assert tiling.rows == 0 or tiling.rows == next_power_of_2(tiling.rows) >= 16


def test_head_sizes_between_use_the_next_power_of_two():
    assert decode_tiling(80, 2) is decode_tiling(128, 2) is DECODE[128, 2]
