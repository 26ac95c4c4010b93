"""Changed profiles of GPUs, by path, by name and shown: used, or refused in one line."""

import shutil
from pathlib import Path

import pytest
from support.attack import attack, tried
from support.mutations import mutated_json

pytestmark = pytest.mark.slow

EXAMPLE = (Path(__file__).parents[1] / "data" / "calibrated-example.json").read_text(encoding="utf-8")
SMALL = "--num-prompts 3 --no-plots --quiet --out out --force --kv-tokens 9000"


def test_mutated_profiles(cases):
    def case(rng):
        Path("profiles").mkdir(exist_ok=True)
        path = Path("profiles/mine.json")
        path.write_bytes(mutated_json(rng, EXAMPLE))
        what = rng.random()
        if what < 0.4:
            return attack(["run", "--gpu", str(path), *SMALL.split()])
        if what < 0.5:
            return attack(["run", "--gpu", "h100", *SMALL.split()])
        if what < 0.6:
            return attack(["gpus"])
        return attack(["calibrate", "show", str(path), "--no-plots"])

    found = tried("profiles", cases(120), case)
    shutil.rmtree("profiles")
    assert min(found["accepted"], found["refused"]) > 0
