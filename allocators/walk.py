"""Makes random calls to an allocator on a crowded arena, and records them with their outcomes.

A `Walk` admits, grows, forks and releases sequences of random sizes, ends steps if the allocator works after
them, and occasionally makes a forbidden call. Each call becomes a `Step` (allocators/steps.py): the call, its
outcome, the state before and after.
"""

from collections.abc import Callable, Iterator
from random import Random

from kvsim.allocators.base import Allocator, InvariantError, Ledger
from kvsim.allocators.protocols import AfterSteps, Forks
from kvsim.allocators.steps import NEEDS, State, Step


class Walk:
    """A caller that makes `calls` random calls, then releases everything."""

    def __init__(self, allocator: Allocator, rng: Random, calls: int) -> None:
        self._allocator = allocator
        self._rng = rng
        self._calls = calls
        self._tokens: dict[int, int] = {}
        self._finals: dict[int, int] = {}
        self._refused: list[tuple[int, int]] = []
        self._last_seq = 0
        self._fresh = self._now = State.of(allocator, self._tokens)

    def __iter__(self) -> Iterator[Step]:
        yield from self._ask_sizes()
        for call in range(self._calls):
            yield from self._rng.choice(self._kinds(call))()
        while self._tokens:
            yield from self._release()
        yield from self._ask_sizes()

    def _kinds(self, call: int) -> list[Callable[[], Iterator[Step]]]:
        """Calls to choose from; forks come late, as they may end all promises."""
        if not self._tokens:
            return [self._admit]
        kinds = [self._admit] * 8 + [self._grow] * 4 + [self._grow_promised] * 2
        kinds += [self._release] * 3 + [self._mistake]
        if isinstance(self._allocator, AfterSteps):
            kinds += [self._end_step] * 6
        if isinstance(self._allocator, Forks) and call > self._calls // 2:
            kinds += [self._fork] * 4 + [self._release] * 3
        return kinds

    # -- calls --------------------------------------------------------------------------------

    def _ask_sizes(self) -> Iterator[Step]:
        capacity = self._allocator.capacity_slots
        for tokens in {
            1,
            capacity // 2 + 1,
            capacity - 1,
            capacity,
            capacity + 1,
            2 * capacity,
            self._size(),
        }:
            yield self._ask(max(tokens, 1), self._rng.choice((1, tokens, tokens + 1)))

    def _ask(self, tokens: int, bound: int) -> Step:
        fits = self._allocator.fits(tokens, bound)
        step = self._step(f"can_admit({tokens}, {bound})", lambda: self._allocator.can_admit(tokens, bound))
        return step._replace(fits=fits)

    def _admit(self) -> Iterator[Step]:
        self._last_seq += 1
        seq, tokens = self._last_seq, self._size()
        bound = tokens + self._rng.choice((0, self._rng.randrange(tokens + 1), self._size()))
        asked = self._ask(tokens, bound)
        yield asked
        step = self._step(
            f"admit({seq}, {tokens}, {bound})",
            lambda: self._allocator.admit(seq, tokens, bound),
            {seq: tokens},
            bound,
        )
        yield step._replace(foretold=asked.outcome is True)
        if step.outcome is False:
            self._refused = [*self._refused[-9:], (tokens, bound)]

    def _grow(self) -> Iterator[Step]:
        seq = self._any()
        more = self._rng.choice((0, 1, 1, self._size(), self._now.free + self._rng.choice((0, 1))))
        yield self._grow_to(seq, max(self._tokens[seq], self._now.capacities[seq] + more))

    def _grow_to(self, seq: int, tokens: int) -> Step:
        return self._step(f"grow({seq}, {tokens})", lambda: self._allocator.grow(seq, tokens), {seq: tokens})

    def _grow_promised(self) -> Iterator[Step]:
        budget, unit = self._now.budget, self._allocator.growth_unit
        if not budget:
            return
        growths = budget if self._rng.random() < 0.2 else self._rng.randint(1, min(budget, 20))
        seqs = self._rng.choices(list(self._tokens), k=growths)
        tokens = {seq: self._now.capacities[seq] + unit * seqs.count(seq) for seq in set(seqs)}
        step = self._step(f"grow_many({seqs})", lambda: self._allocator.grow_many(seqs), tokens)
        yield step._replace(grown=tuple(seqs))

    def _fork(self) -> Iterator[Step]:
        allocator = self._allocator
        assert isinstance(allocator, Forks)
        self._last_seq += 1
        parent, child = self._any(), self._last_seq
        tokens = self._tokens[parent]
        yield self._step(
            f"fork({parent}, {child}, {tokens})",
            lambda: allocator.fork(parent, child, tokens),
            {child: tokens},
            self._finals[parent],
        )
        if child in self._tokens and self._rng.random() < 0.5:
            more = self._rng.choice((1, 1, self._now.free + 1))
            yield self._grow_to(self._rng.choice((parent, child)), tokens + more)

    def _release(self) -> Iterator[Step]:
        seq = self._any()
        self._refused = []
        yield self._step(f"release({seq})", lambda: self._allocator.release(seq), {seq: 0})

    def _end_step(self) -> Iterator[Step]:
        allocator = self._allocator
        assert isinstance(allocator, AfterSteps)
        self._refused = []
        yield self._step("after_step", lambda: allocator.after_step(dict(self._tokens)))

    def _mistake(self) -> Iterator[Step]:
        allocator, seq, stranger = self._allocator, self._any(), self._last_seq + 1
        mistakes: list[tuple[str, Callable[[], object]]] = [
            (f"release({stranger})", lambda: allocator.release(stranger)),
            (f"grow({stranger}, 5)", lambda: allocator.grow(stranger, 5)),
            (f"capacity({stranger})", lambda: allocator.capacity(stranger)),
            (f"admit({stranger}, 0, 9)", lambda: allocator.admit(stranger, 0, 9)),
            (f"admit({stranger}, -20, 9)", lambda: allocator.admit(stranger, -20, 9)),
            (f"admit({seq}, 1, 1)", lambda: allocator.admit(seq, 1, 1)),
        ]
        yield self._step(*self._rng.choice(mistakes), mistake=True)

    # -- outcomes -----------------------------------------------------------------------------

    def _step(
        self,
        call: str,
        act: Callable[[], object],
        tokens: dict[int, int] | None = None,
        final: int = 0,
        mistake: bool = False,
    ) -> Step:
        """Make a call; `tokens` gives what these sequences hold if it succeeds (0: released)."""
        before, outcome, error = self._now, None, ""
        try:
            outcome = act()
        except Exception as raised:  # any exception: a rule judges it
            error = f"{type(raised).__name__}: {raised}"
        if outcome is not False and not error:
            for seq, held in (tokens or {}).items():
                self._hold(seq, held, final)
        after = self._now = State.of(self._allocator, self._tokens, before)
        if (after.copied, after.cached, after.expired) != (before.copied, before.cached, before.expired):
            self._refused = []
        return Step(
            call,
            outcome,
            error,
            mistake,
            before,
            after,
            self._fresh,
            dict(self._tokens),
            self._ledger(),
            self._allocator.capacity_slots,
            self._allocator.slots_per_token,
            self._allocator.idles,
            self._allocator.frees_when_refused,
            self._allocator.moves_on_release,
            self._allocator.moves_in_part,
            self._allocator.most_sequences,
            growth_unit=self._allocator.growth_unit,
            revived=tuple(refused for refused in self._refused if self._allocator.can_admit(*refused)),
        )

    def _hold(self, seq: int, tokens: int, final: int) -> None:
        if tokens:
            self._tokens[seq] = tokens
            self._finals[seq] = max(tokens, final, self._finals.get(seq, 0))
        else:
            del self._tokens[seq], self._finals[seq]

    def _ledger(self) -> Ledger | str:
        try:
            return self._allocator.ledger(self._tokens, self._finals, self._rng.choice(NEEDS))
        except InvariantError as error:
            return str(error)

    def _any(self) -> int:
        """Any sequence that holds something."""
        return self._rng.choice(list(self._tokens))

    def _size(self) -> int:
        """Mostly a small part of the arena, rarely exactly what is left or more than the arena."""
        luck, capacity = self._rng.random(), self._allocator.capacity_slots
        if luck < 0.05:
            return max(1, self._allocator.largest_free_extent() + self._rng.choice((0, 1)))
        return max(1, int(capacity ** self._rng.uniform(0.1, 0.9 if luck < 0.95 else 1.02)))
