"""Surroundings that go wrong: the command ends well or with one line, and never leaves half of anything.

Killed at any instant, on a disk that is full, without permission, with standard output closed or full,
without a home, in a locale that knows only ASCII, in a directory that is gone. Commands run as processes.
"""

import ctypes
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.attack import Told, check, tried

from kvsim import cli
from kvsim.reports.rundir.run import read_runs

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
SMALL = "--cost constant:0.03 --num-prompts 20 --record-map 3 --step-log"
WRITERS = (
    f"run {SMALL} --no-plots --out made",
    f"compare {SMALL} --allocator paged,buddy --no-plots --out made",
    f"run {SMALL} --no-plots --quiet --seeds 2 --jobs 1 --out made",
)


def process(words, seconds=None, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how):
    """Carry out a command line; it is killed after so many seconds."""
    child = subprocess.Popen(
        [sys.executable, "-m", "kvsim", *words], stdout=stdout, stderr=stderr, stdin=subprocess.DEVNULL, **how
    )
    try:
        out, err = child.communicate(timeout=seconds or 60)
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGKILL)
        out, err = child.communicate()
    texts = ((text or b"").decode("utf-8", "surrogateescape") for text in (out, err))
    return Told(child.returncode, *texts)


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """The checkout can be imported from anywhere."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def whole_or_not_there(directory):
    """Nothing under its final name, or everything."""
    if not os.path.lexists(directory):
        return
    for run in read_runs(Path(directory)):
        assert {"events.parquet", "map.parquet", "steps.parquet"} <= {
            path.name for path in run.path.iterdir()
        }
        assert len(run.columns.requests["request"]) == run.summary["requests"]["submitted"]
    json.loads(Path(directory, "config.json").read_text(encoding="utf-8"))


def clean(*kept):
    """An empty directory again, but for what is to be kept."""
    for path in Path().iterdir():
        if path.name not in kept:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def test_killed_at_any_instant_nothing_is_half_written(cases):
    began = time.monotonic()
    assert process(WRITERS[-1].split()).code == 0
    longest = time.monotonic() - began
    clean()

    def case(rng):
        words = rng.choice(WRITERS).split()
        told = process(words, rng.uniform(0.3, 1.0) * longest)
        assert told.code in (0, -signal.SIGKILL), told.err
        whole_or_not_there("made")
        clean()

    tried("kills", cases(3), case)


def listens(child):
    """Whether a process has come so far that it hears signals (Linux; elsewhere after a moment)."""
    status = Path(f"/proc/{child.pid}/status")
    if not status.exists():
        time.sleep(0.5)
        return True
    heard = int(re.search(r"SigCgt:\s*(\w+)", status.read_text()).group(1), 16)
    return all(heard >> (number - 1) & 1 for number in STOPS)


STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def test_stopped_at_any_instant_it_says_so_and_ends_with_the_code_of_the_signal(cases):
    began = time.monotonic()
    assert process(WRITERS[-1].split()).code == 0
    longest = time.monotonic() - began
    clean()

    def case(rng):
        words, number = rng.choice(WRITERS).split(), rng.choice(STOPS)
        child = subprocess.Popen(
            [sys.executable, "-m", "kvsim", *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - as in test_cli
        )
        while child.poll() is None and not listens(child):
            time.sleep(0.002)
        time.sleep(rng.uniform(0, longest) * rng.random())
        child.send_signal(number)
        told = child.communicate(timeout=60)[1]
        assert child.returncode in (0, 128 + number), (words, number, child.returncode, told)
        if child.returncode:
            lines = [line for line in told.splitlines() if "interrupted" in line]
            assert len(lines) == 1 and "Traceback" not in told, (words, told)
        whole_or_not_there("made")
        clean()

    tried("stops", cases(6), case)


def test_a_full_disk_is_one_line_and_leaves_nothing(cases):
    def case(rng):
        most = rng.choice([0, 100, 700, 1500, 3000, 6000, 12_000, 30_000, 80_000])

        def small_files():
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

        words = (rng.choice(WRITERS) if rng.random() < 0.9 else f"run {SMALL} --out made").split()
        told = process(words, preexec_fn=small_files)
        check(words, told)
        assert told.code == 2 or os.path.isdir("made")
        assert not [path.name for path in Path().iterdir() if path.name not in ("made", "cache")], (
            f"{words}, {most}: {told.err}"
        )
        whole_or_not_there("made")
        clean()
        return told

    found = tried("full disks", cases(3), case)
    assert found["refused"] > 0


OUTPUTS = {
    "closed": {"preexec_fn": lambda: os.close(1), "stdout": None},
    "both closed": {"preexec_fn": lambda: os.closerange(1, 3), "stdout": None, "stderr": None},
    "full": {"stdout": "/dev/full"},
    "unread": {"stdout": "pipe"},
}
PRINTERS = ("models", f"run {SMALL} --no-plots --out made --json", "traces show sharegpt")


@pytest.mark.parametrize("kind", OUTPUTS)
def test_standard_output_may_be_closed_full_or_unread(kind, here):
    for words in PRINTERS[: 3 if kind == "full" else 2]:
        how = dict(OUTPUTS[kind])
        if kind == "full":
            how["stdout"] = open("/dev/full", "w")  # noqa: SIM115 - closed with the process
        elif kind == "unread":
            read, how["stdout"] = os.pipe()
            os.close(read)
        told = process(words.split(), **how)
        if kind == "unread":
            os.close(how["stdout"])
            assert (told.code, told.err) == (1, "")
        else:
            check(words.split(), told)
            assert told.code == (2 if kind == "full" else 0)
        clean()


SURROUNDINGS = {
    "no home": {"HOME": None, "XDG_CACHE_HOME": None, "XDG_DATA_HOME": None, "XDG_CONFIG_HOME": None},
    "a home that is not there": {"HOME": "/nowhere/at/all", "XDG_CACHE_HOME": None, "MPLCONFIGDIR": None},
    "ASCII": {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
    "no temporary directory": {"TMPDIR": "/nowhere", "TEMP": "/nowhere", "TMP": "/nowhere"},
}
COMMANDS = (
    f"run {SMALL} --no-plots --out made",
    "plot made --figure waste",
    "explain made slowest",
    "explain made slowest --json",
    "report made",
    "traces",
    "gpus",
)
DRIVER = """
import sys
from kvsim import cli
for words in sys.argv[1].splitlines():
    code = cli.main(words.split())
    if code:
        sys.exit(code)
