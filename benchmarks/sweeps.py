"""How much of two cores a sweep uses, and how much memory a worker: 1,000 runs of 2,000 requests.

    python benchmarks/sweeps.py [--runs 1000] [--jobs 2] [--backend local]

Ideal is what the same runs take one after the other in a warm process. Three efficiencies are printed:

    by the clock    ideal / (jobs * wall time)              on an idle machine
    by CPU time     ideal / CPU time of all processes       says the same on a busy machine, too
    in the runs     CPU time of the runs as they were carried out / (jobs * wall time)

Two runs side by side may each take longer than one alone, as cores share caches and clocks: the first two
count that as lost, the last does not.

Starting the workers, reading the trace in each, checking the plan, the journal and the table are all in it.
"""

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from kvsim import sweep_runs, sweeping
from kvsim.reports.sweeps.place import sweep_directory
from kvsim.reports.sweeps.table import write_table
from kvsim.sim.options.sweeps import Where

WARM_RUNS = 20
REQUESTS = 2000


def ideal_s(plan):
    """CPU time of one run in a warm process: the mean over some of the plan, spread evenly."""
    runs = list(plan.keys.values())
    chosen = runs[:: max(len(runs) // WARM_RUNS, 1)]
    sweep_runs.carried_out(chosen[0].point.settings, 0, plan.goals)
    took = [sweep_runs.carried_out(run.point.settings, run.seed, plan.goals)[1] for run in chosen]
    return sum(took) / len(took)


def cpu_s():
    """Of this process and of its children that have ended."""
    found = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in found)


def main():
    """Carry out the sweep and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--backend", default="local")
    chosen = parser.parse_args()
    given = {"num_prompts": REQUESTS, "request_rate": [1.0, 1.5, 2.0, 2.5], "seeds": max(chosen.runs // 4, 1)}
    one_s = ideal_s(sweeping.planned({**given, "seeds": 5}))
    begun_s, spent_s = time.perf_counter(), cpu_s()
    with tempfile.TemporaryDirectory() as home, sweep_directory(Path(home) / "out") as journal:
        plan = sweeping.planned(given)
        sweeping.carry_out(plan, journal, Where(jobs=chosen.jobs, backend=chosen.backend))
        write_table(plan.rows(journal), Path(home) / "table.parquet")
        runs, inside_s = len(plan.runs), sum(each.cpu_s for each in journal.done.values())
    wall_s, spent_s = time.perf_counter() - begun_s, cpu_s() - spent_s
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"{runs:,} runs of {REQUESTS:,} requests, {chosen.jobs} processes, backend {chosen.backend}")
    print(f"ideal           {runs * one_s:8.1f} CPU s ({1000 * one_s:.0f} ms a run)")
    print(f"spent           {spent_s:8.1f} CPU s, {wall_s:.1f} s by the clock")
    print(f"by the clock    {100 * runs * one_s / (chosen.jobs * wall_s):8.1f} %")
    print(f"by CPU time     {100 * runs * one_s / spent_s:8.1f} %")
    print(f"in the runs     {100 * inside_s / (chosen.jobs * wall_s):8.1f} %")
    print(f"largest worker  {largest:8.1f} MiB")


if __name__ == "__main__":
    main()
