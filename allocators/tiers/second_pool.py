"""A second pool of blocks, below the GPU's memory: freed blocks can be found until they are reused.

    copied to    taken from the head of the queue; its old text is forgotten
    copied       known by its text, and free: the last of the queue
    hit          out of the queue while it is held

Like the host memory of vLLM 0.33.0's SimpleCPUOffloadConnector. A row of blocks is freed from its first block
on, so the start of a text is forgotten before its end.

    row          (key, blocks): blocks with the keys `key`, `key + 1`, ...
"""

from collections.abc import Iterable, Iterator

from kvsim.allocators.options import CacheRules
from kvsim.allocators.prefix_pool import PrefixPool
from kvsim.allocators.spans import Span
from kvsim.allocators.tiers.pieces import Piece

Row = tuple[int, list[int]]


def rows(keyed: Iterable[tuple[int, int]]) -> list[Row]:
    """Group (key, block) pairs, by ascending key, into rows."""
    found: list[Row] = []
    for key, block in keyed:
        if found and found[-1][0] + len(found[-1][1]) == key:
            found[-1][1].append(block)
        else:
            found.append((key, [block]))
    return found


class ForwardPool(PrefixPool):
    """A pool that allocates each span from its first block on."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks, CacheRules())
        self._ends.behind.blocks.reverse()

    def allocate(self, count: int, evicted: list[int] | None = None) -> list[int]:
        allocated: list[int] = []
        while len(allocated) < count:
            span = self._ends.behind
            blocks, key, missing = span.blocks, span.key, count - len(allocated)
            if key is not None:
                del self._spans[key]
            if len(blocks) > missing:
                taken = blocks[:missing]
                del blocks[:missing]
                if key is not None:
                    span.key = key + missing
                    self._spans[key + missing] = span
            else:
                taken = blocks
                span.front.behind, span.behind.front = span.behind, span.front
            if key is not None:
                self._forget_allocated(key, len(taken))
            elif self._equals.key and taken[0] in self._equals.key:
                self._equals.remove(taken[0])
                self.cached -= 1
            allocated += taken
        self.free -= count
        return allocated

    def give_back(self, blocks: list[int], key: int | None = None, first: bool = False) -> None:
        """Free blocks, to be allocated from the first on, after all others."""
        count = len(blocks)
        self.free += count
        if key is None or (not self.misses(key, count) and self._found[key : key + count] == blocks):
            self._put(blocks, key, self._ends)
            return
        start = 0
        for at in range(1, count + 1):
            if at == count or self._kind(key + at, blocks[at]) != self._kind(key + start, blocks[start]):
                self._put_alike(blocks[start:at], key + start, self._ends)
                start = at

    def queue(self) -> Iterator[int]:
        for span in self._ends.others():
            yield from span.blocks

    def _split(self, span: Span, at: int) -> Span:
        rear = Span(span.blocks[at:], None if span.key is None else span.key + at, span.behind)
        del span.blocks[at:]
        return rear


class SecondPool:
    """Blocks 0 to `blocks - 1`, their texts and holders.

    Attributes
    ----------
    extra : dict of int
        Block with several holders -> number of holders besides one.
    """

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.pool = ForwardPool(blocks)
        self.extra: dict[int, int] = {}

    @property
    def free(self) -> int:
        """Blocks without a holder, including those with a text."""
        return self.pool.free

    @property
    def held(self) -> int:
        """Blocks that have a text or are being copied to."""
        return self.blocks - self.pool.free + self.pool.cached

    def find(self, pieces: list[Piece]) -> list[Row]:
        """The blocks of these keys, up to the first miss."""
        found: list[Row] = []
        for _, key, count in pieces:
            blocks = self.pool.find(key, count)
            if blocks:
                found.append((key, blocks))
            if len(blocks) < count:
                break
        return found

    def knows(self, key: int) -> bool:
        """Whether a block is known by this key."""
        return not self.pool.misses(key, 1)

    def misses(self, key: int, count: int) -> int:
        """How many of the next `count` keys have no block."""
        return self.pool.misses(key, count)

    def missed(self, key: int, count: int) -> list[int]:
        """Which of the next `count` keys have no block, the last first."""
        return self.pool.unknown(key, count)[::-1]

    def know(self, keys: int) -> None:
        """Make room for `keys` keys in total."""
        self.pool.know(keys)

    def hold(self, rows: list[Row]) -> None:
        """Add a holder to blocks that were found."""
        extra = self.extra
        for key, blocks in rows:
            for block in self.pool.wake(key, len(blocks)):
                extra[block] = extra.get(block, 0) + 1

    def take(self, count: int) -> tuple[list[int], int]:
        """Take `count` free blocks, which must exist; also returns how many of them had a text."""
        cached = self.pool.cached
        return self.pool.allocate(count), cached - self.pool.cached

    def enter(self, key: int, blocks: list[int]) -> None:
        """Let look-ups find blocks by this key and the following ones."""
        self.pool.enter(key, blocks)

    def leave(self, rows: list[Row]) -> None:
        """Remove a holder from these blocks; the first is freed first."""
        extra = self.extra
        for key, blocks in rows:
            if not extra or extra.keys().isdisjoint(blocks):  # usually
                self.pool.give_back(blocks, key)
                continue
            for each, block in enumerate(blocks, key):
                others = extra.pop(block, 0)
                if others > 1:
                    extra[block] = others - 1
                elif not others:
                    self.pool.give_back([block], each)
