"""Capacity: the largest load within an SLO, for each system of a sweep.

    systems x seeds --> a search each, handed out --> journal --> capacity, fleet, value of memory

`sim capacity` and `kvsim.capacity` do the same; one writes a directory, the other returns a DataFrame.
"""

import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.commands import capacity_runs
from kvsim.commands.capacity_runs import LOADS
from kvsim.commands.deployments import every_deployment, to_confirm, wants_all
from kvsim.commands.sweep import (
    Sweep,
    described,
    estimated_s,
    failures,
    hand_out,
    jobs_of,
    kept,
    planned,
    stoppable,
    told_failures,
    with_file,
    write_tables,
)
from kvsim.commands.sweep_runs import defaults, first_seed, seeds_differ
from kvsim.reports.rundir.formats import write_json
from kvsim.reports.sweeps.capacity import MET, capacities
from kvsim.reports.sweeps.capacity_table import table_rows
from kvsim.reports.sweeps.journal import Journal
from kvsim.reports.sweeps.place import sweep_directory
from kvsim.reports.sweeps.plan import setting, shown
from kvsim.reports.sweeps.systems import name_of
from kvsim.reports.sweeps.table import FAILED, IMPOSSIBLE, arrow_table
from kvsim.reports.sweeps.words import duration
from kvsim.sim.counted import several
from kvsim.sim.errors import KvsimError
from kvsim.sim.files.whole_file import whole_file
from kvsim.sim.option import checked
from kvsim.sim.options.goals import Goals
from kvsim.sim.options.outputs import Pictures
from kvsim.sim.options.sweeps import UNMET, Sought, Where
from kvsim.sim.plugins import trusting

if TYPE_CHECKING:
    import pandas as pd

SEARCH_RUNS = 40, 400
"""Runs of the usual length that take as long as a search: at least, at most. Runs that confirm are longer."""


@dataclass(frozen=True)
class Search:
    """The systems whose capacity is sought: a sweep without loads, and the request."""

    sweep: Sweep
    sought: capacity_runs.Sought
    asked: Sought
    every: bool = False

    @property
    def jobs(self) -> dict[str, tuple[Mapping[str, Any], int]]:
        """Key -> settings and seed, per search."""
        return {self.key(key): (dict(run.point.settings), run.seed) for key, run in self.sweep.keys.items()}

    @property
    def defaults(self) -> list[str]:
        """The servers' settings that are their releases' defaults."""
        return defaults([settings for settings, _ in self.jobs.values()])

    def key(self, of_run: str) -> str:
        """The key of a search in the journal."""
        return sha256(f"{of_run} {self.sought}".encode()).hexdigest()[:40]

    @property
    def rough(self) -> "Search":
        """The same search with short runs and one seed."""
        runs = [run for run in self.sweep.runs if run.seed == first_seed(run.point.settings)]
        return replace(
            self, sweep=replace(self.sweep, runs=runs), sought=replace(self.sought, rough=True), every=False
        )

    def of(self, rows: Sequence[Mapping[str, Any]]) -> "Search":
        """The same search for the systems of these rows only."""
        sweep = self.sweep
        wanted = [{name: row[name] for name in sweep.names} for row in rows]
        runs = [run for run in sweep.runs if sweep.settings_of(run) in wanted]
        return replace(self, sweep=replace(sweep, runs=runs), every=False)


def planned_search(given: Mapping[str, Any], options: Sought) -> Search:
    """All searches of a description, each checked."""
    cases = given.get("case") or [{}]
    load = LOADS[options.find]
    if load in given or any(load in case for case in cases):
        raise KvsimError(f"{load} must be left out: it is what is sought")
    every = wants_all(given)
    if every and options.for_rate is None:
        raise KvsimError("for_rate must be given with gpu all: the load that is to be served")
    sweep = (
        every_deployment(given)
        if every
        else planned(given, {"clients": 1} if options.find == "clients" else None)
    )
    if sweep.goals.limits is None:
        raise KvsimError("slo must be given: without limits any load will do")
    possible = {id(run.point): run.point.settings for run in sweep.runs if not run.reason}
    once = set()
    for place, settings in possible.items():
        load = capacity_runs.load_of(settings, options.find)
        if load in settings:
            raise KvsimError(f"{load} must be left out: it is what is sought")
        if load == "rate_scale" and not seeds_differ(settings):
            once.add(place)
    runs = [
        run for run in sweep.runs if id(run.point) not in once or run.seed == first_seed(run.point.settings)
    ]
    sweep = replace(sweep, runs=runs)
    sought = capacity_runs.Sought(options.find, options.tolerance, options.more_kv or 0.0)
    if every:
        sought = replace(sought, fleet_rate=options.rate_to_carry)
    return Search(sweep, sought, options, every)


