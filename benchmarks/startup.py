"""How long a user waits: CPU seconds of whole commands, including imports, each in a fresh process.

python benchmarks/startup.py [--repeat 5] [--out startup.json]
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
SIM = (sys.executable, "-c", "import sys; from kvsim import cli; sys.exit(cli.main())")
MAP = ["--scheduler", "sglang", "--gpu", "h200", "--num-prompts", "300", "--no-plots", "--record-map", "10"]
COMMANDS = {
    "sim --help": ("--help",),
    "sim run --num-prompts 1000 --no-plots": ("run", "--num-prompts", "1000", "--no-plots"),
    "sim run --num-prompts 1000": ("run", "--num-prompts", "1000"),
    "ten pictures of sglang": ("run", "--allocator", "sglang", "--model", "llama-3.1-8b", *MAP),
    "ten pictures of sglang-dual": ("run", "--allocator", "sglang-dual", "--model", "gpt-oss-20b", *MAP),
}


def cpu_s(arguments: tuple[str, ...]) -> float:
    """User and system time of one command, in an empty directory."""
    with tempfile.TemporaryDirectory() as directory:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        subprocess.run([*SIM, *arguments], cwd=directory, env=environment, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Time each command several times, after a warm-up run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5, help="medians of so many runs")
    parser.add_argument("--out", type=Path, help="write JSON here")
    given = parser.parse_args()
    found = {}
    for name, arguments in COMMANDS.items():
        cpu_s(arguments)
        runs = [cpu_s(arguments) for _ in range(given.repeat)]
        found[name] = {"cpu_s": median(runs), "cpu_s_least": min(runs)}
        print(f"{name:40} {median(runs):6.2f} CPU s  (least {min(runs):.2f})", flush=True)
    if given.out:
        given.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
