"""Run `sim replay` and `kvsim.replay`: read a measured run, simulate it, compare, fit, try changes.

import kvsim

replay = kvsim.replay("result.json", model="llama-3.1-8b", gpu="h100", log="server.log", fit="scale")
replay.table        # a row per number: measured, simulated, fitted
replay.requests     # a row per request
replay.plot("requests")
"""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.sim.bench.asked import ReplayOptions
from kvsim.sim.bench.compared import Compared
from kvsim.sim.bench.fitting import Fitted, fitted
from kvsim.sim.bench.hits import prefix_of
from kvsim.sim.bench.logged import check_changes, clocked
from kvsim.sim.bench.measured import Key, MeasuredRun
from kvsim.sim.bench.read import read_result
from kvsim.sim.bench.replay import Simulated, compared, pairs, simulated
from kvsim.sim.bench.server import Server, of_vllm, server_of
from kvsim.sim.bench.what_if import changed, in_words, parsed, split
from kvsim.sim.bench.why import Term, terms
from kvsim.sim.bench.workload import Load
from kvsim.sim.errors import KvsimError, unknown
from kvsim.sim.fit.log import read_log
from kvsim.sim.fit.running import read_running
from kvsim.sim.option import checked
from kvsim.sim.options.scenario import Scenario
from kvsim.sim.run import release_defaults

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from kvsim.reports.figures.style import Style


