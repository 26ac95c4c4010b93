"""A decode of a batch with a guarded output, and its expected result."""

import torch

from kvsim.kernels.decode import decode_attention
from kvsim.kernels.faults import expect_no_faults
from support.paged_case import (
    DEVICE,
    TOLERANCE,
    Batch,
    guarded,
    padded,
    relative_error,
    shuffled_tables,
)


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
    """Wait for the GPU, as an engine waits for tokens, and check that it found no faults."""
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
