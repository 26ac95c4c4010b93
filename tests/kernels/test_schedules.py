"""The block tables that allocators make, after forks, prefix hits and swaps, go to the kernels as they are.

The keys and values of a token are a function of its text, so that shared blocks hold the right ones for all
who share them, and the reference needs no blocks at all.
"""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install -e .[test]")
pytest.importorskip("triton", reason="triton is not installed: pip install -e .[test]")
pytest.importorskip("mypy_extensions", reason="mypy_extensions is not installed: pip install -e .[test]")

from support.paged_case import DEVICE, TOLERANCE, padded, poison, relative_error

from kvsim.allocators.options import CacheRules, Order
from kvsim.allocators.paged import Paged
from kvsim.kernels import reference
from kvsim.kernels.copy import copy_blocks
from kvsim.kernels.decode import decode_attention
from kvsim.kernels.prefill import prefill_attention
from kvsim.kernels.swap import gather_blocks, scatter_blocks
from kvsim.kernels.write import write_kv

pytestmark = pytest.mark.slow

BLOCK, HEADS, KV_HEADS, HEAD_DIM, DTYPE = 4, 4, 2, 32, torch.float16


class Server:
    """The memory of a small server: an allocator, the pools behind it, and what each sequence has said."""

    def __init__(self, allocator):
        self.allocator = allocator
        self.texts = {}
        shape = (allocator.num_blocks, BLOCK, KV_HEADS, HEAD_DIM)
        self.keys, self.values = (poison(torch.empty(shape, dtype=DTYPE, device=DEVICE)) for _ in "kv")

    def spoken(self, words, seed):
        """Keys (seed 1), values (2) or queries (3) of some words."""
        heads = HEADS if seed == 3 else KV_HEADS
        rows = [
            torch.randn(heads, HEAD_DIM, generator=torch.Generator().manual_seed(10 * word + seed))
            for word in words
        ]
        return torch.stack(rows).to(DTYPE).to(DEVICE)

    def write(self, seq, words):
        """Append words to a sequence, whose room the allocator has made."""
        before = len(self.texts.setdefault(seq, []))
        slots = [self.allocator.slot(seq, before + i) for i in range(len(words))]
        self.texts[seq] += words
        write_kv(
            self.spoken(words, 1), self.spoken(words, 2), self.keys, self.values,
            torch.tensor(slots, device=DEVICE),
        )  # fmt: skip

    def grow(self, seq, word):
        """One more token, with the copy-on-write that it may need."""
        old = self.allocator.block_table(seq)
        copies = self.allocator.cow_copies
        assert self.allocator.grow(seq, len(self.texts[seq]) + 1)
        new = self.allocator.block_table(seq)
        pairs = [pair for pair in zip(old, new, strict=False) if pair[0] != pair[1]]
        assert len(pairs) == self.allocator.cow_copies - copies
        if pairs:
            copy_blocks(self.keys, self.values, torch.tensor(pairs, device=DEVICE))
        self.write(seq, [word])

    def tables(self):
        return [self.allocator.block_table(seq) for seq in self.texts]

    def linear(self, seq, new):
        """What the last `new` tokens of a sequence see, from its text alone."""
        words = self.texts[seq]
        keys, values = self.spoken(words, 1)[:, None], self.spoken(words, 2)[:, None]
        slots = reference.contiguous_slots(0, len(words))
        return reference.attention(self.spoken(words[-new:], 3), keys, values, slots)

    def assert_decodes(self):
        """Every living sequence's last token sees its own text."""
        seqs = list(self.texts)
        lengths = [len(self.texts[seq]) for seq in seqs]
        query = torch.cat([self.spoken(self.texts[seq][-1:], 3) for seq in seqs])
        out = decode_attention(
            query, self.keys, self.values, torch.tensor(lengths, device=DEVICE), longest=max(lengths),
            block_table=padded(self.tables()), out=poison(torch.empty_like(query)),
        )  # fmt: skip
        expected = torch.cat([self.linear(seq, 1) for seq in seqs])
        assert relative_error(out, expected) <= TOLERANCE[DTYPE]

    def assert_prefills(self, new):
        """Chunks of the sequences named, the last tokens of each, see their text before and in the chunk."""
        query = torch.cat([self.spoken(self.texts[seq][-count:], 3) for seq, count in new.items()])
        lengths = torch.tensor([len(self.texts[seq]) for seq in new], device=DEVICE)
        firsts = torch.tensor([0, *new.values()], device=DEVICE).cumsum(0)
        out = prefill_attention(
            query, self.keys, self.values, lengths, firsts, most_queries=max(new.values()),
            block_table=padded([self.allocator.block_table(seq) for seq in new]),
            out=poison(torch.empty_like(query)),
        )  # fmt: skip
        expected = torch.cat([self.linear(seq, count) for seq, count in new.items()])
        assert relative_error(out, expected) <= TOLERANCE[DTYPE]


