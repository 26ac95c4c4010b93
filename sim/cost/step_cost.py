"""What the engine asks a cost model: how long a step takes, or each of a span of steps.

A step is a `StepShape`: how many prompt tokens, how many decoding sequences with which contexts, what is
copied. The answer is whole picoseconds. Between finishes and arrivals only the contexts grow, by one token a
sequence and step, so a span of decode steps is asked for at once. sim/cost/named.py lists the models.
"""

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import ClassVar, Final, NamedTuple

from mypy_extensions import i64, mypyc_attr

from kvsim.allocators.option import NoOptions
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.errors import KvsimError

COMPILED: Final = not __file__.endswith(".py")
"""Whether this module is compiled: then a loop adds up any number of steps faster."""
LONGEST_PS: Final = 1 << 60
"""Below this, the end of the step that goes beyond it fits into 64 bits."""


class Spread(NamedTuple):
    """How the contexts of decoding sequences differ, beyond their sum."""

    longest: int
    """the longest"""
    rounded: int
    """their sum, each rounded up to whole `context_tile`s (sim/serving/spread.py)"""

    def later(self, steps: int, seqs: int) -> "Spread":
        """So many steps later: each context is a token a step longer, and so is what it is rounded up to."""
        found = self.longest + steps, self.rounded + steps * seqs
        return tuple.__new__(Spread, found)  # what Spread(*found) does, at a quarter of its price


class StepShape(NamedTuple):
    """What one engine step computes."""

    prefill_tokens: int = 0
    """prompt tokens computed in this step"""
    prefill_pairs: int = 0
    """(query, key) pairs of their causal attention"""
    prefill_seqs: int = 0
    """prompts completed or advanced in this step"""
    decode_seqs: int = 0
    """sequences that generate one token"""
    context_tokens: int = 0
    """sum of their contexts, this step's token included"""
    copied_tokens: int = 0
    """KV slots copied inside the GPU (copy-on-write, moves)"""
    swapped_in_blocks: int = 0
    """KV blocks that come from the host"""
    swapped_in_tokens: int = 0
    """KV slots in these blocks"""
    swapped_out_blocks: int = 0
    """KV blocks that go to the host"""
    swapped_out_tokens: int = 0
    """KV slots in these blocks"""
    spread: Spread | None = None
    """how the contexts differ; None: all are alike"""
    draft_tokens: int = 0
    """drafts that are verified beside these sequences' tokens, over the same contexts"""
    draft_passes: int = 0
    """passes of the draft behind the step"""


