"""The blocks that groups allocate: references, the texts that free blocks still hold, and the free queue.

    take from here > |7|3|12| ... |5|9|4| < cached blocks are returned here, the end of a text first
                     ^ blocks that hold no known text are returned here, so they are reused first

Blocks are numbered from 1; 0 is the null block: a table's entry for a block that is no longer kept. A freed
block keeps its key until it is allocated again. This is the prefix cache; taking from the front evicts the
least recently used. Two blocks may hold the same text; a look-up finds the older.

The free queue is a linked ring through the null block: any block leaves it in constant time.
"""

from collections.abc import Hashable, Iterable, Sequence

Key = tuple[Hashable, int]
"""Identifies the text up to the end of a block, and the group."""

NULL = 0


class Blocks:
    """Blocks 1 to `blocks`, with their references and texts. A subclass chooses the free block to take.

    Attributes
    ----------
    free : int
        Blocks without references.
    cached : int
        Free blocks whose text other sequences may have too.
    used_by, kept_by : list of int
        Blocks in use and cached blocks, by group; pools may share these lists.
    """

    def __init__(
        self, blocks: int, caching: bool, used_by: list[int] | None = None, kept_by: list[int] | None = None
    ) -> None:
        if blocks < 1:
            raise ValueError(f"blocks must be at least 1, got {blocks}")
        self.blocks = blocks
        self.caching = caching
        self.free = blocks
        self.cached = 0
        self.used_by = [0] if used_by is None else used_by
        self.kept_by = [0] if kept_by is None else kept_by
        self._group = [0] * (blocks + 1)
        self.references = [0] * (blocks + 1)
        self.keys: list[Key | None] = [None] * (blocks + 1)
        self.key_tokens = [0] * (blocks + 1)
        self._holding: dict[Key, dict[int, None]] = {}
        self._more: dict[int, list[Key]] = {}

    # -- decided by a subclass -----------------------------------------------------------------------

    def _choose(self, owner: int) -> int:
        """Choose a free block, of which there is at least one, and make it no longer free."""
        raise NotImplementedError

    def cached_pages(self) -> list[int]:
        """The free blocks whose text other sequences may have too."""
        if not self.cached:
            return []
        return [block for block in range(1, self.blocks + 1) if self.is_cached(block)]

    def _unlink(self, block: int) -> None:
        """Take a free block that is hit out of the free queue."""
        raise NotImplementedError

    def _set_free(self, unknown: Sequence[int], known: Sequence[int]) -> None:
        """Free blocks: `unknown` ones hold no known text and are reused first, `known` ones hold one."""
        raise NotImplementedError

    # -- blocks --------------------------------------------------------------------------------------

    @property
    def in_use(self) -> int:
        """Blocks with references."""
        return self.blocks - self.free

    @property
    def entries(self) -> int:
        """The number of different texts that blocks hold."""
        return len(self._holding)

    def take(self, count: int, group: int = 0, owner: int = 0) -> list[int]:
        """Take free blocks for a group of a sequence, with one reference each; forgets their old texts."""
        if count > self.free:
            raise RuntimeError(f"{count} blocks are wanted and {self.free} are free")
        found = []
        for _ in range(count):
            block = self._choose(owner)
            self.references[block] = 1
            self.forget(block)
            self._group[block] = group
            found.append(block)
        self.used_by[group] += count
        return found

    def touch(self, blocks: Iterable[int]) -> None:
        """Add a reference to each block; free ones leave the queue."""
        for block in blocks:
            if block == NULL:
                continue
            if self.references[block] == 0:
                self._unlink(block)
                self.used_by[self._group[block]] += 1
            self.references[block] += 1

    def give(self, blocks: Iterable[int]) -> None:
        """Drop a reference to each block; those left without one become free, the first reused first."""
        unknown: list[int] = []
        known: list[int] = []
        for block in blocks:
            if block == NULL:
                continue
            self.references[block] -= 1
            if self.references[block] < 0:
                raise RuntimeError(f"block {block} was released more often than it was taken")
            if self.references[block] == 0:
                self.used_by[self._group[block]] -= 1
                (known if self.caching and self.keys[block] is not None else unknown).append(block)
        self._set_free(unknown, known)

    def evictable(self, blocks: Iterable[int]) -> int:
        """How many of these blocks are free: a hit would take them out of the queue."""
        return sum(block != NULL and self.references[block] == 0 for block in blocks)

    def remember(self, block: int, key: Key, tokens: int) -> None:
        """Record that the block holds this text, `tokens` long, and no other."""
        self.forget(block)
        self._insert(block, key, tokens)

    def remember_part(self, block: int, key: Key, tokens: int) -> None:
        """Record that the block also holds a text that ends inside it; replaces a shorter one."""
        if self.keys[block] not in (None, key) and self.key_tokens[block] < tokens:
            self.forget(block)
        self._insert(block, key, tokens)

    def move_keys(self, source: int, target: int) -> None:
        """Move the texts of `source` to `target`; a block found earlier for a text is still the one found."""
        keys, tokens = [self.keys[source], *self._more.get(source, ())], self.key_tokens[source]
        self.forget(source)
        for key in keys:
            if key is not None:
                self._insert(target, key, tokens)

    def _insert(self, block: int, key: Key, tokens: int) -> None:
        holding = self._holding.setdefault(key, {})
        if block in holding:
            return
        holding[block] = None
        if self.keys[block] is None:
            self.keys[block], self.key_tokens[block] = key, tokens
        else:
            self._more.setdefault(block, []).append(key)

    def forget(self, block: int) -> None:
        """Forget the block's texts, so that look-ups no longer find it."""
        key = self.keys[block]
        if key is None:
            return
        self._count(block, -1)
        for each in (key, *self._more.pop(block, ())):
            holding = self._holding[each]
            del holding[block]
            if not holding:
                del self._holding[each]
        self.keys[block] = None

    def find(self, text: Hashable, groups: Sequence[int]) -> list[int] | None:
        """The block of each of these groups that holds the text; None unless all have one."""
        found = []
        for group in groups:
            holding = self._holding.get((text, group))
            if not holding:
                return None
            found.append(next(iter(holding)))
        return found

    def is_cached(self, block: int) -> bool:
        """Whether a block is free and its text may be shared: the key is then a number."""
        key = self.keys[block]
        return self.references[block] == 0 and key is not None and isinstance(key[0], int)

    def _count(self, block: int, more: int) -> None:
        """Add or subtract a block in the counts, if it is cached."""
        key = self.keys[block]
        if key is not None and isinstance(key[0], int) and self.references[block] == 0:
            self.cached += more
            self.kept_by[self._group[block]] += more


