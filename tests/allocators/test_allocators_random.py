"""Every allocator against a model of it so plain that it cannot be wrong: one list entry per slot or block.

Hypothesis makes the calls; after each of them addresses, counters, ledger and reference counts are compared.
"""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvsim.allocators.base import Allocator
from kvsim.allocators.buddy import Buddy
from kvsim.allocators.contiguous import Contiguous
from kvsim.allocators.dynamic import Dynamic
from kvsim.allocators.paged import Paged

pytestmark = pytest.mark.slow

MODERATE = settings(
    max_examples=100,
    stateful_step_count=40,
    suppress_health_check=list(HealthCheck),
)


def runs(owners: list[int]) -> list[tuple[int, int, int]]:
    """(start, size, owner) of each run of equal owners; owner 0 is nobody."""
    found = []
    for slot, owner in enumerate(owners):
        if slot and owners[slot - 1] == owner:
            found[-1][1] += 1
        else:
            found.append([slot, 1, owner])
    return [tuple(run) for run in found]


def power_of_two(tokens: int) -> int:
    power = 1
    while power < tokens:
        power *= 2
    return power


# -- naive models: `owners` has one entry per slot --------------------------------------------------


class NaiveExtents:
    """Contiguous: looks at every slot for a hole that serves."""

    def __init__(self, capacity: int, fit: str) -> None:
        self.owners = [0] * capacity
        self.fit = fit
        self.copied = 0

    def size_for(self, tokens: int, bound: int) -> int:
        return max(tokens, bound)

    def hole(self, size: int) -> int | None:
        holes = [
            (start, length) for start, length, owner in runs(self.owners) if not owner and length >= size
        ]
        if self.fit == "best":
            holes.sort(key=lambda hole: hole[1])  # stable: the lowest of equals stays first
        return holes[0][0] if holes else None

    def admit(self, seq: int, tokens: int, bound: int) -> bool:
        size = self.size_for(tokens, bound)
        start = self.hole(size)
        if start is None:
            return False
        self.owners[start : start + size] = [seq] * size
        return True

    def grow(self, seq: int, tokens: int) -> bool:
        return tokens <= self.owners.count(seq)

    def release(self, seq: int) -> None:
        self.owners = [0 if owner == seq else owner for owner in self.owners]

    def external(self, need: int) -> int:
        return sum(size for _, size, owner in runs(self.owners) if not owner and size < need)

    def largest(self) -> int:
        return max((size for _, size, owner in runs(self.owners) if not owner), default=0)


class NaiveDynamic(NaiveExtents):
    """Doubles in place when all slots above are free, else copies to another hole."""

    def __init__(self, capacity: int, fit: str) -> None:
        super().__init__(capacity, fit)
        self.bounds: dict[int, int] = {}

    def size_for(self, tokens: int, bound: int) -> int:
        return max(tokens, min(power_of_two(tokens), bound, len(self.owners)))

    def admit(self, seq: int, tokens: int, bound: int) -> bool:
        self.bounds[seq] = bound
        return super().admit(seq, tokens, bound)

    def grow(self, seq: int, tokens: int) -> bool:
        size = self.owners.count(seq)
        if tokens <= size:
            return True
        wanted = self.size_for(tokens, self.bounds[seq])
        start = self.owners.index(seq)
        above = self.owners[start + size : start + wanted]
        if len(above) == wanted - size and not any(above):
            self.owners[start : start + wanted] = [seq] * wanted
            return True
        target = self.hole(wanted)
        if target is None:
            return False
        self.release(seq)
        self.owners[target : target + wanted] = [seq] * wanted
        self.copied += size
        return True


