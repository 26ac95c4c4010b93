"""Paged with a prefix cache: full blocks stay findable by their text after their sequences are gone.

    prompt A  [ You are a helpful | assistant. ...   | What is the ...  ]   blocks 4, 9, 2
    prompt B  [ You are a helpful | assistant. ...   | How do I ...     ]   blocks 4, 9, 7: a hit of two

A block is known by its key, which stands for all text from the first token to the end of the block. Keys
are made only for text that another sequence may have too (`content`); the private rest of an evicted
sequence gets keys of its own, by which the sequence finds what is left of it when it comes back.

A free block keeps its key until it is lent again: that is the eviction. Such blocks are `cached` in the
ledger. Equal blocks are not merged; a look-up goes block by block and stops at the first miss.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from kvsim.allocators.base import Content, InvariantError, Match, Region
from kvsim.allocators.options import CacheRules, Order
from kvsim.allocators.paged import Paged

Key = int | tuple[int, int]
"""A number for text that may be shared; (own, index of the block) for the private rest of a sequence."""

FIRST_IS_FOUND = CacheRules()

NOBODY = -1
"""The name of sequences that never come back to look for what is left of them."""


class PagedMatch(Match):
    """The cached blocks of a prefix, in the order of its tokens, and the keys of all that may be shared."""

    __slots__ = ("blocks", "keys", "own")

    def __init__(self, tokens: int, woken_slots: int, blocks: list[int], keys: list[int], own: int) -> None:
        super().__init__(tokens, woken_slots)
        self.blocks = blocks
        self.keys = keys
        self.own = own


class PagedPrefix(Paged):
    """Paged, with a map from text to blocks.

    Parameters
    ----------
    capacity_slots, block_size, host_slots : int
        As in Paged.
    order : Order
        QUEUE or HASHED_LAST.
    rules : CacheRules
        What is found where blocks are equal.
    """

    def __init__(
        self,
        capacity_slots: int,
        block_size: int = 16,
        order: Order = Order.HASHED_LAST,
        rules: CacheRules = FIRST_IS_FOUND,
        host_slots: int = 0,
    ) -> None:
        super().__init__(capacity_slots, block_size, order, host_slots)
        self.caches = True
        self.rules = rules
        self._queue = OrderedDict.fromkeys(range(self.num_blocks))  # free blocks, the next to lend first
        self._found: dict[Key, int] = {}  # what a look-up finds
        self._equals: dict[Key, list[int]] = {}  # blocks with the same key that wait behind it
        self._key: dict[int, Key] = {}  # of each block that the map knows
        self._keys: dict[int, list[int]] = {}  # of each sequence that will fill blocks others may share
        self._full: dict[int, int] = {}  # blocks of each sequence that are computed
        self._own: dict[int, tuple[int, int]] = {}  # of each sequence: its name, blocks with shareable text
        self._left_over: dict[int, list[int]] = {}  # by name: private blocks of an evicted sequence
        self._texts = _Texts(block_size)

    # -- looking up ---------------------------------------------------------------------------

    def match(self, content: Content, own: int, most: int) -> PagedMatch:
        keys = self._texts.keys(content) if content else []
        limit = most // self.block_size
        blocks: list[int] = []
        find = self._found.get
        for key in keys if limit >= len(keys) else keys[:limit]:
            block = find(key)
            if block is None:
                break
            blocks.append(block)
        if own in self._left_over and len(blocks) == len(keys):
            for index in range(len(keys), limit):
                block = find((own, index))
                if block is None:
                    break
                blocks.append(block)
        size, queue = self.block_size, self._queue
        woken = sum([block in queue for block in blocks])
        return PagedMatch(len(blocks) * size, woken * size, blocks, keys, own)

    def can_admit(self, tokens: int, bound: int) -> bool:
        return -(-tokens // self.block_size) <= len(self._queue)

    def can_admit_after(self, match: Match, tokens: int, bound: int) -> bool:
        assert isinstance(match, PagedMatch)
        needed = -(-tokens // self.block_size) * self.block_size - match.tokens + match.woken_slots
        return needed <= self.free_slots

    def admit(self, seq: int, tokens: int, bound: int) -> bool:
        return self.admit_after(PagedMatch(0, 0, [], [], NOBODY), seq, tokens, bound)

    def admit_after(self, match: Match, seq: int, tokens: int, bound: int) -> bool:
        assert isinstance(match, PagedMatch)
        if seq in self._tables or tokens < 1:
            self._tables.expect_new(seq, tokens)
        hits = match.blocks
        missing = -(-tokens // self.block_size) - len(hits)
        if missing * self.block_size + match.woken_slots > self.free_slots:
            return False
        if hits:
            self._share(hits)
        self._tables[seq] = hits + self._lend(missing) if missing > 0 else hits[:]
        full = self._full[seq] = len(hits)
        if full < len(match.keys):
            self._keys[seq] = match.keys
        self._own[seq] = match.own, len(match.keys)
        return True

    # -- keeping ------------------------------------------------------------------------------

    def fill(self, seq: int, tokens: int) -> None:
        full, before = tokens // self.block_size, self._full[seq]
        if full <= before:
            return
        self._full[seq] = full
        keys = self._keys.get(seq)
        if keys is None:
            return
        table = self._tables[seq]
        for index in range(before, min(full, len(keys))):
            self._enter(table[index], keys[index])
        if full >= len(keys):
            del self._keys[seq]

    def evict(self, seq: int) -> None:
        own, shareable = self._own[seq]
        table = self._tables[seq]
        left_over = self._left_over.setdefault(own, [])
        for index in range(shareable, self._full[seq] if own != NOBODY else 0):
            if table[index] not in self._key:
                self._enter(table[index], (own, index))
                left_over.append(table[index])
        self._release(seq)

    def release(self, seq: int) -> None:
        if seq not in self._tables:
            super().release(seq)
            return
        own = self._own[seq][0]
        if own in self._left_over:  # nobody will ask for them again
            for block in self._left_over.pop(own):
                key = self._key.get(block)
                if isinstance(key, tuple) and key[0] == own:
                    self._forget(block)
                    if block in self._queue:
                        self.cached_slots -= self.block_size
        self._release(seq)

    def _release(self, seq: int) -> None:
        table, full = self._tables.pop(seq), self._full.pop(seq)
        self._keys.pop(seq, None)
        own, shareable = self._own.pop(seq)
        queue, key = self._queue, self._key
        if self.order is Order.HASHED_LAST:
            for block in table[full:]:  # the last of them ends up at the front
                if not self._drop_owner(block):
                    queue[block] = None
                    queue.move_to_end(block, last=False)
            del table[full:]
        for block in reversed(table[shareable:]):
            queue[block] = None
        if own in self._left_over:
            self.cached_slots += sum([block in key for block in table[shareable:]]) * self.block_size
        extra, cached, dropped = self._extra_owners, 0, 0
        for block in reversed(table[:shareable]):
            others = extra.get(block)
            if others is None:
                queue[block] = None
                cached += block in key
            elif self._part_filled:
                self._drop_owner(block)
            else:  # what `_drop_owner` does for full blocks
                dropped += 1
                if others > 1:
                    extra[block] = others - 1
                else:
                    del extra[block]
        self.shared_tokens -= dropped * self.block_size
        self.cached_slots += cached * self.block_size
        self.used_slots = (self.num_blocks - len(queue)) * self.block_size

    def fork(self, parent: int, child: int, tokens: int) -> bool:
        super().fork(parent, child, tokens)
        shared = len(self._tables[child])
        self._full[child], self._own[child] = self._full[parent], (NOBODY, shared)
        own, shareable = self._own[parent]
        self._own[parent] = own, max(shareable, shared)
        return True

    def swap_in(self, seqs: Sequence[int]) -> bool:
        if not super().swap_in(seqs):
            return False
        for seq in seqs:
            self._full[seq], self._own[seq] = 0, (NOBODY, len(self._tables[seq]))
        return True

    # -- growing ------------------------------------------------------------------------------

    def grow(self, seq: int, tokens: int) -> bool:
        before = self.capacity(seq) if seq in self._keys else tokens
        if not super().grow(seq, tokens):
            return False
        if before < tokens:
            self.fill(seq, before)  # what the sequence held is full now
        return True

    def grow_many(self, seqs: Sequence[int]) -> None:
        if self._part_filled or len(seqs) > len(self._queue):
            raise InvariantError(f"{len(seqs)} growths were asked for, {self.growth_budget()} promised")
        tables, queue, key, filling = self._tables, self._queue, self._key, self._keys
        self.evicted_by = []
        may_evict, pop = self.cached_slots > 0, queue.popitem
        for index, seq in enumerate(seqs):
            if seq in filling:
                cached = self.cached_slots
                self.fill(seq, len(tables[seq]) * self.block_size)
                self.evicted_by += [index] * ((cached - self.cached_slots) // self.block_size)
            block, _ = pop(False)
            if may_evict and block in key:
                self._forget(block)
                self.evicted_by.append(index)
                self.cached_slots -= self.block_size
            tables[seq].append(block)
        self.used_slots += len(seqs) * self.block_size

    def growth_budget(self) -> int:
        return 0 if self._part_filled else len(self._queue)

    def free_queue(self) -> tuple[int, ...]:
        return tuple(self._queue)

    def regions(self) -> Iterator[Region]:
        queue = self._queue
        cached = {block * self.block_size for block in self._key if block in queue}
        return (r._replace(cached=True) if r.start in cached else r for r in super().regions())

    # -- pieces -------------------------------------------------------------------------------

    def _room(self) -> int:
        return len(self._queue)

    def _lend(self, count: int) -> list[int]:
        pop = self._queue.popitem
        blocks = [pop(False)[0] for _ in range(count)]
        self.used_slots += count * self.block_size
        if self.cached_slots:
            evicted = [block for block in blocks if block in self._key]
            self.cached_slots -= len(evicted) * self.block_size
            for block in evicted:
                self._forget(block)
        return blocks

    def _share(self, blocks: list[int]) -> None:
        """Add an owner to cached blocks; one that was free is free no more."""
        queue, extra, woken = self._queue, self._extra_owners, 0
        for block in blocks:
            if block in queue:
                del queue[block]
                woken += 1
            else:
                extra[block] = extra.get(block, 0) + 1
        self.used_slots += woken * self.block_size
        self.cached_slots -= woken * self.block_size
        self.shared_tokens += (len(blocks) - woken) * self.block_size

    def _enter(self, block: int, key: Key) -> None:
        """Let look-ups find a block by its key."""
        self._key[block] = key
        older = self._found.setdefault(key, block)
        if older != block:
            if self.rules.newest:
                del self._key[older]
                self._found[key] = block
                if older in self._queue:
                    self.cached_slots -= self.block_size
            else:
                self._equals.setdefault(key, []).append(block)

    def _forget(self, block: int) -> None:
        """Let no look-up find the block any more."""
        key = self._key.pop(block)
        equals = self._equals.get(key)
        if equals is None:
            del self._found[key]
            return
        if self._found[key] == block:
            self._found[key] = equals.pop(0)
        else:
            equals.remove(block)
        if not equals:
            del self._equals[key]


class _Texts:
    """Numbers the texts of blocks: equal numbers, equal text from the first token on."""

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._numbers: dict[tuple[int, ...], int] = {}  # (number of the text before, *runs of the block)
        self._whole: dict[tuple[int, int, int, int], list[int]] = {}

    def keys(self, content: Content) -> list[int]:
        """The number of each full block of a text; not to be changed."""
        if len(content) == 1 and content[0][2] >= self._size:  # most often: a shared system prompt
            stream, first, length = content[0]
            return self._inside(-1, stream, first, length // self._size)
        size = self._size
        keys: list[int] = []
        part: tuple[int, ...] = ()
        before, filled = -1, 0
        for stream, first, length in content:
            if filled:  # complete the block that an earlier run began
                taken = min(length, size - filled)
                part, filled = (*part, stream, first, taken), filled + taken
                if filled < size:
                    continue
                before = self._number((before, *part))
                keys.append(before)
            else:
                taken = 0
            whole, filled = divmod(length - taken, size)
            if whole:
                keys += self._inside(before, stream, first + taken, whole)
                before = keys[-1]
            part = (stream, first + taken + whole * size, filled)
        return keys

    def _inside(self, before: int, stream: int, first: int, blocks: int) -> list[int]:
        """The numbers of blocks that lie in one run."""
        which = (before, stream, first, blocks)
        keys = self._whole.get(which)
        if keys is None:
            keys = self._whole[which] = []
            for start in range(first, first + blocks * self._size, self._size):
                before = self._number((before, stream, start))
                keys.append(before)
        return keys

    def _number(self, text: tuple[int, ...]) -> int:
        return self._numbers.setdefault(text, len(self._numbers))
