"""Changed journals of a calibration that was stopped: gone on with, or refused in one line."""

import json
from pathlib import Path

import pytest
from support.attack import Told, check, tried
from support.mutations import mutated_bytes, mutated_json

pytest.importorskip("torch", reason="torch is not installed: pip install -e .[test]")

from support.synthetic_gpu import H200, SyntheticGpu

from kvsim.kernels.calibration.calibrate import calibrate
from kvsim.kernels.calibration.errors import CalibrationError
from kvsim.kernels.calibration.grid import points
from kvsim.kernels.calibration.plan import Plan

pytestmark = pytest.mark.slow


def test_changed_journals(cases, here):
    plan, path = Plan(H200, True, tuple(points(H200, True))), Path("journal")

    def measured():
        clocks = {"driver_version": "580.1"}
        return calibrate(plan, path, stopwatch=SyntheticGpu(), read_clocks=lambda: clocks)

    measured()
    lines = path.read_text().splitlines()

    def case(rng):
        place = rng.randrange(len(lines))
        changed = [line.encode() for line in lines]
        changed[place] = mutated_json(rng, lines[place])
        path.write_bytes(b"\n".join(changed) + rng.choice([b"", b"\n"]))
        if rng.random() < 0.2:
            path.write_bytes(mutated_bytes(rng, path.read_bytes()))
        try:
            Path("profile.json").write_text(json.dumps(measured(), allow_nan=False))
        except CalibrationError as error:
            told = Told(2, "", f"error: {error}\n")
            check(["calibrate"], told)
            return told
        return None

    found = tried("journals", cases(20), case)
    assert min(found["accepted"], found["refused"]) > 0
