"""Block tables of layers that do not see every token: sliding windows, and chunks.

    window   |.|.|.|.|5|6|7|      blocks wholly before the window are null
    chunk    |.|.|.|.|.|6|7|      blocks of earlier chunks are null

Hits are looked for from the right in windows, where as many blocks in a row serve as the window reaches back;
from the start of the chunk in chunks.

Not every full block is worth keeping in a window: `retention` says which ends of texts are kept. None: all
that a hit could end at; 0: only where the same prompt could be resumed, and where two prompts were seen to
part; more: once in so many tokens too.
"""

from collections.abc import Sequence

from kvsim.allocators.hybrid.pool import NULL, Blocks
from kvsim.allocators.hybrid.tables import GroupTables, Text


class WindowTables(GroupTables):
    """A sliding window."""

    def __init__(self, pool: Blocks, group: int, block_size: int, hash_size: int, *, window: int) -> None:
        super().__init__(pool, group, block_size, hash_size)
        self.window = window

    def _remember_tail(self, text: Text, tokens: int) -> None:
        """Hits of windows end at block ends."""

    @property
    def run(self) -> int:
        """Blocks in a row that a hit needs before its end."""
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
            end = row  # the whole beginning of the text serves, however short
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
