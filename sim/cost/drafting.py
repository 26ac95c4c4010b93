"""What proposing drafts adds to the steps of a model: the passes of its draft, one after the other.

    verify   |======= the model, 1 + s tokens a sequence =======|
    propose                                                     |= first pass =|= 2 =|= 3 =|

The first pass computes all tokens of the step, so that the draft has their keys and values too; each later
one a token a sequence. Their price is that of a step of the draft as a model of its own.
"""

from collections.abc import Sequence
from operator import add

from kvsim.sim.cost.step_cost import CostModel, Spread, StepShape


class Drafting(CostModel):
    """A model's steps, and its draft's passes behind them.

    Parameters
    ----------
    target, draft : CostModel
        Of the model, and of its draft.
    """

    def __init__(self, target: CostModel, draft: CostModel, words: str) -> None:
        self._target, self._draft = target, draft
        self.source = f"{target.source}; drafts by {words}"
        self.context_tile, self.flags = target.context_tile, target.flags
        self._lines: dict[tuple[int, int, int], tuple[int, int] | None] = {}

    @property
    def extrapolated_share(self) -> float:
        """That of the model's own time."""
        return self._target.extrapolated_share

    def outside(self) -> list[str]:
        """What the model says."""
        return self._target.outside()

    def carried_out(self, shape: StepShape, duration_ps: int) -> None:
        """Tell the model what its own part was."""
        self._target.carried_out(shape, duration_ps - self.passes_ps(shape))

    def span_carried_out(self, decode_seqs: int, context_tokens: int, ends: Sequence[int]) -> None:
        """Tell the model."""
        self._target.span_carried_out(decode_seqs, context_tokens, ends)

    def step_ps(self, shape: StepShape) -> int:
        """The model's step, and the passes behind it."""
        line = self.line(shape)
        if line is not None:
            return line[0] + line[1] * shape.context_tokens
        return self._target.step_ps(shape) + self.passes_ps(shape)

    def line(self, shape: StepShape, pairs_each: float = 0.0) -> tuple[int, int] | None:
        """As in `CostModel`, of steps that only decode."""
        tokens, _, prompts, seqs, _, copied, came, _, went, _, _, drafts, passes = shape
        if tokens or prompts or copied or came or went or pairs_each or not seqs:
            return None
        name = seqs, drafts, passes
        if name not in self._lines:
            self._lines[name] = self._line_of(shape)
        return self._lines[name]

    def _line_of(self, shape: StepShape) -> tuple[int, int] | None:
        found = self._target.line(shape)
        if found is None or not shape.draft_passes:
            return found
        first, later = self._passes(shape._replace(context_tokens=0))
        one, other = self._draft.line(first, shape.draft_tokens / shape.decode_seqs), self._draft.line(later)
        if one is None or other is None:
            return None
        more = shape.draft_passes - 1
        return found[0] + one[0] + more * other[0], found[1] + one[1] + more * other[1]

    def steps_ps(
        self, shape: StepShape, contexts: Sequence[int], pairs: Sequence[int] | None = None
    ) -> list[int]:
        """As in `CostModel`."""
        seqs = shape.decode_seqs
        if pairs is not None or not seqs:
            return super().steps_ps(shape, contexts, pairs)
        found = self._target.steps_ps(shape, contexts)
        if not shape.draft_passes:
            return found
        first, later, drafts = *self._passes(shape), shape.draft_tokens
        seen = [shape.prefill_pairs + drafts * (context // seqs) for context in contexts]
        firsts = self._draft.steps_ps(first, contexts, seen)
        if shape.draft_passes == 1:
            return list(map(add, found, firsts))
        more, passes = shape.prefill_tokens, shape.draft_passes - 1
        laters = self._draft.steps_ps(later, [context + more for context in contexts] if more else contexts)
        return [one + two + passes * each for one, two, each in zip(found, firsts, laters, strict=True)]

    def span_ps(self, decode_seqs: int, context_tokens: int, steps: int) -> Sequence[int]:
        """Of steps without drafts."""
        return self._target.span_ps(decode_seqs, context_tokens, steps)

    def span_ends(
        self, decode_seqs: int, context_tokens: int, steps: int, limit_ps: int, spread: Spread | None = None
    ) -> list[int]:
        """Of steps without drafts."""
        return self._target.span_ends(decode_seqs, context_tokens, steps, limit_ps, spread)

    def passes_ps(self, shape: StepShape) -> int:
        """All passes behind a step."""
        if not shape.draft_passes:
            return 0
        first, later = self._passes(shape)
        return self._draft.step_ps(first) + (shape.draft_passes - 1) * self._draft.step_ps(later)

    def _passes(self, shape: StepShape) -> tuple[StepShape, StepShape]:
        """The steps of the draft that its first pass is, and each later one."""
        tokens, pairs, prompts, seqs, context = shape[:5]
        drafts = shape.draft_tokens
        if drafts:  # queries like those of a prompt: only the last of each sequence needs logits
            tokens, pairs = tokens + drafts, pairs + drafts * (context // seqs if seqs else 1)
            prompts = prompts or 1
        later = StepShape(
            decode_seqs=seqs + shape.prefill_seqs, context_tokens=context + shape.prefill_tokens
        )
        return StepShape(tokens, pairs, prompts, seqs, context), later
