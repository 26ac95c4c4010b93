"""Read runs back from their directories, in the form that reports use."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kvsim.reports.away import away, without_absent
from kvsim.reports.rundir.formats import MOST, Columns, load_json, read_columns, read_json
from kvsim.reports.rundir.stack import LOWER, owners
from kvsim.sim.complaints import printable
from kvsim.sim.errors import KvsimError
from kvsim.sim.files.marker import read_marker
from kvsim.sim.options.pools import WAYS
from kvsim.sim.record.summary import Summary

_SECTIONS = ("label", "requests", "throughput", "latency", "memory", "engine")
REQUEST_COLUMNS = (
    *("request", "arrival_s", "prompt_tokens", "output_tokens", "status"),
    *("ttft_s", "tpot_s", "e2e_s", "normalized_s_per_token"),
)
_TIMELINE_COLUMNS = (
    *("time_s", "token", "reserved", "internal", "cached", "external", "free"),
    *("running", "waiting"),
)
_ALSO_IN_TIMELINES = (
    *("held", "idle", "largest_free_extent", "preemptions", "replica"),
    *("tier_held_bytes", "tier_loaded_bytes", "tier_stored_bytes"),
)
"""Optional numeric columns; the columns of lower tiers have the tier in their names (`LOWER`)."""

REQUEST_NUMBERS = (
    *("queueing_s", "num_preemptions", "first_scheduled_s", "first_token_s", "finish_s"),
    *("first_scheduled_step", "first_token_step", "finish_step", "replica"),
)
"""Optional numeric columns of `requests`; labels from the trace may hold anything."""

Floats = npt.NDArray[Any]


@dataclass(frozen=True)
class Tables:
    """The columns that every run has; a timeline row is valid until the next one."""

    requests: Columns
    timeline: Columns


@dataclass(frozen=True)
class Run:
    """The result of one run in the form that reports use.

    `config` and `summary` hold plain JSON (null for missing numbers). `place` is a replica's index in its
    fleet; its requests and timeline are some rows of the files. `apart` is a fleet's timeline per replica, if
    the one in `columns` is their sum.
    """

    path: Path
    label: str
    config: dict[str, Any]
    summary: Summary
    columns: Tables
    place: int | None = None
    apart: Columns | None = None

    @property
    def workload(self) -> dict[str, Any]:
        """The choices of its traffic; empty if its config has none."""
        return self.config.get("workload", {})

    @property
    def engine(self) -> dict[str, Any]:
        """The choices of its engine; empty if its config has none."""
        return self.config.get("scenario", {}).get("engine", {})

    @property
    def as_one(self) -> "Run":
        """A fleet as one system, with the timelines of the replicas that are there summed; else unchanged."""
        timeline = self.columns.timeline
        if self.apart is not None or self.place is not None or not self.summary.get("replicas"):
            return self
        summed = added_up(without_absent(timeline, away(self.summary)))
        return replace(self, columns=Tables(self.columns.requests, summed), apart=timeline)

    @property
    def replicas(self) -> list["Run"]:
        """The replicas of a fleet, each as a run; empty for a single server."""
        return [
            self._replica(place, summary) for place, summary in enumerate(self.summary.get("replicas") or ())
        ]

    def _replica(self, place: int, summary: dict[str, Any]) -> "Run":
        requests, timeline = (
            {name: column[columns["replica"] == place] for name, column in columns.items()}
            for columns in (self.columns.requests, self.apart or self.columns.timeline)
        )
        shared = {name: self.summary[name] for name in ("cost", "notes") if name in self.summary}
        return replace(
            self,
            label=summary["label"],
            config=self._config_of(place),
            summary=Summary({**shared, **summary}),
            columns=Tables(requests, timeline),
            place=place,
            apart=None,
        )

    def _config_of(self, place: int) -> dict[str, Any]:
        """The config of a replica; in a heterogeneous fleet, with the scenario of its pool."""
        last = 0
        for pool in self.config.get("pools", ()):
            last += pool["replicas"]
            if place < last:
                return {**self.config, "scenario": pool["scenario"], "kv_capacity": pool["kv_capacity"]}
        return self.config

    def server_of(self, request: int) -> "Run":
        """The replica that a request went to, named after the fleet; a single server unchanged."""
        replicas = self.replicas
        if not replicas:
            return self
        found = replicas[int(self.columns.requests["replica"][self.row_of(request)])]
        return replace(found, label=f"{self.label}, {found.label}")

    def row_of(self, request: int) -> int:
        """The row of a request; -1 if it went to another replica."""
        numbers = self.columns.requests["request"]
        row = int(np.searchsorted(numbers, request))
        return row if row < len(numbers) and numbers[row] == request else -1


def _no_run(directory: Path, missing: str) -> str:
    """Why a directory is not a run, and what to do if it is something else of kvsim's."""
    found = read_marker(directory)
    kind = found.kind if found is not None else ""
    if kind == "sweep":
        return (
            f"{directory} is a sweep or a search that is not finished: "
            "the same `sim sweep` or `sim capacity` command continues it"
        )
    if kind == "figures":
        return (
            f"{directory} holds figures only, no run: the command that drew them draws them again, "
            "as in `sim fit ... --out DIR --style paper --format svg`"
        )
    return f"{directory} is not a kvsim run: {missing} is missing"


