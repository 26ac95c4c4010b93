"""One factor that makes a simulated server as fast as the measured one, with its interval.

    scale    multiplies every step's time                               --time-scale 1.08
    host     multiplies both constants of the host's time per step      --host-time 1.24+51.8

The factor is the one at which the mean over the requests of log(simulated TPOT / measured TPOT) is 0. TPOT is
fitted because it depends on step times most directly. The search interpolates linearly, in logarithms,
between a factor on either side; each try is a whole replay. The interval is Student's, 95 %, over the means
of ten consecutive parts of the run: requests that ran together shared their steps and are not independent.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import exp, log, sqrt

import numpy as np

from kvsim.sim.bench.measured import MeasuredRun
from kvsim.sim.bench.replay import Simulated, pairs, simulated
from kvsim.sim.bench.workload import AS_MEASURED, Load
from kvsim.sim.cost.host import AUTO, USUAL
from kvsim.sim.cost.logged import LOGGED
from kvsim.sim.errors import KvsimError
from kvsim.sim.options.scenario import Scenario

FITS = ("host", "scale")
LEAST, MOST = 0.05, 20.0
CLOSE = 3e-4
"""The search ends when the mean logarithm is below this: 0.03 %."""
MISSED = 1e-2
"""A factor that leaves an error of more than 1 % counts as not found."""
TRIES = 14
FLATTEST = 0.1
"""Intervals need at least this slope of the error over the factor."""
PARTS = 10
STUDENT_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
"""Two-sided quantiles for 1 to 9 degrees of freedom."""


@dataclass(frozen=True)
class Fitted:
    """A fitted factor.

    Attributes
    ----------
    kind : str
        One of FITS.
    factor : float
    low, high : float or None
        Ends of the interval; None if the result holds only one number.
    left : float
        Remaining mean logarithm of simulated over measured TPOT.
    scenario : Scenario
        The server with this factor.
    found : Simulated
        The replay of that server.
    option : str
        The equivalent option of `sim run`.
    """

    kind: str
    factor: float
    low: float | None
    high: float | None
    left: float
    scenario: Scenario
    found: Simulated
    option: str


def fitted(
    run: MeasuredRun,
    server: Scenario,
    kind: str,
    tried: Callable[[float], None] = lambda factor: None,
    load: Load = AS_MEASURED,
) -> Fitted:
    """Fit a factor of this kind to the run under a load; `tried` is called after each try.

    Raises
    ------
    KvsimError
        For an unknown kind, a run without TPOT, or a host whose time does not affect this server's steps.
    """
    if kind not in FITS:
        raise KvsimError(f"fit must be one of {', '.join(FITS)}, got {kind!r}")
    seen: dict[float, tuple[Scenario, Simulated, float]] = {}

    def error(factor: float) -> float:
        if factor not in seen:
            scenario = with_factor(server, kind, factor)
            found = simulated(run, scenario, load)
            seen[factor] = scenario, found, _error(run, found)
            tried(factor)
        return seen[factor][2]

    low, high = _around(error, kind)
    while min(abs(each[2]) for each in seen.values()) > CLOSE and len(seen) < TRIES:
        middle = _between(low, high, error(low), error(high))
        low, high = (middle, high) if error(middle) < 0 else (low, middle)
    factor = min(seen, key=lambda each: abs(seen[each][2]))
    scenario, found, left = seen[factor]
    if abs(left) > MISSED:
        raise KvsimError(
            f"fit {kind}: no factor from {LEAST} to {MOST:g} meets the measured TPOT; the nearest, "
            f"{factor:.3g}, is {100 * (exp(left) - 1):+.1f} % off{_hint(kind)}"
        )
    ends = _interval(run, found, factor, _slope(seen))
    return Fitted(kind, factor, *ends, left, scenario, found, _option(scenario, kind))


def with_factor(server: Scenario, kind: str, factor: float) -> Scenario:
    """The server with its steps, or its host, slowed down by `factor`."""
    if kind == "scale":
        return replace(server, time_scale=factor * server.time_scale)
    if str(server.cost).startswith(f"{LOGGED}:"):
        raise KvsimError("fit must be scale with the step times of a log, in which the host is, got 'host'")
    base, each = USUAL.base_s, USUAL.per_sequence_s
    host = _host_time(server)
    if "+" in host or host.replace(".", "", 1).isdigit():
        first, _, rest = host.partition("+")
        base, each = float(first) / 1e3, float(rest or 0) / 1e6
    return server.with_settings({"host_time": f"{1e3 * base * factor:.6g}+{1e6 * each * factor:.6g}"})


def _host_time(server: Scenario) -> str:
    return str(server.part_options().get("host_time", AUTO))


def _around(error: Callable[[float], float], kind: str) -> tuple[float, float]:
    """Two factors between which the error changes sign, or the ends of the range."""
    low = high = 1.0
    if error(1.0) < 0:
        while error(high) < 0 and high < MOST:
            low, high = high, min(high * 1.6, MOST)
    else:
        while error(low) > 0 and low > LEAST:
            low, high = max(low / 1.6, LEAST), low
    return low, high


def _between(low: float, high: float, below: float, above: float) -> float:
    """Where a line between the two errors is 0, kept away from the ends."""
    share = -below / (above - below) if above > below else 0.5
    return float(low * (high / low) ** min(max(share, 0.05), 0.95))


def _error(run: MeasuredRun, found: Simulated) -> float:
    """Mean of log(simulated TPOT / measured TPOT) over the requests, or that of the mean TPOTs."""
    ratios = _ratios(run, found)
    if len(ratios):
        return float(np.mean(ratios))
    key = ("TPOT", "mean")
    measured = run.numbers().get(key)
    if not measured or key not in found.numbers:
        raise KvsimError(f"result {run.name}: a fit needs its TPOT, which it does not hold")
    return log(found.numbers[key] / measured)


def _ratios(run: MeasuredRun, found: Simulated) -> np.ndarray:
    both = pairs(run, found).get("TPOT")
    if both is None:
        return np.zeros(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.log(both[1] / both[0])
    return ratios[np.isfinite(ratios)]


def _slope(seen: dict[float, tuple[Scenario, Simulated, float]]) -> float:
    """Slope of the error over the factor's logarithm, from all tries, since queues make it jump."""
    if len(seen) < 2:
        return 1.0
    slope = float(np.polyfit(np.log(list(seen)), [each[2] for each in seen.values()], 1)[0])
    return min(max(slope, FLATTEST), 1.0)


def _interval(
    run: MeasuredRun, found: Simulated, factor: float, slope: float
) -> tuple[float | None, float | None]:
    ratios = _ratios(run, found)
    parts = min(PARTS, len(ratios) // 2)
    if parts < 2:
        return None, None
    means = np.array([part.mean() for part in np.array_split(ratios, parts)])
    half = STUDENT_95[parts - 2] * float(means.std(ddof=1)) / sqrt(parts) / slope
    return factor * exp(-half), factor * exp(half)


def _option(scenario: Scenario, kind: str) -> str:
    if kind == "scale":
        return f"--time-scale {scenario.time_scale:.4g}"
    first, _, rest = _host_time(scenario).partition("+")
    return f"--host-time {float(first):.4g}+{float(rest):.4g}"


def _hint(kind: str) -> str:
    return ": the GPU alone is slower, see --fit scale" if kind == "host" else ""
