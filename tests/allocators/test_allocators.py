"""Every built-in allocator keeps the contract of allocators/base.py; the suite catches those that do not."""

import random
from functools import cache

import pytest
from support.allocator_contract import BUILT_IN, LEAST, Case, cases

from kvsim.allocators import ALLOCATORS
from kvsim.allocators.abilities import Abilities
from kvsim.allocators.base import Allocator, InvariantError, Ledger, Region
from kvsim.allocators.buddy import Buddy
from kvsim.allocators.contiguous import Contiguous
from kvsim.allocators.contract import RULES, check, check_allocator
from kvsim.allocators.dynamic import Dynamic
from kvsim.allocators.extents import ExtentArena, ExtentOptions
from kvsim.allocators.options import CacheRules, Options, Order
from kvsim.allocators.paged import Paged
from kvsim.allocators.records import expect_new
from kvsim.allocators.steps import Step
from kvsim.allocators.walk import Walk

SMALL = cases((37, 1_000), calls=150)
QUICK = [
    case if case.arena < 100 or case.name in LEAST else pytest.param(case, marks=pytest.mark.slow)
    for case in SMALL
]
"""Each allocator on the smallest arena that it can be built on; the others are slow."""
ALL = cases((37, 1_000, 4_096, 15_744), calls=200)


def named(case: Case) -> str:
    return f"{case.name}, {case.arena} slots"


@cache
def walked(case: Case) -> list[Step]:
    return list(Walk(case.make(case.arena), random.Random(5), case.calls))


# -- the contract holds -------------------------------------------------------------------------


@pytest.mark.parametrize("case", QUICK, ids=named)
def test_the_contract_rule_by_rule(case):
    for step in walked(case):
        for rule in RULES:
            check([rule], step)


@pytest.mark.slow
@pytest.mark.parametrize("case", ALL, ids=named)
def test_the_whole_contract_and_determinism_on_every_arena(case):
    check_allocator(case.make, seed=11, arenas=[case.arena], calls=case.calls)


@pytest.mark.parametrize("case", QUICK, ids=named)
def test_a_walk_meets_what_the_rules_are_about(case):
    steps = walked(case)
    calls = {(step.call.split("(")[0], step.outcome) for step in steps if not step.mistake}
    assert {("admit", True), ("admit", False), ("grow", True), ("grow", False), ("release", None)} <= calls
    assert any(step.mistake for step in steps)
    assert steps[0].tokens == {} and steps[-1].tokens == {}
    if case.name.startswith("paged"):
        assert ("fork", True) in calls
        assert any(step.grown for step in steps)
        if case.name == "paged 16" and case.arena > 100:
            assert steps[-1].after.cow > 0
    if case.name.startswith("dynamic"):
        assert steps[-1].after.copied > 0