@mypyc_attr(allow_interpreted_subclasses=True)
class CostModel:
    """The duration of a step.

    Attributes
    ----------
    source : str
        Which model this is and from what, printed with every result.
    context_tile : int
        Tokens of a tile, for a model that wants to know how contexts differ; 0: it does not.
    flags : bool
        Whether it wants to hear what was carried out, to tell what lay outside what was measured.
    """

    declares: ClassVar[type] = NoOptions
    """Its own options: a frozen dataclass of `option` fields (allocators/option.py)."""
    batches: ClassVar[str] = "one"
    """What it knows of ranks and stages: a step of "one" batch alone; what "each" of several batches takes
    (ranks.py puts them together); or what "any" step takes, of however many batches."""
    launches: ClassVar[bool] = False
    """Whether it knows what launching kernels one by one takes (`enforce_eager`)."""
    drafts: ClassVar[bool] = False
    """Whether it knows what a draft's passes take; else only verifying is counted, or not even that."""
    source: str
    context_tile: int = 0
    flags: bool = False

    @classmethod
    def of(cls, deployment: Deployment, argument: str) -> "CostModel":
        """The cost of a deployment, `cls()` unless a class says; `argument` is what follows its name."""
        if argument:
            raise KvsimError(
                f"cost {deployment.cost.partition(':')[0]} takes nothing behind its name, got {argument!r}"
            )
        return cls()

    @property
    def extrapolated_share(self) -> float:
        """Share of the time in steps that lay outside what was measured; 0 where nothing was."""
        return 0.0

    def outside(self) -> list[str]:
        """What lay outside: a phrase each, the longest time first."""
        return []

    def carried_out(self, shape: StepShape, duration_ps: int) -> None:
        """Hear that a step was carried out."""

    def span_carried_out(self, decode_seqs: int, context_tokens: int, ends: Sequence[int]) -> None:
        """Hear that the steps of a span were, which ended so long after its start."""

    @abstractmethod
    def step_ps(self, shape: StepShape) -> int:
        """The duration of one step."""

    def steps_ps(
        self, shape: StepShape, contexts: Sequence[int], pairs: Sequence[int] | None = None
    ) -> list[int]:
        """The durations of steps that are alike but for the sum of their contexts; and for their `pairs`."""
        if pairs is None:
            return [self.step_ps(shape._replace(context_tokens=tokens)) for tokens in contexts]
        return [
            self.step_ps(shape._replace(context_tokens=tokens, prefill_pairs=each))
            for tokens, each in zip(contexts, pairs, strict=True)
        ]

    def line(self, shape: StepShape, pairs_each: float = 0.0) -> tuple[int, int] | None:
        """(ps, ps more for each token of the contexts) of steps that are alike but for their contexts.

        `pairs_each` pairs of a prompt are computed for each of these tokens, too. None: they lie on no line.
        """
        return None

    def copying_ps(self, decode_seqs: int, context_tokens: int, copied: int, spread: Spread | None) -> int:
        """The duration of a decode step beside which so many slots are copied."""
        fields = (0, 0, 0, decode_seqs, context_tokens, copied, 0, 0, 0, 0, spread, 0, 0)
        return self.step_ps(tuple.__new__(StepShape, fields))

    def span_ps(self, decode_seqs: int, context_tokens: int, steps: int) -> Sequence[int]:
        """Durations of `steps` decode steps, equal to `step_ps` element by element.

        The contexts sum to `context_tokens` in the first step and to `decode_seqs` more in each later one.
        """
        first = StepShape(decode_seqs=decode_seqs, context_tokens=context_tokens)
        return [
            self.step_ps(first._replace(context_tokens=context_tokens + step * decode_seqs))
            for step in range(steps)
        ]

    def span_ends(
        self, decode_seqs: int, context_tokens: int, steps: int, limit_ps: int, spread: Spread | None = None
    ) -> list[int]:
        """When these steps end, from the start of the first, up to the first that ends at or after the limit.

        The contexts are as in `span_ps`; the `spread` of the first step is given to models with a
        `context_tile`. As contexts grow, no later step may be shorter than the first.
        """
        return ends_until(limit_ps, self.span_ps(decode_seqs, context_tokens, steps))

    def go_on(
        self, ends: list[int], decode_seqs: int, context_tokens: int, more: tuple[int, int], limit_ps: int
    ) -> None:
        """Add to the ends of a span those of `more` steps: (how many, slots copied beside the first).

        They are as in `span_ends`: the last is the first that ends at or after the limit.
        """
        steps, copied = more
        end = ends[-1] + self.copying_ps(decode_seqs, context_tokens, copied, None)
        ends.append(end)
        if steps > 1 and end < limit_ps:
            rest = self.span_ends(decode_seqs, context_tokens + decode_seqs, steps - 1, limit_ps - end)
            ends += [end + later for later in rest]


def ends_until(limit_ps: int, durations: Sequence[int]) -> list[int]:
    """When steps end that take so long, up to the first that ends at or after the limit.

    No later step may be shorter than the first.
    """
    first = durations[0]
    most = limit_ps // first + 1
    if most == 1:
        return [first]
    ends = list(accumulate(durations if most >= len(durations) else durations[:most]))
    if ends[-1] > limit_ps:
        del ends[bisect_left(ends, limit_ps) + 1 :]
    return ends


def add_ends(ends: list[int], first: i64, more: i64, least: i64, *, steps: i64, limit_ps: i64) -> None:
    """The same one by one, behind the `ends` of earlier steps: the compiled build's way, for short spans.

    A step takes `least`, or `first` and for each step before it `more`, whichever is longer.
    """
    end: i64 = ends[-1] if ends else 0
    while True:
        end += max(first, least)
        ends.append(int(end))
        steps -= 1
        if not steps or end >= limit_ps:
            return
        first += more
