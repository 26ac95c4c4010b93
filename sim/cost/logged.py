"""Logged: step times of a real server, fitted to its log; `logged:MS+US+US`, or a profile's file.

    step = base + per sequence x sequences + per token x prompt tokens

    logged:12.4+720+124              12.4 ms per step, 720 us per sequence, 124 us per prompt token
    logged:12.4+720+124@60x2048      seen: steps of up to 60 sequences, and of up to 2,048 prompt tokens

Sequences are prompts plus decoding sequences. Host, GPU and gaps between steps are included, the front end is
not. The times are one model's on one server: they do not change with another model or GPU. Contexts, copies
and swaps take no time of their own. `sim calibrate log` fits it (sim/fit/steps.py).
"""

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from kvsim.sim.cost.step_cost import CostModel, StepShape
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.errors import KvsimError
from kvsim.sim.files.reading import text_of, understood
from kvsim.sim.workload import PS_PER_S

LOGGED = "logged"
NUMBER = r"(\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)"
_FORM = re.compile(rf"{LOGGED}:{NUMBER}\+{NUMBER}\+{NUMBER}(?:@(\d+)x(\d+))?", re.ASCII)
MOST_S = 600.0


@dataclass(frozen=True)
class StepTimes:
    """Step times in seconds, and the largest steps in the log; None: unknown."""

    base_s: float
    sequence_s: float
    token_s: float
    most_sequences: int | None = None
    most_tokens: int | None = None

    def __post_init__(self) -> None:
        times = self.base_s, self.sequence_s, self.token_s
        there = all(isfinite(each) and 0 <= each <= MOST_S for each in times)
        if not there or round(self.base_s * PS_PER_S) < 1:
            raise KvsimError(f"cost {LOGGED} must have times from 0 to {MOST_S:g} s, and a base, got {times}")

    def __str__(self) -> str:
        text = f"{LOGGED}:{1e3 * self.base_s:.5g}+{1e6 * self.sequence_s:.5g}+{1e6 * self.token_s:.5g}"
        return text if self.most_sequences is None else f"{text}@{self.most_sequences}x{self.most_tokens}"

    @property
    def words(self) -> str:
        """The times in words."""
        each = [1e3 * self.base_s, 1e6 * self.sequence_s, 1e6 * self.token_s]
        base, sequence, token = (f"{n:.3g}" if n < 999.5 else f"{n:,.0f}" for n in each)
        return f"{base} ms + {sequence} us per sequence + {token} us per prompt token"

    @classmethod
    def parsed(cls, text: str) -> "StepTimes":
        """Parse the form above; KvsimError for anything else."""
        found = _FORM.fullmatch(text)
        if found is None:
            must = f"{LOGGED}:MS+US+US, as in {LOGGED}:12.4+720+124, or a profile of sim calibrate log"
            raise KvsimError(f"cost must be {must}, got {text!r}")
        base, sequence, token = (float(each) for each in found.groups()[:3])
        seen = [None if each is None else int(each) for each in found.groups()[3:]]
        return cls(base / 1e3, sequence / 1e6, token / 1e6, *seen)


def read_step_times(path: Path) -> StepTimes:
    """The step times of a profile that `sim calibrate log` wrote.

    Raises
    ------
    KvsimError
        The file cannot be read, or is not such a profile.
    """
    what = f"profile {path}"
    with understood(what, "is none of sim calibrate log"):
        content = tomllib.loads(text_of(path, what))
        return StepTimes.parsed(str(content["cost"]))


def cost_of(cost: str | None) -> str | None:
    """A cost unchanged; for a profile's file, the cost it contains."""
    if cost is None or not cost.endswith(".toml"):
        return cost
    return str(read_step_times(Path(cost).expanduser()))


class Logged(CostModel):
    """Step times of a log; reports the time of steps larger than any in it."""

    flags = True

    @classmethod
    def of(cls, deployment: Deployment, argument: str) -> "Logged":
        """The model for `logged:MS+US+US`."""
        return cls(StepTimes.parsed(deployment.cost))

    def __init__(self, times: StepTimes) -> None:
        self.source = f"steps of a log: {times.words}"
        self._base_ps = round(times.base_s * PS_PER_S)
        self._sequence_ps, self._token_ps = (
            round(each * PS_PER_S) for each in (times.sequence_s, times.token_s)
        )
        self._most = times.most_sequences, times.most_tokens
        self._all_ps = self._outside_ps = 0

    @property
    def extrapolated_share(self) -> float:
        """Share of step time in steps larger than any seen."""
        return self._outside_ps / self._all_ps if self._all_ps else 0.0

    def outside(self) -> list[str]:
        """The largest steps seen."""
        sequences, tokens = self._most
        if not self._outside_ps or sequences is None or tokens is None:
            return []
        return [f"steps of more than {sequences:,} sequences or {tokens:,} prompt tokens"]

    def carried_out(self, shape: StepShape, duration_ps: int) -> None:
        """Add up a step."""
        self._heard(shape.prefill_seqs + shape.decode_seqs, shape.prefill_tokens, duration_ps)

    def span_carried_out(self, decode_seqs: int, context_tokens: int, ends: Sequence[int]) -> None:
        """Add up the steps of a span."""
        self._heard(decode_seqs, 0, ends[-1])

    def step_ps(self, shape: StepShape) -> int:
        """The sum described above."""
        return (
            self._base_ps
            + self._sequence_ps * (shape.prefill_seqs + shape.decode_seqs)
            + self._token_ps * shape.prefill_tokens
        )

    def span_ps(self, decode_seqs: int, context_tokens: int, steps: int) -> Sequence[int]:
        """All alike."""
        return [self._base_ps + self._sequence_ps * decode_seqs] * steps

    def _heard(self, sequences: int, tokens: int, duration_ps: int) -> None:
        self._all_ps += duration_ps
        most_sequences, most_tokens = self._most
        if most_sequences is None or most_tokens is None:
            return
        if sequences > most_sequences or tokens > most_tokens:
            self._outside_ps += duration_ps