def read_run(directory: Path) -> Run:
    """Read a run that `write_run` wrote; KvsimError if it is not a run, or damaged."""
    if not directory.is_dir():
        raise KvsimError(f"{directory} is not a directory")
    for name in ("config.json", "summary.json", "requests.parquet", "timeline.parquet"):
        if not (directory / name).is_file():
            raise KvsimError(_no_run(directory, name))
    summary = read_json(directory / "summary.json")
    lacking = [section for section in _SECTIONS if section not in summary]
    if lacking:
        raise KvsimError(f"{directory / 'summary.json'} is damaged: it lacks {', '.join(lacking)}")
    _check_summary(directory / "summary.json", summary)
    config = read_json(directory / "config.json")
    _check_config(directory / "config.json", config)
    found = Run(
        path=directory,
        label=printable(str(summary["label"])),
        config=config,
        summary=Summary(summary),
        columns=Tables(
            read_columns(directory / "requests.parquet", REQUEST_COLUMNS, ("status",), REQUEST_NUMBERS),
            read_columns(
                directory / "timeline.parquet", _TIMELINE_COLUMNS, numbers=_ALSO_IN_TIMELINES, alike=LOWER
            ),
        ),
    )
    _check_replicas(found)
    return found


def added_up(timeline: Columns) -> Columns:
    """The timeline of a fleet as one system: the sum over its replicas, with a row for each of their rows.

    A replica holds nothing before its first row. A shared tier counts once. The largest free extent cannot be
    summed and is left out.
    """
    order = np.argsort(timeline["time_s"], kind="stable")
    time_s, replica = timeline["time_s"][order], timeline["replica"][order]
    last = np.diff(time_s, append=np.inf) > 0
    found: Columns = {"time_s": time_s[last]}
    for name, column in timeline.items():
        if name in {"time_s", "replica", "largest_free_extent"}:
            continue
        values = column[order]
        found[name] = _summed(values, owners(name, replica, values))[last]
    return found


def _summed(values: Floats, owner: Floats) -> Floats:
    """In each row, the sum of the latest values of all owners; rows of owner -1 are ignored."""
    rows = np.flatnonzero(owner >= 0)
    rows = rows[np.argsort(owner[rows], kind="stable")]
    mine = values[rows]
    first = np.diff(owner[rows], prepend=-1) != 0
    change = np.zeros_like(values)
    change[rows] = np.where(first, mine, np.diff(mine, prepend=mine[:1]))
    return np.cumsum(change)


def read_runs(directory: Path) -> list[Run]:
    """The run in a directory, or all runs of a comparison or of several seeds, in order."""
    table = directory / "summary.json"
    if not table.is_file() or (directory / "requests.parquet").exists():
        return [read_run(directory)]
    summaries = load_json(table)
    if isinstance(summaries, dict) and isinstance(summaries.get("seeds"), list):
        by_seed = [_read_seed(directory, seed) for seed in summaries["seeds"]]
        return [run for seeds in zip(*by_seed, strict=True) for run in seeds]
    if not isinstance(summaries, list):
        return [read_run(directory)]
    labels = [summary.get("label") if isinstance(summary, dict) else None for summary in summaries]
    for place, label in enumerate(labels):
        if not isinstance(label, str):
            raise KvsimError(f"{table} is damaged: run {place} must have a label, got {label!r:.60}")
    return [read_run(directory / str(label)) for label in labels]


def _check_replicas(run: Run) -> None:
    """Raise KvsimError unless all columns are complete and every replica is valid as a run."""
    known = {
        "timeline": (
            run.columns.timeline,
            (*_TIMELINE_COLUMNS, *_ALSO_IN_TIMELINES, *filter(LOWER.fullmatch, run.columns.timeline)),
        ),
        "requests": (run.columns.requests, ("prompt_tokens", "output_tokens")),
    }
    for table, (columns, names) in known.items():
        for name in names:
            if np.isnan(columns.get(name, np.zeros(0))).any():
                raise KvsimError(f"{run.path / table}.parquet is damaged: column {name} must have no nulls")
    replicas, path = run.summary.get("replicas") or [], run.path / "summary.json"
    if not isinstance(replicas, list):
        raise KvsimError(f"{path} is damaged: replicas must be a list, got {replicas!r}")
    for each in replicas:
        lacking = [name for name in _SECTIONS if not isinstance(each, dict) or name not in each]
        if lacking:
            raise KvsimError(f"{path} is damaged: a replica lacks {', '.join(lacking)}")
        _check_summary(path, each)
    for name, columns in (("requests", run.columns.requests), ("timeline", run.columns.timeline)):
        if replicas and "replica" not in columns:
            raise KvsimError(f"{run.path / name}.parquet is damaged: it lacks the column replica")


