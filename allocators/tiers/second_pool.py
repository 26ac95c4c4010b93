"""A second pool of blocks, below the GPU's memory: freed blocks can be found until they are reused.

    copied to    taken from the head of the queue; its old text is forgotten
    copied       known by its text, and free: the last of the queue
    hit          out of the queue while it is held

Like the host memory of vLLM 0.33.0's SimpleCPUOffloadConnector. Blocks come in rows: (key, blocks) are blocks
with the keys `key`, `key + 1`, ... A row is freed from its first block on, so the start of a text is
forgotten before its end; a row that a lazy pool has stored, from its last.
"""

from collections.abc import Iterable, Iterator

from kvsim.allocators.options import CacheRules
from kvsim.allocators.prefix_pool import PrefixPool
from kvsim.allocators.records import InvariantError
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


class BothWays(PrefixPool):
    """A pool whose spans are allocated from either end; those allocated from the first block on have keys."""

    def allocate(self, count: int, evicted: list[int] | None = None) -> list[int]:
        allocated: list[int] = []
        while len(allocated) < count:
            span = self._ends.behind
            if not span.forward:
                allocated += super().allocate(min(count - len(allocated), len(span.blocks)))
                continue
            key = span.key
            assert key is not None
            taken = span.blocks[: count - len(allocated)]
            del self._spans[key]
            if span.take_first(len(taken)):
                self._spans[key + len(taken)] = span
            self._forget_allocated(key, len(taken))
            self.free -= len(taken)
            allocated += taken
        return allocated

    def give_back_first(self, blocks: list[int], key: int) -> None:
        """Free a row of blocks, to be allocated from the first on, after all others."""
        count = len(blocks)
        if not self.misses(key, count) and self._found[key : key + count] == blocks:  # usually
            self.free += count
            self._put(blocks, key, self._ends).forward = True
            return
        for each, block in enumerate(blocks, key):
            self.give_back([block], each)

    def queue(self) -> Iterator[int]:
        for span in self._ends.others():
            yield from span.blocks if span.forward else reversed(span.blocks)


class SecondPool:
    """Blocks 0 to `blocks - 1`, their texts and holders.

    Attributes
    ----------
    extra : dict of int
        Block with several holders -> number of holders besides one.
    """

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.pool = BothWays(blocks, CacheRules())
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

    def unknown(self, key: int, count: int) -> list[int]:
        """Which of the next `count` keys have no block."""
        return self.pool.unknown(key, count)

    def know(self, keys: int) -> None:
        """Make room for `keys` keys in total."""
        self.pool.know(keys)

    def hold(self, found: list[Row]) -> None:
        """Add a holder to blocks that were found."""
        extra = self.extra
        for key, blocks in found:
            for block in self.pool.wake(key, len(blocks)):
                extra[block] = extra.get(block, 0) + 1

    def take(self, count: int) -> tuple[list[int], int]:
        """Take `count` free blocks, which must exist; also returns how many of them had a text."""
        cached = self.pool.cached
        return self.pool.allocate(count), cached - self.pool.cached

    def enter(self, key: int, blocks: list[int]) -> None:
        """Let look-ups find blocks by this key and the following ones."""
        self.pool.enter(key, blocks)

    def leave(self, held: list[Row], backward: bool = False) -> None:
        """Remove a holder from these blocks; the first of a row is freed first; `backward`: the last.

        Raises InvariantError if one of them has no holder.
        """
        extra, pool = self.extra, self.pool
        for key, blocks in held:
            if not pool.none_free(key, len(blocks)):
                for each, block in enumerate(blocks, key):
                    if pool.is_free(block, each):
                        raise InvariantError(f"block {block} with key {each} is freed again")
            if not extra or extra.keys().isdisjoint(blocks):  # usually
                if backward:
                    pool.give_back(blocks, key)
                else:
                    pool.give_back_first(blocks, key)
                continue
            for each in reversed(range(len(blocks))) if backward else range(len(blocks)):
                block = blocks[each]
                others = extra.pop(block, 0)
                if others > 1:
                    extra[block] = others - 1
                elif not others:
                    pool.give_back([block], key + each)
