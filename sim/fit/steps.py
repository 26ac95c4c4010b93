"""Fits step times to the lines that a running server logs; needs no measurement and no GPU.

    elapsed = base + per sequence x requests + per token x prompt tokens

Least squares of the relative error, without negative coefficients. Steps that take many times the fitted time
(a compilation, a pause of the machine) are left out. The times are then scaled so that their sum is right,
since clients also wait for the few slow steps: the scale is the median of twenty parts of the log, so that
periods in which the machine was busy with something else do not count. A busy server also spends time between
steps, which no line reports. It is the difference between the lines' clock and the sum of their times, over
stretches in which some request always decodes, and is added to the base.

Held out: five consecutive parts of the log, each predicted from the other four.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from kvsim.sim.cost.logged import StepTimes
from kvsim.sim.errors import KvsimError
from kvsim.sim.fit.running import Floats, RunningLog

FEWEST, PARTS = 100, 5
"""Least steps for a fit, and parts of the log that are held out in turn."""
FARTHEST = 10.0
"""A step that takes more than this multiple of the fitted time is left out."""
LEVELS = 20
"""Parts of the log, whose median scale is used."""
TRIES = 20
SHORTEST_S = 1e-9
STRETCH_S = 5.0
"""Shortest stretch whose clock is compared with its steps, as lines have whole seconds."""


@dataclass(frozen=True)
class StepFit:
    """Fitted step times and their errors.

    Attributes
    ----------
    times : StepTimes
    steps : int
        Number of lines fitted.
    step_error : float
        Median relative error over held-out steps.
    part_errors : tuple of float
        Relative error of the time of each held-out part.
    between_s : float
        Part of the base: time between two steps.
    """

    times: StepTimes
    steps: int
    step_error: float
    part_errors: tuple[float, ...]
    between_s: float

    @property
    def part_error(self) -> float:
        """Mean absolute error over the parts."""
        return float(np.mean(np.abs(self.part_errors)))

    def during(self, part: RunningLog) -> tuple[StepTimes, float]:
        """The times scaled by one factor to match the steps of a log section; and the factor."""
        lines, times = _lines(part), self.times
        if len(lines) < FEWEST:
            return times, 1.0
        own = np.array([times.base_s - self.between_s, times.sequence_s, times.token_s])
        factor = float(lines[:, 5].sum() / (_columns(lines) @ own).sum())
        names = ("base_s", "sequence_s", "token_s")
        return replace(times, **{name: factor * getattr(times, name) for name in names}), factor


def fit_steps(log: RunningLog) -> StepFit:
    """The step times fitted to a log.

    Raises
    ------
    KvsimError
        Fewer than 100 steps in the log.
    """
    lines = _lines(log)
    if len(lines) < FEWEST:
        raise KvsimError(
            f"log must hold at least {FEWEST} lines of steps, got {len(lines)}: start vLLM with "
            "--enable-logging-iteration-details"
        )
    seconds = lines[:, 5]
    columns = _columns(lines)
    found, step_error, part_errors = _held_out(columns, seconds)
    between = _between_s(lines)
    times = StepTimes(
        max(float(found[0]) + between, SHORTEST_S),
        float(found[1]),
        float(found[2]),
        most_sequences=int(columns[:, 1].max()),
        most_tokens=int(columns[:, 2].max()),
    )
    return StepFit(times, len(lines), step_error, part_errors, between)


def _lines(log: RunningLog) -> Floats:
    """The steps with a duration."""
    found: Floats = log.steps[log.steps[:, 5] > 0]
    return found


def _columns(lines: Floats) -> Floats:
    """1, sequences, prompt tokens; recomputed tokens are logged as generated ones."""
    again = np.maximum(lines[:, 4] - lines[:, 3], 0)
    return np.column_stack([np.ones(len(lines)), lines[:, 1] + lines[:, 3], lines[:, 2] + again])


def _held_out(columns: Floats, seconds: Floats) -> tuple[Floats, float, tuple[float, ...]]:
    """The fit and its errors on the held-out parts."""
    steps: list[Floats] = []
    parts: list[float] = []
    for part in np.array_split(np.arange(len(seconds)), PARTS):
        others = np.setdiff1d(np.arange(len(seconds)), part)
        said = columns[part] @ _fitted(columns[others], seconds[others])
        steps.append(np.abs(said / seconds[part] - 1))
        parts.append(float(said.sum() / seconds[part].sum()) - 1)
    return _fitted(columns, seconds), float(np.median(np.concatenate(steps))), tuple(parts)


def _fitted(columns: Floats, seconds: Floats) -> Floats:
    """Coefficients, none negative, scaled to match the sum of the steps of a typical part."""
    weights = 1 / np.maximum(seconds, 1e-9)
    kept = np.ones(len(seconds), dtype=bool)
    found = _not_negative(columns * weights[:, None], seconds * weights)
    for _ in range(TRIES):
        said = np.maximum(columns @ found, 1e-9)
        kept = seconds < FARTHEST * said
        off = np.abs(seconds / said - 1)
        usual = max(1.4826 * float(np.median(off)), 1e-9)
        weights = np.sqrt(np.minimum(1, 1.345 * usual / np.maximum(off, 1e-12))) / said
        last, found = found, _not_negative((columns * weights[:, None])[kept], (seconds * weights)[kept])
        if np.allclose(found, last, rtol=1e-6):
            break
    said = np.maximum(columns @ found, SHORTEST_S)
    parts = [part[kept[part]] for part in np.array_split(np.arange(len(seconds)), LEVELS)]
    levels = [seconds[part].sum() / said[part].sum() for part in parts if len(part)]
    scaled: Floats = found * (float(np.median(levels)) if levels else 1.0)
    return scaled


def _not_negative(columns: Floats, values: Floats) -> Floats:
    """Least squares without negative coefficients: drops columns that would have one, the worst first."""
    kept = list(range(columns.shape[1]))
    found = np.zeros(columns.shape[1])
    while kept:
        scale = np.maximum(np.abs(columns[:, kept]).max(axis=0), 1e-300)
        part = np.linalg.lstsq(columns[:, kept] / scale, values, rcond=None)[0]
        if (part >= 0).all():
            found[kept] = part / scale
            break
        kept.pop(int(np.argmin(part)))
    return found


def _between_s(lines: Floats) -> float:
    """Time of a busy server's step beyond its logged time; negative if steps overlap.

    The slope, over the steps of each stretch, of the clock's whole seconds minus the sum of logged times.
    """
    above = below = 0.0
    for part in _stretches(lines):
        if part[-1, 0] - part[0, 0] >= STRETCH_S:
            beyond = part[:, 0] - np.cumsum(part[:, 5])
            place = np.arange(len(part)) - (len(part) - 1) / 2
            above += float(place @ beyond)
            below += float(place @ place)
    return above / below if below else 0.0


def _stretches(lines: Floats) -> Iterator[Floats]:
    """Runs of consecutive steps, each with a request from the step before."""
    begins = np.flatnonzero(lines[:, 3] < 1)
    for begin, end in zip([0, *begins.tolist()], [*begins.tolist(), len(lines)], strict=True):
        if end > begin:
            yield lines[begin:end]
