"""The log of the tests ends with pytest's own summary, whatever Triton's bindings have to say at exit."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent


def test_the_last_line_is_pytests_own():
    test = str(HERE / "test_moves.py")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", test, "-k", "nothing_to_do_is_done"]
    told = subprocess.run(
        command, cwd=HERE.parents[1], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert told.stdout.splitlines()[-1].startswith("1 passed")
