"""What is asked of a run: limits on its latencies, and what a GPU costs.

    ttft:p99=0.5s, tpot:p99=50ms, e2e=10s
    |    |    |
    |    |    the limit, with its unit: s, ms or us
    |    over requests: 99 % of them are to be within; left out: each request is
    ttft, tpot, e2e, normalized or queueing

Goals change nothing in a run, only what its summary says of it (sim/record/attainment.py). Every field of
`Goals` is an option of `sim run`, a keyword of `kvsim.simulate` and a row of docs/commands.md (sim/options/option.py).
"""

import re
from dataclasses import dataclass
from math import inf
from typing import Self

from kvsim.sim.errors import KvsimError, unknown
from kvsim.sim.options.option import option

PANEL = "Goals"

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
        Which share of the requests is to be within, above 0 and below 1; None: each.
    limit_s : float
        In seconds, above 0.
    """

    latency: str
    quantile: float | None
    limit_s: float

    @property
    def name(self) -> str:
        """`ttft:p99`, or `e2e` for one of each request."""
        return self.latency if self.quantile is None else f"{self.latency}:p{100 * self.quantile:.10g}"

    @property
    def statistic(self) -> str:
        """`p99`, or `max` for one of each request."""
        return self.name.partition(":")[2] or "max"

    @property
    def column(self) -> str:
        """Its column in the table of requests."""
        return LATENCIES[self.latency]

    def __str__(self) -> str:
        """As it may be given: `ttft:p99=0.5s`, `tpot:p99=50ms`."""
        short = self.limit_s < 0.1
        return f"{self.name}={self.limit_s * (1e3 if short else 1):.10g}{'ms' if short else 's'}"


@dataclass(frozen=True)
class Slo:
    """A service-level objective: limits, at least one."""

    limits: tuple[Limit, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """From `ttft:p99=0.5s,tpot:p99=50ms,e2e=10s`; KvsimError names the part that is wrong."""
        limits = tuple(_limit(part.strip()) for part in text.split(","))
        names = [limit.name for limit in limits]
        for name in names:
            if names.count(name) > 1:
                raise KvsimError(f"slo must name each limit once, got {name} {names.count(name)} times")
        return cls(limits)

    @property
    def of_each(self) -> tuple[Limit, ...]:
        """The limits that a single request is held against: those of each, or all where there is none."""
        return tuple(limit for limit in self.limits if limit.quantile is None) or self.limits

    def __str__(self) -> str:
        """As it may be given."""
        return ",".join(map(str, self.limits))


@dataclass(frozen=True, kw_only=True)
class Goals:
    """What is asked of a run."""

    slo: str | None = option(
        "Latency limits, as in ttft:p99=0.5s,tpot:p99=50ms,e2e=10s.",
        panel=PANEL,
        default=None,
        value="LIMITS",
        shown="none",
        doc="[limits on latencies](output.md#goals), as in `ttft:p99=0.5s,tpot:p99=50ms,e2e=10s`: "
        "the summary also has goodput, attainment and numbers per GPU",
    )
    gpu_price: str | float | None = option(
        "Of a GPU per hour, in any currency; h100=2.5,l40s=0.8 by name.",
        panel=PANEL,
        default=None,
        value="X",
        shown="none",
        doc="price of a GPU per hour, in any currency; `h100=2.5,l40s=0.8`: by GPU; "
        "the summary also has the [cost per million tokens](output.md#goals)",
    )

    def __post_init__(self) -> None:
        if self.slo is not None:
            Slo.parse(self.slo)
        _prices(self.gpu_price)

    @property
    def limits(self) -> Slo | None:
        """The limits; None where there are none."""
        return None if self.slo is None else Slo.parse(self.slo)

    def price_of(self, gpu: str) -> float | None:
        """The price of a GPU of this name per hour; None where none was given.

        Raises
        ------
        KvsimError
            Prices of other GPUs alone.
        """
        prices = _prices(self.gpu_price)
        if not prices:
            return None
        found = prices.get(gpu, prices.get(""))
        if found is None:
            raise KvsimError(f"gpu_price must name {gpu} too, got {self.gpu_price}")
        return found

    def as_json(self) -> dict[str, str]:
        """Those that were given, as texts; nothing if none was."""
        given = {"slo": self.slo, "gpu_price": self.gpu_price}
        return {name: str(value) for name, value in given.items() if value is not None}


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


def _prices(text: str | float | None) -> dict[str, float]:
    """GPU -> price per hour; "" stands for all others."""
    found: dict[str, float] = {}
    for part in [] if text is None else str(text).split(","):
        gpu, _, amount = part.strip().rpartition("=")
        try:
            price = float(amount)
        except ValueError:
            price = -1.0
        if not 0 <= price < inf:
            raise KvsimError(f"gpu_price must be a number, or GPU=NUMBER,..., per hour, got {text!r}")
        found[gpu] = price
    return found


NO_GOALS = Goals()