def carry_out(search: Search, journal: Journal, where: Where) -> None:
    """Run the searches that the journal lacks; with `every`, short ones for all, full for the cheapest."""
    if search.every:
        carry_out(search.rough, journal, where)
        rows, _ = told(search, journal)
        while places := to_confirm(rows):
            carry_out(search.of([rows[place] for place in places]), journal, where)
            rows, _ = told(search, journal)
        return
    beside = search.sweep.goals, search.sought
    work = {key: (*job, *beside) for key, job in search.jobs.items() if key not in journal.done}

    def longest_s() -> float:
        return SEARCH_RUNS[1] * estimated_s(search.sweep, None, where) if work else 0.0

    words = "capacity", "searches"
    hand_out(capacity_runs.searched, work, journal, where, words, longest_s=longest_s)


def told(search: Search, journal: Journal) -> tuple[list[dict[str, Any]], list[str]]:
    """The table, a row per system, and their names."""
    sweep = search.sweep
    names = sweep.names
    rows, gpus = [], []
    for run in sweep.runs:
        ended: Mapping[str, Any] = {"status": IMPOSSIBLE, "reason": run.reason}
        if not run.reason:
            key = search.key(run.key)
            if key not in journal.done and search.every:  # not one of the cheapest
                key = search.rough.key(run.key)
                if key not in journal.done:
                    continue
            ended = journal.done[key].row
        gpus.append(str(shown(setting(run.point, "gpu"))))
        rows.append({**sweep.settings_of(run), "seed": run.seed, **ended})
    found = capacities(rows, names, gpus)
    table = table_rows(found, sweep.goals, search.asked)
    if not names:  # a single system: its GPUs are its name
        return table, [" + ".join(found[0].gpus_by_kind) or found[0].gpu]
    return table, [name_of({name: row[name] for name in names}) for row in table]


# -- the command --------------------------------------------------------------------------------


def sized(file: Path | None, settings: Mapping[str, Any], goals: Goals, options: Sought, where: Where) -> int:
    """The work of `sim capacity`: check, search, write the table and the figure, print the answer.

    Returns
    -------
    The exit code: 0, RUN_FAILED, or UNMET if that is to be reported.
    """
    given = described(file, settings, goals, options)
    search = planned_search(given, options)
    sweep = search.sweep
    if sweep.impossible:
        print(*sweep.impossible, sep="\n", file=sys.stderr)
    if not sweep.keys:
        raise KvsimError(f"none of the {len(sweep.points):,} systems can be")
    if options.dry_run:
        run_s = estimated_s(sweep, None, where)
        least, most = (duration(runs * run_s) for runs in SEARCH_RUNS)
        print(
            f"{several(len(sweep.points), 'system')}, {several(len(search.jobs), 'search')}: "
            f"about {least} to {most} with {several(jobs_of(where), 'process')}"
        )
        return 0
    name = sha256("".join(search.jobs).encode()).hexdigest()[:8]
    path = options.out or Path("runs", f"capacity-{name}")
    with sweep_directory(path, options.force) as journal:
        with stoppable(path):
            carry_out(search, journal, where)
        rows, labels = told(search, journal)
        _write(search, rows, labels, path, None if options.no_plots else options)
    found = [row["status"] for row in rows]
    if options.quiet:
        print(path)
    elif set(found) - {FAILED, IMPOSSIBLE}:
        from kvsim.reports.listing import show
        from kvsim.reports.sweeps.capacity_words import capacity_words

        said = capacity_words(rows, labels, options, sweep.goals, search.defaults)
        show(said, f"written to {path}")
    return told_failures(rows, labels) or (UNMET if options.fail_unmet and MET not in found else 0)