def _check_config(path: Path, config: dict[str, Any]) -> None:
    """Raise KvsimError unless a config has all its parts, with a name where one is needed."""
    _check_there(path, config, ("scenario", "workload"))
    _check_server(path, config["scenario"])
    _check_objects(path, config, ("fleet",))
    _check_counts(path, config.get("fleet") or {}, ("replicas",))
    pools = config.get("pools", [])
    if not isinstance(pools, list) or not all(isinstance(pool, dict) for pool in pools):
        raise KvsimError(f"{path} is damaged: pools must be a list of objects, got {pools!r:.60}")
    for pool in pools:
        _check_there(path, pool, ("scenario", "kv_capacity"))
        _check_server(path, pool["scenario"])
        _check_counts(path, {"replicas": None, **pool}, ("replicas",))


def _check_server(path: Path, scenario: dict[str, Any]) -> None:
    """Raise KvsimError unless a server has all its parts, with a name where one is needed."""
    _check_there(path, scenario, ("model", "gpu", "engine"))
    _check_counts(path, scenario, WAYS.values())
    if scenario.get("profile") is not None:
        _check_objects(path, scenario, ("profile",))
    for part in ("model", "gpu"):
        if not isinstance(scenario[part].get("name"), str):
            raise KvsimError(f"{path} is damaged: {part} must have a name that is a text")


def _check_counts(path: Path, found: dict[str, Any], names: Iterable[str]) -> None:
    """Raise KvsimError unless these values are missing or integers of at least 1."""
    for name in names:
        value = found.get(name, 1)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise KvsimError(
                f"{path} is damaged: {name} must be a whole number of at least 1, got {value!r:.60}"
            )


def _check_there(path: Path, found: dict[str, Any], names: Iterable[str]) -> None:
    """Raise KvsimError unless these values exist and are objects."""
    lacking = [name for name in names if name not in found]
    if lacking:
        raise KvsimError(f"{path} is damaged: it lacks {', '.join(lacking)}")
    _check_objects(path, found, names)


def _check_objects(path: Path, found: dict[str, Any], names: Iterable[str]) -> None:
    """Raise KvsimError unless these values are missing or objects."""
    for name in names:
        if not isinstance(found.get(name, {}), dict):
            raise KvsimError(f"{path} is damaged: {name} must hold an object, got {found[name]!r}")


def _check_summary(path: Path, summary: dict[str, Any]) -> None:
    """Raise KvsimError unless the sections hold numbers or null."""
    _check_objects(path, summary, (*_SECTIONS[1:], "cost"))
    _check_objects(path, summary["latency"], summary["latency"])
    memory = {name: value for name, value in summary["memory"].items() if name != "groups"}
    for section in ("requests", "throughput", "latency"):
        _check_numbers(path, section, summary[section])
    _check_numbers(path, "memory", memory)
    _check_layers(path, summary["memory"].get("groups", {}))
    finished = summary["requests"].get("finished")
    if not isinstance(finished, int):
        raise KvsimError(f"{path} is damaged: requests.finished must be a whole number, got {finished!r}")


def _check_layers(path: Path, groups: object) -> None:
    """Raise KvsimError unless each kind of layer has its words and its shares of the memory."""
    if not isinstance(groups, dict) or not all(isinstance(each, dict) for each in groups.values()):
        raise KvsimError(f"{path} is damaged: memory.groups must hold objects, got {groups!r}")
    for name, each in groups.items():
        if not isinstance(each.get("in_words"), str):
            raise KvsimError(f"{path} is damaged: memory.groups.{name}.in_words must be a text")
        shares = {part: each.get(part) or {} for part in ("average", "saturated")}
        _check_objects(path, shares, shares)
        _check_numbers(path, f"memory.groups.{name}", shares)


def _check_numbers(path: Path, name: str, found: object) -> None:
    if isinstance(found, dict):
        for inner, value in found.items():
            _check_numbers(path, f"{name}.{inner}", value)
    elif isinstance(found, bool) or not (
        found is None or (isinstance(found, int | float) and -MOST <= found <= MOST)
    ):
        raise KvsimError(f"{path} is damaged: {name} must be a number or null, got {found!r}")


def seed_name(seed: int) -> str:
    """The directory of one of several seeds."""
    return f"seed-{seed}"


def _read_seed(directory: Path, seed: int) -> list[Run]:
    """The runs of one of several seeds, with the seed in their labels."""
    return [replace(run, label=f"{run.label}, seed {seed}") for run in read_runs(directory / seed_name(seed))]
