"""Results of simulations, in memory or in a directory: single runs, and runs side by side.

    run.summary      numbers with names and types            run.plot("memory")   a matplotlib Figure
    run.requests     a pandas DataFrame, a row per request   run.report()         the page for the browser
    run.timeline     the ledger and the queues over time     run.explain(7)       the life of a request
    run.steps ...    if they were recorded                   run.save("out")      a directory of results

Column names include their units; docs/output.md describes each column. pandas, matplotlib and rich are
imported on first use.
"""

import shutil
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, overload

from kvsim.reports.rundir.formats import plain
from kvsim.reports.rundir.run import Run as Stored
from kvsim.reports.rundir.run import Tables
from kvsim.sim import __version__
from kvsim.sim.errors import KvsimError
from kvsim.sim.options.outputs import Pictures
from kvsim.sim.record.events import Texts
from kvsim.sim.record.summary import Summary
from kvsim.sim.run import Outcome

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from kvsim.reports.lives.view import Told

RECORDED = {
    "steps": "step_log=True",
    "samples": "requests with several answers (n=2)",
    "events": "record_map=240",
    "map": "record_map=240",
}
"""Tables that not every run has -> the option or condition that records them."""


class Home:
    """A temporary directory, deleted when its last reference goes."""

    def __init__(self) -> None:
        self.name = mkdtemp(prefix="kvsim-")
        weakref.finalize(self, shutil.rmtree, self.name, ignore_errors=True)


@dataclass(frozen=True, eq=False, repr=False)
class Run(Stored):
    """One run: its settings, numbers, tables and figures.

    Attributes
    ----------
    label : str
        Its name in a comparison, such as `paged` or `buddy-pow2`.
    config : dict
        Everything needed to repeat the run, as in `config.json`.
    summary : Summary
        The run's numbers, as in `summary.json`.
    path : Path
        The run's directory; a run that was not saved has a temporary one of its own.
    """

    outcome: Outcome | None = None
    home: "Home | None" = field(default=None, repr=False)

    @classmethod
    def of(cls, outcome: Outcome) -> "Run":
        """A run built from a simulation's outcome."""
        label = str(outcome.summary["label"])
        home = Home()
        return cls(
            path=Path(home.name) / label,
            label=label,
            config=plain(outcome.config),
            summary=Summary(plain(outcome.summary)),
            columns=Tables(dict(outcome.requests), dict(outcome.timeline)),
            outcome=outcome,
            home=home,
        )

    @classmethod
    def at(cls, stored: Stored) -> "Run":
        """A run stored in a directory."""
        return cls(stored.path, stored.label, stored.config, stored.summary, stored.columns, stored.place)

    # -- tables ---------------------------------------------------------------------------------

    @cached_property
    def requests(self) -> "pd.DataFrame":
        """A row per request: lengths in tokens, times and latencies in seconds, NaN if it was rejected."""
        return self._frame("requests")

    @cached_property
    def timeline(self) -> "pd.DataFrame":
        """The ledger in slots and the queues in requests, from `time_s` until the next row."""
        return self._frame("timeline")

    @cached_property
    def steps(self) -> "pd.DataFrame":
        """A row per engine step; needs `step_log=True`."""
        return self._frame("steps")

    @cached_property
    def samples(self) -> "pd.DataFrame":
        """A row per answer; only for runs whose requests have several answers."""
        return self._frame("samples")

    @cached_property
    def events(self) -> "pd.DataFrame":
        """The events of each request, with times and reasons; needs `record_map`."""
        return self._frame("events")

    @cached_property
    def map(self) -> "pd.DataFrame":
        """Which slots changed hands at each recorded instant; needs `record_map`."""
        return self._frame("map")

    def _frame(self, name: str) -> "pd.DataFrame":
        frame = self._whole_frame(name)
        if self.place is None:
            return frame
        if "replica" in frame:
            return frame[frame["replica"] == self.place]
        return frame[frame["request"].isin(self.columns.requests["request"])]

    def _whole_frame(self, name: str) -> "pd.DataFrame":
        """The table of the whole fleet."""
        import pandas as pd

        if self.outcome is not None:
            columns = getattr(self.outcome, name)
            if columns is not None:
                return pd.DataFrame({column: _series(values) for column, values in columns.items()})
        elif (self.path / f"{name}.parquet").is_file():
            return pd.read_parquet(self.path / f"{name}.parquet")
        raise KvsimError(f"{name} were not recorded in run {self.label}: they need {RECORDED[name]}")

    # -- pictures and pages ---------------------------------------------------------------------

    def plot(
        self,
        figure: str = "memory",
        *,
        style: str = "screen",
        at: float | None = None,
        latency: str | None = None,
    ) -> "Figure":
        """Draw one of the figures of `sim plot`.

        Parameters
        ----------
        figure : str
            `memory`, `waste`, `requests`, `latency`, ...: see docs/output.md.
        style : str
            `screen`, `paper` or `dark`.
        at : float or None
            The instant of the memory map, in seconds of simulated time; None: when it is fullest.
        latency : str or None
            The latency in figures over several runs, as in `ttft:p99`.

        Returns
        -------
        matplotlib.figure.Figure
            Notebooks display it directly; `.savefig(FILE)` saves it.

        Raises
        ------
        KvsimError
            An unknown figure, or a run that lacks the data for it.
        """
        return Comparison([self]).plot(figure, style=style, at=at, latency=latency)

    def report(self, path: str | Path | None = None) -> Path:
        """Write an HTML page with charts, every request and the data that `record_map` recorded.

        Parameters
        ----------
        path : str or Path, optional
            The file; None: `report.html` in the run's directory. A run that was not saved has a temporary
            directory, deleted together with the run.

        Returns
        -------
        Path
            The file.
        """
        return Comparison([self]).report(path)

    def explain(self, request: int | str, *, allow_code: bool = False) -> "Told":
        """Explain the life of a request: what happened when, and why it waited.

        Parameters
        ----------
        request : int or str
            Its number, or `slowest`, `median` or `most-preempted`.
        allow_code : bool
            If the run has to be repeated: run the code that a loaded run's config names.

        Returns
        -------
        Told
            Its lines and the breakdown of its time; `print` shows it as `sim explain` does.
        """
        from kvsim.commands.repeat import event_log_of
        from kvsim.reports.lives.apart import story_of
        from kvsim.reports.lives.story import chosen
        from kvsim.reports.lives.view import Told
        from kvsim.sim.plugins import trusting

        _, number, how = chosen([self], str(request))
        with trusting(None if allow_code or self.outcome is not None else ""):
            log = event_log_of(self)
        return Told(**vars(story_of(self, log, number, how)))

    def save(self, directory: str | Path, *, force: bool = False, plots: bool = False) -> Path:
        """Write the run as `sim run --out` does, atomically.

        Parameters
        ----------
        force : bool
            Replace an earlier run there.
        plots : bool
            Also draw the usual figures.
        """
        from kvsim.reports.rundir.writing import write_run

        if self.outcome is None:
            raise KvsimError(f"run {self.label} is saved already, in {self.path}")
        try:
            write_run(
                Path(directory), **vars(self.outcome), pictures=Pictures() if plots else None, force=force
            )
        except KvsimError as error:
            raise KvsimError(str(error).replace("--force", "force=True")) from error
        return Path(directory)

    def stored(self) -> Stored:
        """The run in the form that reports need, with its files in a directory."""
        if self.outcome is not None and not self.path.exists():
            self.save(self.path)
        return self

    # -- how it looks ---------------------------------------------------------------------------

    def __repr__(self) -> str:
        from kvsim.reports.headline import headline

        return f"<kvsim.Run {headline([self.summary])}>"

    def _repr_html_(self) -> str:
        from kvsim.reports.html.cell import run_cell

        return run_cell(self.summary)


