"""How long the steps of a plan take: the cost model's answer, plus the allocator's other work.

    equal steps                |==|==|==|==|            one question for all of them
    the first pays for more    |====|==|==|==|          copies, driver calls (upkeep.py)
    unlike steps               |==|===|==|=|            one by one: they add different numbers of tokens

Ends are in picoseconds, counted from the start of the plan.
"""

from bisect import bisect_left
from typing import Final

from kvsim.sim.cost.step_cost import CostModel, StepShape
from kvsim.sim.serving.decision import Decision, Moved
from kvsim.sim.serving.server import Server
from kvsim.sim.serving.totals import UpkeepTotals
from kvsim.sim.serving.upkeep import Upkeep

FEW: Final = 4
"""Growth of the batch of steps priced next, if each needs its own price."""


class Pricing:
    """Prices one replica's steps.

    Attributes
    ----------
    cost : CostModel
    hears : bool
        Whether it must be told which steps were carried out (`carried_out`).
    beside : bool
        Whether a step's time may depend on more than its batch.
    plain : bool
        Whether the cost model alone prices a span of equal steps, and need not hear what came of it.
    contexts : list of int
        Context tokens of each unlike step that was priced last, and perhaps of some after it.
    """

    def __init__(self, server: Server, cost: CostModel) -> None:
        self.cost = cost
        self._server = server
        self._upkeep = Upkeep(server) if Upkeep.needed(server.memory) else None
        self._reads_holes = server.memory.abilities.reads_holes
        self.beside = self._reads_holes is not None or self._upkeep is not None
        self._works_in_spans = server.batch.works_in_spans
        self._linear = server.progress.linear
        self._hears = bool(getattr(cost, "flags", False))  # a class may say so in its body, compiled or not
        self.hears = self._hears or self._works_in_spans
        self.plain = self._linear and not self.hears
        self.contexts: list[int] = []
        self._lines: dict[tuple[int, int, int], tuple[int, int] | None] = {}  # by decode-only batch
        self._unlike: tuple[StepShape, StepShape, list[int], list[int]] | None = None  # the last of them
        self._heard: tuple[int, int] | None = None  # seats and contexts of the span

    def prompts_ps(self, tokens: int, pairs: int, most_tokens: int) -> int:
        """How long these prompt tokens and attention pairs take in full steps of their own."""
        steps = -(-tokens // most_tokens)
        if not steps:
            return 0
        shape = StepShape(prefill_tokens=tokens // steps, prefill_pairs=pairs // steps, prefill_seqs=1)
        return steps * self.cost.step_ps(shape)

    @property
    def totals(self) -> UpkeepTotals | None:
        """Work that the allocator did besides allocating; None if it never does any."""
        return self._upkeep.totals if self._upkeep else None

    # -- one step -----------------------------------------------------------------------------

    def read(self, contexts: int) -> int:
        """Slots that decoding reads for these context tokens, including holes if the kernel reads them."""
        holes = self._reads_holes
        return holes.read_slots() if holes is not None and contexts else contexts

    def due(self) -> bool:
        """Whether the step just decided pays for the allocator's other work."""
        return self._upkeep is not None and self._upkeep.due()

    def is_unlike(self, due: bool) -> bool:
        """Whether this step differs from those that follow."""
        return self._reads_holes is not None or (due and not self._works_in_spans)

    def shape(self, step: Decision, contexts: int) -> StepShape:
        """What the decided step computes, as the cost model sees it. Built here and nowhere else."""
        server, progress = self._server, self._server.progress
        allocator, seats, spread = server.allocator, 0, None
        if not step.paused:
            seats = progress.size + server.seats.count
            if progress.spread is not None and seats:
                spread = progress.spread.at(progress.clock + 1)
        prompts, moved, drafted, unit = step.prompts, step.moved, step.drafted, allocator.growth_unit
        copied = came = went = 0
        if moved is not None:
            copied, came, went = moved.copied_slots, moved.swapped_in_blocks, moved.swapped_out_blocks
        if self._upkeep is not None:
            copied = self._upkeep.copied_slots
        fields = (
            0 if prompts is None else prompts.tokens,
            0 if prompts is None else prompts.pairs,
            0 if prompts is None else len(prompts.chunks),
            seats,
            contexts,
            -(-copied // allocator.slots_per_token),
            came,
            came * unit,
            went,
            went * unit,
            spread,
            0 if drafted is None else drafted.tokens,
            0 if drafted is None else drafted.passes,
        )
        return tuple.__new__(StepShape, fields)  # what StepShape(*fields) does, at a quarter of its price

    def step_ps(self, step: Decision, contexts: int, due: bool) -> int:
        """Duration of the decided step, with the allocator's other work if that is `due`."""
        shape = self.shape(step, contexts)
        duration = self.cost.step_ps(shape)
        if self._hears:
            self.cost.carried_out(shape, duration)
        if step.moved is not None:
            duration = self._after_transfers(step.moved, duration)
        return self._upkeep.step_ps(duration, self.cost) if due and self._upkeep else duration

    def _after_transfers(self, moved: Moved, compute_ps: int) -> int:
        """Duration of a step that waits for transfers, or for the layers that it loads while it computes."""
        load, tier = moved.load, self._server.totals.tier
        if load is None:
            return moved.delay_ps + compute_ps
        end_ps = load.end_ps(moved.delay_ps, compute_ps)
        if tier is not None:
            tier.steps_waited_ps += end_ps - compute_ps - moved.delay_ps
        return end_ps

    # -- several ------------------------------------------------------------------------------

    def ends(self, step: Decision, steps: int, limit_ps: int, contexts: int, due: bool) -> list[int]:
        """When each of up to `steps` steps ends, up to the first that reaches the limit; at least one.

        If `due`, the first step pays for the allocator's other work.
        """
        server, progress = self._server, self._server.progress
        if not self._linear:
            return self._unlike_ends(step, steps, limit_ps, contexts)
        seats = progress.size + server.seats.count
        if self._works_in_spans or (step.valid is not None and step.valid.copies):
            if self._works_in_spans and len(server.running) > progress.size:
                steps = 1
            first = self.step_ps(step, contexts, due)
            return self._unlike_first(first, steps, limit_ps, seats, contexts)
        spread = None
        if progress.spread is not None:
            spread = progress.spread.at(progress.clock + 1)
        ends = self.cost.span_ends(seats, contexts, steps, limit_ps, spread)
        if self._hears:
            self._heard = seats, contexts
        return ends

    def go_on(self, step: Decision, ends: list[int], contexts: int, limit_ps: int, at_most: int) -> None:
        """Extend a span by the steps that are foreseen after those the decision covers."""
        server, cost, progress = self._server, self.cost, self._server.progress
        seats, apart = progress.size, progress.spread
        if ends[-1] >= limit_ps or self._hears:
            return
        for more in server.batch.steps_behind(len(ends), at_most, server.anybody_waits):
            done, contexts_now = len(ends), contexts + len(ends) * seats
            if apart is None:
                cost.go_on(ends, seats, contexts_now, more, limit_ps)
            else:
                spread = apart.at(progress.clock + 1 + done)
                end = ends[-1] + cost.copying_ps(seats, contexts_now, more[1], spread)
                ends.append(end)
                if more[0] > 1 and end < limit_ps:
                    spread = apart.at(progress.clock + 2 + done)
                    rest = cost.span_ends(seats, contexts_now + seats, more[0] - 1, limit_ps - end, spread)
                    ends += [end + later for later in rest]
            if ends[-1] >= limit_ps:
                return

    def _unlike_first(self, first: int, steps: int, limit_ps: int, seats: int, contexts: int) -> list[int]:
        """Ends if the first step also copies blocks, or pays for earlier work."""
        progress = self._server.progress
        if steps == 1 or first >= limit_ps or self._hears:
            return [first]
        apart = progress.spread
        spread = None if apart is None else apart.at(progress.clock + 2)
        rest = self.cost.span_ends(seats, contexts + seats, steps - 1, limit_ps - first, spread)
        return [first, *[first + end for end in rest]]

    def _unlike_ends(self, step: Decision, steps: int, limit_ps: int, contexts: int) -> list[int]:
        """Ends if steps add different numbers of tokens."""
        drafted = step.of_drafts()
        vain = drafted.vain_tokens
        line = None if self._hears else self._line(step, contexts, drafted.tokens, drafted.passes)
        if steps == 1:
            self.contexts = [contexts]
            if line is None or step.moved is not None:
                return [self.step_ps(step, contexts, due=False)]
            return [line[0] + line[1] * contexts]
        later = line
        if vain and line is not None:
            later = self._line(step, contexts, drafted.tokens - vain, drafted.passes)
        if line is None or later is None:
            return self._ends_one_by_one(step, contexts, steps, limit_ps)
        first, each = later
        most = limit_ps // (first + each * contexts) + 1  # no step is shorter than the first
        self.contexts = tokens = self._server.progress.contexts_ahead(steps if most > steps else most)
        end = line[0] + line[1] * contexts
        ends = [end]
        for total in tokens[1:]:
            if end >= limit_ps:
                break
            end += first + each * total
            ends.append(end)
        return ends

    def _line(self, step: Decision, contexts: int, drafts: int, passes: int) -> tuple[int, int] | None:
        """The line, over contexts, of this step with so many drafts and passes; None: it has none."""
        batch = self._server.progress.size, drafts, passes
        found = self._lines.get(batch)
        if found is None and batch not in self._lines:
            shape = self.shape(step, contexts)._replace(draft_tokens=drafts)
            found = self._lines[batch] = self.cost.line(shape)
        return found

    def _ends_one_by_one(self, step: Decision, contexts: int, steps: int, limit_ps: int) -> list[int]:
        """Ends for a cost that is not linear in the contexts, priced a few steps at a time."""
        progress, first = self._server.progress, self.shape(step, contexts)
        start, tokens, vain = self.cost.step_ps(first), [contexts], step.of_drafts().vain_tokens
        later = first._replace(draft_tokens=first.draft_tokens - vain) if vain else first
        durations, ends = [start], [start]
        while len(ends) < steps and ends[-1] < limit_ps:
            done = len(ends)
            most, enough = min(steps, (1 + FEW) * done), done + (limit_ps - ends[-1]) // start + 1
            tokens = progress.contexts_ahead(min(most, enough))
            for duration in self.cost.steps_ps(later, tokens[done:]):
                durations.append(duration)
                ends.append(ends[-1] + duration)
        self.contexts = tokens
        if self._hears:
            self._unlike = first, later, tokens, durations
        if ends[-1] > limit_ps:
            del ends[bisect_left(ends, limit_ps) + 1 :]
        return ends

    # -- what became of them ------------------------------------------------------------------

    def carried_out(self, ends: list[int]) -> None:
        """Tell the cost how much of the span was carried out; the span hid the allocator's other work."""
        if self._heard is not None:
            self.cost.span_carried_out(*self._heard, ends)
            self._heard = None
        if self._unlike is not None:
            first, later, contexts, durations = self._unlike
            self._unlike, steps = None, len(ends)
            self.cost.carried_out(first, durations[0])
            if steps > 1:
                self.cost.steps_carried_out(later, contexts[1:steps], durations[1:steps])
        if self._upkeep and self._works_in_spans:
            self._upkeep.pass_steps()

    def after_step(self) -> None:
        """Let the allocator work while the next step computes."""
        if self._upkeep:
            self._upkeep.after_step()

    def rest(self) -> None:
        """The server is idle: the allocator finishes all pending work."""
        if self._upkeep:
            self._upkeep.rest()
