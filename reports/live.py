"""sim run --live: a dashboard during a run, on the terminal's alternate screen.

    title, progress               a bar, requests, time left
    time, throughput, latency     so far, and lately: over the last seconds
    running, waiting              now, and over the simulated time so far
    the KV memory                 the ledger now, and over the simulated time so far

A thread samples (sim/record/glance.py) and draws three times per second. If drawing is slow or the machine is
busy it draws less often: the run first gets fifty times the CPU seconds of the last picture.
"""

import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from threading import Event

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.text import Text

from kvsim.reports.live_chart import LEVELS, WIDEST, Chart, slice_means
from kvsim.reports.pace import keep_pace
from kvsim.reports.palette import KINDS, count, figures, number, seconds, waste, whole_run
from kvsim.reports.progress import clock, watched_by
from kvsim.reports.terminal import LedgerBar
from kvsim.sim.record.glance import Glance, glance
from kvsim.sim.run import Outcome, Simulation

REFRESH_S = 0.3
MOST_SHARE = 1 / 50  # most CPU time spent on drawing, as a share
LATELY_S = 3.0
_LEAST_BAR = 20  # columns
_LEAST_CHART = 3  # rows
_MOST_CHART = 12
_NAMES = 13  # columns


def can_show() -> bool:
    """Whether stderr is a terminal that can show the dashboard."""
    return sys.stderr.isatty() and not Console(stderr=True).is_dumb_terminal


def of_several(
    simulation: Simulation, before: Sequence[Outcome], several: int, pace: float | None = None
) -> AbstractContextManager[None]:
    """The dashboard for one of several runs, with a line per finished run; `pace`: see reports/pace.py."""
    deployment = simulation.deployment
    place = f" ({len(before) + 1} of {several})" if several > 1 else ""
    server = f"{deployment.model.name} on {deployment.gpu.name}, {deployment.engine.scheduler}"
    if simulation.deployment.fleet.replicas > 1:
        server += f", {simulation.deployment.fleet.replicas:,} replicas together"
    if deployment.pools:
        each = ", ".join(f"{pool.replicas} x {pool.name}" for pool in deployment.pools)
        server = f"{deployment.model.name} on {each}, all replicas together"
    title = f"{simulation.label}{place}: {server}"
    if pace is not None:
        keep_pace(simulation.engine, pace)
    return live(simulation, title, [_line_of(outcome) for outcome in before], paced=pace is not None)


def _line_of(outcome: Outcome) -> str:
    summary = outcome.summary
    percent = whole_run(summary)
    rate = figures(number(summary["throughput"]["requests_per_s"]))
    memory = f"{percent['token']:.1f} % tokens, {waste(percent):.1f} % waste over the whole run"
    return f"{summary['label']}: {rate} requests/s, {memory}"


@contextmanager
def live(
    simulation: Simulation, title: str, before: Sequence[str] = (), paced: bool = False
) -> Iterator[None]:
    """Show the dashboard while the block runs the simulation.

    Parameters
    ----------
    title : str
        Name of the run.
    before : sequence of str
        A line for each finished run of a comparison.
    paced : bool
        Whether the run waits for the wall clock, so that drawing does not slow it down.
    """
    screen = Live(console=Console(stderr=True), screen=True, auto_refresh=False, redirect_stdout=False)
    with screen, watched_by(_watch, simulation, title, before, screen, paced):
        yield


def _watch(  # noqa: PLR0917 - of a thread
    over: Event, simulation: Simulation, title: str, before: Sequence[str], screen: Live, paced: bool
) -> None:
    pace = Pace()
    wait_s = due_s = 0.0
    while not over.wait(wait_s):
        early_s = due_s - time.process_time()
        if early_s > 0:
            wait_s = max(early_s, 0.05)
            continue
        spent_s = time.thread_time()
        seen = glance(simulation.engine)
        pace.note(time.monotonic(), seen)
        try:
            screen.update(Dashboard(title, seen, pace, before), refresh=True)
        except OSError:  # the terminal has closed
            return
        wait_s = REFRESH_S
        due_s = 0.0 if paced else time.process_time() + (time.thread_time() - spent_s) / MOST_SHARE


