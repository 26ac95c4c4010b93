"""The interface of cost models: how long a step takes, or each step of a span.

A step is a `StepShape`: prompt tokens, decoding sequences and their contexts, copies. The answer is in whole
picoseconds. Between finishes and arrivals only the contexts grow, by one token per sequence and step, so a
span of decode steps is asked for in one call. sim/cost/named.py lists the models.
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
"""With limits below this, the end of the step that exceeds the limit fits into 64 bits."""


class Spread(NamedTuple):
    """How the contexts of decoding sequences differ, beyond their sum."""

    longest: int
    """the longest context"""
    rounded: int
    """their sum, each rounded up to whole `context_tile`s (sim/serving/spread.py)"""

    def later(self, steps: int, seqs: int) -> "Spread":
        """The spread `steps` steps later: each context, and its rounded value, grows by a token per step."""
        found = self.longest + steps, self.rounded + steps * seqs
        return tuple.__new__(Spread, found)  # the same as Spread(*found), at a quarter of the cost


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
    """sum of their contexts, including this step's token"""
    copied_tokens: int = 0
    """KV slots copied inside the GPU (copy-on-write, moves)"""
    swapped_in_blocks: int = 0
    """KV blocks coming from the host"""
    swapped_in_tokens: int = 0
    """KV slots in these blocks"""
    swapped_out_blocks: int = 0
    """KV blocks going to the host"""
    swapped_out_tokens: int = 0
    """KV slots in these blocks"""
    spread: Spread | None = None
    """how the contexts differ; None: all alike"""
    draft_tokens: int = 0
    """drafts verified besides these sequences' tokens, over the same contexts"""
    draft_passes: int = 0
    """passes of the draft model after the step"""


@mypyc_attr(allow_interpreted_subclasses=True)
class CostModel:
    """The duration of a step.

    Attributes
    ----------
    source : str
        Name and origin of the model, printed with every result.
    context_tile : int
        Tokens per tile, for models that need to know how contexts differ; 0: not needed.
    flags : bool
        Whether it must be told which steps were carried out, to report what lay outside the measurements.
    """

    declares: ClassVar[type] = NoOptions
    """Its own options: a frozen dataclass of `option` fields (allocators/option.py)."""
    batches: ClassVar[str] = "one"
    """Support for ranks and stages: only a step of "one" batch; the time of "each" of several batches
    (ranks.py combines them); or of "any" step, whatever its number of batches."""
    launches: ClassVar[bool] = False
    """Whether it models launching kernels one by one (`enforce_eager`)."""
    drafts: ClassVar[bool] = False
    """Whether it models a draft's passes; otherwise only verification is counted, if anything."""
    sixteen_bits: ClassVar[bool] = False
    """Whether its times are only for weights and KV in 16 bits."""
    source: str
    context_tile: int = 0
    flags: bool = False

    @classmethod
    def of(cls, deployment: Deployment, argument: str) -> "CostModel":
        """The cost of a deployment; `argument` is what follows its name. By default `cls()`."""
        if argument:
            raise KvsimError(
                f"cost {deployment.cost.partition(':')[0]} takes nothing behind its name, got {argument!r}"
            )
        return cls()

    @property
    def extrapolated_share(self) -> float:
        """Share of step time outside what was measured; 0 if all was measured."""
        return 0.0

    def outside(self) -> list[str]:
        """What lay outside: a phrase for each part, longest time first."""
        return []

    def carried_out(self, shape: StepShape, duration_ps: int) -> None:
        """Called after a step was carried out."""

    def steps_carried_out(
        self, shape: StepShape, contexts: Sequence[int], durations_ps: Sequence[int]
    ) -> None:
        """Called after steps that differ only in the sum of their contexts, which rises, were carried out."""
        for context, duration_ps in zip(contexts, durations_ps, strict=True):
            self.carried_out(shape._replace(context_tokens=context), duration_ps)

    def span_carried_out(self, decode_seqs: int, context_tokens: int, ends: Sequence[int]) -> None:
        """Called after the steps of a span were carried out; `ends` count from its start."""

    @abstractmethod
    def step_ps(self, shape: StepShape) -> int:
        """The duration of one step."""

    def steps_ps(self, shape: StepShape, contexts: Sequence[int]) -> list[int]:
        """Durations of steps that differ only in the sum of their contexts."""
        return [self.step_ps(shape._replace(context_tokens=tokens)) for tokens in contexts]

    def line(self, shape: StepShape, pairs_each: float = 0.0) -> tuple[int, int] | None:
        """The line (ps, ps more per token of the contexts) of steps that differ only in their contexts.

        `pairs_each` pairs of a prompt are also computed per such token. None: the times are not linear.
        """
        return None

    def copying_ps(self, decode_seqs: int, context_tokens: int, copied: int, spread: Spread | None) -> int:
        """The duration of a decode step beside a copy of `copied` slots."""
        fields = (0, 0, 0, decode_seqs, context_tokens, copied, 0, 0, 0, 0, spread, 0, 0)
        return self.step_ps(tuple.__new__(StepShape, fields))

    def span_ps(self, decode_seqs: int, context_tokens: int, steps: int) -> Sequence[int]:
        """Durations of `steps` decode steps, each equal to `step_ps`.

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
        """Ends of these steps, from the start of the first, up to the first that ends at or after the limit.

        The contexts are as in `span_ps`; models with a `context_tile` get the `spread` of the first step. As
        contexts grow, no later step may be shorter than the first.
        """
        return ends_until(limit_ps, self.span_ps(decode_seqs, context_tokens, steps))

    def go_on(
        self, ends: list[int], decode_seqs: int, context_tokens: int, more: tuple[int, int], limit_ps: int
    ) -> None:
        """Add to the ends of a span those of `more` steps: (how many, slots copied beside the first).

        As in `span_ends`, the last is the first that ends at or after the limit.
        """
        steps, copied = more
        end = ends[-1] + self.copying_ps(decode_seqs, context_tokens, copied, None)
        ends.append(end)
        if steps > 1 and end < limit_ps:
            rest = self.span_ends(decode_seqs, context_tokens + decode_seqs, steps - 1, limit_ps - end)
            ends += [end + later for later in rest]


def ends_until(limit_ps: int, durations: Sequence[int]) -> list[int]:
    """Ends of steps with these durations, up to the first that ends at or after the limit.

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
    """The same one by one, after the `ends` of earlier steps: faster for short spans if compiled.

    A step takes `least`, or `first` plus `more` per earlier step, whichever is longer.
    """
    end: i64 = ends[-1] if ends else 0
    while True:
        end += max(first, least)
        ends.append(int(end))
        steps -= 1
        if not steps or end >= limit_ps:
            return
        first += more
