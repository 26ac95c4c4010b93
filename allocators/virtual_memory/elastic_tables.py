"""Block tables over pages that are mapped and unmapped: kvcached's allocator without prefixes.

    page 0, mapped   |## 0 ##|## 1 ##|.......|......|      used, and idle: free blocks of a mapped page
    page 1, reserved |.......|.......|.......|......|      idle: empty, kept mapped (at most 10)
    page 2           |       |       |       |      |      free

`ElasticBlocks` decides which block is allocated; this module has the table of each sequence, the pages'
counts in slots, the thread that maps ahead after a step, and growth for many steps in one call.

Slots are grains of bytes (mapped.py). If blocks do not divide a page, the one across its end is permanently
lost (external; OPT-13B, blocks of 16: 12.8 in a page of 2 MiB).
"""

from collections.abc import Iterator, Mapping, Sequence

from kvsim.allocators.arena import as_regions
from kvsim.allocators.base import Holdings, Region
from kvsim.allocators.options import Options
from kvsim.allocators.virtual_memory.elastic_blocks import ElasticBlocks
from kvsim.allocators.virtual_memory.mapped import Bundle, Mapped
from kvsim.allocators.virtual_memory.page_pool import PagePool

PAGE_BYTES = 2 << 20
MAP_NS, UNMAP_NS = 69_000, 57_000
"""Nanoseconds per driver call for a page of 2 MiB: table 3 of arXiv 2405.04437."""


