"""How accurate `sim capacity` is: searches with many seeds, compared with a known truth.

    md1         one seat, steps of one second: M/D/1, with known waits (Erlang 1909); 99 % within 30 s
    llama-8b    Llama-3.1-8B on an H100: the load at which 1 % of 16 x 64,000 requests miss one of the limits,
                0.5 s to the first token or 50 ms per token, between loads 2 % apart

    python benchmarks/capacity_coverage.py md1 --repeat 20 --jobs 2

A search gives an answer and a 95 % interval. The output is the share of intervals that contain the truth, and
the errors of the answers. No time is measured.
"""

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from decimal import Decimal, getcontext
from functools import partial
from math import exp, factorial, log
from pathlib import Path
from statistics import fmean, stdev

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from kvsim.commands.capacity_runs import Sought, searched
from kvsim.commands.sweep_runs import prepared
from kvsim.reports.sweeps.capacity import capacities
from kvsim.sim.options.goals import Goals

ENGINE = {"scheduler": "vllm-v1@0.11.0", "frontend_latency": 0.0}
ONE_TOKEN = {"trace": "synthetic", "input_len": "1", "output_len": "1"}
CASES = {
    "md1": ({**ONE_TOKEN, **ENGINE, "cost": "constant:1", "max_num_seqs": 1}, "ttft:p99=30s"),
    "llama-8b": ({"model": "llama-3.1-8b", "gpu": "h100"}, "ttft:p99=0.5s,tpot:p99=50ms"),
}
SEEDS = 3
LONG, WARM_UP, TRUTH_SEEDS = 64_000, 4_000, range(1 << 30, (1 << 30) + 16)


def md1_truth():
    """The load at which 99 % wait at most 29 s for a service of one second.

    Erlang's sum suffers from cancellation and needs extra digits.
    """
    getcontext().prec = 80
    low, high = 0.5, 0.999
    for _ in range(40):
        middle = (low + high) / 2
        rho = Decimal(str(middle))
        terms = [(rho * (29 - j)).exp() * (-rho * (29 - j)) ** j / factorial(j) for j in range(29)]
        within = float((1 - rho) * sum(terms))
        low, high = (middle, high) if within > 0.99 else (low, middle)
    return low


def share_late(settings, slo, load, seed):
    """Share of requests beyond the limit missed most, in a long run without its beginning and end."""
    simulation = prepared(
        {**settings, "num_prompts": LONG, "request_rate": load, "shuffle": None}, seed, Goals()
    )
    requests = simulation.outcome().requests
    limits = Goals(slo=slo).limits.limits
    beyond = (requests[each.column][WARM_UP : LONG - 1000] > each.limit_s for each in limits)
    return max(float(share.mean()) for share in beyond)


def truth_of(settings, slo, about, jobs):
    """The load at which 1 % are late: log-linear interpolation of the share between loads 2 % apart."""
    with ProcessPoolExecutor(jobs) as pool:
        shares = {}
        load = about
        while not (shares and min(shares.values()) <= 0.01 < max(shares.values())):
            each = pool.map(partial(share_late, settings, slo, load), TRUTH_SEEDS)
            shares[load] = fmean(each)
            print(f"truth: {100 * shares[load]:.3f} % late at {load:.3f}", flush=True)
            load = (max(shares) * 1.02) if shares[load] <= 0.01 else (min(shares) / 1.02)
    below = max(at for at, share in shares.items() if share <= 0.01)
    above = min(at for at, share in shares.items() if share > 0.01)
    low, high = log(max(shares[below], 1e-6)), log(shares[above])
    return below * exp((log(0.01) - low) / (high - low) * log(above / below))


def answered(settings, slo, number):
    """The answer of one search, with its interval."""
    first = 1000 * (number + 1)
    rows = [
        searched(settings, seed, Goals(slo=slo), Sought("rate", 0.02))[0]
        for seed in range(first, first + SEEDS)
    ]
    (system,) = capacities(rows, [], [""] * SEEDS)
    if system.load is None:
        raise SystemExit("; ".join(row["reason"] or "no load is within" for row in rows))
    return system.load


def main():
    """Run the named case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--skip", type=int, default=0, help="begin with the seeds behind so many repetitions")
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    settings, slo = CASES[asked.case]
    with ProcessPoolExecutor(asked.jobs) as pool:
        found = []
        for each in pool.map(partial(answered, settings, slo), range(asked.skip, asked.skip + asked.repeat)):
            found.append(each)
            print(f"{each.mean:.4f} ({each.low:.4f} to {each.high:.4f})", flush=True)
    about = fmean(each.mean for each in found)
    truth = md1_truth() if asked.case == "md1" else truth_of(settings, slo, about, asked.jobs)
    held = sum(each.holds(truth) for each in found)
    off = [100 * (each.mean / truth - 1) for each in found]
    wide = fmean(100 * each.half / each.mean for each in found)
    print(f"truth {truth:.4f}; {held} of {len(found)} intervals hold it, in the mean +-{wide:.1f} %")
    print(f"answers {fmean(off):+.2f} % off (standard deviation {stdev(off):.2f}), {max(off):+.2f} % at most")


if __name__ == "__main__":
    main()