def _write(
    search: Search,
    rows: Sequence[Mapping[str, Any]],
    labels: Sequence[str],
    path: Path,
    pictures: Pictures | None,
) -> None:
    from kvsim.reports.sweeps.capacity_words import answer, beside
    from kvsim.reports.sweeps.stored import ANSWER, StoredSweep

    write_tables(search.sweep, rows, path)
    goals = search.sweep.goals
    assert goals.limits is not None
    said = {
        "find": search.asked.find,
        "answer": answer(rows, labels, search.asked, goals.limits),
        "assumed": beside(rows, search.defaults, goals.prices_from),
        "labels": list(labels),
    }
    with whole_file(path / ANSWER) as part:
        write_json(said, part)
    if pictures is not None:
        from kvsim.reports.figures.style import styled
        from kvsim.reports.figures.swept.stored import draw_stored
        from kvsim.reports.rundir.writing import write_figures

        found = StoredSweep(path, rows, search.sweep.names, goals.limits, said)
        write_figures(path, lambda part: draw_stored(found, part, styled(pictures)))


# -- Python -------------------------------------------------------------------------------------


@checked
def capacity(
    *,
    slo: str,
    find: str = "rate",
    seeds: int = 3,
    tolerance: float = 0.02,
    for_rate: float | None = None,
    margin: str = "0%",
    more_kv: float | None = None,
    file: str | Path | None = None,
    zip: bool | Sequence[str] = False,
    case: Sequence[Mapping[str, Any]] = (),
    jobs: int | None = None,
    backend: str = "local",
    address: str | None = None,
    out: str | Path | None = None,
    allow_code: bool = False,
    **options: Any,  # noqa: ANN401 - those of `simulate`
) -> "pd.DataFrame":
    """Find the largest load within an SLO, for each combination of options: a row per system.

    Parameters
    ----------
    slo : str
        Limits on latencies, as in `ttft:p99=0.5s,tpot:p99=50ms`.
    find : str
        `rate` (requests per second), `clients` of a closed loop, or `rate-scale`, the speed of a trace; the
        rate of a trace with its own arrival times is sought through its speed, too.
    seeds, tolerance : int, float
        Searches per system, with the same random numbers for all systems; the interval is over them. The
        answer is less than this share below a load that misses the SLO.
    for_rate, margin : float, str, optional
        Also the fleet that serves this many requests per second plus a margin (`20%`), the cheapest first;
        with `gpu="all"`, for every deployment that fits, at list prices unless `gpu_price` gives others.
    more_kv : float, optional
        Also the gain from this many GiB more KV memory on each GPU.
    file, zip, case, jobs, backend, address, out, allow_code
        See `kvsim.sweep`.
    **options
        Those of `simulate`, each a value, a list, or a text as on the command line.

    Returns
    -------
    pandas.DataFrame
        Every setting that varies, `status` (`met`, `unmet`, `failed`, `impossible`), `gpus`, `requests_per_s`
        (`clients`, `rate_scale`) with its 95 % interval, also per GPU, tokens per second, and `limited_by`.

    Raises
    ------
    KvsimError
        No limits, an unknown option, an impossible value, or every search failed.

    Examples
    --------
    >>> import kvsim
    >>> kvsim.capacity(slo="ttft:p99=0.5s", allocator=["contiguous", "paged"], seeds=2)  # doctest: +SKIP
    """
    asked = Sought(find=find, tolerance=tolerance, for_rate=for_rate, margin=margin, more_kv=more_kv)
    beside = {"slo": slo, "seeds": seeds, "zip": zip or None, "case": [*case] or None}
    with trusting(None if allow_code else repr([options, case])):
        search = planned_search(with_file(file, {**options, **beside}), asked)
        return _searched(search, out, Where(jobs=jobs, backend=backend, address=address))


def _searched(search: Search, out: str | Path | None, where: Where) -> "pd.DataFrame":
    """The table of a search; failures become warnings, or an error if all failed."""
    with kept(out) as journal:
        carry_out(search, journal, where)
        rows, labels = told(search, journal)
    failed = failures(rows, labels)
    if failed and not {row["status"] for row in rows} - {FAILED, IMPOSSIBLE}:
        raise KvsimError("; ".join(failed))
    for line in failed:
        warnings.warn(line, stacklevel=2)
    frame: pd.DataFrame = arrow_table(rows).to_pandas()
    return frame
