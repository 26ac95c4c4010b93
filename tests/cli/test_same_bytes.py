"""The same command gives the same bytes: under other seeds of Python's string hashes, in another directory.

The order of a set of strings changes with PYTHONHASHSEED, so no output may depend on it. All that a run can
record, draw and print is made in three processes, each with a hash seed and a directory of its own.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
SEEDS = ("0", "1", "4242")

WORK = "--num-prompts 40 --request-rate 8 --cost constant:0.03 --no-plots"
MAP = "--record-map 10 --step-log"
COMMANDS = f"""\
run {WORK} {MAP} --kv-tokens 6000 --out all
run {WORK} {MAP} --kv-tokens 6000 --out radix --allocator radix --enable-prefix-caching --shared-prefix 3x200
run {WORK} {MAP} --kv-tokens 6000 --out forks --scheduler vllm-v0 --n 3 --preemption swap
run {WORK} {MAP} --kv-tokens 9000 --out beams --scheduler vllm-v0 --beam-width 3 --max-num-seqs 12
compare {WORK} {MAP} --kv-tokens 6000 --out several --allocator contiguous,buddy,dynamic,paged
run {WORK} --seeds 2 --jobs 1 --out seeds
plot several --format svg --out svg
plot all seeds --figure requests --format pdf --out pdf
plot all --figure map --out png
report several --out report.html
trace-events all
explain forks most-preempted
explain several slowest --json
traces convert sharegpt trace.jsonl
traces convert trace.jsonl trace.parquet
traces show sharegpt --out shown
traces
models
gpus
allocators
schedulers
run --trace nothing
"""

DRIVER = """
import sys
from itertools import count
from types import SimpleNamespace
from kvsim import cli
from kvsim.sim import run

tick = count().__next__
run.time = SimpleNamespace(perf_counter=tick, process_time=tick)  # so that every run takes 1 s
for command in sys.argv[1].splitlines():
    print("$", command, flush=True)
    print("exit code", cli.main(command.split()), flush=True)
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """What each process wrote, by path, and what it printed."""
    found = []
    for seed in SEEDS:
        directory = tmp_path_factory.mktemp(f"with a seed of {seed} and a name of its own")
        done = subprocess.run(
            [sys.executable, "-c", DRIVER, COMMANDS],
            cwd=directory,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT), "COLUMNS": "100"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=True,
        )
        paths = sorted(path for path in directory.rglob("*") if path.is_file())
        files = {str(path.relative_to(directory)): path.read_bytes() for path in paths}
        files["what was printed"] = done.stdout
        found.append(files)
    return found


def test_every_command_did_its_work(made):
    codes = re.findall(r"^exit code (\d+)$", made[0]["what was printed"], re.MULTILINE)
    assert codes == ["0"] * (len(COMMANDS.splitlines()) - 1) + ["2"]
    recorded = {path.rpartition("/")[2] for path in made[0]}
    assert {f"{name}.parquet" for name in ("events", "map", "steps", "samples", "requests")} < recorded
    assert {"map.png", "memory.svg", "requests.pdf", "trace-events.json", "report.html"} < recorded


@pytest.mark.parametrize("other", range(1, len(SEEDS)))
def test_files_and_printed_lines_are_the_same_under_another_hash_seed_and_elsewhere(made, other):
    assert list(made[0]) == list(made[other])
    assert [name for name, content in made[0].items() if made[other][name] != content] == []