class Pace:
    """The recent speed of a run, from timed samples."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float, int, int]] = deque()  # wall, simulated, done, tokens

    def note(self, wall_s: float, seen: Glance) -> None:
        """Add a sample, and drop old ones."""
        done = seen.finished + seen.rejected
        self._seen.append((wall_s, seen.simulated_s, done, seen.tokens))
        while len(self._seen) > 2 and self._seen[1][0] <= wall_s - LATELY_S:
            self._seen.popleft()

    def speed(self) -> float | None:
        """Simulated seconds per second."""
        return self._ratio(1, 0)

    def left_s(self, requests: int) -> float | None:
        """Estimated wall-clock seconds until all requests are done."""
        rate = self._ratio(2, 0)
        return (requests - self._seen[-1][2]) / rate if rate else None

    def rates(self) -> tuple[float | None, float | None]:
        """Requests and tokens per simulated second."""
        return self._ratio(2, 1), self._ratio(3, 1)

    def _ratio(self, above: int, below: int) -> float | None:
        if not self._seen:
            return None
        first, last = self._seen[0], self._seen[-1]
        passed = last[below] - first[below]
        return (last[above] - first[above]) / passed if passed > 0 else None


@dataclass(frozen=True)
class Dashboard:
    """One frame of the dashboard; if the terminal is short, the lowest parts are omitted first."""

    title: str
    seen: Glance
    pace: Pace
    before: Sequence[str] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """At most as many lines as the terminal has."""
        width, height = min(options.max_width, WIDEST), options.height or console.height
        plain = options.ascii_only
        lines: list[RenderableType] = [_clipped(self.title, "bold"), *self._progress(width, plain)]
        lines += self._facts()
        if not plain:
            lines += [self._spark("running", width), self._spark("waiting", width)]
        used = len(lines)
        if any(self._percent().values()):
            ledger = ["", LedgerBar(self._percent(), WIDEST)]
            lines += ledger
            used += 1 + len(console.render_lines(ledger[1], options.update(height=None)))
        rest = height - used - len(self.before) - bool(self.before)
        if rest - 2 >= _LEAST_CHART and len(self.seen.rows) > 1 and not plain:
            lines += ["", Chart(self.seen.rows, min(rest - 2, _MOST_CHART)), self._axis(width)]
        if self.before:
            lines += ["", *(_clipped(line, "dim") for line in self.before)]
        yield from lines

    def _progress(self, width: int, plain: bool) -> list[RenderableType]:
        """A bar with words beside it, or below if there is no room."""
        seen = self.seen
        done = seen.finished + seen.rejected
        share = f"{100 * done // seen.requests} %" if seen.requests else "100 %"
        left = self.pace.left_s(seen.requests)
        unit = " requests" if width >= 60 else ""
        words = f"{done:,} of {seen.requests:,}{unit}, {share}"
        words += "" if left is None else f", {clock(left)} left"
        beside = width - len(words) >= _LEAST_BAR
        cells = width - len(words) - 2 if beside else width
        full = cells * done // (seen.requests or 1)
        mark, empty = "#-" if plain else "━━"
        bar = Text.assemble((mark * full, KINDS["token"].colour), (empty * (cells - full), "bright_black"))
        return [bar.append(f"  {words}"), ""] if beside else [bar, _clipped(words), ""]

    def _facts(self) -> list[Text]:
        seen = self.seen
        simulated, lately = seen.simulated_s, self.pace.rates()
        facts = {"simulated": span(simulated), "speed": f"{count(self.pace.speed())} s per second"}
        for name, total, late in (("requests/s", seen.finished, 0), ("tokens/s", seen.tokens, 1)):
            words = figures(total / simulated if simulated else None)
            facts[name] = words + ("" if lately[late] is None else f", lately {figures(lately[late])}")
        if seen.first_token_s:
            median, high = map(seconds, seen.first_token_s)
            facts["first token"] = f"{median} p50, {high} p99"
        facts["preempted"] = count(seen.preemptions) + (" times" if seen.preemptions != 1 else " time")
        if seen.rejected:
            facts["rejected"] = f"{count(seen.rejected)} requests"
        return [_fact(name, text) for name, text in facts.items()]

    def _spark(self, name: str, width: int) -> Text:
        """The current number, and its history as a sparkline."""
        now = f"{self.seen.now[name]:,}"
        room = width - _NAMES - 9
        (values,) = slice_means(self.seen.rows, room, (name,))
        most = max(values, default=0)
        bars = "".join(LEVELS[1 + int(7 * value / most) if value else 0] for value in values)
        return _fact(name, Text.assemble(f"{now:<9}", (bars, "cyan")))

    def _percent(self) -> dict[str, float]:
        now, capacity = self.seen.now, self.seen.capacity_slots
        return {kind: 100 * now[kind] / capacity for kind in KINDS}

    def _axis(self, width: int) -> Text:
        end = span(self.seen.rows[-1][0] / 1e12)
        return Text(f"0 s{end:>{max(width - 3, 0)}}", "dim", no_wrap=True, overflow="crop")


def _fact(name: str, text: str | Text) -> Text:
    line = Text(no_wrap=True, overflow="crop")
    return line.append(f"{name:<{_NAMES}}", "dim").append(text)


def _clipped(text: str, style: str = "") -> Text:
    return Text(text, style, no_wrap=True, overflow="ellipsis")


def span(duration_s: float) -> str:
    """A duration in suitable units: `12.3 s`, `5 min 20 s`, `3 h 16 min`, `2 d 5 h`."""
    if duration_s < 100:
        return f"{duration_s:.1f} s"
    whole = int(duration_s)
    for unit, small, size in (("min", "s", 60), ("h", "min", 3600)):
        if whole < 100 * 60 * (size // 60):
            return f"{whole // size} {unit} {whole % size // (size // 60)} {small}"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"
