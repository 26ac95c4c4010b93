"""Budgeted: paged memory in which each sequence keeps at most a budget of tokens; dropped ones leave holes.

    block 4, budget 8     |##..|....|#.#.|####|##~~|      # kept   . dropped: a hole   ~ to be written
    block 2: every token is dropped, so the block is freed; holes in other blocks stay until theirs is

A prompt is written whole. From the first decoded token on, each growth drops as many tokens as exceed the
budget; the method chooses which. A dropped token's slot is *expired* for the ledger: it is internal waste
while other tokens keep its block, and free with the block. As sequences grow by single tokens to drop others,
nothing is promised.

    waste per sequence = holes + (-tokens % block_size)

All layers and heads drop the same tokens here. Ignored: forks, prefixes, swapping.
"""

from abc import abstractmethod
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple, Self

from kvsim.allocators.arena import Layout, Table, layout_of_tables
from kvsim.allocators.base import Holdings
from kvsim.allocators.blocks import Blocks
from kvsim.allocators.option import option
from kvsim.allocators.options import Options, Order
from kvsim.allocators.pool import FreeList


class Budget(NamedTuple):
    """How many tokens a sequence keeps: a number, or a share of its prompt."""

    tokens: int = 0
    percent: int = 0
    """used if above 0"""

    @classmethod
    def of_text(cls, text: str) -> "Budget":
        """Parse `1024` or `20%`; ValueError for anything else."""
        number, share = text.removesuffix("%"), text.endswith("%")
        if not number.isdecimal() or not (1 <= int(number) <= 100 if share else int(number) >= 2):
            raise ValueError(f"kv_budget must be a number of tokens from 2 on, or 1% to 100%, got {text!r}")
        return cls(percent=int(number)) if share else cls(tokens=int(number))

    def of(self, prompt: int) -> int:
        """Tokens that a sequence with a prompt of `prompt` tokens may keep; at least 2."""
        return max(2, -(-prompt * self.percent // 100) if self.percent else self.tokens)


@dataclass(frozen=True, kw_only=True)
class BudgetOptions:
    """Options of a cache that drops tokens."""

    kv_budget: str | None = option(
        "Tokens that a sequence keeps.",
        default=None,
        value="N|P%",
        shown="1024; h2o 20%",
        doc="tokens that a sequence keeps, or a share of its prompt; quality is not modelled",
    )

    def __post_init__(self) -> None:
        if self.kv_budget is not None:
            Budget.of_text(self.kv_budget)


class Holding:
    """State of a sequence.

    Attributes
    ----------
    budget : int
        Tokens that it may keep.
    capacity : int
        Tokens before the next growth; all tokens before it count as written.
    blocks : list of int or None
        By place in the text; None if a block was freed.
    dead : list of int
        Dropped tokens of each block.
    holes : int
        Dropped tokens whose block is still held.
    expired : int
        All tokens dropped.
    """

    __slots__ = ("blocks", "budget", "capacity", "dead", "expired", "holes")

    def __init__(self, prompt: int, budget: int) -> None:
        self.capacity, self.budget = prompt, budget
        self.blocks: list[int | None] = []
        self.dead: list[int] = []
        self.holes = self.expired = 0

    def __repr__(self) -> str:
        return f"{len(self.blocks) - self.blocks.count(None)} blocks, {self.expired} tokens dropped"


class Budgeted(Blocks):
    """Blocks of `block_size` slots, from which tokens are dropped one by one.

    Parameters
    ----------
    capacity_slots : int
        Size of the arena, at least one block; a remainder below one block is left out.
    budget : Budget
        Tokens that a sequence keeps.
    block_size : int
        Slots of a block.
    """

    family = "lossy"
    note = "Memory only: what the answers lose in quality is not modelled."
    declares = BudgetOptions

    windows = True
    usual = Budget(tokens=1_024)
    """the default budget"""

    @classmethod
    def from_options(cls, capacity_slots: int, options: Options) -> Self:
        text = options.chosen(BudgetOptions).kv_budget
        return cls(capacity_slots, Budget.of_text(text) if text else cls.usual, options.block_size)

    def __init__(self, capacity_slots: int, budget: Budget | None = None, block_size: int = 16) -> None:
        super().__init__(capacity_slots, block_size)
        self.budget = budget or self.usual
        self._pool = FreeList(self.num_blocks, Order.STACK)
        self._held: Holdings[Holding] = Holdings()

    @abstractmethod
    def victims(self, seq: int, held: Holding, tokens: int, count: int) -> list[int]:
        """The `count` tokens to drop when the sequence has `tokens`; changes nothing."""

    def drop(self, seq: int, held: Holding, tokens: int, count: int) -> list[int]:
        """Like `victims`, but records that they are dropped."""
        return self.victims(seq, held, tokens, count)

    def can_admit(self, tokens: int, bound: int) -> bool:
        return -(-tokens // self.block_size) <= self._pool.free

    def admit(self, seq: int, tokens: int, bound: int) -> bool:
        self._held.expect_new(seq, tokens)
        if not self.can_admit(tokens, bound):
            return False
        held = self._held[seq] = Holding(tokens, self.budget.of(tokens))
        self._extend(held, tokens)
        self._plan(held, tokens)
        return True

    def capacity(self, seq: int) -> int:
        return self._held[seq].capacity

    def surplus(self, seq: int, tokens: int) -> int:
        held = self._held[seq]
        return held.holes + max(0, len(held.blocks) * self.block_size - tokens)

    def grow_chunk(self, seq: int, computed: int, tokens: int) -> bool:
        held = self._held[seq]
        if tokens <= held.capacity:
            return True
        if -(-tokens // self.block_size) - len(held.blocks) > self._pool.free:
            return False
        held.budget = self.budget.of(tokens)
        self._extend(held, tokens)
        self._plan(held, tokens)
        return True

    def grow(self, seq: int, tokens: int) -> bool:
        held = self._held[seq]
        if tokens <= held.capacity:
            return True
        count = min(tokens - held.expired - held.budget, held.capacity)
        missing = -(-tokens // self.block_size) - len(held.blocks)
        if missing > self._pool.free:
            hit = Counter(at // self.block_size for at in self.victims(seq, held, tokens, max(count, 0)))
            freed = [place for place, dead in hit.items() if held.dead[place] + dead == self.block_size]
            if missing > self._pool.free + len(freed):
                return False
        if count > 0:
            self._drop(held, self.drop(seq, held, tokens, count))
        if missing > 0:
            self._extend(held, tokens)
        self._plan(held, tokens)
        return True

    def release(self, seq: int) -> None:
        held = self._held[seq]
        del self._held[seq]
        self.expired_slots -= held.expired
        self._give_back([block for block in held.blocks if block is not None])

    def retire(self, seq: int) -> int:
        held = self._held[seq]
        self.expired_slots -= held.expired  # they no longer belong to a living sequence
        held.expired = 0
        return (len(held.blocks) - held.blocks.count(None)) * self.block_size

    def layout(self) -> Layout:
        tables = (Table(seq, 0, held.blocks) for seq, held in self._held.items())
        return layout_of_tables(range(self.num_blocks), self.block_size, tables)

    # -- blocks -------------------------------------------------------------------------------

    def _drop(self, held: Holding, victims: list[int]) -> None:
        """Drop tokens, and free the blocks that become empty."""
        size, dead, count = self.block_size, held.dead, len(victims)
        held.holes += count
        held.expired += count
        self.expired_slots += count
        for token in victims:
            place = token // size
            dead[place] += 1
            if dead[place] == size:
                block, held.blocks[place] = held.blocks[place], None
                held.holes -= size
                if block is not None:
                    self._give_back([block])

    def _extend(self, held: Holding, tokens: int) -> None:
        missing = -(-tokens // self.block_size) - len(held.blocks)
        if missing > 0:
            held.blocks += self._pool.allocate(missing)
            held.dead += [0] * missing
            self.used_slots += missing * self.block_size

    def _plan(self, held: Holding, tokens: int) -> None:
        """Set the token count at which a sequence must grow next: for a block, or to drop tokens."""
        room = held.budget + held.expired
        held.capacity = max(tokens, min(len(held.blocks) * self.block_size, room))

    def _give_back(self, blocks: list[int]) -> None:
        self._pool.give_back(blocks)
        self.used_slots -= len(blocks) * self.block_size
