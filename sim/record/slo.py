"""A service-level objective: limits on the latencies of requests.

ttft:p99=0.5s, tpot:p99=50ms, e2e=10s
|    |    |
|    |    the limit, with its unit: s, ms or us
|    over requests: 99 % of them must be within; left out: every request must be
ttft, tpot, e2e, normalized or queueing
"""

import re
from dataclasses import dataclass
from math import inf
from typing import Self

from kvsim.sim.errors import KvsimError, unknown

LATENCIES = {
    "ttft": "ttft_s",
    "tpot": "tpot_s",
    "e2e": "e2e_s",
    "normalized": "normalized_s_per_token",
    "queueing": "queueing_s",
}
"""Latency of a request -> its column in the table of requests."""

ALSO = {"e2el": "e2e"}
"""Other names: vLLM's."""

UNITS_S = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
"""Unit of a limit -> seconds."""

_LIMIT = re.compile(r"([a-z0-9_]+)(?::([a-z0-9.]+))?=([0-9.]+(?:e[+-]?[0-9]+)?)([a-z]*)")


@dataclass(frozen=True)
class Limit:
    """A limit on one latency.

    Attributes
    ----------
    latency : str
        One of LATENCIES.
    quantile : float or None
        Share of the requests that must be within the limit, above 0 and below 1; None: every request.
    limit_s : float
        In seconds, above 0.
    """

    latency: str
    quantile: float | None
    limit_s: float

    @property
    def name(self) -> str:
        """`ttft:p99`, or `e2e` for a per-request limit."""
        return self.latency if self.quantile is None else f"{self.latency}:p{100 * self.quantile:.10g}"

    @property
    def statistic(self) -> str:
        """`p99`, or `max` for a per-request limit."""
        return self.name.partition(":")[2] or "max"

    @property
    def column(self) -> str:
        """Its column in the table of requests."""
        return LATENCIES[self.latency]

    def __str__(self) -> str:
        """As users write it: `ttft:p99=0.5s`, `tpot:p99=50ms`."""
        short = self.limit_s < 0.1
        return f"{self.name}={self.limit_s * (1e3 if short else 1):.10g}{'ms' if short else 's'}"


@dataclass(frozen=True)
class Slo:
    """A service-level objective: limits, at least one."""

    limits: tuple[Limit, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `ttft:p99=0.5s,tpot:p99=50ms,e2e=10s`; KvsimError names the wrong part."""
        limits = tuple(_limit(part.strip()) for part in text.split(","))
        names = [limit.name for limit in limits]
        for name in names:
            if names.count(name) > 1:
                raise KvsimError(f"slo must name each limit once, got {name} {names.count(name)} times")
        return cls(limits)

    @property
    def of_each(self) -> tuple[Limit, ...]:
        """The limits for a single request: the per-request ones, or all if there are none."""
        return tuple(limit for limit in self.limits if limit.quantile is None) or self.limits

    def __str__(self) -> str:
        """As users write it."""
        return ",".join(map(str, self.limits))


def _limit(text: str) -> Limit:
    parts = _LIMIT.fullmatch(text)
    if parts is None:
        raise KvsimError(f"slo must be like ttft:p99=0.5s,tpot:p99=50ms,e2e=10s, got {text!r}")
    latency, statistic, amount, unit = parts.groups()
    latency = ALSO.get(latency, latency.removesuffix("_s"))
    if latency not in LATENCIES:
        raise unknown("latency of slo", latency, list(LATENCIES))
    if unit not in UNITS_S:
        raise KvsimError(f"slo must give {latency} in s, ms or us, got {text!r}")
    try:
        limit_s = float(amount) * UNITS_S[unit]
    except ValueError:
        limit_s = 0.0
    if not 0 < limit_s < inf:
        raise KvsimError(f"slo must limit {latency} to a time above 0, got {text!r}")
    return Limit(latency, None if statistic is None else _quantile(statistic), limit_s)


def _quantile(text: str) -> float:
    """`p99.9` -> 0.999."""
    try:
        percent = float(text.removeprefix("p")) if text.startswith("p") else 0.0
    except ValueError:
        percent = 0.0
    if not 0 < percent < 100:
        raise KvsimError(f"slo must take a quantile above p0 and below p100, as in p99, got {text!r}")
    return float(f"{percent / 100:.12g}")
