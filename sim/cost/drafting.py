"""The cost of drafts: padding of steps to a CUDA graph, and the draft model's passes after each step.

    verify   |======= the model, 1 + s tokens/sequence ====|pad|
    propose                                                     |= first pass =|= 2 =|= 3 =|

The first pass computes all tokens of the step, so that the draft has their keys and values too; each later
pass computes one token per sequence. A pass costs the same as a step of the draft as a model of its own.

vLLM replays the CUDA graph of the next captured size, in tokens. With drafts all sizes are multiples of
1 + K, so that whole sequences fit; the padding of a step is priced as drafts of the same sequences.

Drafts make contexts grow unevenly, and every step would need prices of its own for up to three launches. So
steps without prompts are computed at both ends of APART tokens of the mean context, and lie on a line in
between, unless the model's times are a line anyway.
"""

from collections.abc import Sequence
from typing import Final

from kvsim.sim.cost.step_cost import CostModel, Spread, StepShape

MOST_CAPTURED: Final = 512
MOST_ON_BLACKWELL: Final = 1024
"""Tokens of the largest graph: 1024 on GPUs of compute capability 10.x, as B200 and B300, 512 on others."""

APART, APART_AT_FIRST = 64, 8
"""Tokens of the mean context from line to line; APART_AT_FIRST while it is below APART."""


