"""What all messages have in common: no value in full length, no name that only kvsim knows."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvsim import cli
from kvsim.sim.errors import LONGEST, KvsimError
from kvsim.sim.files.whole_file import explained


@pytest.fixture
def sim(capsys):
    """Carry out a command line: exit code, stdout and stderr."""
    return lambda *words: (cli.main(words), *capsys.readouterr())


@pytest.mark.parametrize(
    "words",
    [
        ["run", "--allocator", "x" * 5000],
        ["run", "--model", "a b " * 1250],
        ["run", "--" + "y" * 5000],
        ["run", "--request-rate", "9x" * 2500],
        ["z" * 5000],
        ["plot", "p/" * 2500],
    ],
)
def test_a_wrong_value_of_5000_characters_is_told_by_its_ends(sim, words):
    code, _, told = sim(*words)
    assert code == 2
    assert len(told) < 4 * LONGEST
    assert "characters)" in told or "too long" in told


def test_the_users_own_mistakes_are_as_short_in_python():
    text = str(KvsimError(f"router must be str, got {['x'] * 2000}"))
    assert text.startswith("router must be str, got ['x', 'x', ")
    assert text.endswith("'x', 'x'] (10,000 characters)")


def test_a_message_is_short_whatever_it_holds():
    text = str(KvsimError("session " + 3_000 * "{'a': "))
    assert len(text) < 1_000
    assert text.startswith("session {'a': {'a'") and text.endswith("(18,008 characters)")


def test_a_short_message_stays_as_it_is():
    assert str(KvsimError("seed must be 'a' or [1, 2]")) == "seed must be 'a' or [1, 2]"


def test_names_under_which_files_are_prepared_are_not_shown():
    part = Path("runs/.made.partial-4711/seed-0")
    with (
        pytest.raises(KvsimError, match=r"^cannot write runs/made/seed-0: the disk is full$"),
        explained(part),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_in_a_sweep_says_that_the_runs_that_are_done_are_kept(sim, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    words = [
        "sweep",
        "--request-rate",
        "1,2",
        "--num-prompts",
        "3",
        "--jobs",
        "1",
        "--no-plots",
        "--out",
        "s",
    ]
    whole, calls = os.fsync, []

    def full(handle):
        calls.append(handle)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        whole(handle)

    monkeypatch.setattr("os.fsync", full)
    code, _, told = sim(*words)
    assert code == 2
    assert told.splitlines()[-1].endswith(
        "the disk is full; the runs that are done are kept, and the same command continues"
    )
    assert "nothing was kept" not in told


@pytest.mark.skipif(not hasattr(os, "fork"), reason="signals as POSIX has them")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_command_line_is_imported_ends_it_in_one_line(number):
    wait = """
import sys, time
import kvsim.__main__

class Late:
    def find_spec(self, name, *_):
        if name == "kvsim.cli":
            print("now", flush=True); time.sleep(30)

sys.meta_path.insert(0, Late())
sys.exit(kvsim.__main__.main())"""
    with subprocess.Popen(
        [sys.executable, "-c", wait], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "now\n"
        time.sleep(0.05)
        process.send_signal(number)
        assert process.communicate() == ("", "interrupted; nothing was written\n")
    assert process.returncode == 128 + number


def test_a_simulation_leaves_nothing_open():
    code = "import kvsim; run = kvsim.simulate(num_prompts=2); run.requests; del run"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
