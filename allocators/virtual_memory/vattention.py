"""VAttention: one contiguous range of virtual addresses per sequence, with physical pages mapped to it.

    row of seq 7   |######|######|##....|······|           used: kvblocks needed by its tokens
                                 '- internal: < 1 kvblock    ······: mapped ahead, idle
    unowned row    |······|······|                         kvblocks of a released sequence: idle
    pool           |      |      |      |                  free

A sequence gets a row (there are `max_num_seqs`) and as many *kvblocks* as its tokens need; rows.py grows
them, ahead of the tokens and overlapped with compute, and reclaims them. Kernels see contiguous tensors: no
block tables. Waste per sequence: less than a kvblock, `2 * layers * page` bytes: 4 MiB with pages of 64 KiB
and Llama-3-8B, 128 MiB with those of 2 MiB. Pages mapped beyond need are idle: any sequence can have them,
but a map takes time, `2 * layers` calls per kvblock.

If a page is not a multiple of a token's bytes (OPT-13B: 6.4 tokens in 64 KiB), vAttention counts whole tokens
per page, 6, and maps more than it needs: internal waste. Slots are then grains of bytes (mapped.py). The
arena has one address per physical kvblock.

Time per call, in microseconds (the paper's table, pages of 64, 128, 256 KiB and 2 MiB): map 8, 8.5, 9, and
2 plus 38 to set the access; unmap: 0 for small pages, as their driver only forgets them; 34.

Source: microsoft/vattention ef3fff2; Prabhu et al., vAttention, ASPLOS 2025 (arXiv 2405.04437).

Its variants:

vattention         pages of 64 KiB     the first row with enough pages, or the first     pages stay
vattention-128k    128 KiB
vattention-256k    256 KiB
vattention-2m      2 MiB
vattention-best                        best fit
vattention-eager                                                                         one goes per step
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import ClassVar, Self

from kvsim.allocators.arena import equal_regions
from kvsim.allocators.base import Holdings, Region
from kvsim.allocators.options import Options
from kvsim.allocators.virtual_memory.mapped import Bundle, Mapped
from kvsim.allocators.virtual_memory.rows import NONE, Rows

KIB = 1 << 10
MAP_NS = {64 * KIB: 8_000, 128 * KIB: 8_500, 256 * KIB: 9_000, 2048 * KIB: 40_000}
UNMAP_NS = {2048 * KIB: 34_000}


class VAttention(Mapped):
    """Rows of virtual addresses with kvblocks mapped to them.

    Parameters
    ----------
    capacity_slots : int
        Tokens that the memory holds; a remainder below one kvblock is left out.
    options : Options
        The model's sizes, the maximum number of sequences and the longest one.
    """

    scheduler = "vllm-v1"
    family = "virtual"
    idea = "a row of virtual addresses each, pages of 64 KiB mapped ahead"
    wastes = "< 2 * layers pages: 4 MiB (Llama-3-8B); nothing between"
    used_by = "vAttention, over Sarathi-Serve"
    source = "vAttention, ASPLOS 2025"

    page_bytes: ClassVar[int] = 64 * KIB
    deferred: ClassVar[bool] = True
    choice: ClassVar[str] = "literal"

    @classmethod
    def from_options(cls, capacity_slots: int, options: Options) -> Self:
        return cls(capacity_slots, options)

    def __init__(self, capacity_slots: int, options: Options | None = None) -> None:
        model = options or Options()
        bundle = Bundle.of(model, self.page_bytes)
        kvblocks = capacity_slots * model.token_bytes // bundle.bytes
        if bundle.cell > self.page_bytes or not kvblocks:
            raise ValueError(
                f"kvblocks of {bundle.bytes:,} bytes ({bundle.pages} pages) must hold a token and fit the "
                f"memory, which has {capacity_slots * model.token_bytes:,} bytes"
            )
        super().__init__(kvblocks, bundle, MAP_NS[self.page_bytes], UNMAP_NS.get(self.page_bytes, 0))
        self.kvblock_slots = bundle.slots
        self.most_sequences = model.max_sequences
        self.page_tokens = self.grows_by = self.page_bytes // bundle.cell
        self.longest = model.max_model_len
        self.rows = Rows(
            model.max_sequences,
            kvblocks,
            self.page_tokens,
            most_mapped=-(-model.max_model_len * bundle.cell // self.page_bytes),
            deferred=self.deferred,
            choice=self.choice,
        )
        self._row: Holdings[int] = Holdings()
        self._grown: list[int] = []  # rows whose lengths include this step's token

    def slots_needed(self, tokens: int, bound: int) -> int:
        return self._need(tokens) * self.kvblock_slots

    def fits(self, tokens: int, bound: int) -> bool:
        return tokens <= self.longest and self._need(tokens) <= self.rows.kvblocks

    def can_admit(self, tokens: int, bound: int) -> bool:
        room = len(self._row) < self.rows.count and tokens <= self.longest
        return room and self._need(tokens) * self.kvblock_slots <= self.free_slots

    def admit(self, seq: int, tokens: int, bound: int) -> bool:
        self._row.expect_new(seq, tokens)
        if not self.can_admit(tokens, bound):
            return False
        row = self._row[seq] = self.rows.place(self._within(tokens))
        self._map(row, self._need(tokens))
        return True

    def capacity(self, seq: int) -> int:
        need = -(-self.rows.lengths[self._row[seq]] // self.page_tokens)
        return self.longest if need == self.rows.most_mapped else need * self.page_tokens

    def surplus(self, seq: int, tokens: int) -> int:
        need = -(-self.rows.lengths[self._row[seq]] // self.page_tokens)
        return need * self.kvblock_slots - tokens * self.slots_per_token

    def grow(self, seq: int, tokens: int) -> bool:
        rows, row, size = self.rows, self._row[seq], self.page_tokens
        within = min(tokens, rows.most_mapped * size)
        more = -(-within // size) + -rows.lengths[row] // size
        if more * self.kvblock_slots > self.capacity_slots - self.used_slots or tokens > self.longest:
            return False
        if more <= 0:
            return True
        rows.lengths[row] = within
        self._grown.append(row)
        self._map(row, more)
        return True

    @property
    def growth_slots(self) -> int:
        return self.kvblock_slots

    @property
    def growth_end(self) -> int:
        return self.rows.most_mapped * self.page_tokens

    def grow_mapped(self, seqs: Sequence[int]) -> bool:
        row_of, mapped, lengths, size = self._row, self.rows.mapped, self.rows.lengths, self.page_tokens
        if any([mapped[row_of[seq]] * size <= lengths[row_of[seq]] for seq in seqs]):
            return False
        for seq in seqs:
            lengths[row_of[seq]] += 1
            self._grown.append(row_of[seq])
        self.used_slots += len(seqs) * self.kvblock_slots
        self._count()
        return True

    def pass_steps(self, growths: Iterator[Sequence[int]], most_ns: int) -> list[int]:
        rows, used, slots, idles = self.rows, self.used_slots, self.kvblock_slots, []
        began = rows.lengthen(1, self._grown)
        grown: Sequence[int] = ()
        mapped = rows.pass_steps(most_ns // (self.calls * self.map_ns), not self.unmap_ns)
        for due in growths:
            kvblocks = next(mapped, None)
            if kvblocks is None:
                break
            grown = due[:]
            used += len(due) * slots
            idles.append(kvblocks * slots - used)
        if not idles:
            rows.shorten(began)
            return idles
        self._grown = [self._row[seq] for seq in grown]
        rows.lengthen(len(idles) - 1)
        for row in self._grown:
            rows.lengths[row] += 1
        self.used_slots = used
        self._count()
        return idles

    def release(self, seq: int) -> None:
        row = self._row[seq]
        del self._row[seq]
        self.used_slots -= self.rows.needed(self.rows.lengths[row]) * self.kvblock_slots
        self.rows.leave(row)
        self._count()

    def after_step(self, lengths: Mapping[int, int]) -> None:
        row_of, held, most = self._row, self.rows.lengths, self.rows.most_mapped * self.page_tokens
        for seq, tokens in lengths.items():
            row = row_of[seq]
            if tokens > held[row]:
                held[row] = tokens if tokens < most else most
        self._grown.clear()
        self.rows.after_step()
        self._count()

    def regions(self) -> Iterator[Region]:
        size, per_token = self.kvblock_slots, self.slots_per_token
        owners: list[tuple[int, ...]] = [()] * self.rows.kvblocks
        firsts, idle = [0] * len(owners), [True] * len(owners)
        for block in self.rows.unmapped():
            idle[block] = False
        for seq, row in self._row.items():
            mine, blocks = (seq,), self.rows.blocks[row]
            for place in range(self.rows.needed(self.rows.lengths[row])):
                block = blocks[place]
                owners[block], firsts[block], idle[block] = mine, place * size // per_token, False
        return equal_regions(size, owners, firsts, idle=idle, per_token=repeat(per_token))

    def _within(self, tokens: int) -> int:
        """`tokens`, capped at the length of a row."""
        return min(tokens, self.rows.most_mapped * self.page_tokens)

    def _need(self, tokens: int) -> int:
        """Kvblocks of a sequence, capped at the length of a row."""
        return self.rows.needed(self._within(tokens))

    def _map(self, row: int, more: int) -> None:
        """Map `more` kvblocks to a row; some may already be mapped."""
        assert row != NONE and self.rows.map_for(row)
        self.used_slots += more * self.kvblock_slots
        self._count()

    def _count(self) -> None:
        rows = self.rows
        self.maps, self.unmaps = rows.maps * self.calls, rows.unmaps * self.calls
        self.idle_slots = (rows.maps - rows.unmaps) * self.kvblock_slots - self.used_slots


class VAttention128K(VAttention):
    """Pages of 128 KiB."""

    idea = "as vattention, with pages of 128 KiB"
    wastes = "< 2 * layers pages: 8 MiB (Llama-3-8B); nothing between"

    page_bytes = 128 * KIB


class VAttention256K(VAttention):
    """Pages of 256 KiB."""

    idea = "as vattention, with pages of 256 KiB"
    wastes = "< 2 * layers pages: 16 MiB (Llama-3-8B); nothing between"

    page_bytes = 256 * KIB


class VAttention2M(VAttention):
    """Pages of 2 MiB, the only size that CUDA's own driver has."""

    idea = "as vattention, with pages of 2 MiB: no driver of its own"
    wastes = "< 2 * layers pages: 128 MiB (Llama-3-8B); nothing between"

    page_bytes = 2048 * KIB


class VAttentionBestFit(VAttention):
    """Gives a new sequence the row that fits best."""

    idea = "as vattention; a new sequence gets the row that fits best"
    used_by = "nobody: what vAttention's comment says"

    choice = "best"


class VAttentionEager(VAttention):
    """Rows without a sequence give up their pages, one kvblock per step."""

    idea = "as vattention; unowned rows are unmapped gradually"

    deferred = False