class NaiveBuddy:
    """A recursive binary tree over each power of two that the arena is the sum of.

    A node is 0 (free), a sequence (the whole chunk is allocated) or a pair of halves.
    """

    def __init__(self, capacity: int) -> None:
        self.trees: list[tuple[int, int, object]] = []  # start, size, node
        self.copied = 0
        start = 0
        for order in reversed(range(capacity.bit_length())):
            if capacity & (1 << order):
                self.trees.append((start, 1 << order, 0))
                start += 1 << order

    def leaves(self, start: int, size: int, node: object) -> list[tuple[int, int, int]]:
        if isinstance(node, tuple):
            half = size // 2
            return self.leaves(start, half, node[0]) + self.leaves(start + half, half, node[1])
        return [(start, size, node)]

    def chunks(self) -> list[tuple[int, int, int]]:
        return [leaf for tree in self.trees for leaf in self.leaves(*tree)]

    def replaced(self, tree: tuple[int, int, object], at: int, wanted: int, by: int) -> object:
        """The node with the chunk (at, wanted) set to `by`, split and merged as need be."""
        start, size, node = tree
        if not start <= at < start + size:
            return node
        if size == wanted:
            return by
        half = size // 2
        low, high = node if isinstance(node, tuple) else (node, node)
        low = self.replaced((start, half, low), at, wanted, by)
        high = self.replaced((start + half, half, high), at, wanted, by)
        return 0 if low == high == 0 else (low, high)

    def put(self, at: int, wanted: int, by: int) -> None:
        self.trees = [(*tree[:2], self.replaced(tree, at, wanted, by)) for tree in self.trees]

    def admit(self, seq: int, tokens: int, bound: int) -> bool:
        wanted = power_of_two(max(tokens, bound))
        serving = [(size, start) for start, size, owner in self.chunks() if not owner and size >= wanted]
        if not serving:
            return False
        self.put(min(serving)[1], wanted, seq)
        return True

    def grow(self, seq: int, tokens: int) -> bool:
        return tokens <= next(size for _, size, owner in self.chunks() if owner == seq)

    def release(self, seq: int) -> None:
        start, size = next((start, size) for start, size, owner in self.chunks() if owner == seq)
        self.put(start, size, 0)

    def external(self, need: int) -> int:
        wanted = power_of_two(need) if need else 0
        return sum(size for _, size, owner in self.chunks() if not owner and size < wanted)

    def largest(self) -> int:
        return max((size for _, size, owner in self.chunks() if not owner), default=0)


class NaivePaged:
    """vLLM 0.33 without prefix cache: a queue of free blocks, reference counts, tables; and who wrote what.

    `written` has the sequences of each token: (block, offset) -> set of sequences.
    """

    def __init__(self, blocks: int, size: int) -> None:
        self.size = size
        self.queue = list(range(blocks))
        self.owners: list[set[int]] = [set() for _ in range(blocks)]
        self.tables: dict[int, list[int]] = {}
        self.tokens: dict[int, int] = {}
        self.copied = self.cow = 0

    def blocks_for(self, tokens: int) -> int:
        return len(range(0, tokens, self.size))

    def take(self, seq: int) -> int:
        block = self.queue.pop(0)
        self.owners[block].add(seq)
        return block

    def leave(self, seq: int, blocks: list[int]) -> None:
        """Drop references; what nobody refers to goes to the front of the queue, the last block first."""
        freed = []
        for block in reversed(blocks):
            self.owners[block].remove(seq)
            if not self.owners[block]:
                freed.append(block)
        self.queue = freed + self.queue

    def admit(self, seq: int, tokens: int) -> bool:
        if self.blocks_for(tokens) > len(self.queue):
            return False
        self.tables[seq] = [self.take(seq) for _ in range(self.blocks_for(tokens))]
        self.tokens[seq] = tokens
        return True

    def writes_to_shared(self, seq: int, tokens: int) -> bool:
        """Whether the first token beyond those it holds falls into a block that others refer to."""
        held, table = self.tokens[seq], self.tables[seq]
        return tokens > held and held < len(table) * self.size and len(self.owners[table[-1]]) > 1

    def grow(self, seq: int, tokens: int) -> bool:
        table, copy = self.tables[seq], self.writes_to_shared(seq, tokens)
        missing = max(self.blocks_for(tokens) - len(table), 0)
        if missing + copy > len(self.queue):
            return False
        if copy:
            self.owners[table[-1]].remove(seq)
            table[-1] = self.take(seq)
            self.cow += 1
            self.copied += self.tokens[seq] - (len(table) - 1) * self.size
        table += [self.take(seq) for _ in range(missing)]
        self.tokens[seq] = max(tokens, self.tokens[seq])
        return True

    def fork(self, parent: int, child: int) -> None:
        self.tables[child] = list(self.tables[parent])
        self.tokens[child] = self.tokens[parent]
        for block in self.tables[child]:
            self.owners[block].add(child)

    def release(self, seq: int) -> None:
        self.leave(seq, self.tables.pop(seq))
        del self.tokens[seq]

    def token_slots(self) -> set[tuple[int, int]]:
        """The slots that hold a token, whoever's it is."""
        return {
            (self.tables[seq][token // self.size], token % self.size)
            for seq, tokens in self.tokens.items()
            for token in range(tokens)
        }


# -- the machines -----------------------------------------------------------------------------------


class ExtentMachine(RuleBasedStateMachine):
    """One extent per sequence. Subclasses say how to `build` the allocator and its model."""

    def build(self, capacity: int, fit: str) -> tuple[Allocator, NaiveExtents | NaiveBuddy]:
        raise NotImplementedError

    @initialize(capacity=st.sampled_from([1, 37, 64, 100, 157]), fit=st.sampled_from(["first", "best"]))
    def start(self, capacity: int, fit: str) -> None:
        self.allocator, self.model = self.build(capacity, fit)
        self.tokens: dict[int, int] = {}
        self.finals: dict[int, int] = {}
        self.last = 0

    @rule(tokens=st.one_of(st.integers(1, 40), st.just(8)), more=st.one_of(st.just(0), st.integers(0, 40)))
    def admit(self, tokens: int, more: int) -> None:
        self.last += 1
        expected = self.model.admit(self.last, tokens, tokens + more)
        assert self.allocator.can_admit(tokens, tokens + more) == expected
        assert self.allocator.admit(self.last, tokens, tokens + more) == expected
        if expected:
            self.tokens[self.last], self.finals[self.last] = tokens, tokens + more

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), more=st.integers(0, 30))
    def grow(self, data: st.DataObject, more: int) -> None:
        seq = data.draw(st.sampled_from(list(self.tokens)))
        tokens = self.tokens[seq] + more
        expected = self.model.grow(seq, tokens)
        assert self.allocator.grow(seq, tokens) == expected
        if expected:
            self.tokens[seq] = tokens
            self.finals[seq] = max(tokens, self.finals[seq])

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from(list(self.tokens)))
        self.allocator.release(seq)
        self.model.release(seq)
        del self.tokens[seq], self.finals[seq]

    def chunks(self) -> list[tuple[int, int, int]]:
        """What the model says lies where; free neighbours are one."""
        raise NotImplementedError

    @invariant()
    def addresses_are_those_of_the_model(self) -> None:
        found = [
            (start, size, owners[0] if owners else 0) for start, size, owners, *_ in self.allocator.regions()
        ]
        assert found == self.chunks()

    @invariant()
    def numbers_are_those_of_the_model(self) -> None:
        chunks, allocator = self.chunks(), self.allocator
        sizes = {owner: size for _, size, owner in chunks if owner}
        assert {seq: allocator.capacity(seq) for seq in self.tokens} == sizes
        assert allocator.used_slots == sum(sizes.values())
        assert allocator.free_slots == allocator.capacity_slots - sum(sizes.values())
        assert (allocator.copied_slots, allocator.cow_copies) == (self.model.copied, 0)
        assert allocator.shared_tokens == allocator.cached_slots == allocator.growth_budget() == 0
        assert allocator.largest_free_extent() == self.model.largest()
        for need in (0, 1, 3, 16, 33, 200):
            assert allocator.external_slots(need) == self.model.external(need)

    @invariant()
    def every_slot_is_of_the_kind_that_the_model_says(self) -> None:
        sizes = {owner: size for _, size, owner in self.chunks() if owner}
        kinds = {"token": 0, "reserved": 0, "internal": 0}
        for seq, size in sizes.items():
            for slot in range(size):
                kind = "token" if slot < self.tokens[seq] else "reserved"
                kinds[kind if slot < self.finals[seq] else "internal"] += 1
        ledger = self.allocator.ledger(self.tokens, self.finals, need=16)
        assert ledger[:3] == tuple(kinds.values())
        external = self.model.external(16)
        assert (ledger.cached, ledger.external, ledger.idle) == (0, external, 0)
        assert ledger.free == self.allocator.free_slots - external


