"""An engine for a recorded workload, set up as users do: a trace of JSON lines and the flags of `sim run`."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from kvsim import cli
from kvsim.sim.build import build_engine
from kvsim.sim.options.traffic import Traffic
from kvsim.sim.run import deployment_of
from kvsim.workloads.source import opened


def by_arrival(case):
    """The workload of a recording in order of arrival."""
    return sorted(case["workload"], key=lambda request: (request["arrival"], request["id"]))


def engine_of(lines, flags, max_span=1, check=False):
    """The engine for trace lines and flags, built from the config.json that their run leaves."""
    with TemporaryDirectory() as folder:
        trace, out = Path(folder) / "trace.jsonl", Path(folder) / "run"
        trace.write_text("".join(lines))
        words = ("--trace", str(trace), *flags, "--no-plots", "--quiet", "--out", str(out))
        assert cli.main(["run", *words]) == 0
        scenario, traffic = deployment_of(json.loads((out / "config.json").read_text()))
        workload = opened(Traffic.from_json(traffic)).workload()
    return build_engine(scenario, workload, max_span=max_span, check=check)