@dataclass(frozen=True)
class Replay:
    """A measured run beside the same run simulated.

    Attributes
    ----------
    run : MeasuredRun
        The contents of the file.
    server : Server
        The simulated server, and where its settings are from.
    found : Simulated
        The replay.
    terms : list of Term
        Where the two differ.
    fitted : Fitted or None
    changes : mapping
        The settings of the what-if.
    changed : Simulated or None
        The replay with these changes, on the fitted server if one was fitted.
    """

    run: MeasuredRun
    server: Server
    found: Simulated
    terms: list[Term]
    fitted: Fitted | None
    changes: Mapping[str, Any]
    changed: Simulated | None

    @property
    def compared(self) -> list[Compared]:
        """Each number that both the file and the simulation have."""
        return compared(self.run, self.found)

    def others(self) -> dict[str, Mapping[Key, float]]:
        """The numbers of the fitted and the changed server, by name."""
        found: dict[str, Mapping[Key, float]] = {}
        if self.fitted is not None:
            found["fitted"] = self.fitted.found.numbers
        if self.changed is not None:
            found["what if"] = self.changed.numbers
        return found

    @property
    def table(self) -> "pd.DataFrame":
        """A row per number, in seconds and per second: measured, simulated, and fitted or what-if."""
        import pandas as pd

        rows = [
            {
                "what": each.what,
                "statistic": each.statistic,
                "measured": each.measured,
                "simulated": each.simulated,
                "off": each.off,
            }
            | {name: numbers[each.what, each.statistic] for name, numbers in self.others().items()}
            for each in self.compared
        ]
        return pd.DataFrame(rows)

    @property
    def requests(self) -> "pd.DataFrame":
        """A row per request, measured and simulated, in seconds; empty for a run known by its numbers."""
        import pandas as pd

        if self.run.requests is None:
            return pd.DataFrame()
        rows = self.found.rows
        columns: dict[str, Any] = {
            "input_tokens": self.run.requests.input_tokens[rows],
            "output_tokens": self.run.requests.output_tokens[rows],
        }
        if self.run.requests.start_s is not None:
            columns = {"start_s": self.run.requests.start_s[rows], **columns}
        for what, (measured, found) in pairs(self.run, self.found).items():
            columns[f"measured_{what.lower()}_s"], columns[f"simulated_{what.lower()}_s"] = measured, found
        return pd.DataFrame(columns)

    @property
    def why(self) -> "pd.DataFrame":
        """A row per component of the difference in mean E2E latency."""
        import pandas as pd

        return pd.DataFrame([vars(each) for each in self.terms])

    def plot(self, figure: str = "requests", style: str = "screen") -> "Figure":
        """Draw one of the figures: `requests`, `time`."""
        from kvsim.reports.figures.replay import FIGURES, picture
        from kvsim.reports.figures.style import style_named
        from kvsim.reports.replays import Replayed

        if figure not in FIGURES:
            raise unknown("figure", figure, list(FIGURES))
        return picture(Replayed.of(self.run, self.found), figure, style_named(style))

    def as_json(self) -> dict[str, Any]:
        """The numbers in JSON's types."""
        factor = self.fitted
        return {
            "result": self.run.name,
            "tool": self.run.tool,
            "requests": self.run.count,
            "failed": self.run.failed,
            "numbers": [
                {"what": each.what, "statistic": each.statistic, "measured": each.measured}
                | {"simulated": each.simulated}
                | {name: numbers.get((each.what, each.statistic)) for name, numbers in self.others().items()}
                for each in self.compared
            ],
            "difference": [vars(each) for each in self.terms],
            "fit": None
            if factor is None
            else {
                "kind": factor.kind,
                "factor": factor.factor,
                "low": factor.low,
                "high": factor.high,
                "option": factor.option,
            },
            "what_if": dict(self.changes),
            "cost": self.found.summary["cost"],
            "what_if_cost": None if self.changed is None else self.changed.summary["cost"],
            "notes": self.notes(),
        }

    def clock(self) -> list[str]:
        """The simulated server's clock and its errors; also those of a what-if if they differ."""
        from kvsim.reports.clocks import differ, told

        cost: Any = self.found.summary["cost"]
        said = [f"Clock: {told([cost])}."]
        if self.changed is None:
            return said
        start: Any = self.found if self.fitted is None else self.fitted.found
        costs = [start.summary["cost"], self.changed.summary["cost"]]
        if told(costs[1:]) != told(costs[:1]):
            said.append(f"Clock of the what-if: {told(costs[1:])}.")
        return [*said, *filter(None, [differ(zip(("before", "what if"), costs, strict=True))])]

    def notes(self) -> list[str]:
        """What was assumed, cut off and omitted."""
        left = [f"{self.run.failed:,} requests failed and are left out."] if self.run.failed else []
        if missing := self.run.cut_count - (0 if self.run.cut is None else len(self.run.cut)):
            left.append(
                f"{missing:,} more requests were cut when the time was up: the result does not hold them."
            )
        served = len(self.found.rows)
        if self.run.requests is not None and served < self.run.count:
            left.append(f"{self.run.count - served:,} requests do not fit the simulated server: left out.")
        notes = self.found.summary["notes"]
        assert isinstance(notes, list)
        told = release_defaults([self.found.scenario.deployed()]) if of_vllm(self.server.asked) else []
        return [*self.run.notes, *left, *self.server.told, *(str(each) for each in notes if each not in told)]

    def __repr__(self) -> str:
        return f"<Replay of {self.run.name}: {self.run.count:,} requests, {self.run.tool}>"


