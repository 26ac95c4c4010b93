"""TGI: the whole reservation, in blocks, at admission; nothing grows, no request is preempted.

    block table of a sequence: [7, 8, 9, 4]
    |################|   |####~~~~~~~~~~~~|   |~~~~~~~~~~~~~~~~|   |~~~.............|
     prompt                   '- reserved: prompt + max_new_tokens - 1 tokens -'  '- internal

Waste per sequence: `bound - 1 - tokens`, and the rest of its last block. As blocks may lie anywhere, external
is 0: this is the gain from paging alone, without growth. Blocks are taken from the end of the free list, and
freed ones are put there:

    simple            [1 2 3 4 5 6 7]  -> 3 blocks: 5 6 7     back: [1 2 3 4 5 6 7]
    with a window     at most ceil(window / block) blocks, whose slots are reused as a ring
    on Gaudi (HPU)    one more slot per request; the lowest blocks first, in ascending order

With `cache`, the prompt of a finished request stays in a trie (allocators/tgi_tree.py), in whole blocks; the
answer is freed. Missing blocks are taken from the end of the least recently used leaf. Both lists are equal
to those of text-generation-inference (backends/v3, revision db931fcf) in every recorded step.

Left out: the window, for which TGI uses a request's blocks as a ring; block 0, which TGI never allocates. TGI
finds a whole prompt and recomputes its last token; here that token is not looked up.
"""

from collections.abc import Sequence
from itertools import cycle, islice
from typing import ClassVar, Self

from kvsim.allocators.arena import Layout, Table, layout_of_tables
from kvsim.allocators.base import Content, Holdings, InvariantError, Match, Run
from kvsim.allocators.blocks import Blocks
from kvsim.allocators.options import Options
from kvsim.allocators.records import Found
from kvsim.allocators.runs import text_of
from kvsim.allocators.text_tree import find
from kvsim.allocators.tgi_tree import BlockTree, Node


def slots_of(blocks: Sequence[int], block_size: int, tokens: int) -> list[int]:
    """The slots of `tokens` tokens; they wrap around if the blocks are too few."""
    each = [slot for block in blocks for slot in range(block * block_size, (block + 1) * block_size)]
    return each[:tokens] if tokens <= len(each) else list(islice(cycle(each), tokens))