class ElasticTables(Mapped):
    """Blocks of `block_size` tokens in pages of 2 MiB, each allocated to one sequence.

    Parameters
    ----------
    capacity_slots : int
        Tokens that the memory holds; a remainder below one page in every layer is left out.
    options : Options
        The model's sizes and the block size.
    """

    pages = has_blocks = True

    def __init__(self, capacity_slots: int, options: Options | None = None) -> None:
        model = options or Options()
        bundle = Bundle.of(model, PAGE_BYTES)
        count = capacity_slots * model.token_bytes // bundle.bytes
        if model.block_size * bundle.cell > PAGE_BYTES:
            raise ValueError(
                f"block_size must be at most {PAGE_BYTES // bundle.cell:,}, so that a block fits a page "
                f"of 2 MiB, got {model.block_size:,}"
            )
        if not count:
            raise ValueError(
                f"a page of {bundle.bytes:,} bytes ({bundle.pages} times 2 MiB) must fit the memory, "
                f"which has {capacity_slots * model.token_bytes:,} bytes"
            )
        super().__init__(count, bundle, MAP_NS, UNMAP_NS)
        self.block_size = self.grows_by = model.block_size
        self.blocks = ElasticBlocks(PagePool(count, count), PAGE_BYTES, model.block_size * bundle.cell)
        self._table: Holdings[list[int]] = Holdings()
        self._block = model.block_size * self.slots_per_token
        self._blocks_in = [len(self.blocks.blocks_of(page)) for page in range(count)]
        self.most_blocks = sum(self._blocks_in)
        self.straddling = self.capacity_slots - self.most_blocks * self._block
        self._allocated = 0  # by sequence

    @property
    def block_slots(self) -> int:
        """Slots of a block."""
        return self._block

    def slots_needed(self, tokens: int, bound: int) -> int:
        return self._count_of(tokens) * self._block

    def fits(self, tokens: int, bound: int) -> bool:
        return self._count_of(tokens) <= self.most_blocks

    def can_admit(self, tokens: int, bound: int) -> bool:
        return self._allocated + self._count_of(tokens) <= self.most_blocks

    def admit(self, seq: int, tokens: int, bound: int) -> bool:
        self._table.expect_new(seq, tokens)
        if not self.can_admit(tokens, bound):
            return False
        self._table[seq] = self._allocate(self._count_of(tokens))
        return True

    def capacity(self, seq: int) -> int:
        return len(self._table[seq]) * self.block_size

    def surplus(self, seq: int, tokens: int) -> int:
        return len(self._table[seq]) * self._block - tokens * self.slots_per_token

    def grow(self, seq: int, tokens: int) -> bool:
        table = self._table[seq]
        more = self._count_of(tokens) - len(table)
        if more > self.most_blocks - self._allocated:
            return False
        if more > 0:
            table += self._allocate(more)
        return True

    def release(self, seq: int) -> None:
        table = self._table[seq]
        del self._table[seq]
        self.blocks.give_back(table)
        self._allocated -= len(table)
        self._count()

    def after_step(self, lengths: Mapping[int, int]) -> None:
        pool = self.blocks.pool
        if len(pool.reserved) < pool.least_reserved and pool.free:
            pool.map_ahead()
            self._count()

    def grow_mapped(self, seqs: Sequence[int]) -> bool:
        if not self._are_mapped(len(seqs)):
            return False
        for seq, block in zip(seqs, self.blocks.allocate_singly(len(seqs)), strict=True):
            self._table[seq].append(block)
        self._allocated += len(seqs)
        self.used_slots += len(seqs) * self._block
        self.idle_slots -= len(seqs) * self._block
        return True

    def pass_steps(self, growths: Iterator[Sequence[int]], most_ns: int) -> list[int]:
        pool, most, idles = self.blocks.pool, most_ns // (self.calls * self.map_ns), []
        for due in growths:
            if pool.least_reserved - len(pool.reserved) > most or not self._are_mapped(len(due)):
                break
            self.after_step({})
            if due:
                self.grow_mapped(due)
            idles.append(self.idle_slots)
        return idles

    def external_slots(self, need: int) -> int:
        return self.straddling

    def regions(self) -> Iterator[Region]:
        return as_regions(self._rows())

    def _rows(self) -> Iterator[tuple[object, ...]]:
        """The fields of each region as rows."""
        block_slots, size, per_token = self._block, self.block_size, self.slots_per_token
        owners: dict[int, tuple[int, ...]] = {}
        firsts: dict[int, int] = {}
        for seq, table in self._table.items():
            for block in table:
                owners[block] = (*owners.get(block, ()), seq)
            firsts.update(zip(table, range(0, len(table) * size, size), strict=True))
        mapped = {*self.blocks.part_free, *self.blocks.full, *self.blocks.pool.reserved}
        end = 0
        for page in range(self.blocks.pool.total):
            is_mapped = page in mapped
            for block in self.blocks.blocks_of(page):
                start = block * block_slots
                if start > end:
                    yield end, start - end, (), 0, False, False, 1, ""
                end = start + block_slots
                if block in owners:
                    yield start, block_slots, owners[block], firsts[block], False, False, per_token, ""
                else:
                    cached = self.is_cached(block)
                    yield start, block_slots, (), 0, cached, is_mapped and not cached, per_token, ""
        if end < self.capacity_slots:
            yield end, self.capacity_slots - end, (), 0, False, False, 1, ""

    def is_cached(self, block: int) -> bool:
        """Whether a block without a holder has a findable text."""
        return False

    def _count_of(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def _are_mapped(self, count: int) -> bool:
        """Whether mapped pages have `count` free blocks."""
        missing = count - self.blocks.free_blocks
        return missing <= 0 or missing <= sum(map(self._blocks_in.__getitem__, self.blocks.pool.reserved))

    def _allocate(self, count: int) -> list[int]:
        blocks = self.blocks.allocate(count)
        assert blocks is not None
        self._allocated += count
        self._count()
        return blocks

    def _count(self) -> None:
        blocks, pool = self.blocks, self.blocks.pool
        self.used_slots = self._allocated * self._block
        reserved = sum(map(self._blocks_in.__getitem__, pool.reserved))
        self.idle_slots = (blocks.free_blocks + reserved) * self._block
        self.maps, self.unmaps = pool.maps * self.calls, pool.unmaps * self.calls
