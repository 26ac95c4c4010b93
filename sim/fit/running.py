"""What a vLLM server logs while it runs: one line per step, and statistics every few seconds.

    Iteration(30): 2 context requests, 384 context tokens, 1 generation requests, 1 generation tokens,
        iteration elapsed time: 61.73 ms, CPU KV cache usage: 14.5%        --enable-logging-iteration-details
    Engine 000: Avg prompt throughput: 362.9 tokens/s, Avg generation throughput: 75.9 tokens/s,
        Running: 4 reqs, Waiting: 0 reqs, GPU KV cache usage: 1.2%, Prefix cache hit rate: 75.9%

Context requests are those whose prompts are computed; context tokens exclude cached prefixes. A preempted
request counts as generating, and all tokens that it recomputes count as generation tokens. Prompt throughput
also excludes cached tokens, in the releases that log steps. The hit rate is over the last 1,000 requests.
Lines have a date and a time of day, but no year and no time zone.
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
"""Two clocks differ by at most this many quarter hours, as with time zones: 14 hours."""
ALIKE = 0.1
"""Largest relative difference between the tokens of a log section and those of the run it belongs to."""


@dataclass(frozen=True)
class RunningLog:
    """The lines as columns; times count as in the year 2000.

    Attributes
    ----------
    steps : float64 array, shape (n, 7)
        Time, context requests and tokens, generation requests and tokens, seconds, share of the KV cache.
    statistics : float64 array, shape (m, 7)
        Time, tokens/s of prompts and answers, requests running and waiting, share of the KV cache, hit rate
        (NaN if the cache is off).
    """

    steps: Floats
    statistics: Floats

    @property
    def interval_s(self) -> float:
        """Seconds between two lines of statistics."""
        apart = np.diff(self.statistics[:, 0])
        return float(np.median(apart[apart > 0])) if (apart > 0).any() else 10.0

    def between(self, begun_s: float, ended_s: float) -> "RunningLog":
        """The lines between these times, and the next line."""

        def part(lines: Floats, later: float) -> Floats:
            found: Floats = lines[(lines[:, 0] >= begun_s - 1) & (lines[:, 0] <= ended_s + later)]
            return found

        return RunningLog(part(self.steps, 1), part(self.statistics, self.interval_s))

    @property
    def prompt_tokens(self) -> float:
        """Prompt tokens that were computed, without those of preempted requests."""
        if len(self.steps):
            return float(self.steps[:, 2].sum())
        return float(self.statistics[:, 1].sum()) * self.interval_s

    @property
    def output_tokens(self) -> float:
        """Answer tokens."""
        if len(self.steps):
            return float(self.steps[:, [1, 3]].sum())
        return float(self.statistics[:, 2].sum()) * self.interval_s

    def of_run(self, begun_s: float, seconds: float, least: float, most: float) -> "RunningLog | None":
        """The section of a run, at its time in some time zone and with as many tokens; None if none fits.

        Parameters
        ----------
        begun_s, seconds : float
            When the first request was sent, since 1970, and the run's duration; the clock may have any time
            zone.
        least, most : float
            Range of the tokens of its answers: those of cancelled requests may be unknown.
        """
        here = since_2000(begun_s)
        for quarters in sorted(range(-FARTHEST, FARTHEST + 1), key=abs):
            at = here + quarters * QUARTER_S
            found = self.between(at, at + seconds)
            if (1 - ALIKE) * least <= found.output_tokens <= (1 + ALIKE) * most:
                return found
        return None


def read_running(path: Path) -> RunningLog:
    """The lines of a log; none if they were not enabled."""
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
    """A time since 1970, moved to the year of the log's times."""
    return float(calendar.timegm((2000, *time.gmtime(seconds)[1:])))


def _numbers(match: re.Match[str], count: int) -> list[float]:
    at, *rest = match.groups()
    month, day, hour, minute, second = (int(at[place : place + 2]) for place in (0, 3, 6, 9, 12))
    begun = float(calendar.timegm((2000, month, day, hour, minute, second)))
    return [begun, *(float("nan") if each is None else float(each) for each in rest)][:count]
