"""Changed profiles of GPUs, by path, by name and shown, and own GPUs: used, or refused in one line."""

import json
import shutil
import tomllib
from pathlib import Path

import pytest
from support.attack import attack, tried
from support.mutations import mutated_bytes, mutated_json, mutated_words

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


OWN = """\
name = "mine"
memory_gib = 45
bandwidth_gb_per_s = 960
bf16_tflops = 250
pcie_gb_per_s = 32
link_gb_per_s = 56
node_gpus = 8
network_gb_per_s = 50
peer_access = true
kernel_overhead_us = 4
"""
IN_JSON = json.dumps(tomllib.loads(OWN))


def test_changed_gpus_in_numbers(cases):
    def case(rng):
        path = Path(rng.choice(["mine.toml", "mine.json"]))
        if path.suffix == ".json":
            path.write_bytes(mutated_json(rng, IN_JSON))
        elif rng.random() < 0.2:
            path.write_bytes(mutated_bytes(rng, OWN.encode()))
        else:
            path.write_text(mutated_words(rng, OWN))
        server = rng.choice(["", "--tensor-parallel-size 2", "--replicas 2"])
        words = rng.choice([f"run {SMALL} {server}", f"run --cost roofline {SMALL}", "fit llama-3.1-8b"])
        return attack([*words.split(), "--gpu", str(path)])

    found = tried("own GPUs", cases(60), case)
    assert min(found["accepted"], found["refused"]) > 0
