"""vAttention's bookkeeping: physical pages behind rows of virtual addresses, grown ahead of the tokens.

    virtual, per layer: K tensor, V tensor [rows, max_context]
    row 0  |####|####|##..|    |    |    |      3 kvblocks mapped, 2.5 pages of tokens
    row 1  |....|....|    |    |    |    |      2 mapped, no sequence: idle
    pool   [page page page ...]                 physical, created at the start

A *kvblock* is one page in K and one in V of each layer (`2 * layers` pages of `P` bytes), mapped together;
a page holds `P / bytes of a token in one layer's K` tokens, so a sequence wastes less than one kvblock: `2
* layers * P` bytes.

A row's pages stay mapped when its sequence ends (deferred reclamation) and serve the next one placed there.
Before a step (`before_step`) what sequences lack is mapped, while the step waits; behind it a thread maps
what the next step will need (rows.py). When the pool is short, rows give up what they do not need, the
highest first.

`place` has two choices of a row. `literal` does what the code does: the first free row, unless a later one
has enough pages and fewer than the candidate; so a first row with too few pages is never replaced. `best`
takes the row with the fewest pages that suffice, else the one with the most.

Source: microsoft/vattention ef3fff2 (arXiv 2405.04437).
"""

from bisect import insort
from collections.abc import Sequence

NONE = -1
CHOICES = ("literal", "best")


def tokens_per_page(page_bytes: int, kv_heads: int, head_dim: int, dtype_bytes: int, layers: int = 1) -> int:
    """Tokens whose keys (or values) of one layer fill a page; of `layers` layers in the one-tensor layout."""
    return page_bytes // (kv_heads * head_dim * dtype_bytes * layers)


def worst_waste_bytes(page_bytes: int, layers: int, tensor_parallel: int = 1) -> int:
    """Bytes of a kvblock on all GPUs: what a sequence wastes less than."""
    return 2 * layers * page_bytes * tensor_parallel


def pool_pages(free_bytes: int, page_bytes: int, kvblock_pages: int) -> int:
    """Physical pages that are created in so much memory: whole kvblocks only."""
    pages = free_bytes // page_bytes
    return pages - pages % kvblock_pages


