"""The block tables of a group of recurrent layers whose states are kept at block ends.

    tokens   0    16   32   48   64 ...      block 16
    table    |.   |.   |s   |r   |           r: the running state, s: the one before, copied from or hit

A sequence holds its running state in the last block of its table and, for one step, the state it came from;
earlier entries are null. A state exists only where a piece of the prompt ended: the scheduler ends pieces at
block ends, or the kernel saves a state inside a piece (a checkpoint) in a block of its own:

    a prompt of 57 tokens, blocks of 16, a budget of 40     |0 ... 16 ... 32|  ends at 32, not at 40
    the rest                                                |32 ... 48| |48 ... 57|

A hit needs only the last state, so the search runs from the right. A state that another sequence computes in
the current step cannot be hit yet: the sequence that would hit it waits a step.

Without prefix caching, a group of recurrent layers is a full-attention group whose single block is as long as
the longest sequence.
"""

from collections.abc import Hashable, Sequence

from kvsim.allocators.hybrid.pool import NULL, Blocks, Key
from kvsim.allocators.hybrid.tables import GroupTables
from kvsim.allocators.hybrid.text import Text


def last_boundary(tokens: int, block_size: int) -> int:
    """The last block end that leaves at least one token to compute."""
    return max((tokens - 1) // block_size * block_size, 0)


def checkpoint_inside(  # noqa: PLR0917 - three places, three sizes
    start: int, end: int, place: int, hash_size: int, block_size: int, grid: int
) -> bool:
    """Whether a kernel can save a state at `place` while it computes the tokens from `start` to `end`."""
    return (
        start % hash_size == 0
        and -(-end // block_size) - 2 > (start - 1) // block_size
        and start + hash_size <= place
        and start < place < end
        and (place - start) % grid == 0
    )


def aligned_piece(
    text: Text,
    start: int,
    tokens: int,
    *,
    block_size: int,
    hash_size: int,
    grid: int | None,
    most_tokens: int,
) -> int:
    """How many tokens of a prompt to compute, so that the chunk ends where a state can be kept.

    Parameters
    ----------
    text : Text
    start, tokens : int
        Start of the chunk, and the tokens that the budget allows.
    block_size, hash_size : int
        `hash_size` is smaller if hits may end inside a block.
    grid : int or None
        Kernels can save states inside a chunk at multiples of this; None: nowhere.
    most_tokens : int
        The token budget of a whole step.
    """
    prompt_end = max(text.prompt_tokens, text.tokens - 1)
    if start >= prompt_end:
        return tokens
    end, stop = start + tokens, last_boundary(text.tokens, block_size)
    inside = (
        grid is not None
        and end >= prompt_end
        and checkpoint_inside(start, end, last_boundary(prompt_end, hash_size), hash_size, block_size, grid)
    )
    if inside:
        stop = 0
    if end < prompt_end:
        aligned = end // block_size * block_size
        if aligned > start or block_size <= most_tokens:
            end = aligned
    stops = [stop]
    if start % block_size and not inside:
        stops.append((start // block_size + 1) * block_size)
    tail = last_boundary(text.prompt_tokens, hash_size) if hash_size < block_size and not inside else 0
    if stop < tail < text.prompt_tokens:
        stops.append(tail)
    if start < text.junction < end:
        stops.append(start + (text.junction - start) // block_size * block_size)
    return max(min((each for each in stops if start < each < end), default=end) - start, 0)


class StateTables(GroupTables):
    """States at block ends."""

    def __init__(
        self,
        pool: Blocks,
        group: int,
        block_size: int,
        hash_size: int,
        *,
        checkpoint_grid: int | None = None,
    ) -> None:
        super().__init__(pool, group, block_size, hash_size)
        self.checkpoint_grid = checkpoint_grid
        self.fresh: set[Key] = set()
        self._last: dict[int, int] = {}
        self._retired: dict[int, int] = {}
        self._started: set[int] = set()
        self._checkpoints: dict[int, tuple[int, int]] = {}

    def unseen(self, computed: int) -> int:
        return max(0, computed - 1)

    def hit(self, text: Text, limit: int, groups: Sequence[int]) -> tuple[list[list[int]], int]:
        if self.ends_inside:
            for at in range(min(limit // self.hash_size, len(text.keys)) - 1, -1, -1):
                held = self.pool.find(text.keys[at], groups)
                if held is not None:
                    return [[*[NULL] * (at // self.keys_per_block), each] for each in held], (
                        at + 1
                    ) * self.hash_size
            return [[] for _ in groups], 0
        for block in range(limit // self.block_size - 1, -1, -1):
            held = self.pool.find(self.key(text, block), groups)
            end = (block + 1) * self.block_size
            if held is not None and end % self.align_tokens == 0:
                return [[*[NULL] * block, each] for each in held], end
        return [[] for _ in groups], 0

    def kept(self, first: int, last: int, retention: int | None, ends: Sequence[int]) -> list[bool] | None:
        if retention is None:
            return None
        mask = [False] * (last - first)
        if retention:
            blocks = retention // self.block_size
            if blocks <= 1:
                return None
            for block in range(first, last):
                mask[block - first] = (block + 1) % blocks == 0
        for tokens in ends:
            block = tokens // self.align_tokens * self.align_tokens // self.block_size - 1
            if first <= block < last:
                mask[block - first] = True
        return mask

    def needed(
        self, text: Text, tokens: int, hits: Sequence[int], computed: int, *, whole: bool = False
    ) -> int:
        if hits and self.pool.keys[hits[-1]] in self.fresh:
            return self.pool.blocks + 2  # more than there are: it must wait a step
        table = self.tables.get(text.sequence, [])
        fresh = -(-tokens // self.block_size) - len(hits) - len(table)
        inside = self._checkpoint(text, tokens, computed)
        if not whole:
            if inside:
                self._checkpoints[text.sequence] = (inside, -(-tokens // self.block_size) - 2)
            else:
                self._checkpoints.pop(text.sequence, None)
        shares = self.shares_tail(hits, computed) or text.sequence in self._shared_tail
        if shares:
            fresh = max(fresh, 0) + 1
        if fresh > 0:
            fresh = min(fresh, 1 + shares + bool(inside))
        return fresh + self.pool.evictable(hits) if hits else fresh

    def refused(self, sequence: int) -> None:
        self._checkpoints.pop(sequence, None)

    def _checkpoint(self, text: Text, end: int, start: int) -> int:
        """Where inside this chunk the kernel saves a state; 0: nowhere."""
        if self.checkpoint_grid is None:
            return 0
        place = last_boundary(end, self.align_tokens)
        column = -(-end // self.block_size) - 2
        table = self.tables.get(text.sequence, [])
        exported = (
            end >= self.prompt_end(text)
            and checkpoint_inside(start, end, place, self.hash_size, self.block_size, self.checkpoint_grid)
            and column >= 0
            and (column >= len(table) or table[column] == NULL)
        )
        return place if exported else 0

    prompt_end_matters = True

    def prompt_end(self, text: Text) -> int:
        """The end of the prompt, or of what a preempted sequence recomputes; 0: states everywhere."""
        return max(text.prompt_tokens, text.tokens - 1) if self.prompt_end_matters else 0

    def extend(self, text: Text, tokens: int) -> None:
        sequence = text.sequence
        table = self.tables.setdefault(sequence, [])
        required, inside = -(-tokens // self.block_size), sequence in self._checkpoints
        shares = sequence in self._shared_tail
        if required > len(table) or inside or shares:
            if sequence in self._started or table:
                self._last[sequence] = len(table) - 1
            table.extend([NULL] * (required - 1 - inside - len(table)))
            blocks = self.pool.take(max(required - len(table), 0) + shares, self.group, sequence)
            if shares:
                self._own_state(sequence, blocks.pop(0))
            table.extend(blocks)
        self._started.add(sequence)

    def _own_state(self, sequence: int, block: int) -> None:
        """Copy a state that is about to be overwritten: for this sequence, or for later hits."""
        if sequence not in self._started:
            self._own_tail(sequence, block)
            return
        _, source = self._shared_tail.pop(sequence)
        self.pool.move_keys(source, block)
        self.copies.append((source, block))
        self.pool.touch([source])
        key = self.pool.keys[block]
        if key is not None:
            self.fresh.add(key)

    def drop_unseen(self, sequence: int, computed: int) -> None:
        table = self.tables.get(sequence)
        if table is None:
            return
        first = self._retired.get(sequence, 0)
        last = min(self.unseen(computed) // self.block_size, len(table))
        if first < last:
            freed = [table[place] for place in range(last - 1, first - 1, -1) if table[place] != NULL]
            table[first:last] = [NULL] * (last - first)
            self.pool.give(freed)
            self._retired[sequence] = last
        state = self._last.get(sequence)
        if state is not None and state < -(-computed // self.block_size) - 1 and table[state] != NULL:
            self.pool.give([table[state]])
            table[state] = NULL

    def remember(self, text: Text, tokens: int, retention: int | None, ends: Sequence[int]) -> None:
        before = self.cached.get(text.sequence, 0)
        self._remember_full(text, tokens, retention, ends)
        if text.sequence in self._checkpoints:
            self._remember_checkpoint(text, retention)
        else:
            self._remember_tail(text, tokens)
        table = self.tables[text.sequence]
        for place in range(before, self.cached.get(text.sequence, 0)):
            key = self.pool.keys[table[place]] if table[place] != NULL else None
            if key is not None:
                self.fresh.add(key)

    def _remember_checkpoint(self, text: Text, retention: int | None) -> None:
        """Give the state saved inside the chunk a key, if a sequence can resume there; else forget it."""
        place, column = self._checkpoints[text.sequence]
        block = self.tables[text.sequence][column]
        of_prompt = place == last_boundary(text.prompt_tokens, self.align_tokens)
        kept = False
        if place % self.block_size == 0:
            mask = self.kept(place // self.block_size - 1, place // self.block_size, retention, ())
            kept = mask is None or mask[0]
        if not (of_prompt or kept or place == text.junction):
            self.pool.forget(block)
        elif self.pool.keys[block] is None or self.pool.key_tokens[block] != place:
            key: Hashable = text.keys[place // self.hash_size - 1]
            self.pool.remember(block, (key, self.group), place)
            self.fresh.add((key, self.group))

    def _remember_tail(self, text: Text, tokens: int) -> None:
        """Keep the state at the last place where the prompt can be resumed, if a chunk ended there."""
        if tokens <= 0 or tokens != last_boundary(text.prompt_tokens, self.hash_size):
            return
        table, place = self.tables[text.sequence], -(-tokens // self.block_size) - 1
        if place >= len(table) or table[place] == NULL:
            return
        block = table[place]
        if self.pool.keys[block] is not None and self.pool.key_tokens[block] == tokens:
            return
        key = (text.keys[tokens // self.hash_size - 1], self.group)
        self.pool.remember_part(block, key, tokens)
        self.fresh.add(key)
        if tokens % self.block_size:
            self._shared_tail[text.sequence] = (place, block)
            self.cached[text.sequence] = place

    def release(self, sequence: int) -> None:
        self._started.discard(sequence)
        for kept in (self._last, self._retired, self._checkpoints):
            kept.pop(sequence, None)
        super().release(sequence)

    def new_step(self) -> None:
        """Start a step: what the last step computed can now be hit."""
        self.fresh.clear()