class Comparison(Sequence[Run]):
    """Runs side by side: a sequence of runs, with a table and figures of them all.

    Parameters
    ----------
    runs : iterable of Run
        In display order.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = list(runs)
        if not self._runs:
            raise KvsimError("runs to compare must be at least one, got 0")

    @overload
    def __getitem__(self, place: int) -> Run: ...
    @overload
    def __getitem__(self, place: slice) -> "Comparison": ...
    @overload
    def __getitem__(self, place: str) -> Run: ...

    def __getitem__(self, place: int | slice | str) -> "Run | Comparison":
        if isinstance(place, slice):
            return Comparison(self._runs[place])
        if isinstance(place, int):
            return self._runs[place]
        apart = self._told_apart()
        named = [run for run, told in zip(self._runs, apart, strict=True) if place in (run.label, told.label)]
        if len(named) != 1:
            known = ", ".join(dict.fromkeys(run.label for run in apart))
            raise KeyError(f"{len(named)} runs are called {place!r} (labels: {known})")
        return named[0]

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    def __add__(self, others: Sequence[Run]) -> "Comparison":
        return Comparison([*self._runs, *others])

    @property
    def table(self) -> "pd.DataFrame":
        """A row per run: the label, every setting in which the runs differ, every number of the summary."""
        import pandas as pd

        settings = differing([run.config for run in self._runs])
        rows = [
            {"label": label, **own, **_numbers(run.summary.flat())}
            for run, label, own in zip(self._runs, self._named(), settings, strict=True)
        ]
        return pd.DataFrame(rows)

    def plot(
        self,
        figure: str = "waste",
        *,
        style: str = "screen",
        at: float | None = None,
        latency: str | None = None,
    ) -> "Figure":
        """Draw a figure of all runs, see `Run.plot`; runs that differ only in the seed are one system."""
        from kvsim.reports.figures import Choices, Latency, check, picture, style_named

        check([figure])
        choices = Choices(style_named(style), at, Latency.parse(latency) if latency is not None else None)
        return picture([run.stored() for run in self._told_apart()], figure, choices)

    def report(self, path: str | Path | None = None) -> Path:
        """Write one HTML page of all runs, see `Run.report`; returns its path."""
        from kvsim.reports.html.report import write_page
        from kvsim.reports.rundir.run import read_run

        runs = [run.stored() for run in self._told_apart()]
        target = runs[0].path / "report.html" if path is None else Path(path)
        return write_page([replace(read_run(run.path), label=run.label) for run in runs], target)

    def save(self, directory: str | Path, *, force: bool = False, plots: bool = False) -> Path:
        """Write the runs as `sim compare --out` does, one subdirectory per run, atomically.

        Parameters
        ----------
        force : bool
            Replace an earlier comparison there.
        plots : bool
            Also draw the usual figures.

        Raises
        ------
        KvsimError
            A run was loaded, so is saved already; or the directory cannot be replaced.
        """
        from kvsim.reports.rundir.writing import write_comparison

        saved = [run for run in self._runs if run.outcome is None]
        if saved:
            raise KvsimError(f"run {saved[0].label} is saved already, in {saved[0].path}")
        runs = {run.label.replace(", ", "-").replace(" ", "-"): run for run in self._told_apart()}
        if len(runs) < len(self):
            raise KvsimError(f"runs to save must differ: {len(self)} runs have {len(runs)} settings")
        parts = [
            {**vars(run.outcome), "summary": {**run.summary.as_json(), "label": label}}
            for label, run in runs.items()
        ]
        config = {"kvsim": __version__, "runs": {label: run.config for label, run in runs.items()}}
        try:
            write_comparison(
                Path(directory), parts, config=config, pictures=Pictures() if plots else None, force=force
            )
        except KvsimError as error:
            raise KvsimError(str(error).replace("--force", "force=True")) from error
        return Path(directory)

    def _told_apart(self) -> list[Run]:
        """The runs with distinct labels, as far as their settings differ."""
        labels = [
            ", ".join([run.label, *(_said(*each) for each in own.items())])
            for run, own in zip(self._runs, self._own(), strict=True)
        ]
        return [replace(run, label=label) for run, label in zip(self._runs, labels, strict=True)]

    def _named(self) -> list[str]:
        """Labels with the names of the parts that distinguish runs with the same label."""
        parts = [[str(value) for name, value in own.items() if name in NAMED] for own in self._own()]
        return [", ".join([run.label, *each]) for run, each in zip(self._runs, parts, strict=True)]

    def _own(self) -> list[dict[str, Any]]:
        """For each run, the settings that distinguish it from others with its label."""
        alike: dict[str, list[Run]] = {}
        for run in self._runs:
            alike.setdefault(run.label, []).append(run)
        left = {
            label: iter(_telling(differing([run.config for run in runs]))) for label, runs in alike.items()
        }
        return [next(left[run.label]) for run in self._runs]

    def __repr__(self) -> str:
        return f"<kvsim.Comparison of {len(self)} runs: {'; '.join(self._named())}>"

    def _repr_html_(self) -> str:
        from kvsim.reports.html.cell import comparison_cell

        runs = self._told_apart()
        return comparison_cell([run.summary for run in runs], [run.label for run in runs])


def differing(configs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each config, the settings that differ between configs; models, GPUs and profiles by name."""
    named_only = [
        part for part in ("model", "gpu") if _name_says_all([each["scenario"][part] for each in configs])
    ]
    flat = [
        Summary(
            {
                "workload": config["workload"],
                "scenario": config["scenario"]
                | {part: config["scenario"][part]["name"] for part in named_only}
                | {"profile": (config["scenario"].get("profile") or {}).get("name")},
            }
        ).flat()
        for config in configs
    ]
    names = dict.fromkeys(name for each in flat for name in each)
    kept = [name for name in names if any(each.get(name) != flat[0].get(name) for each in flat)]
    short = {name: name.rpartition(".")[2] for name in kept}
    twice = {name for name in short.values() if list(short.values()).count(name) > 1}
    named = {name: name if short[name] in twice else short[name] for name in kept}
    return [{named[name]: each.get(name) for name in kept} for each in flat]


Settings = list[dict[str, Any]]
NAMED = ("scheduler", "model", "gpu")
"""Settings from which other settings follow."""


def _telling(settings: Settings) -> Settings:
    """Only the names of parts, if these and the seed distinguish all runs."""
    short = [{name: each[name] for name in (*NAMED, "seed") if name in each} for each in settings]
    return short if len(set(map(repr, short))) == len(set(map(repr, settings))) else settings


def _said(name: str, value: object) -> str:
    return str(value) if name in NAMED else f"{name.replace('_', ' ')} {value}"


def _name_says_all(specs: Sequence[Mapping[str, Any]]) -> bool:
    """Whether all specs of the same name are equal."""
    first = {str(each["name"]): each for each in reversed(specs)}
    return all(each == first[str(each["name"])] for each in specs)


def _numbers(flat: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in flat.items() if isinstance(value, int | float) or value is None}


def _series(values: Any) -> Any:  # noqa: ANN401 - a numpy column or a column of texts
    """A column for pandas: strings as categories, read-only numbers copied."""
    if isinstance(values, Texts):
        import pandas as pd

        return pd.Categorical.from_codes(values.codes, categories=values.texts)
    return values
