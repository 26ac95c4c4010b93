"""Statistics of a trace, as a screenful of numbers.

    burstiness    standard deviation of the gaps between arrivals over their mean: 1 for a Poisson process
    shared        share of prompt tokens that an infinite prefix cache would hit

Answers after the first are ignored. `shared` covers at most `MOST_SHARED` requests, see `shared_rows`.
"""

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvsim.sim.content import ROWS_AT_ONCE
from kvsim.sim.workload import Int64Column
from kvsim.workloads.lengths import Lengths

Text = tuple[tuple[int, int, int], ...]

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.99)
MOST_SHARED = 200_000


@dataclass(frozen=True)
class Spread:
    """The distribution of a column of lengths."""

    mean: float
    least: int
    most: int
    quantiles: tuple[float, ...]
    """At QUANTILES."""


@dataclass(frozen=True)
class Statistics:
    """A trace in numbers; None if unknown."""

    rows: int
    prompt_tokens: Spread
    output_tokens: Spread
    span_s: float | None
    requests_per_s: float | None
    burstiness: float | None
    shared: float | None
    """Share of the prompt tokens."""
    shared_rows: int
    """The number of requests, from the first on, that `shared` covers."""
    sessions: int | None


def statistics(lengths: Lengths, sharing: bool = True) -> Statistics:
    """Compute the statistics; without `sharing`, which takes longest, `shared` is None."""
    span, rate, burstiness = _arrivals(lengths.arrival_s)
    session = lengths.labels.get("session")
    known = () if session is None else (name for name in session.tolist() if name is not None)
    return Statistics(
        rows=len(lengths),
        prompt_tokens=_spread(lengths.prompt_tokens),
        output_tokens=_spread(lengths.output_tokens),
        span_s=span,
        requests_per_s=rate,
        burstiness=burstiness,
        shared=_shared(lengths) if sharing else None,
        shared_rows=min(len(lengths), MOST_SHARED),
        sessions=None if session is None else len(set(known)),
    )


def _spread(tokens: Int64Column) -> Spread:
    found = np.quantile(tokens, QUANTILES).tolist()
    return Spread(float(tokens.mean()), int(tokens.min()), int(tokens.max()), tuple(found))


def _arrivals(arrival_s: npt.NDArray[np.float64] | None) -> tuple[float | None, float | None, float | None]:
    """Seconds from first to last, requests per second, and the coefficient of variation of the gaps."""
    if arrival_s is None or len(arrival_s) < 2:
        return None, None, None
    span = float(arrival_s[-1] - arrival_s[0])
    if not span:
        return 0.0, None, None
    gaps = np.diff(arrival_s)
    return span, len(gaps) / span, float(gaps.std() / gaps.mean())


def _shared(lengths: Lengths) -> float | None:
    """The shared ratio, by token; after sorting, the text that shares most is adjacent (sim/content.py)."""
    texts = lengths.texts
    if texts is None:
        return None
    seen: list[Text] = []
    hits = total = 0
    rows = min(len(lengths), MOST_SHARED)
    for start in range(0, rows, ROWS_AT_ONCE):
        end = min(start + ROWS_AT_ONCE, rows)
        low, high = int(texts.offsets[start]), int(texts.offsets[end])
        columns = (column[low:high].tolist() for column in (texts.streams, texts.firsts, texts.lengths))
        runs = list(zip(*columns, strict=True))
        begins = (texts.offsets[start : end + 1] - low).tolist()
        prompts = lengths.prompt_tokens[start:end].tolist()
        for begin, finish, prompt in zip(begins, begins[1:], prompts, strict=False):
            text: Text = tuple(runs[begin:finish])
            total += prompt
            if not text:
                continue
            place = bisect_left(seen, text)
            near = seen[max(place - 1, 0) : place + 1]
            hits += min(prompt, max((_common(text, other) for other in near), default=0))
            if place == len(seen) or seen[place] != text:
                seen.insert(place, text)
    return hits / total


def _common(one: Text, other: Text) -> int:
    """Length of the common prefix of two texts, in tokens."""
    tokens = 0
    for run, mate in zip(one, other, strict=False):
        if run != mate:
            return tokens + (min(run[2], mate[2]) if run[:2] == mate[:2] else 0)
        tokens += run[2]
    return tokens