class MappedRows:
    """Rows of virtual addresses, and the kvblocks mapped behind them.

    Parameters
    ----------
    rows : int
        Most sequences at a time.
    kvblocks : int
        Physical kvblocks.
    page_tokens : int
        Tokens of a kvblock.
    most_mapped : int
        Kvblocks that a row's addresses have room for.
    deferred : bool
        Whether rows keep their pages until they are wanted. If not, the thread unmaps one kvblock in a step
        that needed none, from the highest row without a sequence; the lowest such row stays warm.
    choice : "literal" or "best"
        The row that a new sequence gets.

    Attributes
    ----------
    blocks : list of list
        Of each row: the numbers of its kvblocks, in the order of its tokens.
    mapped, lengths : list of int
        Of each row: how many they are, and tokens (0: no sequence).
    maps, unmaps : int
        Kvblocks mapped and unmapped since the start.
    """

    def __init__(
        self,
        rows: int,
        kvblocks: int,
        page_tokens: int,
        most_mapped: int,
        *,
        deferred: bool = True,
        choice: str = "literal",
    ) -> None:
        if choice not in CHOICES:
            raise ValueError(f"choice must be literal or best, got {choice!r}")
        self.count, self.kvblocks = rows, kvblocks
        self._pool = list(range(kvblocks))  # the next one to map is the last
        self.page_tokens = page_tokens
        self.most_mapped = most_mapped
        self.deferred = deferred
        self.choice = choice
        self.blocks: list[list[int]] = [[] for _ in range(rows)]
        self.mapped = [0] * rows
        self.lengths = [0] * rows
        self._active: list[int] = []  # rows that have a sequence
        self._rows_used = 0  # no row from here on was ever mapped
        self.maps = 0
        self.unmaps = 0

    @property
    def pool(self) -> int:
        """Kvblocks that are not mapped."""
        return len(self._pool)

    def unmapped(self) -> tuple[int, ...]:
        """Their numbers, the next one to map last."""
        return tuple(self._pool)

    def needed(self, tokens: int) -> int:
        """Kvblocks that hold so many tokens."""
        return -(-tokens // self.page_tokens)

    @property
    def overcommitted(self) -> int:
        """Kvblocks mapped beyond need; below 0: so many are yet to be mapped. The original wraps around."""
        return sum(self.mapped) - sum(map(self.needed, self.lengths))

    @property
    def free(self) -> int:
        """Kvblocks that the scheduler may count on."""
        return self.pool + self.overcommitted

    def place(self, tokens: int) -> int:
        """Give a new sequence a row; `NONE` when none is free. Maps nothing yet."""
        row = self.row_for(self.needed(tokens))
        if row != NONE:
            self.lengths[row] = tokens
            insort(self._active, row)
        return row

    def row_for(self, need: int) -> int:
        """The row that a sequence which needs so many kvblocks would get."""
        mapped, lengths, best = self.mapped, self.lengths, self.choice == "best"
        if len(self._active) == self.count:
            return NONE
        chosen = lengths.index(0)
        for row in range(chosen + 1, self._rows_used):
            candidate = mapped[chosen]
            if candidate == need or (candidate < need and not best):
                break
            if not lengths[row] and (
                need <= mapped[row] < candidate or (best and candidate < need and mapped[row] > candidate)
            ):
                chosen = row
        return chosen

    def leave(self, row: int) -> None:
        """The row's sequence is gone; its pages stay."""
        self.lengths[row] = 0
        self._active.remove(row)

    def before_step(self, lengths: Sequence[int]) -> bool:
        """Map what sequences of these lengths lack, row by row; False: out of memory on the way."""
        self._set(lengths)
        return all(self.map_for(row) for row in range(len(self.mapped)))

    def map_for(self, row: int) -> bool:
        """Map what a row lacks, from the pool or what other rows do not need; False: there is not so much."""
        lacks = self.needed(self.lengths[row]) - self.mapped[row]
        if lacks <= 0:
            return True
        if self.pool < lacks:
            self.reclaim(lacks)
        return self._map(row, lacks)

    def reclaim(self, wanted: int) -> None:
        """Unmap what rows do not need, the highest row first, until the pool has so many kvblocks."""
        size, mapped, lengths, pool = self.page_tokens, self.mapped, self.lengths, self._pool
        for row in range(self._rows_used - 1, -1, -1):
            if len(pool) >= wanted:
                return
            if mapped[row] * size >= lengths[row] + size:
                self._unmap(row, mapped[row] + -lengths[row] // size)

    def step_at_once(self, lengths: Sequence[int]) -> bool:
        """The mode without a thread: rows without a sequence give everything up, then `before_step`."""
        self._set(lengths)
        for row, length in enumerate(lengths):
            if not length:
                self._unmap(row, self.mapped[row])
            elif not self.map_for(row):
                return False
        return True

    def _set(self, lengths: Sequence[int]) -> None:
        self.lengths[:] = lengths
        self._active = [row for row, length in enumerate(lengths) if length]

    def _map(self, row: int, count: int) -> bool:
        """Map so many kvblocks, as far as the row's addresses go; False when the pool is short: none."""
        if len(self._pool) < count:
            return False
        count = min(count, self.most_mapped - self.mapped[row])
        if count > 0:
            self._rows_used = max(self._rows_used, row + 1)
            self.blocks[row] += self._pool[: -count - 1 : -1]
            del self._pool[-count:]
            self.mapped[row] += count
            self.maps += count
        return True

    def _unmap(self, row: int, count: int) -> None:
        if count > 0:
            blocks = self.blocks[row]
            self._pool += blocks[: -count - 1 : -1]
            del blocks[-count:]
            self.mapped[row] -= count
            self.unmaps += count
