"""Accuracy against another simulator: the measured servers that ship with kvsim, predicted by both.

python benchmarks/peers_accuracy.py --peer-python PYTHON [--tables DIR] [--every N]

The other is AIConfigurator, NVIDIA's estimator: the package `aiconfigurator`, installed in another Python.
It is asked as its own test of accuracy asks it (tools/accuracy_regression_testing in its repository). The
package has the tables of the newest releases only; those of the measured ones are in the repository's
aic-core/src/aiconfigurator_core/systems, which is what `--tables` names.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

from kvsim.sim.errors import KvsimError
from kvsim.sim.validate import against_physics, compare_point, not_simulated, points

Error = tuple[float, float]
"""Of the mean TTFT and the mean TPOT of a server, as shares."""

PEER = """
import contextlib, csv, json, sys
from importlib import resources
from aiconfigurator.cli.api import cli_estimate
from aiconfigurator.sdk.perf_database import set_systems_paths

asked = json.load(sys.stdin)
sizes = "tp_size", "pp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size", "batch_size"
if asked["tables"]:
    set_systems_paths(asked["tables"])
packaged = {"meta-llama/Llama-3.1-70B": "meta-llama/Meta-Llama-3.1-70B"}

def predicted(row, release):
    return cli_estimate(
        model_path=packaged.get(row["model_path"], row["model_path"]), system_name=row["system"], mode="agg",
        backend_name=row["backend"], backend_version=release, isl=int(row["isl"]), osl=int(row["osl"]),
        gemm_quant_mode=row["gemm_quant_mode"] or None, moe_quant_mode=row["moe_quant_mode"] or None,
        **{size: int(float(row[size])) for size in sizes if row[size]})

told = {}
rows = resources.files("aiconfigurator_core") / "systems" / "silicon_sample.csv"
for row in csv.DictReader(rows.read_text().splitlines()):
    if row["id"] not in asked["names"]:
        continue
    with contextlib.redirect_stdout(sys.stderr):
        for release in (row["backend_version"], None):  # as its test: the default if there are no tables
            try:
                found = predicted(row, release)
                told[row["id"]] = found.ttft / 1000, found.tpot / 1000
                break
            except Exception as error:
                if "Failed to load perf database" not in str(error):
                    break
json.dump(told, sys.stdout)
"""


def theirs(python: str, tables: str | None, names: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Mean TTFT and TPOT in seconds of each server that the other simulator predicts."""
    done = subprocess.run(
        [python, "-c", PEER],
        input=json.dumps({"names": names, "tables": tables}),
        env={**os.environ, "AIC_ALLOW_UNLISTED_VERSIONS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{python} cannot run aiconfigurator: {done.stderr.strip().splitlines()[-1]}")
    return {name: (ttft_s, tpot_s) for name, (ttft_s, tpot_s) in json.loads(done.stdout).items()}


def words(errors: Iterable[Error]) -> str:
    """The median absolute errors and, in brackets, the median signed ones."""
    columns = zip(*errors, strict=True)
    return " | ".join(f"{100 * median(map(abs, each)):.1f} % ({100 * median(each):+.1f})" for each in columns)


def main() -> None:
    """Predict, simulate, and print a table by model."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--peer-python", required=True, help="a Python that has aiconfigurator")
    parser.add_argument("--tables", type=Path, help="its tables; default: those of the package")
    parser.add_argument("--every", type=int, default=1, help="only every Nth server")
    options = parser.parse_args()
    asked = points()[:: options.every]
    tables = str(options.tables.resolve()) if options.tables else None
    peer = theirs(options.peer_python, tables, [point.name for point in asked])
    errors: dict[str, list[tuple[Error, Error]]] = {}
    simulated = 0
    for point in asked:
        try:
            if not_simulated(point) or against_physics(point):
                continue
            ours = [each.off for each in compare_point(point) if each.what in ("TTFT", "TPOT")]
        except KvsimError:
            continue
        simulated += 1
        if point.name in peer:
            ttft_s, tpot_s = peer[point.name]
            off = ttft_s / point.ttft_s - 1, tpot_s / point.tpot_s - 1
            errors.setdefault(point.model, []).append(((ours[0], ours[1]), off))
    print(f"{len(asked)} servers: kvsim simulates {simulated}, AIConfigurator predicts {len(peer)}")
    print("| model | servers of both | kvsim: TTFT | TPOT | AIConfigurator: TTFT | TPOT |")
    print("|---|---|---|---|---|---|")
    every = [each for some in errors.values() for each in some]
    for model, some in [*sorted(errors.items()), ("all", every)]:
        mine, other = zip(*some, strict=True)
        print(f"| {model.split('/')[-1]} | {len(some)} | {words(mine)} | {words(other)} |")


if __name__ == "__main__":
    main()
