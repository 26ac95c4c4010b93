"""vAttention's bookkeeping: physical pages mapped to rows of virtual addresses, ahead of the tokens.

    virtual, per layer: K tensor, V tensor [rows, max_context]
    row 0  |####|####|##..|    |    |    |      3 kvblocks mapped, 2.5 pages of tokens
    row 1  |....|....|    |    |    |    |      2 mapped, no sequence: idle
    pool   [page page page ...]                 physical, created at startup

A *kvblock* is one page in K and one in V of each layer (`2 * layers` pages of `P` bytes), mapped together;
a page holds `P / bytes of a token in one layer's K` tokens, so a sequence wastes less than one kvblock: `2
* layers * P` bytes.

A row's pages stay mapped when its sequence ends (deferred reclamation) and serve the next one placed there.
Before a step (`before_step`), missing pages are mapped while it waits; after it, a thread maps what the next
step will need (`after_step`). If the pool is short, rows give up unneeded pages, the highest row first.

`place` has two ways to choose a row. `literal` follows the code: the first free row, unless a later row has
enough pages and fewer than the candidate. So a first row with too few pages is never replaced. `best` takes
the row with the fewest pages that suffice, else the row with the most.

Work of the thread after a step:

    tokens left in rows 0 to 3      7   0   3   0     the next step needs rows 1 and 3 longer
    a kvblock of 12 for each        7  12   3  12
    a step later                    6  11   2  11     it needs none: two ahead, rows 2 and 0
    a kvblock for each             18  11  14  11

(1) Rows without room for another token get a kvblock; if the pool is short, rows give up unneeded pages, the
highest row first. (2) If these were fewer than two, rows that will be full within nine tokens get one, the
first to be full first, until two are mapped. (3) Without deferred reclamation, and if (1) had nothing to do,
a kvblock of a row without a sequence is unmapped.

`pass_steps` does this for many steps, in which each sequence gets a token: rows are in a calendar, by the
step after which they are full, so the work is proportional to what is mapped.

Source: microsoft/vattention ef3fff2 (arXiv 2405.04437).
"""

from bisect import insort
from collections.abc import Iterator, Sequence
from itertools import count

NONE = -1
CHOICES = ("literal", "best")
NEVER = 1 << 62
EAGER_STEPS = 10
"""Pages are mapped ahead for lengths of up to 9 more tokens."""
EAGER_KVBLOCKS = 2
"""Maximum kvblocks mapped ahead in one step."""


