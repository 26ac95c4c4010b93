"""Measured step times of DGX machines, from Splitwise's simulator: `dgx-isca24:RULE`, a model over 8 GPUs.

    prompts alone    the time of as many prompt tokens, on straight lines between nine points
    decodes alone    the time of as many tokens; which ones, says the RULE
    both             1.1 times that of all tokens as prompts

With `batch` each decode is one token, as in the simulator: 64 of them take hardly longer than one. With
`context` it is all of its context, as in the runs that were measured: 64 contexts of 512 tokens are the point
at 32,768, and take twice as long. Before the first point and beyond the last the lines continue, and steps
there count as extrapolated: with `batch`, all steps of fewer than 128 decodes. A prompt with one token left
to compute counts as a decode. A chunk of a prompt takes as long as a prompt of its length, which was never
measured. Copies and swaps take no time.
"""

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from itertools import pairwise
from typing import Any

from kvsim.sim.cost.step_cost import CostModel, StepShape
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.errors import KvsimError

NAME = "dgx-isca24"
RULES = ("batch", "context")
GPUS = 8
PS_PER_MS = 1_000_000_000


class Machine(CostModel):
    """The step times of a machine.

    Parameters
    ----------
    rule : str
        One of `RULES`.
    deployment : Deployment
        Its model and GPU must be in the profile, and it must have all eight GPUs.
    """

    sixteen_bits = True

    @classmethod
    def of(cls, deployment: Deployment, argument: str) -> "Machine":
        """The model for `NAME:RULE`."""
        return cls(argument, deployment)

    def __init__(self, rule: str, deployment: Deployment) -> None:
        if rule not in RULES:
            words = " or ".join(f"{NAME}:{each}" for each in RULES)
            raise KvsimError(f"cost must be {words}, got {NAME}{':' * bool(rule)}{rule}")
        profile, gpus = _read(), deployment.tensor_parallel_size
        machines: Mapping[str, Any] = profile["machines"]
        here, model = machines.get(deployment.gpu.name), deployment.model.name
        if here is None:
            raise KvsimError(
                f"gpu must be one of {', '.join(machines)} with cost {NAME}, got {deployment.gpu.name}"
            )
        if model not in here:
            raise KvsimError(f"model must be one of {', '.join(here)} with cost {NAME}, got {model}")
        if gpus != GPUS:
            raise KvsimError(f"tensor_parallel_size must be {GPUS} with cost {NAME}, got {gpus}")
        self.source = f"{profile['source']}; {deployment.gpu.name}, {model}, decodes by {rule}"
        self.flags, self._by_context = True, rule == "context"
        self._least, *self._ends, self._most = profile["tokens"]
        self._all_ps = self._outside_ps = 0
        self._prompts, self._decodes = (
            _lines(profile["tokens"], here[model][which]) for which in ("prompt_ms", "token_ms")
        )

    def prompt_ps(self, tokens: int) -> int:
        """The time of a step that computes this many prompt tokens."""
        base_ps, slope_ps = self._prompts[bisect_left(self._ends, tokens)]
        return base_ps + slope_ps * tokens

    def token_ps(self, tokens: int) -> int:
        """The time of a step of decodes at this place in the table."""
        base_ps, slope_ps = self._decodes[bisect_left(self._ends, tokens)]
        return base_ps + slope_ps * tokens

    def step_ps(self, shape: StepShape) -> int:
        """The sum described above; a step that computes nothing takes the minimum."""
        tokens, prompts = self._place(shape)
        if not prompts:
            return self.token_ps(tokens) if tokens else 1
        alone = self.prompt_ps(tokens)
        return alone * 11 // 10 if prompts < tokens else alone

    def _place(self, shape: StepShape) -> tuple[int, int]:
        """The place of a step in the table, in tokens, and the tokens of its prompts (0: decodes only)."""
        prompts, decodes, contexts = shape.prefill_tokens, shape.decode_seqs, shape.context_tokens
        if prompts != shape.prefill_seqs:
            return prompts + decodes, prompts
        return contexts + shape.prefill_pairs if self._by_context else decodes + prompts, 0

    def span_ps(self, decode_seqs: int, context_tokens: int, steps: int) -> Sequence[int]:
        """Equal steps; by context, an arithmetic progression on each line."""
        if not self._by_context:
            return [self.token_ps(decode_seqs)] * steps
        last = context_tokens + (steps - 1) * decode_seqs
        line = bisect_left(self._ends, context_tokens)
        if line == bisect_left(self._ends, last):
            first_ps, delta_ps = self.token_ps(context_tokens), self._decodes[line][1] * decode_seqs
            return range(first_ps, first_ps + steps * delta_ps, delta_ps)
        return [self.token_ps(tokens) for tokens in range(context_tokens, last + 1, decode_seqs)]

    # -- what lies outside --------------------------------------------------------------------

    @property
    def extrapolated_share(self) -> float:
        """Share of step time in steps before the first point or beyond the last."""
        return self._outside_ps / self._all_ps if self._all_ps else 0.0

    def outside(self) -> list[str]:
        """The range that was measured."""
        if not self._outside_ps:
            return []
        what = "contexts" if self._by_context else "decodes"
        return [f"steps of fewer than {self._least:,} or more than {self._most:,} prompt tokens, or {what}"]

    def carried_out(self, shape: StepShape, duration_ps: int) -> None:
        """Add up a step."""
        self._all_ps += duration_ps
        if self._is_outside(self._place(shape)[0]):
            self._outside_ps += duration_ps

    def span_carried_out(self, decode_seqs: int, context_tokens: int, ends: Sequence[int]) -> None:
        """Add up the steps of a span."""
        self._all_ps += ends[-1]
        if not self._by_context:
            self._outside_ps += ends[-1] if self._is_outside(decode_seqs) else 0
            return
        last = context_tokens + (len(ends) - 1) * decode_seqs
        if self._is_outside(context_tokens) or self._is_outside(last):
            contexts = range(context_tokens, last + 1, decode_seqs)
            for tokens, (begin_ps, end_ps) in zip(contexts, pairwise((0, *ends)), strict=True):
                self._outside_ps += end_ps - begin_ps if self._is_outside(tokens) else 0

    def _is_outside(self, tokens: int) -> bool:
        return not self._least <= tokens <= self._most and tokens > 0


def _lines(tokens: Sequence[int], times_ms: Sequence[float]) -> list[tuple[int, int]]:
    """(time at 0 tokens, time per token) of the line from each point to the next, in picoseconds."""
    found = []
    for (low, low_ms), (high, high_ms) in pairwise(zip(tokens, times_ms, strict=True)):
        slope_ps = round((high_ms - low_ms) * PS_PER_MS / (high - low))
        found.append((round(low_ms * PS_PER_MS) - slope_ps * low, slope_ps))
    return found


@cache
def _read() -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(
        resources.files("kvsim.sim.profiles").joinpath(f"{NAME}.json").read_text(encoding="utf-8")
    )
    return found
