"""What a vLLM server logs while it runs: one line a step, and its statistics every few seconds.

    Iteration(30): 2 context requests, 384 context tokens, 1 generation requests, 1 generation tokens,
        iteration elapsed time: 61.73 ms, CPU KV cache usage: 14.5%        --enable-logging-iteration-details
    Engine 000: Avg prompt throughput: 362.9 tokens/s, Avg generation throughput: 75.9 tokens/s,
        Running: 4 reqs, Waiting: 0 reqs, GPU KV cache usage: 1.2%, Prefix cache hit rate: 75.9%

Context requests have a prompt computed, and context tokens leave out what the prefix cache held. A request
that was preempted is counted with those that generate, and all that it computes again with their tokens.
Prompt throughput leaves out cached tokens too, in the releases that log steps. The hit rate is over the last
1,000 requests. Lines carry the time of day, without a year or a time zone.
"""

import calendar
import re
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kvsim.sim.files.reading import plain_bytes, understood

Floats = npt.NDArray[np.float64]
_AT = r"(\d\d-\d\d \d\d:\d\d:\d\d)"
_X = r"(\d+(?:\.\d+)?)"
_STEP = re.compile(
    rf"{_AT}[^\n]*?Iteration\(\d+\): (\d+) context requests, (\d+) context tokens, "
    rf"(\d+) generation requests, (\d+) generation tokens, iteration elapsed time: {_X} ms"
    rf"(?:, [A-Z]+ KV cache usage: {_X}%)?"
)
_STATISTICS = re.compile(
    rf"{_AT}[^\n]*?Avg prompt throughput: {_X} tokens/s, Avg generation throughput: {_X} tokens/s, "
    rf"Running: (\d+) reqs, Waiting: (\d+) reqs[^\n]*?KV cache usage: {_X}%"
    rf"(?:[^\n]*?Prefix cache hit rate: {_X}%)?"
)
QUARTER_S = 900
FARTHEST = 56
"""Quarters of an hour between two clocks that name the same instant: 14 hours, as time zones are."""
ALIKE = 0.1
"""How far the tokens of a log's part may be off those of a run that it is taken for."""


@dataclass(frozen=True)
class RunningLog:
    """The lines, as columns; times as of the year 2000.

    Attributes
    ----------
    steps : float64 array, shape (n, 7)
        Time, context requests and tokens, generation requests and tokens, seconds, share of the KV cache.
    statistics : float64 array, shape (m, 7)
        Time, tokens/s of prompts and answers, requests running and waiting, share of the KV cache, hit rate
        (NaN where the cache is off).
    """

    steps: Floats
    statistics: Floats

    @property
    def interval_s(self) -> float:
        """Between two lines of statistics."""
        apart = np.diff(self.statistics[:, 0])
        return float(np.median(apart[apart > 0])) if (apart > 0).any() else 10.0

    def between(self, begun_s: float, ended_s: float) -> "RunningLog":
        """The lines of this time, and the one after it."""

        def part(lines: Floats, later: float) -> Floats:
            found: Floats = lines[(lines[:, 0] >= begun_s - 1) & (lines[:, 0] <= ended_s + later)]
            return found

        return RunningLog(part(self.steps, 1), part(self.statistics, self.interval_s))

    @property
    def prompt_tokens(self) -> float:
        """Tokens of prompts that were computed, those of preempted requests left out."""
        if len(self.steps):
            return float(self.steps[:, 2].sum())
        return float(self.statistics[:, 1].sum()) * self.interval_s

    @property
    def output_tokens(self) -> float:
        """Tokens of answers."""
        if len(self.steps):
            return float(self.steps[:, [1, 3]].sum())
        return float(self.statistics[:, 2].sum()) * self.interval_s

    def of_run(self, begun_s: float, seconds: float, least: float, most: float) -> "RunningLog | None":
        """The part that is a run's: at its time by any time zone, with as many tokens; None: there is none.

        Parameters
        ----------
        begun_s, seconds : float
            When the first request was sent, since 1970 by any clock, and how long the run took.
        least, most : float
            Tokens of its answers: those of requests that were cut may not have been told.
        """
        here = since_2000(begun_s)
        for quarters in sorted(range(-FARTHEST, FARTHEST + 1), key=abs):
            at = here + quarters * QUARTER_S
            found = self.between(at, at + seconds)
            if (1 - ALIKE) * least <= found.output_tokens <= (1 + ALIKE) * most:
                return found
        return None


def read_running(path: Path) -> RunningLog:
    """The lines of a log; none where it was not told to write them."""
    text = plain_bytes(path, f"log {str(path)!r}:").decode("utf-8", errors="replace")
    with understood(f"log {str(path)!r}"):
        steps = [_numbers(match, 7) for match in _STEP.finditer(text)]
        statistics = [_numbers(match, 7) for match in _STATISTICS.finditer(text)]
    found = RunningLog(*(np.array(rows, dtype=np.float64).reshape(-1, 7) for rows in (steps, statistics)))
    found.steps[:, 5] /= 1e3
    found.steps[:, 6] /= 100
    found.statistics[:, 5:] /= 100
    return found


def since_2000(seconds: float) -> float:
    """A time since 1970 in the year of the log's times."""
    return float(calendar.timegm((2000, *time.gmtime(seconds)[1:])))


def _numbers(match: re.Match[str], count: int) -> list[float]:
    at, *rest = match.groups()
    month, day, hour, minute, second = (int(at[place : place + 2]) for place in (0, 3, 6, 9, 12))
    begun = float(calendar.timegm((2000, month, day, hour, minute, second)))
    return [begun, *(float("nan") if each is None else float(each) for each in rest)][:count]