class ContiguousMachine(ExtentMachine):
    def build(self, capacity, fit):
        return Contiguous(capacity, fit), NaiveExtents(capacity, fit)

    def chunks(self):
        return runs(self.model.owners)


class DynamicMachine(ContiguousMachine):
    def build(self, capacity, fit):
        return Dynamic(capacity, fit), NaiveDynamic(capacity, fit)


class BuddyMachine(ExtentMachine):
    def build(self, capacity, fit):
        return Buddy(capacity), NaiveBuddy(capacity)

    def chunks(self):
        return self.model.chunks()


class PagedMachine(RuleBasedStateMachine):
    @initialize(capacity=st.sampled_from([16, 37, 64, 157]), size=st.sampled_from([1, 3, 4, 16]))
    def start(self, capacity: int, size: int) -> None:
        self.paged, self.model = Paged(capacity, size), NaivePaged(capacity // size, size)
        self.size, self.last = size, 0

    @rule(tokens=st.one_of(st.integers(1, 10), st.integers(1, 40)))
    def admit(self, tokens: int) -> None:
        self.last += 1
        expected = self.model.admit(self.last, tokens)
        assert self.paged.can_admit(tokens, 99) == expected
        assert self.paged.admit(self.last, tokens, 99) == expected

    @precondition(lambda self: self.model.tables)
    @rule(data=st.data(), more=st.one_of(st.integers(0, 5), st.integers(0, 40)))
    def grow(self, data: st.DataObject, more: int) -> None:
        seq = data.draw(st.sampled_from(list(self.model.tables)))
        self.grow_to(seq, self.model.tokens[seq] + more)

    @precondition(lambda self: self.model.tables)
    @rule(data=st.data(), blocks=st.integers(-1, 1))
    def grow_over_about_all_free_blocks(self, data: st.DataObject, blocks: int) -> None:
        tokens = self.model.tokens
        tails = [seq for seq in tokens if self.model.writes_to_shared(seq, tokens[seq] + 1)]
        seq = data.draw(st.sampled_from(tails or list(tokens)))
        blocks += len(self.model.tables[seq]) + len(self.model.queue)
        self.grow_to(seq, max(self.model.tokens[seq], blocks * self.size))

    def grow_to(self, seq: int, tokens: int) -> None:
        expected = self.model.grow(seq, tokens)
        assert self.paged.grow(seq, tokens) == expected

    @precondition(lambda self: self.model.tables and self.paged.growth_budget())
    @rule(data=st.data())
    def grow_many(self, data: st.DataObject) -> None:
        one = st.sampled_from(list(self.model.tables))
        seqs = data.draw(st.lists(one, max_size=self.paged.growth_budget()))
        for seq in dict.fromkeys(seqs):  # a promise is for full sequences
            assert self.model.grow(seq, len(self.model.tables[seq]) * self.size)
        for seq in seqs:
            assert self.model.grow(seq, self.model.tokens[seq] + self.size)
        self.paged.grow_many(seqs)

    @precondition(lambda self: self.model.tables)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        self.last += 1
        parent = data.draw(st.sampled_from(list(self.model.tables)))
        assert self.paged.fork(parent, self.last, self.model.tokens[parent])
        self.model.fork(parent, self.last)

    @precondition(lambda self: self.model.tables)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from(list(self.model.tables)))
        self.paged.release(seq)
        self.model.release(seq)

    @invariant()
    def tables_are_those_of_the_model_and_so_is_what_comes_next(self) -> None:
        model, paged = self.model, self.paged
        assert {seq: list(paged.block_table(seq)) for seq in model.tables} == model.tables
        assert list(paged.free_queue()) == model.queue

    @invariant()
    def references_are_table_entries_and_no_block_is_both_free_and_referenced(self) -> None:
        entries = [block for table in self.model.tables.values() for block in table]
        for region in self.paged.regions():
            block = region.start // self.size
            references = self.paged.references(block)
            assert references == entries.count(block) == len(region.owners)
            assert set(region.owners) == self.model.owners[block]
            assert (references == 0) == (block in self.model.queue)
            assert not region.cached

    @invariant()
    def numbers_are_those_of_the_model(self) -> None:
        model, paged = self.model, self.paged
        used = sum(map(bool, model.owners)) * self.size
        assert (paged.used_slots, paged.free_slots) == (used, len(model.queue) * self.size)
        assert (paged.cow_copies, paged.copied_slots) == (model.cow, model.copied)
        assert paged.shared_tokens == sum(model.tokens.values()) - len(model.token_slots())
        assert paged.cached_slots == paged.external_slots(50) == 0
        assert paged.largest_free_extent() == paged.free_slots
        shared_tail = any(model.writes_to_shared(seq, tokens + 1) for seq, tokens in model.tokens.items())
        assert paged.growth_budget() == (0 if shared_tail else len(model.queue))
        for seq, tokens in model.tokens.items():
            room = tokens if model.writes_to_shared(seq, tokens + 1) else len(model.tables[seq]) * self.size
            assert paged.capacity(seq) == room
            block, offset = model.tables[seq][(tokens - 1) // self.size], (tokens - 1) % self.size
            assert paged.slot(seq, tokens - 1) == block * self.size + offset

    @invariant()
    def every_slot_is_of_the_kind_that_the_model_says(self) -> None:
        model, finals = self.model, {seq: tokens + seq % 9 for seq, tokens in self.model.tokens.items()}
        token = model.token_slots()
        allocated = {(b, i) for b, owners in enumerate(model.owners) if owners for i in range(self.size)}
        reserved = {
            (table[i // self.size], i % self.size)
            for seq, table in model.tables.items()
            if not model.writes_to_shared(seq, model.tokens[seq] + 1)
            for i in range(model.tokens[seq], min(finals[seq], len(table) * self.size))
        }
        ledger = self.paged.ledger(model.tokens, finals, need=50)
        assert ledger == (
            *(len(token), len(reserved), len(allocated - token - reserved)),
            *(0, 0, len(model.queue) * self.size, 0),
        )


for machine in (ContiguousMachine, DynamicMachine, BuddyMachine, PagedMachine):
    machine.TestCase.settings = MODERATE

TestContiguous = ContiguousMachine.TestCase
TestDynamic = DynamicMachine.TestCase
TestBuddy = BuddyMachine.TestCase
TestPaged = PagedMachine.TestCase
