"""The commands of benchmarks/GPU.md, in an environment that has what the page names and nothing else.

Where there is no GPU they are rehearsed: `--dry-run`, `--interpret`, and the tests in Triton's interpreter,
of which each function runs with its first case: the suite itself runs all of them.
"""

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install -e .[test]")
pytest.importorskip("triton", reason="triton is not installed: pip install -e .[test]")

from support.bare import bare_python

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "benchmarks/GPU.md").read_text(encoding="utf-8")
REHEARSED = {"benchmarks/kernels.py": " --dry-run", "kvsim.kernels.calibration": " --interpret"}
"""What a command that names this needs on a CPU."""


def commands():
    """Those of the page's first block, in order."""
    block = re.search(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[1]
    return [line for line in block.splitlines() if line and not line.startswith("#")]


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """Carry out a command with the page's packages alone; everything it writes goes to one folder."""
    python = bare_python(tmp_path_factory.mktemp("bare"), "torch", "triton", "numpy", "pytest")
    out = tmp_path_factory.mktemp("out")
    hidden = ("PYTHONPATH", "TRITON_INTERPRET", "PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER")
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    kept |= {"OUT": str(out), "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}

    def run(command):
        command += "".join(more for name, more in REHEARSED.items() if name in command)
        done = subprocess.run(
            ["bash", "-c", command], cwd=ROOT, env=kept, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
        return done.stdout, out

    return run


def test_the_page_names_its_packages_and_three_steps():
    assert "torch 2.8 or newer with CUDA, triton 3.4 or newer and numpy, pytest for the first command" in PAGE
    assert [command.split()[:3] for command in commands()] == [
        ["python3", "-m", "pytest"], ["python3", "benchmarks/kernels.py", "--parts"],
        ["python3", "-m", "kvsim.kernels.calibration"], ["python3", "benchmarks/kernels.py", "--parts"],
    ]  # fmt: skip


def test_a_journal_lies_where_no_results_are_emptied_and_git_does_not_see_it():
    (journal,) = re.findall(r"--journal (\S+)", PAGE)
    assert "$OUT" not in journal
    assert f"{Path(journal).parts[0]}/" in (ROOT / ".gitignore").read_text().splitlines()


def test_step_1_tests_all_kernels(bare):
    command = commands()[0]
    collected, _ = bare(f"{command} --collect-only")
    cases = [line for line in collected.splitlines() if line.startswith("tests/kernels/")]
    assert len(cases) > 500
    first = {case.partition("[")[0]: case for case in reversed(cases)}
    said, _ = bare(command.replace(" tests/kernels ", f" {shlex.join(first.values())} "))
    assert int(re.search(r"(\d+) passed", said)[1]) > 0.9 * len(first), said


@pytest.mark.parametrize("step", [1, 3])
def test_steps_1_and_3_time_kernels(bare, step):
    command = commands()[step]
    _, out = bare(command)
    report = json.loads((out / re.search(r"\$OUT/(\S+)\"", command)[1]).read_text(encoding="utf-8"))
    assert {row["part"] for row in report["rows"]} == set(re.search(r"--parts (\S+)", command)[1].split(","))


def test_step_2_writes_a_profile(bare):
    command = commands()[2]
    _, out = bare(command)
    profile = json.loads((out / re.search(r"--out \"\$OUT/(\S+)\"", command)[1]).read_text(encoding="utf-8"))
    assert profile["parts"]
