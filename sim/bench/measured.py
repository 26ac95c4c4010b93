"""A measured run in one form, regardless of the benchmark tool that wrote it.

    vllm bench serve, AIPerf, GuideLLM, inference-perf --a reader each--> MeasuredRun

    each request   start ----- first token -- token -- token ----- last token
                   |<- TTFT ->|<--- ITL --->|
                   |<------------------ E2E ------------------>|       TPOT = (E2E - TTFT) / (output - 1)

Tools define their numbers differently (docs/metrics-by-tool.md). If a file holds every request, the numbers
are computed here from the requests, all by the definitions above, with ITL over all gaps together. If it
holds only the tool's own numbers, those are used, and `told` marks them as the tool's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kvsim.sim.errors import KvsimError
from kvsim.sim.workload import Int64Column

Floats = npt.NDArray[np.float64]
Key = tuple[str, str]
"""What is measured, and a statistic: ("TTFT", "p99")."""

LATENCIES = ("TTFT", "TPOT", "ITL", "E2E")
STATISTICS = ("mean", "p50", "p90", "p99")
RATES = ("requests", "output tokens", "all tokens")
"""Numbers per second, with the statistic `per s`."""
PER_S = "per s"
_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


@dataclass(frozen=True)
class Gaps:
    """Times between tokens: those of request i are `seconds[offsets[i] : offsets[i + 1]]`.

    Attributes
    ----------
    offsets : int64 array, shape (n + 1,)
    seconds : float64 array, shape (offsets[n],)
    """

    offsets: Int64Column
    seconds: Floats

    @classmethod
    def of(cls, lists: Sequence[Sequence[float]]) -> "Gaps":
        """The gaps from one list per request."""
        counts = np.array([len(each) for each in lists], dtype=np.int64)
        values = [np.asarray(each, dtype=np.float64) for each in lists]
        seconds: Floats = np.concatenate(values) if values else np.zeros(0)
        return cls(np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), seconds)

    def sums(self) -> Floats:
        """The sum of each request's gaps."""
        whole = np.concatenate([[0.0], np.cumsum(self.seconds)])
        found: Floats = whole[self.offsets[1:]] - whole[self.offsets[:-1]]
        return found

    def rows(self, chosen: Int64Column) -> "Gaps":
        """The gaps of these requests, in this order."""
        parts = [self.seconds[self.offsets[row] : self.offsets[row + 1]] for row in chosen.tolist()]
        return Gaps.of([part.tolist() for part in parts])


@dataclass(frozen=True)
class Requests:
    """The answered requests, in order of start time.

    Attributes
    ----------
    start_s : float64 array, shape (n,), or None
        When each was sent, counted from the first; None if unknown.
    input_tokens, output_tokens : int64 arrays, shape (n,), each at least 1
    ttft_s, e2e_s : float64 arrays, shape (n,)
        From sending a request to its first and last token; NaN if unknown.
    gaps : Gaps or None
        Times between tokens or, for some tools, between pieces of an answer.
    session : tuple of str, or None
        The conversation of each request.
    cached_tokens : int64 array, shape (n,), or None
        Tokens of each prompt that the server reports as prefix cache hits.
    """

    start_s: Floats | None
    input_tokens: Int64Column
    output_tokens: Int64Column
    ttft_s: Floats
    e2e_s: Floats
    gaps: Gaps | None = None
    session: tuple[str, ...] | None = None
    cached_tokens: Int64Column | None = None

    def __len__(self) -> int:
        return len(self.input_tokens)

    @property
    def tpot_s(self) -> Floats:
        """Time per output token after the first one; NaN for answers of one token."""
        rest = np.where(self.output_tokens > 1, self.output_tokens - 1, np.nan)
        found: Floats = (self.e2e_s - self.ttft_s) / rest
        return found

    def sorted(self) -> "Requests":
        """Sort by start time, which then counts from the first."""
        if self.start_s is None:
            return self
        begun = self.start_s - self.start_s.min() if len(self) else self.start_s
        return replace(self, start_s=begun).rows(np.argsort(begun, kind="stable").astype(np.int64))

    def rows(self, chosen: Int64Column) -> "Requests":
        """These requests, in this order."""
        return Requests(
            None if self.start_s is None else self.start_s[chosen],
            self.input_tokens[chosen],
            self.output_tokens[chosen],
            self.ttft_s[chosen],
            self.e2e_s[chosen],
            None if self.gaps is None else self.gaps.rows(chosen),
            None if self.session is None else tuple(self.session[row] for row in chosen.tolist()),
            None if self.cached_tokens is None else self.cached_tokens[chosen],
        )

    def joined(self, others: "Requests") -> "Requests":
        """These requests, then the others; without gaps, and without columns that are not known for both."""

        def both(name: str) -> Any:  # noqa: ANN401 - a column, or nothing
            mine, theirs = getattr(self, name), getattr(others, name)
            return None if mine is None or theirs is None else np.concatenate([mine, theirs])

        names = ("start_s", "input_tokens", "output_tokens", "ttft_s", "e2e_s")
        columns = {name: both(name) for name in names}
        if self.cached_tokens is not None or others.cached_tokens is not None:
            found = (each.cached_tokens for each in (self, others))
            zeros = (np.zeros(len(each), dtype=np.int64) for each in (self, others))
            known = [none if each is None else each for each, none in zip(found, zeros, strict=True)]
            columns["cached_tokens"] = np.concatenate(known)
        if self.session is not None and others.session is not None:
            return Requests(**columns, session=self.session + others.session)
        return Requests(**columns)

    @property
    def most_at_once(self) -> int | None:
        """The most requests in flight at one instant; None if starts or ends are unknown."""
        if self.start_s is None or np.isnan(self.e2e_s).any():
            return None
        times = np.concatenate([self.start_s, self.start_s + self.e2e_s])
        steps = np.repeat([1, -1], len(self))
        order = np.lexsort((steps, times))  # departures before arrivals
        return int(np.cumsum(steps[order]).max()) if len(self) else 0


