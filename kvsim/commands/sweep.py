"""Sweeps: many runs from one description, on all cores or a cluster, collected in one table.

    plan --> every point checked --> those not done yet, handed out --> journal --> table, figures

`sim sweep` writes a directory; `kvsim.sweep` does the same and returns a DataFrame.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from kvsim.commands import sweep_runs
from kvsim.reports.backends import results
from kvsim.reports.progress import progress
from kvsim.reports.sweeps.journal import Journal
from kvsim.reports.sweeps.place import sweep_directory
from kvsim.reports.sweeps.plan import (
    Plan,
    Point,
    labels,
    plan_of,
    read_plan,
    setting,
    shown,
    varying,
    write_plan,
)
from kvsim.reports.sweeps.systems import name_of
from kvsim.reports.sweeps.table import FAILED, IMPOSSIBLE, arrow_table, write_table
from kvsim.sim.errors import KvsimError
from kvsim.sim.files.stopping import Stopped
from kvsim.sim.option import checked
from kvsim.sim.options.goals import Goals
from kvsim.sim.options.outputs import Pictures
from kvsim.sim.options.sweeps import RUN_FAILED, UNMET, Swept, Where
from kvsim.sim.plugins import CodeRefused, trusting

if TYPE_CHECKING:
    import pandas as pd

MOST_LABELS = 4
"""For each reason, at most this many impossible settings are listed."""

PILOT_REQUESTS = 200
"""Requests in the short runs that estimate the duration of a sweep."""


@dataclass(frozen=True)
class Run:
    """One run of a sweep: a point with a seed, and its key, or the reason why it is impossible."""

    point: Point
    seed: int
    key: str
    reason: str = ""


@dataclass(frozen=True)
class Sweep:
    """A plan with every run checked."""

    plan: Plan
    points: Sequence[Point]
    runs: Sequence[Run]
    goals: Goals

    @property
    def names(self) -> list[str]:
        """The settings that vary, in the table's column order."""
        named = ["case"] if len({point.case for point in self.points}) > 1 else []
        return [*named, *(name for name in varying(self.points) if name != "seed")]

    @property
    def impossible(self) -> list[str]:
        """A line for each reason why points are impossible, with some of the points."""
        by_reason: dict[str, dict[int, Point]] = {}
        for run in self.runs:
            if run.reason:
                by_reason.setdefault(run.reason, {})[id(run.point)] = run.point
        lines = []
        for reason, points in by_reason.items():
            said = labels([*points.values()], self.points, self.names)
            more = f" and {len(said) - MOST_LABELS:,} more" if len(said) > MOST_LABELS else ""
            lines.append(f"impossible: {'; '.join(said[:MOST_LABELS])}{more}: {reason}")
        return lines

    @property
    def keys(self) -> dict[str, Run]:
        """The runs to compute: key -> the first run that has it."""
        found: dict[str, Run] = {}
        for run in self.runs:
            if not run.reason:
                found.setdefault(run.key, run)
        return found

    def work_of(self, run: Run) -> tuple[dict[str, Any], int]:
        """The settings to simulate, with rows drawn again if there are several seeds, and the seed."""
        return _asked(run.point, self.plan.seeds), run.seed

    def settings_of(self, run: Run) -> dict[str, Any]:
        """A run's values of the varied settings, by name, as in the table."""
        point = run.point
        return {name: point.case if name == "case" else shown(setting(point, name)) for name in self.names}

    def rows(self, journal: Journal) -> list[dict[str, Any]]:
        """The table: a row per run, including impossible ones; all runs must be done."""
        rows = []
        for run in self.runs:
            own = self.settings_of(run)
            if self.plan.seeds > 1:
                own["seed"] = run.seed
            found = (
                {"status": IMPOSSIBLE, "reason": run.reason}
                if run.reason
                else dict(journal.done[run.key].row)
            )
            rows.append({**own, **found})
        return rows


