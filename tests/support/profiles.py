"""Calibrated profiles for tests: the example made by hand, unchanged and with other facts."""

import copy
import json
from pathlib import Path

from kvsim.sim.cost.profile_files import read_profile

EXAMPLE = Path(__file__).resolve().parents[1] / "data" / "calibrated-example.json"


def example():
    """The JSON of the example, free to be changed."""
    return copy.deepcopy(json.loads(EXAMPLE.read_text(encoding="utf-8")))


def settings(**ranges):
    """The parts of the example that a run needs; `decode={"context_tokens": [0, 9]}` changes a range."""
    found = copy.deepcopy(dict(read_profile(EXAMPLE).settings()))
    for part, changed in ranges.items():
        found["parts"][part]["range"].update(changed)
    return found


def of_an_earlier_kernel():
    """The settings of the example as if each context were cut alone, as kernels once did."""
    found = settings()
    decode = found["parts"]["decode"]
    del decode["constants"]["shares"]
    decode["constants"] |= {"programs": 528, "at_once": 396}
    decode["form"] |= {"work_per_s": 1.9e6, "p": 3}
    decode["form"].pop("merge_s")
    del found["launch"]["cut_s"]
    return found


def written(path, **facts):
    """A profile in a file that looks measured."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = example() | {"kind": "calibrated"} | facts
    path.write_text(json.dumps(content), encoding="utf-8")
    return path
