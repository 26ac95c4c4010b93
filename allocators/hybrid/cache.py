"""All groups of a sequence together: how much of its text is cached, whether it fits, its tables.

    place    free what a group no longer sees -> do all groups have room? -> hits, new blocks, keys
    lookup   the longest prefix of a text that every group holds

    full       |####|####|####|####|....|      reaches 4 blocks
    window     |    |    |####|    |            has the end of 3
    hit        |----|----|----|                 3 blocks; the junction is after the fourth

A hit is the longest prefix of a text that every group holds. Full groups set the upper limit; windows and
states shorten it, repeatedly, until no group shortens it further. If a full group reaches further than the
hit, two texts diverge there: that position (the junction) is kept from now on.

Each group keeps the tables of all sequences (tables.py, states.py); the memory is one pool for all groups, or
one per group (memory.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, lcm

from kvsim.allocators.hybrid.memory import Memory, OnePool
from kvsim.allocators.hybrid.pool import NULL, Blocks
from kvsim.allocators.hybrid.specs import GroupSpec, alike, most_blocks
from kvsim.allocators.hybrid.states import StateTables, aligned_piece
from kvsim.allocators.hybrid.tables import ChunkTables, GroupTables, WindowTables
from kvsim.allocators.hybrid.text import Text


@dataclass(frozen=True)
class Hit:
    """The cached part of a text: the blocks of each group, and the number of tokens in them."""

    blocks: tuple[list[int], ...]
    tokens: int
    junction: int = 0


def longest_hit(groups: Sequence[GroupTables], alike: Sequence[Sequence[int]], text: Text) -> Hit:
    """The longest prefix of a text that all groups hold; `alike` lists groups to query together."""
    blocks: list[list[int]] = [[] for _ in groups]
    reached, longest = text.tokens - 1, 0
    full_length: dict[int, int] = {}
    full = [type(groups[numbers[0]]) is GroupTables for numbers in alike]
    single = len(alike) == 2 and full[0]
    while True:
        length = reached
        for numbers, is_full in zip(alike, full, strict=True):
            first = numbers[0]
            if is_full and first in full_length:
                length = min(length, full_length[first])
                continue
            found, length = groups[first].hit(text, length, numbers)
            for number, each in zip(numbers, found, strict=True):
                blocks[number] = each
            if is_full:
                full_length[first] = length
            longest = max(longest, length)
        if length >= reached:
            break
        reached = length
        if single:
            break
    for numbers, is_full in zip(alike, full, strict=True):
        if is_full:
            for number in numbers:
                del blocks[number][-(-reached // groups[number].block_size) :]
    return Hit(tuple(blocks), reached, longest if longest > reached and len(groups) > 1 else 0)


class HybridCache:
    """Block tables of all groups over one pool, or over one pool per group.

    Parameters
    ----------
    memory : int or Memory
        Blocks of one pool, not counting the null block; or the pools.
    groups : sequence of GroupSpec
    caching : bool
        Whether prefixes are kept.
    retention : int or None
        Which ends of windows and states are kept (tables.py).
    match_tokens : int or None
        Hits may end inside a block of states, at multiples of this (vLLM's prefix_match_unit); None: only at
        block ends.
    max_model_len, in_flight_tokens : int
        The longest sequence, and the tokens scheduled but not settled; they bound what a window may hold.
    """

    def __init__(
        self,
        memory: int | Memory,
        groups: Sequence[GroupSpec],
        *,
        caching: bool,
        max_model_len: int,
        in_flight_tokens: int,
        retention: int | None = 0,
        match_tokens: int | None = None,
    ) -> None:
        self.memory = memory if isinstance(memory, Memory) else OnePool(len(groups), memory, caching)
        self.pool: Blocks = self.memory.pools[0]
        shared = isinstance(self.memory, OnePool)
        self.caching, self.retention = caching, retention
        sizes = [group.block_size for group in groups]
        self.align_tokens = lcm(*sizes)
        self.hash_size = gcd(*sizes) if caching else self.align_tokens
        if match_tokens is not None and caching:
            if any(size % match_tokens for size in sizes):
                raise ValueError(f"match_tokens must divide all block sizes {sizes}, got {match_tokens}")
            self.hash_size = match_tokens
        states = [group.block_size for group in groups if group.kind == "state"]
        others = all(group.kind in ("full", "state") for group in groups)
        self.ends_inside = caching and shared and others and any(size > self.hash_size for size in states)
        self.groups = [self._tables(number, group) for number, group in enumerate(groups)]
        for group, tables in zip(groups, self.groups, strict=True):
            tables.align_tokens = self.align_tokens if len(groups) > 1 else tables.block_size
            if self.ends_inside:
                tables.align_tokens = self.hash_size
            tables.most_blocks = most_blocks(group, max_model_len, in_flight_tokens)
            tables.of_state = group.kind == "state"
        self._alike = alike(groups, shared)

    def _tables(self, number: int, group: GroupSpec) -> GroupTables:
        common = (self.memory.pools[number], number, group.block_size, self.hash_size)
        if group.kind == "window" and group.reach is not None:
            return WindowTables(*common, window=group.reach)
        if group.kind == "chunk" and group.reach is not None:
            return ChunkTables(*common, chunk=group.reach)
        if group.kind == "state" and self.caching:
            states = StateTables(*common, checkpoint_grid=group.checkpoint_grid)
            states.prompt_end_matters = self.retention == 0
            return states
        return GroupTables(*common)

    @property
    def blocks_in_use(self) -> int:
        """Blocks of the first pool that are referenced."""
        return self.pool.in_use

    def new_step(self) -> None:
        """Start a step: tokens computed in the previous one can now be hit."""
        for tables in self.groups:
            if isinstance(tables, StateTables):
                tables.new_step()

    def piece(self, text: Text, start: int, tokens: int, *, most_tokens: int) -> int:
        """How many of these tokens to compute now, so that the chunk ends where states can be kept.

        Parameters
        ----------
        text : Text
        start, tokens : int
            Start of the chunk, and the tokens that the budget allows.
        most_tokens : int
            The token budget of a whole step.
        """
        states = [tables for tables in self.groups if isinstance(tables, StateTables)]
        if not states or tokens == 0:
            return tokens
        grids = [tables.checkpoint_grid for tables in states]
        grid = None if None in grids else max(each for each in grids if each is not None)
        return aligned_piece(
            text,
            start,
            tokens,
            block_size=states[0].block_size,
            hash_size=self.hash_size if self.ends_inside else states[0].block_size,
            grid=grid,
            most_tokens=most_tokens,
        )

    def take_copies(self) -> list[tuple[int, int]]:
        """(from, to) of each block copied since the last call; both were held until now."""
        copies = []
        for tables in self.groups:
            copies += tables.copies
            tables.copies = []
        self.pool.give([block for pair in copies for block in pair])  # only if all groups share it
        return copies

    def lookup(self, text: Text) -> Hit:
        """The longest prefix that every group holds, without the text's last token."""
        if not self.caching:
            return Hit(tuple([] for _ in self.groups), 0)
        return longest_hit(self.groups, self._alike, text)

    def place(
        self,
        text: Text,
        computed: int,
        tokens: int,
        *,
        hit: Hit | None = None,
        settled: int | None = None,
        whole: bool = False,
        spare: int = 0,
    ) -> bool:
        """Allocate blocks for `tokens` after `computed`; False if there is no room. Frees unseen blocks.

        Parameters
        ----------
        text : Text
        computed, tokens : int
            Tokens done (including hits), and tokens to compute now.
        hit : Hit or None
            The hit of a sequence that is being admitted.
        settled : int or None
            Tokens whose step has ended; None: all computed tokens.
        whole : bool
            Whether all known tokens must also fit.
        spare : int
            Blocks that must stay free.
        """
        hits = hit.blocks if hit is not None else tuple([] for _ in self.groups)
        if whole and not self.has_room(text, text.tokens, hits, computed, spare=spare, whole=True):
            return False
        for tables in self.groups:
            tables.drop_unseen(text.sequence, computed if settled is None else settled)
        if not self.has_room(text, computed + tokens, hits, computed, spare=spare):
            for tables in self.groups:
                tables.refused(text.sequence)
            return False
        if any(hits):
            for tables, each in zip(self.groups, hits, strict=True):
                tables.adopt(text, each, computed)
        for tables in self.groups:
            tables.extend(text, computed + tokens)
        if self.caching:
            self.remember(text, min(computed + tokens, text.tokens))
        return True

    def has_room(
        self,
        text: Text,
        tokens: int,
        hits: Sequence[Sequence[int]],
        computed: int,
        *,
        spare: int = 0,
        whole: bool = False,
    ) -> bool:
        """Whether there are blocks for `tokens`, given these hits; `whole` as in `place`."""
        needed = [
            tables.needed(text, tokens, each, computed, whole=whole)
            for tables, each in zip(self.groups, hits, strict=True)
        ]
        return self.memory.room(needed, self.seen(hits, computed), spare)

    def seen(self, hits: Sequence[Sequence[int]], computed: int) -> Sequence[Sequence[int]]:
        """The hit blocks that a sequence still sees after `computed` tokens."""
        if not computed or isinstance(self.memory, OnePool) or not any(hits):
            return hits
        return [
            [block for block in each[tables.unseen(computed) // tables.block_size :] if block != NULL]
            for tables, each in zip(self.groups, hits, strict=True)
        ]

    def remember(self, text: Text, tokens: int) -> None:
        """Register blocks that are full of settled text under their keys."""
        ends = [text.prompt_tokens - 1, *([text.junction] if text.junction else [])]
        if len(self.groups) > 1 and not self.ends_inside:
            tokens -= tokens % self.align_tokens
        for tables in self.groups:
            tables.remember(text, tokens, self.retention, ends)

    def release(self, sequence: int) -> None:
        """Free all blocks of a sequence, group by group."""
        for tables in self.groups:
            tables.release(sequence)

    def tables(self, sequence: int) -> list[list[int]]:
        """The block tables of a sequence, one list per group; 0 is the null block."""
        return [list(tables.tables.get(sequence, ())) for tables in self.groups]