def planned(given: Mapping[str, Any], tried: Mapping[str, Any] | None = None) -> Sweep:
    """All runs of a description, each checked together with `tried`; impossible runs get a reason."""
    plan = plan_of(given)
    goals = Goals(slo=plan.slo, gpu_price=plan.gpu_price, host_price=plan.host_price)
    points, runs = plan.points(), []
    sweep_runs.forget()
    for point in points:
        first = sweep_runs.first_seed(point.settings)
        try:
            digest, reason = sweep_runs.checked({**_asked(point, plan.seeds), **(tried or {})}, goals), ""
        except CodeRefused:
            raise
        except KvsimError as error:
            digest, reason = "", str(error)
        runs += [
            Run(point, seed, f"{digest[:32]}-{seed}", reason) for seed in range(first, first + plan.seeds)
        ]
    return Sweep(plan, points, runs, goals)


def _asked(point: Point, seeds: int) -> dict[str, Any]:
    """The settings of a point when simulated with this many seeds."""
    return sweep_runs.drawn_anew(point.settings) if seeds > 1 else dict(point.settings)


def carry_out(
    sweep: Sweep, journal: Journal, where: Where, heard: Callable[[int], None] = lambda left: None
) -> None:
    """Compute the runs missing from the journal, longest first; each is saved as soon as it is done."""
    todo = [(key, run) for key, run in sweep.keys.items() if key not in journal.done]
    todo.sort(key=lambda each: -_effort(each[1].point))
    work = {key: (*sweep.work_of(run), sweep.goals) for key, run in todo}
    hand_out(sweep_runs.carried_out, work, journal, where, ("sweep", "runs"), heard=heard)


def hand_out(
    function: Callable[..., tuple[dict[str, Any], float]],
    work: Mapping[str, tuple[Any, ...]],
    journal: Journal,
    where: Where,
    words: tuple[str, str],
    *,
    heard: Callable[[int], None] = lambda left: None,
    longest_s: Callable[[], float] | None = None,
) -> None:
    """Call `function` for each tuple of arguments, on all processes; save each row under its key.

    `words`: the activity and the unit, for the progress bar; it shows `longest_s` until one is done.
    """
    keys, done = list(work), 0
    processes = jobs_of(where), where.backend, where.address
    with (
        progress(words[0], len(keys), lambda: done, words[1], longest_s),
        results(function, list(work.values()), *processes, sweep_runs.lost) as found,
    ):
        for number, (row, cpu_s) in found:
            journal.add(keys[number], row, cpu_s)
            done += 1
            heard(len(keys) - done)


def jobs_of(where: Where) -> int:
    """The number of parallel processes."""
    return where.jobs or os.cpu_count() or 1


