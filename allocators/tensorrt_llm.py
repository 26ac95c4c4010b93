"""TensorRT-LLM: blocks in a tree of texts, matched by block and then to the token, evicted by priority.

    (root) --- [You are a helpful] --- [assistant. What is] --- [the time? It is ]     blocks 4, 9, 2
                                  '--- [assistant. What are] ...                        block 7
    a new text  "You are a helpful assistant. Who"
                 '---- block 4 ---'  '----------- the start of 9 is copied: 13 tokens, no computing

A full block enters the tree when it is computed; of equal texts the first stays. A prompt shares the blocks
that it finds. From the first block that differs, it also uses the common start: in the block itself if no
sequence holds it and nothing follows it, else in a copy. Free blocks stay in the tree until they are
allocated: lowest priority first, then the one freed first (allocators/retention.py).

Waste per sequence: less than one block, as in `paged`. `retain` sets priorities, as TensorRT-LLM's API does;
runs leave them at 35. Left out: the secondary pool, and the answer that a paused sequence finds again. Rules
read, not recorded, from cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp and evictionPolicy.cpp.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from kvsim.allocators.arena import Layout, Table, layout_of_tables
from kvsim.allocators.base import Holdings, InvariantError, Match
from kvsim.allocators.block_texts import BlockNode, BlockTexts, TextMatch
from kvsim.allocators.blocks import Blocks
from kvsim.allocators.options import Options
from kvsim.allocators.retention import Retention
from kvsim.allocators.shares import shares


@dataclass(slots=True, repr=False)
class Holding:
    """A sequence: its blocks, of which the first `entered` are in the tree or already known there."""

    table: list[int]
    node: BlockNode  # node behind which the next block enters
    entered: int
    match: TextMatch

    def __repr__(self) -> str:
        return f"{len(self.table)} blocks, {self.entered} of them in the tree"


class TensorRTLLM(Blocks):
    """Blocks with reference counts, a tree of their texts, partial reuse, eviction by priority.

    Parameters
    ----------
    capacity_slots : int
        Size of the arena, at least one block; a remainder below one block is left out.
    block_size : int
        Slots of a block.
    caches : bool
        Whether texts are kept.
    """

    family = "blocks"
    idea = "a tree of blocks; the start of a block is copied; eviction by priority"
    wastes = "less than one block; nothing between sequences"
    used_by = "TensorRT-LLM"
    source = "TensorRT-LLM, kvCacheManager.cpp and evictionPolicy.cpp"

    keeps_prefixes = True

    @classmethod
    def from_options(cls, capacity_slots: int, options: Options) -> Self:
        return cls(capacity_slots, options.block_size, options.cache is not None)

    def __init__(self, capacity_slots: int, block_size: int = 32, caches: bool = False) -> None:
        super().__init__(capacity_slots, block_size)
        self.growth_unit = block_size
        self.caches = caches
        self.retention = Retention(self.num_blocks)
        self.texts = BlockTexts(self.num_blocks, block_size)
        self._users = [0] * self.num_blocks
        self._held: Holdings[Holding] = Holdings()
        self._changes = 0  # number of findable blocks

    def block_table(self, seq: int) -> tuple[int, ...]:
        """The blocks of a sequence in token order."""
        return tuple(self._held[seq].table)

    def layout(self) -> Layout:
        tables = (Table(seq, 0, self._held[seq].table) for seq in sorted(self._held))
        cached = filter(self.texts.can_be_found, range(self.num_blocks))
        return layout_of_tables(range(self.num_blocks), self.block_size, tables, cached)

    def retain(self, seq: int, tokens: int, priority: int, lasts: int | None = None) -> None:
        """Keep the blocks of a sequence's first tokens with this priority, 0 to 100, once they are free.

        With `lasts`, only for so long, in units of the time passed to `refresh`.
        """
        for block in self._held[seq].table[: -(-tokens // self.block_size)]:
            self.retention.retain(block, priority, lasts)

    # -- placing ------------------------------------------------------------------------------

    def match(self, content: tuple[tuple[int, int, int], ...], own: int, most: int) -> Match:
        match = self.texts.find(content, own, most, self._changes)
        unused = sum([not self._users[block] for block in match.blocks])
        match.woken_slots = unused * self.block_size + match.partial
        return match

    def admit(self, seq: int, tokens: int, bound: int) -> bool:
        return self.admit_after(self.texts.nothing(self._changes), seq, tokens, bound)

    def admit_after(self, match: Match, seq: int, tokens: int, bound: int) -> bool:
        """As in the base; InvariantError for a match that is out of date."""
        assert isinstance(match, TextMatch)
        if seq in self._held or tokens < 1:
            self._held.expect_new(seq, tokens)
        match.check(seq, tokens, self._changes)
        if not self.can_admit_after(match, tokens, bound):
            return False
        self.shared_tokens += sum([self._users[block] > 0 for block in match.blocks]) * self.block_size
        for block in match.blocks:
            self._use(block)
        table = match.blocks[:]
        if match.source is not None:
            table.append(self._partial(match.source, match.partial))
        missing = -(-tokens // self.block_size) - len(table)
        table += self._take_many(missing)
        self._held[seq] = Holding(table, match.node, len(match.blocks), match)
        self._count()
        return True

    def _partial(self, source: BlockNode, tokens: int) -> int:
        """A block with the start of `source`: the block itself if unheld and childless, else a copy."""
        block = source.block
        if not self._users[block] and not source.children:
            self._forget(block)
            self._use(block)
            return block
        self.copied_slots += tokens
        return self._take()

    # -- growing ------------------------------------------------------------------------------

    def capacity(self, seq: int) -> int:
        return len(self._held[seq].table) * self.block_size

    def grow(self, seq: int, tokens: int) -> bool:
        table = self._held[seq].table
        missing = -(-tokens // self.block_size) - len(table)
        if missing > self.retention.free:
            return False
        if missing > 0:
            table += self._take_many(missing)
            self._count()
        return True

    def growth_budget(self) -> int:
        return self.retention.free

    def grow_many(self, seqs: Sequence[int]) -> None:
        if len(seqs) > self.retention.free:
            raise InvariantError(f"{len(seqs)} growths were asked for, {self.retention.free} promised")
        self.evicted_by = []
        if self.caches:
            for index, seq in enumerate(seqs):
                found = self.texts.found
                self._held[seq].table.append(self._take())
                self.evicted_by += [index] * (found - self.texts.found)
        else:
            for seq, blocks in shares(seqs, self._take_many(len(seqs))):
                self._held[seq].table += blocks
        self._count()

    def fill(self, seq: int, tokens: int) -> None:
        """Enter full blocks into the tree, up to the end of the text that others may share."""
        held = self._held[seq]
        if self.caches and tokens // self.block_size > held.entered:
            self._enter(held, min(tokens, held.match.shareable) // self.block_size)

    def _enter(self, held: Holding, stop: int) -> None:
        """Enter the blocks of a sequence before `stop`; they are in use, so none counts as cached."""
        while held.entered < stop and self.texts.holds(held.node):
            index = held.entered
            node = self.texts.enter(held.node, held.match.text(index), held.table[index])
            if node.block == held.table[index]:
                self._changes += 1
                self.texts.found -= 1  # it is in use
            held.node = node
            held.entered += 1

    # -- leaving ------------------------------------------------------------------------------

    def release(self, seq: int) -> None:
        held = self._held[seq]
        del self._held[seq]
        shared = 0
        for block in reversed(held.table):
            self._users[block] -= 1
            if self._users[block]:
                shared += 1
                continue
            self.retention.give_back(block)
            if self.texts.can_be_found(block):
                self.texts.found += 1
        self.shared_tokens -= shared * self.block_size
        if self.caches:
            self._changes += 1
        self._count()

    # -- pieces -------------------------------------------------------------------------------

    def _use(self, block: int) -> None:
        if not self._users[block]:
            self.retention.claim(block)
            if self.texts.can_be_found(block):
                self.texts.found -= 1
            self._changes += 1
        self._users[block] += 1

    def _take(self) -> int:
        """Take the next free block and forget its text."""
        block = self.retention.take(self.texts.is_leaf)
        self._forget(block)
        self._users[block] = 1
        return block

    def _take_many(self, count: int) -> list[int]:
        if self.caches:
            return [self._take() for _ in range(count)]
        blocks = self.retention.take_first(count)  # no text is kept, so all blocks are leaves
        for block in blocks:
            self._users[block] = 1
        return blocks

    def _forget(self, block: int) -> None:
        """Forget the text of a free block and everything that follows it."""
        if self.texts.can_be_found(block):
            self._changes += 1
            for gone in self.texts.remove(block):
                self.texts.found -= not self._users[gone]

    def _count(self) -> None:
        self.used_slots = (self.num_blocks - self.retention.free) * self.block_size
        self.cached_slots = self.texts.found * self.block_size