@checked
def replay(
    result: str | Path,
    *,
    log: str | Path | None = None,
    run: int | None = None,
    fit: str | None = None,
    what_if: str | Mapping[str, Any] | None = None,
    shared_prefix: str | None = None,
    server: Scenario | None = None,
    **options: Any,  # noqa: ANN401 - those of a Scenario
) -> Replay:
    """Replay a benchmark's result in the simulator, and compare.

    Parameters
    ----------
    result : str or Path
        A result file of vllm bench serve, AIPerf, GuideLLM or inference-perf.
    log : str or Path, optional
        vLLM's start-up log, with its flags and the size of the KV cache.
    run : int, optional
        Which run of the file, counted from 1; None: the last.
    fit : "host" or "scale", optional
        Fit one factor to the measured TPOT, see sim/bench/fitting.py.
    what_if : str or mapping, optional
        Other settings of the server, as in `block_size=32`, or another load, as in `rate_scale=2`.
    shared_prefix : str, optional
        The prompts' beginning, as in `6x256`: one of 6 texts of 256 tokens; `none`: nothing; None: chosen
        to give the hits in the log.
    server : Scenario, optional
        The server; the options below change it.
    **options
        Any server option of `sim run`, spelt with underscores; `model` and `gpu` are required.

    Returns
    -------
    Replay

    Raises
    ------
    KvsimError
        A file that cannot be read or is of no such tool, an unknown option, an impossible server.

    Examples
    --------
    >>> import kvsim
    >>> kvsim.replay("result.json", model="llama-3.1-8b", gpu="h100").table  # doctest: +SKIP
    """
    from kvsim.api import described_server

    if server is None and not {"model", "gpu"} <= options.keys():
        raise KvsimError("replay needs model and gpu, the server that was measured")
    options_asked = ReplayOptions(
        log=None if log is None else Path(log), run=run, fit=fit, shared_prefix=shared_prefix
    )
    changes = parsed(what_if) if isinstance(what_if, str) else dict(what_if or {})
    return _replay(Path(result), described_server(server, options), options_asked, changes)


def _replay(
    result: Path,
    asked: Scenario,
    options: ReplayOptions,
    changes: Mapping[str, Any],
    tried: Callable[[float], None] = lambda factor: None,
) -> Replay:
    """Read, simulate, fit and change; `tried` is called after each try of a fit."""
    measured = read_result(result, options.run)
    log = None if options.log is None else read_log(options.log)
    lines = None if options.log is None else read_running(options.log)
    server, timed = asked, ()  # type: Scenario, tuple[str, ...]
    if log is not None and lines is not None:
        server, timed = clocked(measured, asked, log, lines)
    found = server_of(server, measured, log)
    prefix, said = prefix_of(measured, found.scenario, options.shared_prefix, lines)
    found = replace(found, told=(*found.told, *timed, *said), asked=asked)
    load = Load(shared_prefix=prefix)
    first = simulated(measured, found.scenario, load)
    factor = None if options.fit is None else fitted(measured, found.scenario, options.fit, tried, load)
    other = None
    if changes:
        settings, other_load = split(changes)
        check_changes(found.scenario, asked, settings)
        start = found.scenario if factor is None else factor.scenario
        other = simulated(
            measured, changed(start, settings, found.asked), replace(other_load, shared_prefix=prefix)
        )
    return Replay(measured, found, first, terms(measured, first), factor, changes, other)


def replayed(result: Path, server: Scenario, asked: ReplayOptions) -> None:
    """Run the command: print the comparison, and draw it if requested."""
    from kvsim.reports.progress import progress
    from kvsim.reports.replay import replay_report

    tries: list[float] = []
    changes = {} if asked.what_if is None else parsed(asked.what_if)
    with progress(f"replay {result.name}", 0, lambda: len(tries), "tries"):
        found = _replay(result, server, asked, changes, tries.append)
    for note in found.run.notes:
        if " is cut in line " in note:
            print(f"warning: {result}: {note}", file=sys.stderr)
    if asked.json:
        print(json.dumps(found.as_json(), indent=2, ensure_ascii=False))
    else:
        from kvsim.reports.listing import show

        show(
            replay_report(
                found.run, found.compared, found.others(), found.terms, found.fitted,
                in_words(found.changes), found.clock(), found.notes(),
            )
        )  # fmt: skip
    if asked.out is not None:
        from kvsim.reports.rundir.writing import print_figures

        print_figures(asked.out, partial(_write, found), asked, asked.force)


def _write(found: Replay, part: Path, style: "Style") -> None:
    from kvsim.reports.figures.replay import draw_replay
    from kvsim.reports.replays import Replayed

    replayed = Replayed.of(found.run, found.found)
    replayed.write(part, found.as_json())
    if replayed.latencies:
        draw_replay(replayed, part, style)
