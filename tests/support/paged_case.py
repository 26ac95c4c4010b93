"""A batch of sequences in a pool full of traps: whatever no kernel may read is NaN, or a far-off address."""

from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate

import torch

from kvsim.kernels import reference

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

OUTSIDE = 2**28
"""An entry of a block table that faults, or reads garbage, when it is used."""

TOLERANCE = {torch.float16: 5e-4, torch.bfloat16: 5e-3}
"""Largest relative error against float64."""


def random(generator, *shape, dtype=torch.float16):
    """Random numbers of any type, drawn on the CPU."""
    return torch.randn(shape, generator=generator).to(dtype)


def poison(tensor):
    """NaN everywhere, even if fill_ cannot write NaN for the type."""
    if tensor.dtype.itemsize == 1:
        tensor.view(torch.uint8).fill_(0x7F)  # NaN in both kinds of 8-bit floats
    else:
        tensor.fill_(torch.nan)
    return tensor


@contextmanager
def guarded(query):
    """A poisoned output like a query; raises if anything behind its end was written."""
    guarded_out = poison(query.new_empty((len(query) + 2, *query.shape[1:])))
    yield guarded_out[: len(query)]
    assert guarded_out[len(query) :].isnan().all()


def shuffled_tables(generator, lengths, block_size, spare=3):
    """Block tables without sharing, in random order, and the number of blocks."""
    counts = [-(-length // block_size) for length in lengths]
    order = torch.randperm(sum(counts) + spare, generator=generator).tolist()
    return [[order.pop() for _ in range(count)] for count in counts], sum(counts) + spare


def padded(tables, dtype=torch.int32):
    """Block tables as one tensor."""
    width = max(map(len, tables), default=0) + 1
    rows = [[*table, *[OUTSIDE] * (width - len(table))] for table in tables]
    return torch.tensor(rows, dtype=dtype, device=DEVICE)


def relative_error(out, expected):
    """‖out - expected‖ / ‖expected‖, in float64."""
    return ((out.cpu().double() - expected).norm() / expected.norm()).item()


@dataclass
class Batch:
    """Sequences of given lengths behind their block tables; unused slots are poisoned."""

    lengths: list
    tables: list
    num_blocks: int
    block_size: int = 16
    heads: int = 8
    kv_heads: int = 2
    head_dim: int = 64
    dtype: torch.dtype = torch.float16
    kv_dtype: torch.dtype | None = None
    window: int | None = None
    counts: list | None = None
    seed: int = 0

    def __post_init__(self):
        generator = torch.Generator().manual_seed(self.seed)
        shape = (self.num_blocks, self.block_size, self.kv_heads, self.head_dim)
        kind = self.kv_dtype or self.dtype
        self.slots = [
            reference.paged_slots(table, length, self.block_size)
            for table, length in zip(self.tables, self.lengths, strict=True)
        ]
        readable = [
            slots[max(0, len(slots) - count - self.window + 1) :] if self.window else slots
            for slots, count in zip(self.slots, self.counts or [1] * len(self.lengths), strict=True)
        ]
        self.keys, self.values = [
            self._trapped(random(generator, *shape, dtype=kind), torch.cat(readable)).to(DEVICE) for _ in "kv"
        ]
        self.generator = generator

    def _trapped(self, pool, used):
        trapped = poison(torch.empty_like(pool))
        flat, source = trapped.flatten(0, 1), pool.flatten(0, 1)
        flat.view(torch.uint8)[used] = source.view(torch.uint8)[used]
        return trapped

    def queries(self, count):
        """[count, heads, head_dim]."""
        return random(self.generator, count, self.heads, self.head_dim, dtype=self.dtype).to(DEVICE)

    def integers(self, numbers, dtype=torch.int32):
        """A list as a tensor for the kernels."""
        return torch.tensor(numbers, dtype=dtype, device=DEVICE)

    @property
    def first_queries(self):
        """Where the queries of each sequence begin, and where the last ones end."""
        return [0, *accumulate(self.counts or [1] * len(self.lengths))]

    def expected(self, query, **more):
        """The attention of all sequences, one behind the other, in float64."""
        firsts = self.first_queries
        return torch.cat(
            [
                reference.attention(
                    query[firsts[i] : firsts[i + 1]],
                    self.keys,
                    self.values,
                    slots,
                    window=self.window,
                    **more,
                )
                for i, slots in enumerate(self.slots)
            ]
        )