def estimated_s(sweep: Sweep, journal: Journal | None, where: Where) -> float:
    """The estimated time for the remaining runs in seconds, from finished runs or from short ones."""
    keys = sweep.keys
    left = {key: run for key, run in keys.items() if journal is None or key not in journal.done}
    known = [] if journal is None else [journal.done[key].cpu_s for key in keys if key in journal.done]
    if not left:
        return 0.0
    if known:
        return float(len(left) * sum(known) / len(known) / jobs_of(where))
    runs = sorted(left.values(), key=lambda run: _effort(run.point))
    chosen = {id(run): run for run in (runs[0], runs[len(runs) // 2], runs[-1])}
    per_request = []
    for run in chosen.values():
        short = {**run.point.settings, "num_prompts": min(_requests(run.point), PILOT_REQUESTS)}
        sweep_runs.carried_out(short, run.seed, sweep.goals)  # warm up: files are read once
        cpu_s = sweep_runs.carried_out(short, run.seed, sweep.goals)[1]
        per_request.append(cpu_s / short["num_prompts"])
    requests = sum(_requests(run.point) for run in left.values())
    return float(requests * sum(per_request) / len(per_request) / jobs_of(where))


def _requests(point: Point) -> int:
    return int(setting(point, "num_prompts") or 1000)


def _effort(point: Point) -> float:
    return _requests(point) * float(setting(point, "replicas") or 1)


# -- the command --------------------------------------------------------------------------------


def swept(file: Path | None, settings: Mapping[str, Any], goals: Goals, options: Swept, where: Where) -> int:
    """Run `sim sweep`: check, compute what is missing, write the table and the figures.

    Returns
    -------
    The exit code: 0, RUN_FAILED, or UNMET if requested.
    """
    from kvsim.reports.sweeps.words import plan_words, sweep_words

    given = described(file, settings, goals, options)
    sweep = planned(given)
    path = options.out or Path("runs", f"sweep-{_name(sweep)}")
    if sweep.impossible:
        print(*sweep.impossible, sep="\n", file=sys.stderr)
        if not sweep.keys:
            raise KvsimError(f"none of the {len(sweep.points):,} settings of the sweep can be")
    if options.dry_run:
        journal = Journal(path / "runs.jsonl") if (path / "runs.jsonl").is_file() else None
        print(plan_words(sweep.runs, sweep.keys, journal, estimated_s(sweep, journal, where), jobs_of(where)))
        return 0
    with sweep_directory(path, options.force) as journal:
        with stoppable(path):
            carry_out(sweep, journal, where)
        rows = write_results(sweep, journal, path, None if options.no_plots else options)
    if options.quiet:
        print(path)
    else:
        from kvsim.reports.listing import show

        told = sweep_runs.defaults(run.point.settings for run in sweep.keys.values())
        notes = [f"note: {note}" for note in told]
        table = sweep_words(rows, [*sweep.names, "seed"], sweep.goals.limits)
        show(table, "\n".join([*notes, f"written to {path}"]))
    unmet = sweep.goals.limits is not None and not any(row.get("slo.met") for row in rows)
    named = [name_of({name: row.get(name) for name in sweep.names}) for row in rows]
    return told_failures(rows, named) or (UNMET if options.fail_unmet and unmet else 0)


def failures(rows: Sequence[Mapping[str, Any]], labels: Sequence[str]) -> list[str]:
    """A line for each reason why runs failed, with some of the runs."""
    by_reason: dict[str, dict[str, None]] = {}
    for row, label in zip(rows, labels, strict=True):
        if row["status"] == FAILED:
            by_reason.setdefault(str(row["reason"]), {})[label] = None
    lines = []
    for reason, named in by_reason.items():
        more = f" and {len(named) - MOST_LABELS:,} more" if len(named) > MOST_LABELS else ""
        lines.append(f"failed: {'; '.join([*named][:MOST_LABELS])}{more}: {reason}")
    return lines


def told_failures(rows: Sequence[Mapping[str, Any]], labels: Sequence[str]) -> int:
    """Report failed runs on stderr; returns the exit code, 0 if none failed."""
    lines = failures(rows, labels)
    sys.stdout.flush()
    for line in lines:
        print(f"error: {line}", file=sys.stderr)
    return RUN_FAILED if lines else 0


def described(file: Path | None, settings: Mapping[str, Any], goals: Goals, options: Swept) -> dict[str, Any]:
    """The contents of a file, overridden by the command line."""
    given = with_file(file, {})
    said = {name: value for name, value in settings.items() if value is not None}
    said |= goals.as_json()
    if options.zip is not None:
        said["zip"] = options.zip
    if options.seeds != type(options)().seeds or "seeds" not in given:
        said["seeds"] = options.seeds
    if not given and not [name for name in said if name != "seeds"] and options.seeds == 1:
        raise KvsimError("a sweep needs lists of options, as in --request-rate 1:8:1, or a file")
    return {**given, **said}


def with_file(file: str | Path | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """The contents of a file, if any, overridden by `given`; None means not given."""
    said = (
        {}
        if file is None
        else {name.replace("-", "_"): value for name, value in read_plan(Path(file)).items()}
    )
    return said | {name: value for name, value in given.items() if value is not None}


@contextmanager
def stoppable(path: Path) -> Iterator[None]:
    """Tell the user, if a signal ends the block, that the finished runs are kept."""
    try:
        yield
    except KeyboardInterrupt as stop:
        code = getattr(stop, "exit_code", 130)
        raise Stopped(
            f"interrupted: the runs that are done are kept in {path}; the same command continues", code
        ) from None


def write_results(
    sweep: Sweep, journal: Journal, path: Path, pictures: Pictures | None
) -> list[dict[str, Any]]:
    """Write a finished sweep's table, its plan and the figures; returns the rows."""

    rows = sweep.rows(journal)
    write_tables(sweep, rows, path)
    if pictures is not None:
        from kvsim.reports.figures.style import styled
        from kvsim.reports.figures.swept import draw_sweep
        from kvsim.reports.rundir.writing import write_figures

        names = [*sweep.names, *(["seed"] if sweep.plan.seeds > 1 else [])]
        style = styled(pictures)
        write_figures(path, lambda part: draw_sweep(rows, names, sweep.goals.limits, part, style))
    return rows


def write_tables(sweep: Sweep, rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write the plan, and the table in two formats."""
    write_plan(sweep.plan, path / "sweep.json")
    write_table(rows, path / "table.parquet")
    write_table(rows, path / "table.csv")


def _name(sweep: Sweep) -> str:
    return sha256("".join(run.key for run in sweep.runs).encode()).hexdigest()[:8]


# -- Python -------------------------------------------------------------------------------------


@checked
def sweep(
    *,
    file: str | Path | None = None,
    seeds: int | None = None,
    zip: bool | Sequence[str] = False,
    case: Sequence[Mapping[str, Any]] = (),
    jobs: int | None = None,
    backend: str = "local",
    address: str | None = None,
    out: str | Path | None = None,
    allow_code: bool = False,
    **options: Any,  # noqa: ANN401 - those of `simulate`
) -> "pd.DataFrame":
    """Simulate all combinations of options: a row per run.

    Parameters
    ----------
    file : str or Path, optional
        A `sweep.toml`; options given here take precedence.
    seeds : int, optional
        Runs per combination, with different random numbers; None: one.
    zip : bool or sequence of str
        Options whose lists are paired, first with first; True: all.
    case : sequence of mappings
        Settings of cases, each with its own combinations; `name` names a case.
    jobs, backend, address
        Parallel processes, one per core by default; `local`, `ray` or `dask`; the cluster head's address.
    out : str or Path, optional
        A directory that keeps finished runs, like that of `sim sweep`; None: nothing is kept.
    allow_code : bool
        Run code that only the file names.
    **options
        Those of `simulate`, each a value, a list, or a text as on the command line: `"1:8:0.5"`.

    Returns
    -------
    pandas.DataFrame
        Every setting that varies, `seed` if there are several, `status` (`finished`, `failed`,
        `impossible`), `reason`, `gpus` and every number of the summary, units in the names.

    Raises
    ------
    KvsimError
        An unknown option, or an impossible value.

    Examples
    --------
    >>> import kvsim
    >>> table = kvsim.sweep(request_rate="2:6:2", allocator=["contiguous", "paged"], num_prompts=100)
    >>> table.groupby("allocator")["throughput.requests_per_s"].max()  # doctest: +SKIP
    """
    beside = {"seeds": seeds, "zip": zip or None, "case": list(case) or None}
    given = with_file(file, {**options, **beside})
    with trusting(None if allow_code else repr([options, case])):
        planned_sweep, where = planned(given), Where(jobs=jobs, backend=backend, address=address)
        with kept(out) as journal:
            carry_out(planned_sweep, journal, where)
            frame: pd.DataFrame = arrow_table(planned_sweep.rows(journal)).to_pandas()
            return frame


@contextmanager
def kept(out: str | Path | None) -> Iterator[Journal]:
    """The journal in a directory, or a temporary one."""
    if out is not None:
        with sweep_directory(Path(out)) as journal:
            yield journal
        return
    with TemporaryDirectory(prefix="kvsim-") as home:
        yield Journal(Path(home) / "runs.jsonl")