class FreeBlocks:
    """The free blocks 1 to `blocks - 1`.

    Attributes
    ----------
    free : list of int
        The free blocks, taken from the end.
    """

    def __init__(self, blocks: int, block_size: int, window: int = 0, hpu: bool = False) -> None:
        self.free = list(range(1, blocks))
        self.block_size = block_size
        self.window = window
        self.hpu = hpu

    def blocks_needed(self, tokens: int) -> int:
        """Blocks of a request of `tokens` tokens in total."""
        tokens += self.hpu
        return -(-(min(tokens, self.window) if self.window else tokens) // self.block_size)

    def take(self, count: int) -> list[int] | None:
        """Allocate `count` blocks; None if there are fewer."""
        start = len(self.free) - count
        if start < 0:
            return None
        if self.hpu:
            self.free.sort(reverse=True)
        blocks = self.free[start:]
        del self.free[start:]
        return sorted(blocks) if self.hpu else blocks

    def give_back(self, blocks: Sequence[int]) -> None:
        """Free these blocks, which are allocated next."""
        self.free += blocks


class Holding:
    """A sequence: its blocks, of which the first `found` are in the trie, down to `node`."""

    __slots__ = ("blocks", "filled", "found", "match", "node")

    def __init__(self, blocks: list[int], found: int, node: Node, match: "BlockMatch") -> None:
        self.blocks = blocks
        self.found = found
        self.node = node
        self.match = match
        self.filled = 0  # tokens computed

    def __repr__(self) -> str:
        return f"{len(self.blocks)} blocks, {self.found} of them in the trie"


class BlockMatch(Found):
    """The blocks of a prompt that were in the trie at the look-up."""

    __slots__ = ("most",)

    def __init__(  # noqa: PLR0917 - its parts
        self, tokens: int, woken_slots: int, content: Content, own: int, most: int, changes: int
    ) -> None:
        super().__init__(tokens, woken_slots, content, own, changes)
        self.most = most

    def text(self, tokens: int) -> list[Run]:
        """The first tokens of the text; what follows the shareable part is a private stream."""
        return text_of(self.content, self.own, tokens)


class Tgi(Blocks):
    """Blocks for the whole reservation, a trie of prompts, eviction from the end of the oldest leaf.

    Parameters
    ----------
    capacity_slots : int
        Size of the arena, at least one block; a remainder below one block is left out.
    block_size : int
        Slots of a block.
    caches : bool
        Whether prompts are kept.
    """

    family: ClassVar[str] = "blocks"
    idea: ClassVar[str] = "the whole reservation at once, in blocks that may lie anywhere"
    wastes: ClassVar[str] = "bound - tokens, and the rest of the last block"
    used_by: ClassVar[str] = "text-generation-inference (TGI) v3"
    source: ClassVar[str] = "TGI, backends/v3/src/block_allocator.rs and radix.rs"

    reserves: ClassVar[bool] = True
    keeps_prefixes: ClassVar[bool] = True

    @classmethod
    def from_options(cls, capacity_slots: int, options: Options) -> Self:
        return cls(capacity_slots, options.block_size, options.cache is not None)

    def __init__(self, capacity_slots: int, block_size: int = 16, caches: bool = False) -> None:
        super().__init__(capacity_slots, block_size)
        self.caches = caches
        self.pool = FreeBlocks(self.num_blocks + 1, block_size)  # TGI's block 0 is not part of the arena
        self.tree = BlockTree(block_size)
        self._held: Holdings[Holding] = Holdings()
        self._found = 0  # trie blocks that sequences hold, each counted once per sequence
        self._changes = 0  # blocks of the trie

    def block_table(self, seq: int) -> tuple[int, ...]:
        """The blocks of a sequence in token order; TGI counts them from 1."""
        return tuple(self._held[seq].blocks)

    def layout(self) -> Layout:
        tables = (Table(seq, 0, self._held[seq].blocks) for seq in sorted(self._held))
        unheld = (node for node in self.tree.nodes() if not node.locks)
        cached = {block for node in unheld for block in node.blocks[: node.findable]}
        return layout_of_tables(range(1, self.num_blocks + 1), self.block_size, tables, cached)

    # -- placing ------------------------------------------------------------------------------

    def slots_needed(self, tokens: int, bound: int) -> int:
        return self.pool.blocks_needed(max(tokens, bound - 1)) * self.block_size

    def match(self, content: Content, own: int, most: int) -> Match:
        match = BlockMatch(0, 0, content, own, most, self._changes)
        end, common, match.woken_slots = find(self.tree.root, match.text(most), most, self.block_size)
        match.tokens = end.parent.end + common
        return match

    def admit(self, seq: int, tokens: int, bound: int) -> bool:
        return self.admit_after(BlockMatch(0, 0, (), 0, 0, self._changes), seq, tokens, bound)

    def admit_after(self, match: Match, seq: int, tokens: int, bound: int) -> bool:
        """As in the base; InvariantError for a match that is out of date."""
        assert isinstance(match, BlockMatch)
        if seq in self._held or tokens < 1:
            self._held.expect_new(seq, tokens)
        match.check(seq, tokens, self._changes)
        if not self.can_admit_after(match, tokens, bound):
            return False
        found, node = list[int](), self.tree.root
        if match.most:
            self._changes += 1
            found, node, common = self.tree.find(match.text(match.most), match.most)
            node = self.tree.hold(node, common)
        missing = self.slots_needed(tokens, bound) // self.block_size - len(found)
        if missing > len(self.pool.free):
            self._changes += 1
            self.pool.give_back(self.tree.evict(missing - len(self.pool.free)))
        blocks = self.pool.take(max(0, missing))
        if blocks is None:
            raise InvariantError(f"{missing} blocks were promised, {len(self.pool.free)} are there")
        self._held[seq] = Holding(found + blocks, len(found), node, match)
        self._found += len(found)
        self._count()
        return True

    # -- growing ------------------------------------------------------------------------------

    def capacity(self, seq: int) -> int:
        return len(self._held[seq].blocks) * self.block_size

    def grow(self, seq: int, tokens: int) -> bool:
        return tokens <= self.capacity(seq)

    def fill(self, seq: int, tokens: int) -> None:
        """Record how much is computed; only computed text enters the trie when the sequence ends."""
        held = self._held[seq]
        if tokens > self.capacity(seq):
            raise InvariantError(f"sequence {seq} cannot have computed {tokens} tokens: it holds {held}")
        held.filled = max(held.filled, tokens)

    def release(self, seq: int) -> None:
        """Enter the prompt into the trie, in whole blocks; blocks whose text is already there are freed."""
        held = self._held[seq]
        del self._held[seq]
        self._found -= held.found
        blocks, match, known = held.blocks, held.match, held.found
        if match.most:
            self._changes += 1
            self.tree.let_go(held.node)
            whole = min(match.most + 1, held.filled) // self.block_size
            if whole > known:
                shareable = sum([length for _, _, length in match.content]) // self.block_size
                text = match.text(whole * self.block_size)
                known = max(known, self.tree.insert(text, blocks[:whole], min(whole, shareable)))
                self.pool.give_back(blocks[held.found : known])
                known = whole
        self.pool.give_back(blocks[known:])
        self._count()

    def _count(self) -> None:
        size, tree = self.block_size, self.tree
        self.used_slots = (self.num_blocks - len(self.pool.free) - tree.blocks + tree.held) * size
        self.cached_slots = tree.found * size
        self.shared_tokens = (self._found - tree.held) * size