class Rows:
    """Rows of virtual addresses, and the kvblocks that a thread maps to them.

    Parameters
    ----------
    rows : int
        Maximum concurrent sequences.
    kvblocks : int
        Physical kvblocks.
    page_tokens : int
        Tokens per kvblock.
    most_mapped : int
        Kvblocks that a row's addresses have room for.
    deferred : bool
        Whether rows keep their pages until others need them. If not, the thread unmaps one kvblock per step
        that needed none, from the highest row without a sequence; the lowest such row stays warm.
    choice : "literal" or "best"
        The row that a new sequence gets.

    Attributes
    ----------
    blocks : list of list
        By row: the numbers of its kvblocks, in token order.
    mapped, lengths : list of int
        By row: mapped kvblocks, and tokens (0: no sequence).
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
        self._pool = list(range(kvblocks))  # the last one is mapped next
        self.page_tokens = page_tokens
        self.most_mapped = most_mapped
        self.deferred = deferred
        self.choice = choice
        self.blocks: list[list[int]] = [[] for _ in range(rows)]
        self.mapped = [0] * rows
        self.lengths = [0] * rows
        self._active: list[int] = []  # rows with a sequence
        self._rows_used = 0  # rows from here on were never mapped
        self.maps = 0
        self.unmaps = 0

    @property
    def pool(self) -> int:
        """Kvblocks that are not mapped."""
        return len(self._pool)

    def unmapped(self) -> tuple[int, ...]:
        """Numbers of unmapped kvblocks, in reverse mapping order."""
        return tuple(self._pool)

    def needed(self, tokens: int) -> int:
        """Kvblocks that hold `tokens` tokens."""
        return -(-tokens // self.page_tokens)

    @property
    def overcommitted(self) -> int:
        """Kvblocks mapped beyond need; negative: still to be mapped. In the original this wraps around."""
        return sum(self.mapped) - sum(map(self.needed, self.lengths))

    @property
    def free(self) -> int:
        """Kvblocks that the scheduler counts as free."""
        return self.pool + self.overcommitted

    def place(self, tokens: int) -> int:
        """Give a new sequence a row; `NONE` if none is free. Maps nothing."""
        row = self.row_for(self.needed(tokens))
        if row != NONE:
            self.lengths[row] = tokens
            insort(self._active, row)
        return row

    def row_for(self, need: int) -> int:
        """The row for a sequence that needs `need` kvblocks."""
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
        """Remove the row's sequence; its pages stay mapped."""
        self.lengths[row] = 0
        self._active.remove(row)

    def before_step(self, lengths: Sequence[int]) -> bool:
        """Map what sequences of these lengths lack, row by row; False: memory ran out on the way."""
        self._set(lengths)
        return all(self.map_for(row) for row in range(len(self.mapped)))

    def map_for(self, row: int) -> bool:
        """Map what a row lacks, from the pool or from unneeded pages of other rows; False: not enough."""
        lacks = self.needed(self.lengths[row]) - self.mapped[row]
        if lacks <= 0:
            return True
        if self.pool < lacks:
            self.reclaim(lacks)
        return self._map(row, lacks)

    def reclaim(self, wanted: int) -> None:
        """Unmap unneeded pages, the highest row first, until the pool has `wanted` kvblocks."""
        size, mapped, lengths, pool = self.page_tokens, self.mapped, self.lengths, self._pool
        for row in range(self._rows_used - 1, -1, -1):
            if len(pool) >= wanted:
                return
            if mapped[row] * size >= lengths[row] + size:
                self._unmap(row, mapped[row] + -lengths[row] // size)

    def _set(self, lengths: Sequence[int]) -> None:
        self.lengths[:] = lengths
        self._active = [row for row, length in enumerate(lengths) if length]

    def _map(self, row: int, count: int) -> bool:
        """Map `count` kvblocks, up to the row's end; False, mapping none, if the pool is short."""
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

    def after_step(self) -> None:
        """Map ahead for the next step, as the thread does; then perhaps unmap one kvblock."""
        full = self._full_within(EAGER_STEPS - 1)
        wanted = full.pop(0, ())
        if len(wanted) > len(self._pool) or min(full, default=1) < 0:
            self._after_step_in_need()
            return
        self._map_soon(full, 0, wanted)
        if not wanted and not self.deferred:
            self._unmap_one()

    def _after_step_in_need(self) -> None:
        """`after_step` if the pool is short, or if some rows have not yet been mapped for."""
        size, most = self.page_tokens, self.most_mapped
        mapped, lengths = self.mapped, self.lengths
        rows, left, wanted = [], [], 0
        for row in self._active:
            tokens = mapped[row] * size - lengths[row]
            if tokens < EAGER_STEPS - 1 and mapped[row] != most:
                rows.append(row)
                left.append(tokens)
                if tokens < 1:
                    wanted += self._lacks(row, 1)
        if len(self._pool) < wanted:
            self.reclaim(wanted)
            if len(self._pool) < wanted:
                return
        if rows:
            self._map_ahead(rows, left)
        if not wanted and not self.deferred:
            self._unmap_one()

    def pass_steps(self, most: int, unmaps: bool) -> Iterator[int]:
        """Repeat `after_step`; before each repetition every sequence gets a token.

        Yields the number of mapped kvblocks after each. Stops before a step after which more than `most`
        might be mapped, pages might be taken from a row with a sequence, or, without `unmaps`, any might be
        unmapped. `lengths` stay unchanged.
        """
        full = self._full_within(NEVER)
        if min(full, default=0) < 0 or most <= EAGER_KVBLOCKS or not (unmaps or self.deferred):
            return
        for now in count():
            wanted = full.pop(now, ())
            short = len(wanted) > len(self._pool)
            if len(wanted) >= most or (short and not (unmaps and self._take_idle(len(wanted), now))):
                return
            self._map_soon(full, now, wanted)
            if not wanted and not self.deferred:
                self._unmap_one()
            yield self.maps - self.unmaps

    def lengthen(self, tokens: int, but: Sequence[int] = ()) -> list[int]:
        """Lengthen all sequences except `but`, up to the ends of their rows; returns the rows."""
        lengths, longest = self.lengths, self.most_mapped * self.page_tokens
        rows = [row for row in self._active if lengths[row] < longest and row not in but]
        for row in rows:
            lengths[row] += tokens
        for row in rows if tokens > 1 else ():
            lengths[row] = min(lengths[row], longest)
        return rows

    def shorten(self, rows: Sequence[int]) -> None:
        """Shorten these sequences by a token."""
        for row in rows:
            self.lengths[row] -= 1

    def _full_within(self, tokens: int) -> dict[int, list[int]]:
        """Rows with room for fewer than `tokens`, by room and in order, without fully mapped ones."""
        size, most, mapped, lengths = self.page_tokens, self.most_mapped, self.mapped, self.lengths
        full: dict[int, list[int]] = {}
        for row in self._active:
            left = mapped[row] * size - lengths[row]
            if left < tokens and mapped[row] != most:
                if left in full:
                    full[left].append(row)
                else:
                    full[left] = [row]
        return full

    def _map_soon(self, full: dict[int, list[int]], now: int, wanted: Sequence[int]) -> None:
        """Map a kvblock for each row that is full now; if these are fewer than two, for some soon full.

        `full` has the other rows by the step after which they are full; rows that are mapped here are entered
        again. The original checks for two only after a row, so row 0 always gets what it lacks.
        """
        pool, mapped, blocks = self._pool, self.mapped, self.blocks
        size, most, left = self.page_tokens, self.most_mapped, EAGER_KVBLOCKS - len(wanted)
        for row in wanted:
            blocks[row].append(pool.pop())
            mapped[row] += 1
            if mapped[row] != most:
                insort(full.setdefault(now + size, []), row)
        self.maps += len(wanted)
        if left <= 0:
            next_one = full.get(now + 1)
            if not next_one or next_one[0]:
                return
            left = 1
        for at in range(now + 1, now + EAGER_STEPS - 1):
            rows = full.get(at)
            while rows and left and pool:
                row = rows.pop(0)
                blocks[row].append(pool.pop())
                mapped[row] += 1
                self.maps += 1
                left -= 1
                if mapped[row] != most:
                    insort(full.setdefault(at + size, []), row)
            if not left:
                return

    def _take_idle(self, wanted: int, longer: int) -> bool:
        """Like `reclaim`, with sequences `longer`, but only from rows without a sequence; else do nothing."""
        size, mapped, chosen, have = self.page_tokens, self.mapped, [], len(self._pool)
        for row in range(self._rows_used - 1, -1, -1):
            if not mapped[row]:
                continue
            length = self.lengths[row]
            if length:
                if mapped[row] * size >= length + longer + size:
                    return False
                continue
            chosen.append(row)
            have += mapped[row]
            if have >= wanted:
                for each in chosen:
                    self._unmap(each, mapped[each])
                return True
        return False

    def _map_ahead(self, rows: Sequence[int], left: Sequence[int]) -> None:
        """Map for lengths 1 to 9 tokens longer; only these rows, with `left` tokens of room, may need it.

        Stops at two kvblocks, but checks only after a row, so row 0 always gets what it lacks.
        """
        done = 0
        for ahead in range(1, EAGER_STEPS):
            if done >= EAGER_KVBLOCKS:
                if rows[0] == 0:
                    self._map(0, self._lacks(0, ahead))
                return
            for row, tokens in zip(rows, left, strict=True):
                lacks = 0 if tokens >= ahead else self._lacks(row, ahead)
                if lacks:
                    self._map(row, lacks)
                    done += lacks
                    if ahead > 1 and done >= EAGER_KVBLOCKS:
                        return

    def _lacks(self, row: int, ahead: int) -> int:
        """Kvblocks that a row lacks once its sequence is `ahead` tokens longer."""
        mapped = self.mapped[row]
        lacks = -(-(self.lengths[row] + ahead) // self.page_tokens) - mapped
        return 0 if lacks < 0 or mapped == self.most_mapped else lacks

    def _unmap_one(self) -> None:
        """Unmap a kvblock of the highest mapped row without a sequence; the lowest such row keeps its own."""
        rows = [row for row, length in enumerate(self.lengths) if not length]
        row = next((row for row in reversed(rows[1:]) if self.mapped[row]), NONE)
        if row != NONE:
            self._unmap(row, 1)
