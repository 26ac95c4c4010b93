"""The block tables of one group of attention layers: full attention, windows, and chunks.

    full     |1|2|3|4|5|6|7|      every token                            (states: states.py)
    window   |.|.|.|.|5|6|7|      blocks wholly before the window are null
    chunk    |.|.|.|.|.|6|7|      blocks of earlier chunks are null

Full attention searches for hits from the left: a block counts only if all before it are hit. Windows search
from the right, for as many hit blocks in a row as the window reaches back; chunks from the start of the
chunk. If hits may end inside a block (`match_tokens`), the last block of a hit belongs to another sequence
and is still being written: the sequence gets its own copy when it is placed.

With windows, not every full block is worth keeping: `retention` says which ends of texts are kept. None: all
places where a hit could end; 0: only where the same prompt could resume, and where two prompts have diverged;
more: also one place per `retention` tokens.
"""

from collections.abc import Hashable, Sequence

from kvsim.allocators.hybrid.pool import NULL, Blocks
from kvsim.allocators.hybrid.text import Text


class GroupTables:
    """Full attention, and the base class of all groups."""

    def __init__(self, pool: Blocks, group: int, block_size: int, hash_size: int) -> None:
        self.pool, self.group, self.block_size = pool, group, block_size
        self.hash_size = hash_size
        self.keys_per_block = max(1, block_size // hash_size)
        self.tables: dict[int, list[int]] = {}
        self.cached: dict[int, int] = {}
        self.most_blocks: int | None = None
        self.align_tokens = block_size
        self.copies: list[tuple[int, int]] = []
        self.of_state = False
        self._shared_tail: dict[int, tuple[int, int]] = {}

    # -- what is kept --------------------------------------------------------------------------------

    def unseen(self, computed: int) -> int:
        """Tokens that a sequence with `computed` tokens will never see again."""
        return 0

    def kept(self, first: int, last: int, retention: int | None, ends: Sequence[int]) -> list[bool] | None:
        """Which of the blocks `first` to `last` (exclusive) are worth a key; None: all."""
        return None

    # -- hits ----------------------------------------------------------------------------------------

    def key(self, text: Text, block: int) -> Hashable:
        """The key of the text up to the end of a block."""
        return text.keys[(block + 1) * self.keys_per_block - 1]

    def hit(self, text: Text, limit: int, groups: Sequence[int]) -> tuple[list[list[int]], int]:
        """Blocks of each group that hold the beginning of the text, up to `limit` tokens."""
        found: list[list[int]] = [[] for _ in groups]
        for block in range(limit // self.block_size):
            held = self.pool.find(self.key(text, block), groups)
            if held is None:
                break
            for blocks, each in zip(found, held, strict=True):
                blocks.append(each)
        length = len(found[0]) * self.block_size
        if self.ends_inside:
            first = len(found[0]) * self.keys_per_block
            last = min(first + self.keys_per_block - 1, limit // self.hash_size, len(text.keys))
            for at in range(last - 1, first - 1, -1):
                held = self.pool.find(text.keys[at], groups)
                if held is not None:
                    for blocks, each in zip(found, held, strict=True):
                        blocks.append(each)
                    length = (at + 1) * self.hash_size
                    break
        length -= length % self.align_tokens
        return [blocks[: -(-length // self.block_size)] for blocks in found], length

    @property
    def ends_inside(self) -> bool:
        """Whether a hit may end inside a block."""
        return self.align_tokens < self.block_size and self.block_size % self.align_tokens == 0

    # -- blocks of a sequence ------------------------------------------------------------------------

    def needed(
        self, text: Text, tokens: int, hits: Sequence[int], computed: int, *, whole: bool = False
    ) -> int:
        """Free blocks needed to place `tokens`, including hit blocks in the free queue.

        `whole`: check before admission, for all known tokens; a window counts the most that it can hold at
        once.
        """
        required = -(-tokens // self.block_size)
        if whole and self.most_blocks is not None:
            required = min(required, self.most_blocks)
        have = len(self.tables.get(text.sequence, ()))
        if text.sequence in self.cached:
            return required - have if required > have else 0
        skipped = self.unseen(computed) // self.block_size
        fresh = max(required - max(skipped, len(hits) + have), 0)
        if not hits:
            return fresh
        return fresh + self.shares_tail(hits, computed) + self.pool.evictable(hits[max(0, skipped - have) :])

    def refused(self, sequence: int) -> None:
        """Discard what `needed` prepared for a sequence that is not placed."""

    def shares_tail(self, hits: Sequence[int], computed: int) -> bool:
        """Whether a hit ends inside its last block, which must then be copied."""
        return bool(hits) and computed % self.block_size != 0

    def adopt(self, text: Text, hits: Sequence[int], computed: int) -> None:
        """Start the table of a sequence with the blocks it hit, null for those it will never see."""
        skipped = self.unseen(computed) // self.block_size
        hits = hits[skipped:]
        self.pool.touch(hits)
        self.tables[text.sequence] = [*[NULL] * skipped, *hits]
        self.cached[text.sequence] = skipped + len(hits)
        if self.shares_tail(hits, computed):
            self._shared_tail[text.sequence] = (computed // self.block_size, hits[-1])
            self.cached[text.sequence] = computed // self.block_size

    def extend(self, text: Text, tokens: int) -> None:
        """Extend the table to `tokens`; `needed` has checked that there are enough blocks."""
        table = self.tables.setdefault(text.sequence, [])
        if text.sequence in self._shared_tail:
            self._own_tail(text.sequence, self.pool.take(1, self.group, text.sequence)[0])
        missing = -(-tokens // self.block_size) - len(table)
        if missing > 0:
            table.extend(self.pool.take(missing, self.group, text.sequence))

    def _own_tail(self, sequence: int, block: int) -> None:
        """Replace the shared tail with a copy; both blocks are held until the copy has been made."""
        place, source = self._shared_tail.pop(sequence)
        self.tables[sequence][place] = block
        self.copies.append((source, block))
        self.pool.touch([block])

    def drop_unseen(self, sequence: int, computed: int) -> None:
        """Free what a sequence with `computed` tokens will never see again, the last block first."""
        table = self.tables.get(sequence)
        unseen = self.unseen(computed) // self.block_size
        if not table or not unseen:
            return
        freed = []
        for place in range(min(unseen, len(table)) - 1, -1, -1):
            if table[place] == NULL:
                break
            freed.append(table[place])
            table[place] = NULL
        if freed:
            self.pool.give(freed)

    def remember(self, text: Text, tokens: int, retention: int | None, ends: Sequence[int]) -> None:
        """Give keys to the blocks that are now full."""
        self._remember_full(text, tokens, retention, ends)
        if self.keys_per_block > 1:
            self._remember_tail(text, tokens)

    def _remember_tail(self, text: Text, tokens: int) -> None:
        """Keep the end of a prompt that ends inside a block, so that the same prompt can resume there."""
        at = min((text.prompt_tokens - 1) // self.hash_size, len(text.keys))
        end, table = at * self.hash_size, self.tables[text.sequence]
        place = end // self.block_size
        if 0 < end <= tokens and end % self.block_size and place < len(table) and table[place] != NULL:
            self.pool.remember_part(table[place], (text.keys[at - 1], self.group), end)

    def _remember_full(self, text: Text, tokens: int, retention: int | None, ends: Sequence[int]) -> None:
        before = self.cached.get(text.sequence, 0)
        full = min(tokens, len(text.keys) * self.hash_size) // self.block_size
        if before >= full:
            return
        mask = self.kept(before, full, retention, ends)
        table = self.tables[text.sequence]
        for place in range(before, full):
            if table[place] != NULL and (mask is None or mask[place - before]):
                key = (self.key(text, place), self.group)
                self.pool.remember(table[place], key, (place + 1) * self.block_size)
        self.cached[text.sequence] = full

    def release(self, sequence: int) -> None:
        """Free the table, its end first."""
        self.cached.pop(sequence, None)
        self._shared_tail.pop(sequence, None)
        self.pool.give(reversed(self.tables.pop(sequence, [])))


class WindowTables(GroupTables):
    """A sliding window."""

    def __init__(self, pool: Blocks, group: int, block_size: int, hash_size: int, *, window: int) -> None:
        super().__init__(pool, group, block_size, hash_size)
        self.window = window

    def _remember_tail(self, text: Text, tokens: int) -> None:
        """Hits of windows end at block ends."""

    @property
    def run(self) -> int:
        """Consecutive blocks that must be hit before the end of a hit."""
        return -(-(self.window - 1) // self.block_size)

    def unseen(self, computed: int) -> int:
        return max(0, computed - self.window + 1)

    def hit(self, text: Text, limit: int, groups: Sequence[int]) -> tuple[list[list[int]], int]:
        count = limit // self.block_size
        found = [[NULL] * count for _ in groups]
        row, end = 0, 0
        for block in range(count - 1, -1, -1):
            held = self.pool.find(self.key(text, block), groups)
            if held is None:
                row = 0
                continue
            if row == 0 and (block + 1) * self.block_size % self.align_tokens:
                continue
            for blocks, each in zip(found, held, strict=True):
                blocks[block] = each
            row += 1
            if row >= self.run:
                end = block + row
                break
        else:
            end = row  # the hit starts at the first token: it may be shorter than a window
            while end * self.block_size % self.align_tokens:
                end -= 1
        return [blocks[:end] for blocks in found], end * self.block_size

    def kept(self, first: int, last: int, retention: int | None, ends: Sequence[int]) -> list[bool] | None:
        mask = [False] * (last - first)
        segment = self.align_tokens if retention is None else retention
        if segment:
            blocks = segment // self.block_size
            if self.run >= blocks:
                return None
            for block in range(first, last):
                mask[block - first] = block % blocks >= blocks - self.run
        if retention is not None:
            for tokens in ends:
                end = tokens // self.align_tokens * self.align_tokens // self.block_size
                for block in range(max(first, end - self.run), min(last, end)):
                    mask[block - first] = True
        return mask


class ChunkTables(GroupTables):
    """Chunked local attention."""

    def __init__(self, pool: Blocks, group: int, block_size: int, hash_size: int, *, chunk: int) -> None:
        super().__init__(pool, group, block_size, hash_size)
        self.chunk = chunk

    def _remember_tail(self, text: Text, tokens: int) -> None:
        """Hits of chunks end at block ends."""

    def unseen(self, computed: int) -> int:
        return computed // self.chunk * self.chunk

    def hit(self, text: Text, limit: int, groups: Sequence[int]) -> tuple[list[list[int]], int]:
        start = limit // self.chunk * self.chunk // self.block_size
        found = [[NULL] * start for _ in groups]
        for block in range(start, limit // self.block_size):
            held = self.pool.find(self.key(text, block), groups)
            if held is None:
                break
            for blocks, each in zip(found, held, strict=True):
                blocks.append(each)
        return found, len(found[0]) * self.block_size
