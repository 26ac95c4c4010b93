"""The benchmark of the engine measures each of its parts, here with few requests."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FEW = ["--requests=60", "--reference-requests=40", "--other-requests=40", "--sizes=20,40", "--repeat=1"]
QUICK = "speed,reference,linearity,prefix,windows,drafts,policies,others"


@pytest.mark.slow
def test_its_parts_give_rows(tmp_path):
    words = ["--parts", QUICK, *FEW, "--out", tmp_path / "found.json"]
    subprocess.run([sys.executable, ROOT / "benchmarks/engine.py", *words], check=True, capture_output=True)
    found = json.loads((tmp_path / "found.json").read_text())
    assert found.keys() == {"python", "request_rate", *QUICK.split(",")}
    assert found["reference"]["ratio_at_full_length"] > 1 < found["reference"]["ratio"]
