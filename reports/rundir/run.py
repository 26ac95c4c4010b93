"""Runs read back from their directories, as the reports see them."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvsim.reports.rundir.formats import Columns, load_json, read_columns, read_json
from kvsim.sim.errors import KvsimError

_SECTIONS = ("label", "requests", "throughput", "latency", "memory", "engine")
_REQUEST_COLUMNS = ("request", "arrival_s", "status", "ttft_s", "tpot_s", "e2e_s", "normalized_s_per_token")
_TIMELINE_COLUMNS = (
    *("time_s", "token", "reserved", "internal", "cached", "external", "free"),
    *("running", "waiting"),
)


@dataclass(frozen=True)
class Run:
    """The result of one run as the reports see it.

    `config` and `summary` are plain JSON values (null where there is no number). `requests` and
    `timeline` are numpy columns; a row of the timeline holds until the next.
    """

    path: Path
    label: str
    config: dict[str, Any]
    summary: dict[str, Any]
    requests: Columns
    timeline: Columns

    @property
    def replicas(self) -> list["Run"]:
        """The replicas of a fleet, each as a run; none of a single server."""
        return [
            self._replica(place, summary) for place, summary in enumerate(self.summary.get("replicas", ()))
        ]

    def _replica(self, place: int, summary: dict[str, Any]) -> "Run":
        requests, timeline = (
            {name: column[columns["replica"] == place] for name, column in columns.items()}
            for columns in (self.requests, self.timeline)
        )
        return replace(self, label=summary["label"], summary=summary, requests=requests, timeline=timeline)


def read_run(directory: Path) -> Run:
    """Read back what `write_run` wrote; KvsimError if it is no run or a damaged one."""
    if not directory.is_dir():
        raise KvsimError(f"{directory} is not a directory")
    for name in ("config.json", "summary.json", "requests.parquet", "timeline.parquet"):
        if not (directory / name).is_file():
            raise KvsimError(f"{directory} is not a kvsim run: {name} is missing")
    summary = read_json(directory / "summary.json")
    lacking = [section for section in _SECTIONS if section not in summary]
    if lacking:
        raise KvsimError(f"{directory / 'summary.json'} is damaged: it lacks {', '.join(lacking)}")
    return Run(
        path=directory,
        label=str(summary["label"]),
        config=read_json(directory / "config.json"),
        summary=summary,
        requests=read_columns(directory / "requests.parquet", _REQUEST_COLUMNS),
        timeline=read_columns(directory / "timeline.parquet", _TIMELINE_COLUMNS),
    )


def read_runs(directory: Path) -> list[Run]:
    """The run in a directory, or all runs of a comparison, or of several seeds, in their order."""
    table = directory / "summary.json"
    if not table.is_file() or (directory / "requests.parquet").exists():
        run = read_run(directory)
        return run.replicas or [run]
    summaries = load_json(table)
    if isinstance(summaries, dict) and isinstance(summaries.get("seeds"), list):
        by_seed = [_read_seed(directory, seed) for seed in summaries["seeds"]]
        return [run for seeds in zip(*by_seed, strict=True) for run in seeds]
    if not isinstance(summaries, list):
        return [read_run(directory)]
    return [read_run(directory / str(summary["label"])) for summary in summaries]


def seed_name(seed: int) -> str:
    """The directory of one of several seeds."""
    return f"seed-{seed}"


def _read_seed(directory: Path, seed: int) -> list[Run]:
    """The runs of one of several seeds, which their labels name."""
    return [replace(run, label=f"{run.label}, seed {seed}") for run in read_runs(directory / seed_name(seed))]