"""


@pytest.mark.parametrize("kind", SURROUNDINGS)
def test_every_command_works_in_odd_surroundings(kind, here):
    environment = {**os.environ, **SURROUNDINGS[kind]}
    told = subprocess.run(
        [sys.executable, "-c", DRIVER, "\n".join(COMMANDS)],
        env={name: value for name, value in environment.items() if value is not None},
        capture_output=True,
        check=False,
    )
    assert (told.returncode, told.stderr) == (0, b"")
    whole_or_not_there("made")


def test_names_that_are_no_text_work_and_come_back(here):
    name = b"caf\xe9.jsonl"
    with open(name, "wb") as file:
        file.write(b'{"prompt_tokens": 5, "output_tokens": 4}\n')
    words = ["run", "--trace", os.fsdecode(name), "--cost", "constant:0.03", "--no-plots", "--out", b"m\xff"]
    assert process(words).code == 0
    again = process(["run", "--config", b"m\xff/config.json", "--no-plots", "--out", "again"])
    assert (again.code, again.err) == (0, "")
    assert (
        Path("again/requests.parquet").read_bytes()
        == Path(os.fsdecode(b"m\xff"), "requests.parquet").read_bytes()
    )


def test_a_directory_that_is_gone(here):
    Path("gone").mkdir()
    words = ["models"]
    told = process(words, cwd="gone", preexec_fn=lambda: os.rmdir(os.getcwd()))
    check(words, told)
    words = f"run {SMALL} --out made".split()
    Path("gone").mkdir()
    told = process(words, cwd="gone", preexec_fn=lambda: os.rmdir(os.getcwd()))
    check(words, told)
    assert told.code == 2


UNREADABLE = (
    "plot {}",
    "report {}",
    "explain {} slowest",
    "trace-events {}",
    "run --config {}/config.json --out never",
    "run --trace {}/requests.parquet --out never",
    "run --model {}/config.json --out never",
    "run --gpu {}/config.json --out never",
    "calibrate show {}/config.json",
    "traces show sharegpt --out {}/below",
    "traces convert sharegpt {}/out.jsonl",
    "run --num-prompts 5 --out {}/below",
)


SPEAKER = """
import contextlib, io, json, sys
from kvsim import cli
for words in sys.argv[1].splitlines():
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(words.split())
    print(json.dumps([words, code, out.getvalue(), err.getvalue()]))
"""


def without_privilege():
    """Let root be stopped by permissions as everybody is: two capabilities are dropped."""
    if os.getuid() == 0:
        for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
            ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP


def test_without_permission_every_command_says_so_in_one_line(here):
    assert cli.main([*f"run {SMALL} --no-plots --quiet --out locked".split()]) == 0
    Path("locked").chmod(0)
    words = "\n".join(UNREADABLE).format(*["locked"] * len(UNREADABLE))
    seen = [sys.executable, "-c", "import os; os.listdir('locked')"]
    if not subprocess.run(seen, preexec_fn=without_privilege, capture_output=True, check=False).returncode:
        pytest.skip("nothing is locked for this user: root, whose privileges cannot be dropped here")
    done = subprocess.run(
        [sys.executable, "-c", SPEAKER, words],
        preexec_fn=without_privilege,
        capture_output=True,
        text=True,
        check=False,
    )
    Path("locked").chmod(0o755)
    assert (done.returncode, done.stderr) == (0, "")
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(told) == len(UNREADABLE)
    for words, *each in told:
        check(words.split(), Told(*each))
        assert each[0] == 2 and ("ermission" in each[2] or "not readable" in each[2]), f"{words}: {each[2]}"