class BlockPool(Blocks):
    """One free queue for all groups."""

    def __init__(
        self, blocks: int, caching: bool, used_by: list[int] | None = None, kept_by: list[int] | None = None
    ) -> None:
        super().__init__(blocks, caching, used_by, kept_by)
        self._after = [*range(1, blocks + 1), 0]
        self._before = [blocks, *range(blocks)]

    def queue(self) -> list[int]:
        """The free blocks in allocation order."""
        found, block = [], self._after[NULL]
        while block != NULL:
            found.append(block)
            block = self._after[block]
        return found

    def _choose(self, owner: int) -> int:
        block: int = self._after[NULL]
        self._unlink(block)
        return block

    def _set_free(self, unknown: Sequence[int], known: Sequence[int]) -> None:
        for block in reversed(unknown):
            self._link(block, NULL, self._after[NULL])
        for block in known:
            self._link(block, self._before[NULL], NULL)

    def _unlink(self, block: int) -> None:
        self._count(block, -1)
        before, after = self._before[block], self._after[block]
        self._after[before], self._before[after] = after, before
        self.free -= 1

    def _link(self, block: int, before: int, after: int) -> None:
        self._count(block, 1)
        self._before[block], self._after[block] = before, after
        self._after[before] = self._before[after] = block
        self.free += 1