@dataclass(frozen=True)
class MeasuredRun:
    """A benchmark run against a server.

    Attributes
    ----------
    name : str
        The file's name.
    tool : str
        The tool that wrote it.
    requests : Requests or None
        Every answered request; None if the file holds only numbers.
    told : mapping of (what, statistic) to float
        The tool's own numbers, in seconds, and per second.
    count, failed : int
        Number of answered and unanswered requests.
    cut : Requests or None
        Requests that the tool cut off when its time was up, counted from the same start. They are load, not
        failures. Their `output_tokens` are those received by then.
    cut_count : int
        Number of requests cut off; a file may hold only some of them.
    input_tokens, output_tokens : float
        Means.
    duration_s : float or None
        Duration of the whole run.
    began_s : float or None
        When the first request was sent, since 1970; times without a time zone count as UTC.
    clients : int or None
        Limit on the requests in flight; None: no limit.
    request_rate : float or None
        Requested rate per second; infinity: all at once; None: not stated.
    burstiness : float
        1: Poisson arrivals.
    model : str or None
        Name of the model on the server.
    notes : tuple of str
        Notes on the file: what was cut off, what is missing.
    """

    name: str
    tool: str
    requests: Requests | None
    told: Mapping[Key, float] = field(default_factory=dict)
    count: int = 0
    failed: int = 0
    cut: Requests | None = None
    cut_count: int = 0
    input_tokens: float = 0.0
    output_tokens: float = 0.0
    duration_s: float | None = None
    began_s: float | None = None
    clients: int | None = None
    request_rate: float | None = None
    burstiness: float = 1.0
    model: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def closed(self) -> bool:
        """Whether a limit on requests in flight paced the requests, not a clock."""
        if self.clients is None:
            return False
        reached = self.requests.most_at_once if self.requests is not None else None
        paced = self.request_rate is not None and np.isfinite(self.request_rate)
        return not paced or (reached is not None and reached >= self.clients)

    @property
    def span_s(self) -> float | None:
        """From the first request sent to the last token, else as the tool reports it."""
        requests = self.requests
        if (
            requests is None
            or requests.start_s is None
            or not len(requests)
            or np.isnan(requests.e2e_s).all()
        ):
            return self.duration_s
        return float(np.nanmax(requests.start_s + requests.e2e_s) - requests.start_s.min())

    def numbers(self) -> dict[Key, float]:
        """All numbers of the run, by one definition if its requests are known."""
        if self.requests is None:
            return dict(self.told)
        return statistics_of(self.requests, self.duration_s)


def statistics_of(requests: Requests, duration_s: float | None) -> dict[Key, float]:
    """Mean, p50, p90 and p99 of the latencies, and rates from the first start to the last end."""
    gaps = None if requests.gaps is None else requests.gaps.seconds
    found: dict[Key, float] = {}
    for what, values in (
        ("TTFT", requests.ttft_s),
        ("TPOT", requests.tpot_s),
        ("ITL", gaps),
        ("E2E", requests.e2e_s),
    ):
        found |= {(what, name): value for name, value in spread(values).items()}
    if requests.start_s is not None and len(requests) and not np.isnan(requests.e2e_s).all():
        duration_s = float(np.nanmax(requests.start_s + requests.e2e_s) - requests.start_s.min())
    if duration_s:
        prompt, output = int(requests.input_tokens.sum()), int(requests.output_tokens.sum())
        for what, count in zip(RATES, (len(requests), output, prompt + output), strict=True):
            found[what, PER_S] = count / duration_s
    return found


def spread(values: Floats | None) -> dict[str, float]:
    """Mean and quantiles of the known values; empty if there are none."""
    known = np.zeros(0) if values is None else values[~np.isnan(values)]
    if not len(known):
        return {}
    quantiles = np.quantile(known, list(_QUANTILES.values())).tolist()
    return {"mean": float(known.mean()), **dict(zip(_QUANTILES, quantiles, strict=True))}


def finished_run(path: Path, run: MeasuredRun) -> MeasuredRun:
    """The run, after checking that it can be replayed.

    Raises
    ------
    KvsimError
        No request was answered, or the lengths are unknown.
    """
    if not run.count:
        raise KvsimError(f"result {path}: must hold at least one answered request, got none")
    if run.requests is None and not (run.input_tokens >= 1 and run.output_tokens >= 1):
        raise KvsimError(f"result {path}: must say how long prompts and answers are, got neither")
    return run
