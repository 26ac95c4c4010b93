"""Readings of a figure: each series is one system of one panel, under the chosen answers or another.

value      one run; its numbers
crossing   the request rate at which the mean normalised latency reaches a threshold; `drawn`: that rate from
           straight lines between the rates that the paper ran, `beyond` the last that its plot shows
sweep      the latency at each value of one setting, at a given rate or the one at which a latency is reached
swap       the cost profile's time to move or recompute a number of tokens: no run
mechanism  a closed form, or one mechanism of an allocator (reports/papers/mechanisms.py): no run
attainment the share of requests within limits at each rate that the paper ran, and the largest rate with 90 %
           (reports/papers/disaggregated.py)
served     the rate that a cluster serves within limits on percentiles, or else (reports/papers/served.py)
endless    what a cache that forgets nothing finds in a trace: no run (reports/papers/endless.py)
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from kvsim.reports.papers.cells import Bench, Cell, Numbers, deployment_of
from kvsim.reports.papers.declared import Figure, Paper, Table, merged
from kvsim.reports.papers.disaggregated import attainment_of
from kvsim.reports.papers.endless import found_percent
from kvsim.reports.papers.mechanisms import measured
from kvsim.reports.papers.served import cluster_of
from kvsim.sim.cost.named import cost_named
from kvsim.sim.cost.published import PS_PER_MS
from kvsim.sim.cost.step_cost import StepShape
from kvsim.sim.errors import KvsimError
from kvsim.sim.workload import Workload

CLOSE, OTHERS_CLOSE = 1.03, 1.06
"""A crossing is searched until its bracket is narrower than this factor; the second is for other answers."""
STEP = 1.2
MOST_RUNS = 12
MANY_PROMPTS = 20_000
"""For runs of this many requests or more, a crossing is first located on traces a sixth as long."""
FEWEST_PROMPTS = 100


@dataclass(frozen=True)
class Series:
    """One reading to compute."""

    figure: str
    panel: str
    system: str
    choice: str
    """"" for the chosen answers, else the name of the open choice that is answered differently."""
    reads: str
    cell: Cell
    settings: Table
    published: Table

    @property
    def weight(self) -> int:
        """Approximate requests that its runs serve."""
        if self.reads in ("swap", "mechanism", "endless"):
            return 1
        if self.reads == "attainment":
            rates = 10 + (0 if self.choice else len(self.rates))
            return int(rates * self.settings["seeds"] * self.cell["arguments"]["requests"])
        if self.reads == "served":
            own = self.settings
            rate = own.get("offered", self.cell["arguments"].get("start", 0))
            once = (own["warm_s"] + own.get("tail_s", 0)) * rate + own["requests"]
            return int(once * (4 if own["measure"] == "rate" else 1))
        if self.reads == "value":
            return int(_count(self.cell, self.settings))
        rate = float(self.published.get("rate") or self.settings["guess"])
        runs = 6 + len(self.settings.get("values", ())) + (len(self.rates) if not self.choice else 0)
        return int(runs * rate * self.settings["duration_s"])

    @property
    def effort(self) -> float:
        """Relative duration of its runs; a beam search is simulated step by step."""
        work = self.cell["workload"]
        return self.weight * max(work.get("n", 1), 4 * work.get("beam_width", 0))

    @property
    def rates(self) -> list[float]:
        """The published rates at which the latency is also plotted."""
        if self.settings.get("plot", True) is False:
            return []
        points = self.published.get("points", [])
        beyond = [self.published["beyond"]] if "beyond" in self.published else []
        return [point[0] for point in points if len(point) == 2] + beyond


@dataclass
class Found:
    """A result: named values, and points (x, y) to plot."""

    values: dict[str, float | None] = field(default_factory=dict)
    points: list[tuple[float, float]] = field(default_factory=list)
    cpu_s: float = 0.0
    runs: int = 0
    rejected: int = 0
    """Requests that no run could serve: they make a server look faster than it is."""


def all_series(paper: Paper, figure: Figure, quick: bool) -> list[Series]:
    """All series of a figure; `quick`: no open choices, short runs, fewer panels if the file says so."""
    settings = figure.settings
    if quick:
        settings = merged(settings, {"plot": False, **settings.get("quick", {})})
    found = []
    for name, panel in figure.panels.items():
        own = merged(settings, panel.get("settings", {}))
        if quick:
            own = merged(own, panel.get("quick", {}))
            if name not in own.get("panels", [name]):
                continue
        for system, published in panel["systems"].items():
            cell = paper.cell(figure, panel, system)
            here = merged(own, published.get("settings", {}))
            if quick:
                here = merged(here, published.get("quick", {}))
            found.append(Series(figure.number, name, system, "", figure.reads, cell, here, published))
            for choice in paper.choices:
                other = choice.changed(cell) if figure.number in choice.figures and not quick else None
                if other is not None:
                    found.append(
                        Series(figure.number, name, system, choice.name, figure.reads, other, here, published)
                    )
    return found


def find(series: Series, bench: Bench, heard: Callable[[int], object] | None = None) -> Found:
    """Compute a series; `heard` is called with the requests of each run when it is done."""
    return READINGS[series.reads](series, _Counter(bench, heard))


class _Counter:
    """A bench that counts its runs."""

    def __init__(self, bench: Bench, heard: Callable[[int], object] | None = None) -> None:
        self._bench = bench
        self.kept = bench.kept
        self.heard = heard or (lambda requests: None)
        self.found = Found()

    def numbers(self, cell: Cell) -> Numbers:
        """As `Bench.numbers`."""
        numbers = self._bench.numbers(cell)
        self.found.cpu_s += numbers["cpu_s"] or 0.0
        self.found.runs += 1
        self.found.rejected += int(numbers["rejected"] or 0)
        self.heard(int(numbers["requests"] or 0))
        return numbers

    def latency_of(self, cell: Cell, settings: Table, seen: dict[float, float]) -> Callable[[float], float]:
        """The mean normalised latency of a cell as a function of the rate; each is run once, and `seen`."""

        def latency(rate: float) -> float:
            if rate not in seen:
                seen[rate] = self.numbers(_at(cell, settings, rate))["latency_s"] or math.inf
            return seen[rate]

        return latency

    def trace(self, name: str) -> Workload:
        """All requests of a trace, as it has them."""
        return self._bench.build(name, num_prompts=None, request_rate=None, burstiness=None, seed=0)


def _count(cell: Cell, settings: Table) -> int:
    if "num_prompts" in settings:
        return int(settings["num_prompts"])
    return max(FEWEST_PROMPTS, round(cell["workload"]["request_rate"] * settings["duration_s"]))


def _at(cell: Cell, settings: Table, rate: float | None = None) -> Cell:
    """The cell at a rate, with as many requests as arrive in the duration."""
    if rate is not None:
        cell = merged(cell, {"workload": {"request_rate": rate}})
    window = {"window_s": settings["window_s"]} if "window_s" in settings else {}
    return merged(cell, {"workload": {"num_prompts": _count(cell, settings)}} | window)


# -- readings -------------------------------------------------------------------------------------


def _value(series: Series, bench: _Counter) -> Found:
    bench.found.values = dict(bench.numbers(_at(series.cell, series.settings)))
    values = bench.found.values
    token, free = values.get("token"), values.get("free")
    if token is not None and free is not None:
        moved = values["rounding"] or 0.0
        values["kept_internal"] = (values["internal"] or 0.0) - moved
        values["others"] = (values["external"] or 0.0) + free + moved
        values["waste_in_all"] = (values["reserved"] or 0.0) + (values["internal"] or 0.0)
    return bench.found


def _crossing(series: Series, bench: _Counter) -> Found:
    settings, seen = series.settings, dict[float, float]()
    latency = bench.latency_of(series.cell, settings, seen)
    if not series.choice:
        for rate in series.rates:
            latency(rate)
    threshold, ran = float(settings["threshold"]), sorted(seen.items())
    start, step = float(series.published["rate"]), STEP
    close = float(settings.get("close", OTHERS_CLOSE if series.choice else CLOSE))
    if not ran and start * settings["duration_s"] > MANY_PROMPTS:
        start, step = _neighbourhood(series, bench, start, threshold), close
    bench.found.values["rate"] = crossing(latency, start, threshold, ran, step=step, close=close)
    if "beyond" in series.published and series.rates and not series.choice:
        bench.found.values["drawn"] = on_straight_lines(ran, threshold)
    bench.found.points = sorted(seen.items())
    return bench.found


def _neighbourhood(series: Series, bench: _Counter, start: float, threshold: float) -> float:
    """The approximate crossing, from short traces, which put it a little too high."""
    short = merged(series.settings, {"duration_s": series.settings["duration_s"] / 6})
    return crossing(bench.latency_of(series.cell, short, {}), start, threshold, close=1.1)


def on_straight_lines(points: Sequence[tuple[float, float]], threshold: float) -> float | None:
    """The rate at which straight lines through these points reach the threshold; None if they do not."""
    for (low, below), (high, above) in pairwise(points):
        if below < threshold <= above:
            return low + (high - low) * (threshold - below) / (above - below)
    return None


def crossing(
    latency: Callable[[float], float],
    start: float,
    threshold: float,
    known: Sequence[tuple[float, float]] = (),
    *,
    step: float = STEP,
    close: float = CLOSE,
) -> float:
    """The rate at which a rising latency reaches the threshold.

    Brackets it, from `known` points or from `start` outwards in growing steps, and splits the bracket where a
    straight line through the logarithms of the latencies crosses, until it is narrower than `close`.
    """
    below = max((point for point in known if point[1] < threshold), default=None)
    above = min((point for point in known if point[1] >= threshold), default=None)
    if below and above and below[0] > above[0]:
        above = None
    rate, runs = start if below is None else below[0] * step if above is None else 0.0, 0
    while below is None or above is None:
        y = latency(rate)
        below, above = ((rate, y), above) if y < threshold else (below, (rate, y))
        rate = rate * step if above is None else rate / step
        step = max(step, min(step * step, STEP))
        runs += 1
        if runs > 4 * MOST_RUNS:
            raise KvsimError(f"no rate from {start} on has a latency of {threshold} s/token")
    for _ in range(MOST_RUNS):
        if above[0] / below[0] < close * (1 + 1e-9):
            break
        share = _share(below[1], above[1], threshold)
        rate = below[0] + (above[0] - below[0]) * min(max(share, 0.2), 0.8)
        y = latency(rate)
        below, above = ((rate, y), above) if y < threshold else (below, (rate, y))
    return below[0] + (above[0] - below[0]) * _share(below[1], above[1], threshold)


def _share(low: float, high: float, threshold: float) -> float:
    return (math.log(threshold) - math.log(low)) / (math.log(high) - math.log(low))


def _sweep(series: Series, bench: _Counter) -> Found:
    settings, cell = series.settings, series.cell
    table, key = settings["setting"].split(".")
    rate = cell["workload"]["request_rate"]
    if rate == "inf":
        latency = bench.latency_of(merged(cell, settings.get("rate_of", {})), settings, {})
        rate = crossing(latency, float(settings["guess"]), float(settings["threshold"]))
    bench.found.values["rate"] = rate
    for value in settings["values"]:
        y = bench.latency_of(merged(cell, {table: {key: value}}), settings, {})(rate)
        bench.found.values[str(value)] = y
        bench.found.points.append((value, y))
    return bench.found


def _swap(series: Series, bench: _Counter) -> Found:
    tokens, what = series.settings["tokens"], series.system
    for size in series.settings["values"]:
        cell = merged(series.cell, {"engine": {"block_size": size}})
        deployment = deployment_of(cell)
        cost = cost_named(deployment.cost, deployment)
        moved = {way: cost.swap_ps(way, -(-tokens // size) * size) for way in ("in", "out")}
        times = {
            "recompute": cost.step_ps(StepShape(prefill_tokens=tokens, prefill_seqs=1)),
            "swap in": moved["in"],
            "swap out": moved["out"],
            "swap in and out": sum(moved.values()),
        }
        bench.found.values[str(size)] = times[what] / PS_PER_MS
        bench.found.points.append((size, times[what] / PS_PER_MS))
    return bench.found


def _mechanism(series: Series, bench: _Counter) -> Found:
    bench.found.values = measured(series.settings["measure"], series.cell["arguments"])
    return bench.found


def _endless(series: Series, bench: _Counter) -> Found:
    work = bench.trace(series.cell["arguments"]["trace"])
    bench.found.values = {"found": found_percent(work, series.settings["block_tokens"])}
    return bench.found


def _attainment(series: Series, bench: _Counter) -> Found:
    settings, published = series.settings, series.published
    rates = [] if series.choice else series.rates
    system = attainment_of(series.cell["arguments"], settings["limits"], settings["seeds"], bench.heard)

    def find() -> Table:
        begun_s = time.process_time()
        points = [(rate, 100 * system.attained(rate)) for rate in rates]
        values = {
            "goodput": system.goodput(published["goodput"]),
            "attained": 100 * system.attained(published["goodput"]),
            "scale": system.scale(settings["rate"]),
        }
        return {
            "values": values,
            "points": points,
            "cpu_s": time.process_time() - begun_s,
            "runs": system.runs,
        }

    asked = {"cell": series.cell, "settings": settings, "goodput": published["goodput"], "rates": rates}
    return Found(**bench.kept(asked, find))


def _served(series: Series, bench: _Counter) -> Found:
    settings, arguments = series.settings, series.cell["arguments"]
    names = ("measure", "warm_s", "tail_s", "requests", "limits", "offered", "price")
    asked = {name: settings[name] for name in names if name in settings}
    cluster = cluster_of(arguments, settings, settings["requests"], bench.heard)

    def find() -> Table:
        begun_s, points = time.process_time(), []
        values: dict[str, float | None] = {}
        if settings["measure"] == "rate":
            values["rate"], tried = cluster.rate(settings["limits"], arguments["start"])
            points = [(each.load, each.excess) for each in tried]
        elif settings["measure"] == "saturated":
            values["per_dollar"] = cluster.saturated(settings["offered"]) / settings["price"]
        else:
            values = dict(zip(("ttft", "tbt", "e2e"), cluster.alone(), strict=True))
        cpu_s = time.process_time() - begun_s
        return {"values": values, "points": points, "cpu_s": cpu_s, "runs": cluster.runs}

    return Found(**bench.kept({"arguments": arguments, "asked": asked}, find))


READINGS = {
    "value": _value,
    "crossing": _crossing,
    "sweep": _sweep,
    "swap": _swap,
    "mechanism": _mechanism,
    "attainment": _attainment,
    "served": _served,
    "endless": _endless,
}
