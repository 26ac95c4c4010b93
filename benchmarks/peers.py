"""Speed compared with other simulators: the same requests, in alternation, each run in its own process.

python benchmarks/peers.py [--requests 10000,100000] [--repeat 3] [--peer-python PYTHON] [--out peers.json]

kvsim runs as installed, compiled or not. NVIDIA Dynamo's mocker runs if the package ai-dynamo-runtime is
installed in this Python or the one given by --peer-python; otherwise a line says that it is missing.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import numpy as np

from kvsim.workloads import load

RATE = 2.5
"""Requests per second that keep the server busy without a growing queue."""
BLOCKS, BLOCK_SIZE, SEATS, BUDGET = 984, 16, 256, 2048
"""The PagedAttention paper's server, with vLLM's limits of that time; the same for all simulators."""

KVSIM = f"""
import sys
from kvsim import cli
server = "--num-gpu-blocks {BLOCKS} --block-size {BLOCK_SIZE} --max-num-seqs {SEATS}"
server += " --max-num-batched-tokens {BUDGET}"
sys.exit(cli.main(["run", "--trace", "log.jsonl", "--num-prompts", "REQUESTS", *server.split(),
    "--no-plots", "--quiet", "--force", "--out", "run"]))
"""
MOCKER = f"""
from dynamo._core import run_mocker_trace_replay
engine = dict(num_gpu_blocks={BLOCKS}, block_size={BLOCK_SIZE}, max_num_seqs={SEATS},
    max_num_batched_tokens={BUDGET}, enable_prefix_caching=False)
found = run_mocker_trace_replay(["mooncake.jsonl"], extra_engine_args=dict(engine=engine),
    trace_block_size={BLOCK_SIZE}, capture_planner_details=False)
assert found.summary["completed_requests"] == REQUESTS, found.summary
"""


def write_requests(folder: Path, count: int) -> None:
    """Write the same requests in both formats: repeated ShareGPT lengths, Poisson arrivals, no sharing."""
    lengths = load("sharegpt")
    arrivals_s = np.random.default_rng(0).exponential(1 / RATE, count).cumsum()
    places = np.arange(count) % len(lengths.prompt_tokens)
    rows = zip(
        arrivals_s.tolist(),
        lengths.prompt_tokens[places].tolist(),
        lengths.output_tokens[places].tolist(),
        strict=True,
    )
    named = 0
    with (folder / "log.jsonl").open("w") as ours, (folder / "mooncake.jsonl").open("w") as theirs:
        for arrival_s, prompt, output in rows:
            ours.write(
                json.dumps({"arrival_s": arrival_s, "prompt_tokens": prompt, "output_tokens": output}) + "\n"
            )
            blocks = -(-prompt // BLOCK_SIZE)
            theirs.write(
                json.dumps(
                    {
                        "timestamp": arrival_s * 1000,
                        "input_length": prompt,
                        "output_length": output,
                        "hash_ids": list(range(named, named + blocks)),
                    }
                )
                + "\n"
            )
            named += blocks


def cpu_s(python: str, program: str, folder: Path) -> float:
    """User and system time of a whole process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([python, "-c", program], cwd=folder, check=False, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(done.stderr)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def peers(peer_python: str) -> dict[str, tuple[str, str]]:
    """Each installed simulator -> its Python and program."""
    found = {"kvsim": (sys.executable, KVSIM)}
    if subprocess.run(
        [peer_python, "-c", "import dynamo._core"], check=False, capture_output=True
    ).returncode:
        print(f"Dynamo's mocker is not measured: {peer_python} has no package ai-dynamo-runtime")
    else:
        found["Dynamo's mocker"] = (peer_python, MOCKER)
    return found


def main() -> None:
    """Time each simulator several times in alternation, after a warm-up run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--requests", default="10000,100000", help="how many, with commas")
    parser.add_argument("--repeat", type=int, default=3, help="medians of so many runs")
    parser.add_argument("--peer-python", default=sys.executable, help="the Python that has ai-dynamo-runtime")
    parser.add_argument("--out", type=Path, help="write JSON here")
    given = parser.parse_args()
    programs = peers(given.peer_python)
    found: dict[str, dict[str, float]] = {name: {} for name in programs}
    for count in map(int, given.requests.split(",")):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_requests(folder, count)
            taken: dict[str, list[float]] = {name: [] for name in programs}
            for _ in range(1 + given.repeat):
                for peer, (python, program) in programs.items():
                    taken[peer].append(cpu_s(python, program.replace("REQUESTS", str(count)), folder))
        for peer, runs in taken.items():
            per_cpu_s = count / median(runs[1:])
            found[peer][str(count)] = per_cpu_s
            print(f"{peer:16} {count:9,} requests  {per_cpu_s:9,.0f} requests per CPU-second", flush=True)
    if given.out:
        given.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
