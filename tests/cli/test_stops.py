"""A stopped command leaves nothing and nobody; what was killed is swept by the next; two do not mix."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvsim import cli
from kvsim.reports.rundir.run import read_runs
from kvsim.sim.files.marker import foreign

ROOT = Path(cli.__file__).resolve().parent
LONG = ("--num-prompts", "200000", "--no-plots")
SHORT = ("--cost", "constant:0.03", "--num-prompts", "20", "--no-plots", "--quiet")
STOPS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
ENOUGH_S = 60

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="finds processes in /proc"),
]


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def start(*arguments):
    """The command, in a session of its own; background jobs of a shell would ignore SIGINT."""
    return subprocess.Popen(
        [sys.executable, "-m", "kvsim", *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: [signal.signal(number, signal.SIG_DFL) for number in STOPS],  # noqa: PLW1509
    )


def until(fact):
    """Wait for a fact; a test that waits too long fails."""
    for _ in range(20 * ENOUGH_S):
        found = fact()
        if found:
            return found
        time.sleep(0.05)
    pytest.fail("waited in vain")


def here():
    """The processes that work in this directory, but for this one."""
    found = set()
    for each in Path("/proc").iterdir():
        try:
            if each.name.isdigit() and Path(os.readlink(each / "cwd")) == Path.cwd():
                state = (each / "stat").read_text().rpartition(")")[2].split()[0]
                found |= {int(each.name)} - {os.getpid()} if state != "Z" else set()
        except OSError:
            continue
    return found


def entries():
    return {path.name for path in Path().iterdir()}


COMMANDS = {
    "run": ("run", *LONG, "--out", "out"),
    "compare": ("compare", *LONG, "--out", "out"),
    "seeds": ("run", *LONG, "--seeds", "4", "--jobs", "2", "--out", "out"),
    "default": ("run", *LONG),
    "reproduce": ("reproduce", "pagedattention", "--figure", "12", "--quick", "--jobs", "2", "--out", "out"),
}


@pytest.mark.parametrize("number", STOPS)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_stop_leaves_nothing_and_nobody(command, number, monkeypatch, tmp_path_factory):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    process = start(*COMMANDS[command])
    until(lambda: list(Path().rglob(".*.kvsim-claim")) or process.poll() is not None)
    workers = command in ("seeds", "reproduce")
    until(lambda: not workers or len(here()) > 2)
    time.sleep(random.Random(f"{command} {number}").uniform(0, 1.5))
    process.send_signal(number)
    out, err = process.communicate(timeout=ENOUGH_S)
    assert (process.returncode, out) == (128 + number, "")
    assert err.startswith("interrupted; nothing was written\n" if command != "reproduce" else "interrupted: ")
    assert err.count("\n") == 1
    assert until(lambda: not here())
    assert entries() == set()


def test_a_second_stop_does_not_disturb_the_first():
    process = start(*COMMANDS["seeds"])
    until(lambda: len(here()) > 2)
    for number in (signal.SIGINT, signal.SIGINT, signal.SIGTERM):
        process.send_signal(number)
        time.sleep(0.02)
    process.communicate(timeout=ENOUGH_S)
    assert process.returncode in (130, 143)
    assert until(lambda: not here())
    assert entries() == set()


@pytest.mark.parametrize("case", range(6))
def test_what_a_kill_at_any_instant_leaves_is_swept_by_the_next_run_there(case):
    seeds = ("--seeds", "3", "--jobs", "2") if case % 2 else ()
    process = start("run", *SHORT[:2], "--num-prompts", "3000", "--no-plots", *seeds, "--out", "deep/out")
    until(lambda: Path("deep").exists() or process.poll() is not None)
    time.sleep(random.Random(case).uniform(0, 2.5 if seeds else 1.2))
    process.kill()
    process.communicate(timeout=ENOUGH_S)
    assert until(lambda: not here())
    again = start("run", *SHORT, "--out", "deep/out", *(["--force"] if Path("deep/out").exists() else []))
    assert again.communicate(timeout=ENOUGH_S) == ("", "")
    assert again.returncode == 0
    assert [path.name for path in Path("deep").iterdir()] == ["out"]
    assert foreign(Path("deep/out")) == [] and len(read_runs(Path("deep/out"))) == 1


def test_an_allocator_that_swallows_the_stop_is_ended_all_the_same():
    Path("deaf.py").write_text(
        "from pathlib import Path\nfrom kvsim.allocators.paged import Paged\n"
        "class Deaf(Paged):\n    def admit(self, *how):\n"
        "        Path('started').touch()\n"
        "        while True:\n            try:\n                sum(range(10**5))\n"
        "            except BaseException:\n                pass\n"
    )
    process = start("run", *SHORT, "--allocator", "deaf:Deaf", "--out", "out")
    until(lambda: Path("started").exists())
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=ENOUGH_S)
    assert process.returncode == 128 + signal.SIGTERM
    assert entries() - {"__pycache__", ".out.kvsim-claim"} == {"deaf.py", "started"}
    assert start("run", *SHORT, "--out", "out").wait(timeout=ENOUGH_S) == 0
    assert entries() - {"__pycache__"} == {"deaf.py", "started", "out"}


def test_a_signal_that_is_ignored_stays_ignored():
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "kvsim",
            "run",
            *SHORT[:2],
            "--num-prompts",
            "3000",
            "--no-plots",
            "--out",
            "out",
        ],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),  # noqa: PLW1509
    )
    until(lambda: entries())
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=ENOUGH_S)
    assert process.returncode == 0 and read_runs(Path("out"))


# -- two at once ----------------------------------------------------------------------------------


def test_of_two_runs_into_one_directory_the_second_is_told_before_it_computes():
    first = start(*COMMANDS["run"])
    until(lambda: Path(".out.kvsim-claim").exists())
    for force in ((), ("--force",)):
        second = start("run", *LONG, "--out", "out", *force)
        told = "error: cannot write out: another kvsim is at work on it\n"
        assert second.communicate(timeout=ENOUGH_S) == ("", told)
        assert second.returncode == 2
    assert first.poll() is None
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=ENOUGH_S)
    assert entries() == set()


def test_many_into_one_directory_leave_one_whole_run():
    processes = [start("run", *SHORT, "--seed", str(seed), "--out", "out") for seed in range(5)]
    said = [process.communicate(timeout=ENOUGH_S)[1] for process in processes]
    won = [seed for seed, process in enumerate(processes) if process.returncode == 0]
    assert len(won) == 1
    assert all(
        said[seed].startswith(("error: cannot write out:", "error: output directory out exists"))
        for seed in {*range(5)} - {*won}
    )
    (run,) = read_runs(Path("out"))
    assert run.config["workload"]["seed"] == won[0]
    assert entries() == {"out"} and foreign(Path("out")) == []


def test_default_runs_that_start_at_once_all_get_their_results():
    processes = [start("run", *SHORT) for _ in range(4)]
    said = [process.communicate(timeout=ENOUGH_S) for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, said
    names = {out.strip() for out, _ in said}
    assert names == {f"runs/sharegpt-paged-constant-0.03-prompts20{n}" for n in ("", "-2", "-3", "-4")}
    assert {path.name for path in Path("runs").iterdir()} == {Path(name).name for name in names}
    assert all(len(read_runs(Path(name))) == 1 for name in names)