def captured(drafts: int, seqs: int, budget: int, most: int = MOST_CAPTURED) -> tuple[int, ...]:
    """Sizes of vLLM's graphs in tokens: `drafts` per sequence, steps of `seqs` sequences and `budget` tokens.

    As in `VllmConfig._set_cudagraph_sizes` and `CompilationConfig.adjust_cudagraph_sizes_for_spec_decode` of
    0.33.0: a grid of tokens and a grid of whole sequences, rounded up to whole sequences.
    """
    each = drafts + 1
    largest = min(2 * seqs * each, most, budget)
    whole = [each * count for count in (*_grid(min(seqs, most)), min(seqs, most)) if each * count <= largest]
    sizes = {*_grid(largest), *whole, *((budget,) if budget <= largest else ())}
    rounded = {-(-size // each) * each for size in sizes}
    return tuple(sorted(size for size in rounded if size <= max(sizes)))


def _grid(most: int) -> list[int]:
    """1, 2, 4, multiples of 8 below 256, multiples of 16 from 256 on."""
    return [size for size in (1, 2, 4, *range(8, 256, 8), *range(256, most + 1, 16)) if size <= most]


class Segment:
    """Steps of a batch whose contexts sum to `start` or more, up to `last`; computed at `first` and `last`.

    Attributes
    ----------
    first_ps, last_ps : int
        Time of the steps at both ends, their passes included.
    first_passes_ps, last_passes_ps : int
        Time of their passes.
    """

    __slots__ = ("first", "first_passes_ps", "first_ps", "last", "last_passes_ps", "last_ps", "start")

    def __init__(
        self, start: int, first: int, last: int, first_ps: tuple[int, int], last_ps: tuple[int, int]
    ) -> None:
        self.start, self.first, self.last = start, first, last
        self.first_ps, self.first_passes_ps = first_ps
        self.last_ps, self.last_passes_ps = last_ps

    def step_ps(self, context: int) -> int:
        """Time of a step, its passes included."""
        more = self.last_ps - self.first_ps
        return self.first_ps + more * (context - self.first) // (self.last - self.first)

    def passes_ps(self, context: int) -> int:
        """Time of its passes."""
        more = self.last_passes_ps - self.first_passes_ps
        return self.first_passes_ps + more * (context - self.first) // (self.last - self.first)


class Drafting(CostModel):
    """A model's steps, each followed by its draft's passes.

    Parameters
    ----------
    target : CostModel
        Cost of the model.
    draft : CostModel or None
        Cost of its draft; None: proposing takes no time.
    words : str
        Describes the draft.
    sizes : tuple of int
        Tokens of the captured graphs, in ascending order; empty: nothing is padded.
    """

    def __init__(
        self, target: CostModel, draft: CostModel | None, words: str, sizes: Sequence[int] = ()
    ) -> None:
        self._target, self._draft = target, draft
        ends = zip((0, *sizes), sizes, strict=False)
        self._missing = [0, *(size - tokens for last, size in ends for tokens in range(last + 1, size + 1))]
        self.source = f"{target.source}; drafts by {words}"
        self.context_tile = int(getattr(target, "context_tile", 0))
        self.flags = bool(getattr(target, "flags", False))
        self._lines: dict[tuple[int, int, int], tuple[int, int] | None] = {}
        self._segments: dict[tuple[int, int, int, int], Segment] = {}
        self._last: tuple[StepShape | None, int] = None, 0  # time of the passes after a step
        self._last_padded: tuple[StepShape | None, StepShape | None] = None, None  # a step, and padded
        self._last_segment: tuple[tuple[int, int, int], Segment | None] = (0, 0, 0), None  # with its batch
        self._laters: dict[int, tuple[int, int] | None] = {}  # line of a later pass, by sequences

    @property
    def extrapolated_share(self) -> float:
        """Like the model's own."""
        return self._target.extrapolated_share

    def outside(self) -> list[str]:
        """What the model reports."""
        return self._target.outside()

    def carried_out(self, shape: StepShape, duration_ps: int) -> None:
        """Pass the model's own part of the step on to the model."""
        if _only_verifies(shape):
            passes_ps = self._segment(shape, shape.context_tokens).passes_ps(shape.context_tokens)
        else:
            passes_ps = self.passes_ps(shape)
        self._target.carried_out(self._padded(shape), duration_ps - passes_ps)

    def steps_carried_out(
        self, shape: StepShape, contexts: Sequence[int], durations_ps: Sequence[int]
    ) -> None:
        """As in `CostModel`."""
        if not _only_verifies(shape):
            super().steps_carried_out(shape, contexts, durations_ps)
            return
        if len(contexts) != len(durations_ps):
            raise ValueError(f"{len(contexts)} steps took {len(durations_ps)} durations")
        segments = self._segments_of(shape, contexts)
        own_ps = [durations_ps[at] - each.passes_ps(contexts[at]) for at, each in enumerate(segments)]
        self._target.steps_carried_out(self._padded(shape), contexts, own_ps)

    def span_carried_out(self, decode_seqs: int, context_tokens: int, ends: Sequence[int]) -> None:
        """Pass the span on to the model."""
        self._target.span_carried_out(decode_seqs, context_tokens, ends)

    def step_ps(self, shape: StepShape) -> int:
        """The model's step, and the passes after it."""
        line = self.line(shape)
        if line is not None:
            return line[0] + line[1] * shape.context_tokens
        if _only_verifies(shape):
            return self._segment(shape, shape.context_tokens).step_ps(shape.context_tokens)
        return self._target.step_ps(self._padded(shape)) + self.passes_ps(shape)

    def line(self, shape: StepShape, pairs_each: float = 0.0) -> tuple[int, int] | None:
        """As in `CostModel`, for steps that only decode."""
        tokens, _, prompts, seqs, _, copied, came, _, went, _, _, drafts, passes = shape
        if tokens or prompts or copied or came or went or pairs_each or not seqs:
            return None
        name = seqs, drafts, passes
        if name not in self._lines:
            self._lines[name] = self._line_of(shape)
        return self._lines[name]

    def _line_of(self, shape: StepShape) -> tuple[int, int] | None:
        found = self._target.line(self._padded(shape))
        if found is None or self._draft is None or not shape.draft_passes:
            return found
        constant = shape._replace(context_tokens=0)
        first, later = self._first(constant), self._later(constant)
        one, other = self._draft.line(first, shape.draft_tokens / shape.decode_seqs), self._draft.line(later)
        if one is None or other is None:
            return None
        more = shape.draft_passes - 1
        return found[0] + one[0] + more * other[0], found[1] + one[1] + more * other[1]

    def steps_ps(self, shape: StepShape, contexts: Sequence[int]) -> list[int]:
        """As in `CostModel`."""
        if not _only_verifies(shape) or self.line(shape) is not None:
            return super().steps_ps(shape, contexts)
        return [each.step_ps(contexts[at]) for at, each in enumerate(self._segments_of(shape, contexts))]

    # -- steps that only verify and propose ---------------------------------------------------

    def _segment(self, shape: StepShape, context: int) -> Segment:
        """The segment in which contexts of this sum lie."""
        seqs, drafts, passes = batch = shape.decode_seqs, shape.draft_tokens, shape.draft_passes
        before, found = self._last_segment
        if found is not None and before == batch and found.start <= context <= found.last:
            return found
        mean = context // seqs
        apart = APART if mean >= APART else APART_AT_FIRST
        start = mean - mean % apart
        name = seqs, drafts, passes, start
        found = self._segments.get(name)
        if found is None:
            first = start * seqs + (seqs > 1)  # contexts that differ: equal ones begin a tile together
            last = (start + apart) * seqs - 1
            ends_ps = self._computed(shape, first), self._computed(shape, last)
            found = self._segments[name] = Segment(start * seqs, first, last, *ends_ps)
        self._last_segment = batch, found
        return found

    def _segments_of(self, shape: StepShape, contexts: Sequence[int]) -> list[Segment]:
        """The segment of each of these contexts."""
        segment, found = self._segment(shape, contexts[0]), []
        for context in contexts:
            if not segment.start <= context <= segment.last:
                segment = self._segment(shape, context)
            found.append(segment)
        return found

    def _computed(self, shape: StepShape, context: int) -> tuple[int, int]:
        """Time of the step with these contexts, its passes included, and of the passes."""
        at = shape._replace(context_tokens=context)
        passes_ps = self.passes_ps(at)
        return self._target.step_ps(self._padded(at)) + passes_ps, passes_ps

    def span_ps(self, decode_seqs: int, context_tokens: int, steps: int) -> Sequence[int]:
        """As in `CostModel`, for steps without drafts."""
        return self._target.span_ps(decode_seqs, context_tokens, steps)

    def span_ends(
        self, decode_seqs: int, context_tokens: int, steps: int, limit_ps: int, spread: Spread | None = None
    ) -> list[int]:
        """As in `CostModel`, for steps without drafts."""
        return self._target.span_ends(decode_seqs, context_tokens, steps, limit_ps, spread)

    def passes_ps(self, shape: StepShape) -> int:
        """Time of all passes after a step."""
        if self._draft is None or not shape.draft_passes:
            return 0
        if self._last[0] is not shape:
            self._last = shape, self._passes_ps(self._draft, shape)
        return self._last[1]

    def _passes_ps(self, draft: CostModel, shape: StepShape) -> int:
        first_ps, more = draft.step_ps(self._first(shape)), shape.draft_passes - 1
        return first_ps + more * self._later_ps(draft, shape) if more else first_ps

    def _later_ps(self, draft: CostModel, shape: StepShape) -> int:
        """A later pass after a step, which depends only on its sequences and contexts."""
        seqs = shape.decode_seqs + shape.prefill_seqs
        if seqs not in self._laters:
            self._laters[seqs] = draft.line(self._later(shape))
        line = self._laters[seqs]
        if line is None:
            return draft.step_ps(self._later(shape))
        return line[0] + line[1] * (shape.context_tokens + shape.prefill_tokens)

    def _first(self, shape: StepShape) -> StepShape:
        """The draft's first pass after a step, as a step."""
        tokens, pairs, prompts, seqs, context = shape[:5]
        drafts, padding = shape.draft_tokens, self._padding(tokens + seqs + shape.draft_tokens)
        if drafts or padding:  # like the queries of a prompt: only the last one of each sequence needs logits
            pairs += drafts * (context // seqs if seqs else 1)
            tokens, prompts = tokens + drafts + padding, prompts or 1
        first = tokens, pairs, prompts, seqs, context, 0, 0, 0, 0, 0, None, 0, 0
        return tuple.__new__(StepShape, first)  # the same as StepShape(*first), at a quarter of the cost

    def _later(self, shape: StepShape) -> StepShape:
        """Each of the draft's later passes, as a step."""
        rows, contexts = shape.decode_seqs + shape.prefill_seqs, shape.context_tokens + shape.prefill_tokens
        later = 0, 0, 0, rows, contexts, 0, 0, 0, 0, 0, None, self._padding(rows), 0
        return tuple.__new__(StepShape, later)

    def _padded(self, shape: StepShape) -> StepShape:
        """The step, padded to the graph that is replayed."""
        drafts = shape.draft_tokens
        padding = self._padding(shape.prefill_tokens + shape.decode_seqs + drafts)
        if not padding:
            return shape
        before, padded = self._last_padded
        if padded is None or before is not shape:  # the model, too, knows what it has priced by its object
            padded = tuple.__new__(StepShape, (*shape[:11], drafts + padding, shape.draft_passes))
            self._last_padded = shape, padded
        return padded

    def _padding(self, tokens: int) -> int:
        """Tokens missing up to the next graph; 0 beyond the largest, as none is then replayed."""
        return self._missing[tokens] if tokens < len(self._missing) else 0


def _only_verifies(shape: StepShape) -> bool:
    """Whether a step computes nothing but sequences and their drafts."""
    tokens, _, prompts, seqs, _, copied, came, _, went, _, _, drafts, passes = shape
    return seqs > 0 and (drafts > 0 or passes > 0) and not (tokens or prompts or copied or came or went)