def test_forks_that_copy_on_write_and_reuse_of_released_blocks():
    server = Server(Paged(20 * BLOCK, BLOCK))
    for seq, length in enumerate((9, 3, 8)):
        assert server.allocator.admit(seq, length, length)
        server.write(seq, [100 * seq + i for i in range(length)])
    server.assert_prefills({0: 9, 1: 3, 2: 8})
    for child in (10, 11):
        assert server.allocator.fork(0, child, 9)
        server.texts[child] = server.texts[0][:]
    server.assert_decodes()
    for turn in range(5):
        for seq in list(server.texts):
            server.grow(seq, 1000 + 10 * turn + seq)
        server.assert_decodes()
    assert server.allocator.cow_copies == 2
    server.allocator.release(1)
    del server.texts[1]
    assert server.allocator.admit(20, 7, 7)
    server.write(20, list(range(2000, 2007)))
    tables = server.tables()
    assert len(set().union(*tables)) < sum(map(len, tables))
    assert server.allocator.block_table(20) != tuple(sorted(server.allocator.block_table(20)))
    server.assert_decodes()


def test_prefix_hits_share_blocks_and_chunks_are_appended_behind_them():
    server = Server(Paged(20 * BLOCK, BLOCK, Order.HASHED_LAST, cache=CacheRules()))
    allocator, shared = server.allocator, list(range(10))
    for seq, private in ((0, 5), (1, 7), (2, 1)):
        words = shared + [100 * (seq + 1) + i for i in range(private)]
        content = ((0, 0, len(shared)), (seq + 1, 0, private))
        match = allocator.match(content, seq, len(words) - 1)
        assert match.tokens == (0 if seq == 0 else 8)
        assert allocator.admit_after(match, seq, len(words), len(words))
        server.texts[seq] = words[: match.tokens]
        chunk = words[match.tokens :]
        server.write(seq, chunk)
        allocator.fill(seq, len(words))
        server.assert_prefills({seq: len(chunk)})
    assert len({table[:2] for table in server.tables()}) == 1
    server.assert_decodes()
    server.assert_prefills({0: 7, 1: 1, 2: 3})
    for turn in range(3):
        for seq in server.texts:
            server.grow(seq, 1000 + 10 * turn + seq)
    server.assert_decodes()


def test_swapped_out_and_in_again():
    server = Server(Paged(8 * BLOCK, BLOCK, host_slots=8 * BLOCK))
    for seq, length in ((0, 10), (1, 6)):
        assert server.allocator.admit(seq, length, length)
        server.write(seq, [100 * seq + i for i in range(length)])
    blocks = torch.tensor(server.allocator.block_table(0), device=DEVICE)
    staging = gather_blocks(server.keys, server.values, blocks)
    assert server.allocator.swap_out([0])
    for pool in (server.keys, server.values):
        poison(pool[blocks])
    assert server.allocator.admit(2, 5, 5)
    server.write(2, [200, 201, 202, 203, 204])
    assert server.allocator.swap_in([0])
    moved = torch.tensor(server.allocator.block_table(0), device=DEVICE)
    assert not torch.equal(moved, blocks)
    scatter_blocks(server.keys, server.values, moved, staging)
    server.assert_decodes()
