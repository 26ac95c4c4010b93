"""How much of two cores a sweep uses, and how much memory per worker: 1,000 runs of 2,000 requests.

    python benchmarks/sweeps.py [--runs 1000] [--jobs 2] [--backend local]

The ideal is the time of the same runs in as many warm processes that do nothing else, in parallel, since
cores share caches and clocks. The output is

    by the clock    wall time of the ideal / wall time of the sweep, on an idle machine
    in the runs     CPU time of the runs within the sweep / (jobs * wall time), also on a busy one

The sweep includes starting the workers, reading the trace in each, checking the plan, journal and table.
"""

import argparse
import resource
import sys
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from kvsim.commands import sweep as sweeping
from kvsim.commands import sweep_runs
from kvsim.reports.sweeps.place import sweep_directory
from kvsim.reports.sweeps.table import write_table
from kvsim.sim.options.sweeps import Where

REQUESTS = 2000


def given_for(runs):
    """The settings of a sweep of `runs` runs."""
    return {"num_prompts": REQUESTS, "request_rate": [1.0, 1.5, 2.0, 2.5], "seeds": max(runs // 4, 1)}


def share_s(share):
    """Wall time of every `jobs`-th run from `first` on, in this process once it is warm."""
    runs, first, jobs = share
    plan = sweeping.planned(given_for(runs))
    mine = list(plan.keys.values())[first::jobs]
    sweep_runs.carried_out(mine[0].point.settings, 0, plan.goals)
    begun_s = time.perf_counter()
    for run in mine:
        sweep_runs.carried_out(run.point.settings, run.seed, plan.goals)
    return time.perf_counter() - begun_s


def ideal_s(runs, jobs):
    """Wall time of the runs in plain processes, in parallel."""
    with get_context("spawn").Pool(jobs) as pool:
        return max(pool.map(share_s, [(runs, first, jobs) for first in range(jobs)], chunksize=1))


def main():
    """Run the sweep and print its times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--backend", default="local")
    chosen = parser.parse_args()
    plain_s = ideal_s(chosen.runs, chosen.jobs)
    begun_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as home, sweep_directory(Path(home) / "out") as journal:
        plan = sweeping.planned(given_for(chosen.runs))
        sweeping.carry_out(plan, journal, Where(jobs=chosen.jobs, backend=chosen.backend))
        write_table(plan.rows(journal), Path(home) / "table.parquet")
        runs, inside_s = len(plan.runs), sum(each.cpu_s for each in journal.done.values())
    wall_s = time.perf_counter() - begun_s
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"{runs:,} runs of {REQUESTS:,} requests, {chosen.jobs} processes, backend {chosen.backend}")
    print(f"ideal           {plain_s:8.1f} s by the clock, the sweep {wall_s:.1f} s")
    print(f"by the clock    {100 * plain_s / wall_s:8.1f} %")
    print(f"in the runs     {100 * inside_s / (chosen.jobs * wall_s):8.1f} %")
    print(f"largest worker  {largest:8.1f} MiB")


if __name__ == "__main__":
    main()
