"""All series of some figures, in several processes; cached results are not rerun."""

import os
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kvsim.reports.papers.cells import Bench, Builder
from kvsim.reports.papers.declared import Figure, Paper
from kvsim.reports.papers.series import Found, Series, all_series, find
from kvsim.sim.errors import KvsimError


@dataclass(frozen=True)
class Findings:
    """The results of the figures, and their cost."""

    found: dict[tuple[str, str, str, str], Found]
    """(figure, panel, system, open choice) -> result."""
    runs: int
    cpu_s: float
    """CPU time of all runs, including cached ones."""
    spent_cpu_s: float
    """CPU time of this process and its helpers."""
    wall_s: float

    def of(self, figure: str, panel: str, system: str, choice: str = "") -> Found | None:
        """The result of one series."""
        return self.found.get((figure, panel, system, choice))


def carry_out_all(
    paper: Paper,
    figures: Sequence[Figure],
    build: Builder,
    *,
    quick: bool,
    jobs: int,
    store: Path | None,
) -> Findings:
    """Compute all series, the longest first.

    Parameters
    ----------
    build : callable
        `kvsim.workloads.build`.
    jobs : int
        Processes.
    store : Path or None
        The cache's directory.
    """
    if jobs < 1:
        raise KvsimError(f"jobs must be at least 1, got {jobs}")
    from kvsim.reports.processes import unordered
    from kvsim.reports.progress import progress

    if store is not None:
        store.mkdir(parents=True, exist_ok=True)
    bench = Bench(build, store)
    todo = [series for figure in figures for series in all_series(paper, figure, quick)]
    todo.sort(key=lambda series: -series.effort)
    wall_s, own_s = time.perf_counter(), time.process_time()
    found: dict[tuple[str, str, str, str], Found] = {}
    helpers_s = 0.0
    with tempfile.TemporaryDirectory() as room:
        diary = Diary(Path(room) / "diary", [series.weight for series in todo])
        work = [(place, series, bench, diary.path) for place, series in enumerate(todo)]
        with (
            progress(paper.name, sum(diary.weights), diary.done),
            unordered(_one, work, jobs) as results,
        ):
            for place, (what, cpu_s, pid) in results:
                series = todo[place]
                found[series.figure, series.panel, series.system, series.choice] = what
                diary.finished.add(place)
                helpers_s += cpu_s if pid != os.getpid() else 0.0
    return Findings(
        found=found,
        runs=sum(what.runs for what in found.values()),
        cpu_s=sum(what.cpu_s for what in found.values()),
        spent_cpu_s=time.process_time() - own_s + helpers_s,
        wall_s=time.perf_counter() - wall_s,
    )


class Diary:
    """The progress of all processes: a line per run, with the place of its series and its requests.

    Parameters
    ----------
    path : Path
        Where the processes write; a line is short enough to be written atomically.
    weights : sequence of int
        Approximate requests that each series serves.
    """

    def __init__(self, path: Path, weights: Sequence[int]) -> None:
        path.touch()
        self.path, self.weights = path, weights
        self.finished: set[int] = set()
        self._served: Counter[int] = Counter()
        self._read_bytes = 0

    def done(self) -> int:
        """The requests of finished series, and of the finished runs of the others."""
        with self.path.open("rb") as file:
            file.seek(self._read_bytes)
            lines, _, torn = file.read().rpartition(b"\n")
            self._read_bytes = file.tell() - len(torn)
        for line in lines.splitlines():
            place, requests = line.split()
            self._served[int(place)] += int(requests)
        whole = self.finished.copy()
        parts = (
            min(served, self.weights[place]) for place, served in self._served.items() if place not in whole
        )
        return sum(self.weights[place] for place in whole) + sum(parts)


def _one(place: int, series: Series, bench: Bench, diary: Path) -> tuple[Found, float, int]:
    cpu_s = time.process_time()

    def heard(requests: int) -> None:
        with diary.open("a", encoding="utf-8") as file:
            file.write(f"{place} {requests}\n")

    what = find(series, bench, heard)
    return what, time.process_time() - cpu_s, os.getpid()