def test_the_suite_covers_every_allocator_that_the_command_line_names():
    classes = {type(make(1_000)) for make in BUILT_IN.values()}
    assert {f"{cls.__module__}:{cls.__name__}" for cls in classes} >= set(ALLOCATORS.values())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Contiguous(0), "capacity_slots must be at least 1, got 0"),
        (lambda: Dynamic(-3), "capacity_slots must be at least 1, got -3"),
        (lambda: Buddy(0), "capacity_slots must be at least 1, got 0"),
        (lambda: Contiguous(9, fit="loose"), "fit must be first, best, next or worst, got 'loose'"),
        (lambda: Paged(100, 0), "block_size must be at least 1, got 0"),
        (lambda: Paged(37, 256), "capacity_slots must hold one block of 256, got 37"),
    ],
)
def test_an_allocator_that_cannot_be_is_refused_with_the_field_and_the_value(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_options_of_the_command_line_reach_the_allocator_that_knows_them():
    chosen = Options(block_size=8, order=Order.QUEUE, own=ExtentOptions(fit="best"))
    assert Paged.from_options(100, chosen).block_size == 8
    assert Paged.from_options(100, chosen).order is Order.QUEUE
    assert Contiguous.from_options(100, chosen).arena.fit == "best"
    assert Dynamic.from_options(100, chosen).arena.fit == "best"
    assert Buddy.from_options(100, chosen).capacity_slots == 100


def test_who_has_the_methods_of_an_ability_has_it():
    plain = Abilities.of(BUILT_IN["buddy"](1_000))
    assert {plain.prefixes, plain.pieces, plain.leaves_behind, plain.branches, plain.swaps} == {None}
    assert {plain.after_steps, plain.in_spans, plain.reads_holes} == {None}
    paged = Paged(160, 16)
    able = Abilities.of(paged)
    assert able.branches is able.swaps is paged and able.prefixes is None
    caching = Paged(160, 16, Order.QUEUE, cache=CacheRules())
    assert Abilities.of(caching).prefixes is caching


def test_mistakes_are_told_with_their_numbers():
    paged = Paged(160, 16)
    paged.admit(1, 20, 20)
    for wrong, message in [
        (lambda: paged.admit(1, 5, 5), r"sequence 1 cannot be placed twice: it holds \[0, 1\]"),
        (lambda: paged.admit(2, -5, 5), "sequence 2 must be placed with at least 1 token, got -5"),
        (lambda: paged.release(9), "sequence 9 holds nothing; 1 others do"),
        (lambda: paged.slot(1, 32), "sequence 1 has no token 32: it holds 2 blocks"),
        (lambda: paged.slot(1, -1), "sequence 1 has no token -1: it holds 2 blocks"),
        (lambda: paged.fork(1, 2, 33), "sequence 1 cannot hold 33 tokens in 2 blocks of 16"),
        (lambda: paged.fork(1, 2, 16), "sequence 1 cannot hold 16 tokens in 2 blocks of 16"),
        (lambda: paged.fork(9, 2, 16), "sequence 9 holds nothing"),
        (lambda: paged.fork(1, 1, 20), "sequence 1 cannot be placed twice"),
        (lambda: paged.grow_many([1] * 9), "9 growths were asked for, 8 promised"),
        (lambda: paged.grow_many([9]), "sequence 9 holds nothing"),
        (lambda: paged.ledger({1: 40}, {1: 50}), "no kind of slot can be negative"),
    ]:
        with pytest.raises(InvariantError, match=message):
            wrong()
    assert paged.fork(1, 2, 20)
    with pytest.raises(InvariantError, match="cannot hold 19 tokens in 2 blocks of 16, 4 tokens in the last"):
        paged.fork(1, 3, 19)
    with pytest.raises(InvariantError, match="1 growths were asked for, 0 promised"):
        paged.grow_many([1])
    assert list(paged.regions()) == [
        *(Region(0, 16, (1, 2)), Region(16, 16, (1, 2), first=16), Region(32, 128, ())),
    ]


# -- broken allocators are caught -----------------------------------------------------------------


class LosesABlockWhenItReleases(Paged):
    def release(self, seq):
        super().release(seq)
        if self._pool.free == self.num_blocks:
            self._pool.allocate(1)


class ForgetsToCountARelease(Contiguous):
    def release(self, seq):
        self.arena.give_back(seq)


class CountsTokensNotBlocks(Paged):
    def admit(self, seq, tokens, bound):
        done = super().admit(seq, tokens, bound)
        self.used_slots -= done and -tokens % self.block_size
        return done


class CopiesBeforeItRefuses(Paged):
    def grow(self, seq, tokens):
        table = self._tables[seq]
        if self._pool.free and table[-1] in self._claims.part_filled and tokens > self.capacity(seq):
            self._copy_on_write(seq, table)
        return super().grow(seq, tokens)


class TakesWhatItRefuses(Buddy):
    def admit(self, seq, tokens, bound):
        if super().admit(seq, tokens, bound):
            return True
        self.used_slots += self.used_slots < self.capacity_slots
        return False


class OverlappingArena(ExtentArena):
    def _cut(self, index, size):
        start, size = super()._cut(index, size)
        return start, size + 1


class Overlaps(Contiguous):
    def __init__(self, capacity_slots):
        super().__init__(capacity_slots)
        self.arena = OverlappingArena(capacity_slots, "first")


class LeavesGaps(Buddy):
    def regions(self):
        return iter([region for region in super().regions() if region.owners])


class LendsABlockTwice(Paged):
    def admit(self, seq, tokens, bound):
        done = super().admit(seq, tokens, bound)
        if done and seq % 7 == 0:
            self._tables[seq][0] = self._tables[next(iter(self._tables))][0]
        return done


class PromisesOneBlockTooMany(Paged):
    def growth_budget(self):
        return super().growth_budget() + 1


class PromisesWhileATailIsShared(Paged):
    def growth_budget(self):
        return self._pool.free


class PromisesWhatFragmentsTheArena(Paged):
    def external_slots(self, need):
        return self._pool.free % 3 if need > self.block_size else 0


class PromisesWithoutAUnit(Contiguous):
    def growth_budget(self):
        return 1


class AdmitsByTheSumOfFreeSlots(Contiguous):
    def can_admit(self, tokens, bound):
        return self.slots_needed(tokens, bound) <= self.free_slots


class GivesInWhenAskedTwice(Contiguous):
    def __init__(self, capacity_slots):
        super().__init__(capacity_slots)
        self.asked = set()

    def can_admit(self, tokens, bound):
        again = (tokens, bound) in self.asked
        self.asked.add((tokens, bound))
        return super().can_admit(tokens, bound) or (again and self.fits(tokens, bound))


class TakesHeartAsMoreMoveIn(Paged):
    """Keeps blocks back while an odd number of sequences is there."""

    def can_admit(self, tokens, bound):
        return super().can_admit(tokens + len(self._tables) % 2 * 512, bound)

    def admit(self, seq, tokens, bound):
        expect_new(self._tables, seq, tokens)
        return self.can_admit(tokens, bound) and super().admit(seq, tokens, bound)


class NeverMerges(Buddy):
    def _take_chunk(self, order, start):
        return False


class RollsDice(Paged):
    def admit(self, seq, tokens, bound):
        random.shuffle(self._pool._free)
        return super().admit(seq, tokens, bound)


class OverstatesCapacity(Dynamic):
    def capacity(self, seq):
        return super().capacity(seq) + 1


class UnderstatesCapacity(Paged):
    def capacity(self, seq):
        return super().capacity(seq) - 1


class MisjudgesWhatFits(Buddy):
    def fits(self, tokens, bound):
        return tokens <= self.capacity_slots


class CallsTheTailReserved(Paged):
    def ledger(self, lengths, finals, need=0):
        token, reserved, internal, *rest = super().ledger(lengths, finals, need)
        return Ledger(token, reserved + internal, internal, *rest)


class CountsSharedTokensTwice(Paged):
    def fork(self, parent, child, tokens):
        done = super().fork(parent, child, tokens)
        self._claims.tokens += tokens
        self._count()
        return done


class RaisesKeyError(Paged):
    def release(self, seq):
        if seq not in self._tables:
            raise KeyError(seq)
        super().release(seq)


class ReplacesASequenceAdmittedTwice(Contiguous):
    def admit(self, seq, tokens, bound):
        if seq in self.arena.allocated:
            return False
        return super().admit(seq, tokens, bound)


class TripsOverAFullArena(Contiguous):
    def admit(self, seq, tokens, bound):
        if super().admit(seq, tokens, bound):
            return True
        raise IndexError("no extent serves")


class CompactsWhenAsked(Contiguous):
    def can_admit(self, tokens, bound):
        self.copied_slots += self.used_slots > self.capacity_slots // 2
        return super().can_admit(tokens, bound)


BROKEN = [
    (LosesABlockWhenItReleases, "releasing_all_restores_the_arena"),
    (ForgetsToCountARelease, "slots_add_up"),
    (CountsTokensNotBlocks, "slots_add_up"),
    (CopiesBeforeItRefuses, "refusals_change_nothing"),
    (TakesWhatItRefuses, "refusals_change_nothing"),
    (Overlaps, "no_slot_has_two_kinds"),
    (LeavesGaps, "no_slot_has_two_kinds"),
    (LendsABlockTwice, "slots_add_up"),
    (PromisesOneBlockTooMany, "promises_are_kept"),
    (PromisesWhileATailIsShared, "only_mistakes_raise"),
    (PromisesWhatFragmentsTheArena, "promises_are_kept"),
    (PromisesWithoutAUnit, "promises_are_kept"),
    (AdmitsByTheSumOfFreeSlots, "can_admit_foretells_admit"),
    (GivesInWhenAskedTwice, "no_stays_no"),
    (TakesHeartAsMoreMoveIn, "no_stays_no"),
    (NeverMerges, "releasing_all_restores_the_arena"),
    (RollsDice, "same_calls_give_same_addresses"),
    (OverstatesCapacity, "capacity_covers_tokens"),
    (UnderstatesCapacity, "capacity_covers_tokens"),
    (MisjudgesWhatFits, "an_empty_arena_admits_what_fits"),
    (CallsTheTailReserved, "ledger_sums_to_capacity"),
    (CountsSharedTokensTwice, "ledger"),
    (RaisesKeyError, "mistakes_raise_invariant_error"),
    (ReplacesASequenceAdmittedTwice, "mistakes_raise_invariant_error"),
    (TripsOverAFullArena, "only_mistakes_raise"),
    (CompactsWhenAsked, "refusals_change_nothing"),
]


@pytest.mark.parametrize(("broken", "rule"), BROKEN, ids=lambda value: getattr(value, "__name__", ""))
def test_a_broken_allocator_is_caught_by_the_rule_that_it_breaks(broken: type[Allocator], rule: str):
    with pytest.raises(InvariantError) as caught:
        for seed in range(3):
            check_allocator(broken, seed, arenas=[1_000])
    assert str(caught.value).startswith(rule), caught.value
