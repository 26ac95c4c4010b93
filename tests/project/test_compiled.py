"""The build with compiled modules: the same bytes as pure Python, and own classes in plain Python plug in.

It is the wheel that $KVSIM_COMPILED_WHEEL names, as CI has made one before; otherwise it is made once, in a
folder of its own, without optimisation. The recordings of engines, the equality of
spans and steps, and the contracts are then tried on it, each by the tests that try them on the checkout.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path
from random import Random

import pytest
from support.drawn import PARTS, parts_around, run_of

from kvsim import cli
from kvsim.allocators import ALLOCATORS

ROOT = Path(cli.__file__).resolve().parent
COMPILER = (sysconfig.get_config_var("CC") or "cc").split()[0]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"there is no C compiler {COMPILER}"),
]

TRIED = (
    *("tests/sim/test_modes_agree.py", "tests/sim/test_windows.py", "tests/sim/test_counting.py"),
    *("tests/sim/test_goldens.py", "tests/sim/test_goldens_async.py"),
    *("tests/sim/test_contract.py", "tests/sim/test_fleet.py", "tests/sim/test_capabilities.py"),
    *("tests/sim/test_growth.py", "tests/sim/test_progress.py", "tests/sim/test_cost_calibrated.py"),
    *("tests/sim/test_no_negative_slots.py", "tests/sim/test_no_progress.py"),
    *("tests/allocators/test_allocators.py", "tests/allocators/test_radix.py"),
)
SLOW_TOO = "block0 or rule_by_rule or walk_meets or keep_the_rules or broken_schedulers or the_contract_holds"
"""Of the slow tests, those of equality and of contracts."""
WORK = "--num-prompts 60 --request-rate 8 --no-plots --record-map 10 --step-log"
COMMANDS = f"""\
run {WORK} --out default
run {WORK} --no-async-scheduling --cost constant:0.03 --kv-tokens 6000 --out short
run {WORK} --kv-tokens 6000 --watermark 0.02 --no-reserve-full-prompt --out switches
run {WORK} --kv-tokens 6000 --out prefixes --enable-prefix-caching --shared-prefix 3x200
run {WORK} --kv-tokens 6000 --out radix --allocator radix --enable-prefix-caching --shared-prefix 3x200
run {WORK} --kv-tokens 6000 --out forks --scheduler vllm-v0 --n 3 --preemption swap
run {WORK} --kv-tokens 9000 --out beams --scheduler vllm-v0 --beam-width 3 --max-num-seqs 12
run {WORK} --model gemma-3-27b --gpu h100 --out windows
run {WORK} --model llama-3.1-8b --gpu h100 --cost measured-elsewhere --out calibrated
run {WORK} --model gemma-3-27b --gpu h100 --cost measured-elsewhere --out measured-windows
run --num-prompts 60 --request-rate 20 --no-plots --replicas 3 --router least-requests --out fleet
run {WORK} --policy mlfq --max-num-seqs 6 --kv-tokens 6000 --clients-mix A:0.8,B:0.2 --out mlfq
run {WORK} --policy vtc --max-num-seqs 6 --kv-tokens 6000 --clients-mix A:0.8,B:0.2 --out vtc
run {WORK} --policy dlpm --max-num-seqs 6 --kv-tokens 6000 --clients-mix A:0.8,B:0.2 --out dlpm
run {WORK} --allocator own:Mine --scheduler own:Later --patience 2 --out own
compare {WORK} --kv-tokens 6000 --allocator contiguous,buddy,dynamic,paged --out several
schedulers
schedulers vllm-v1
"""
OWN = """
from dataclasses import dataclass

from kvsim.allocators.option import option
from kvsim.allocators.paged import Paged
from kvsim.sim.schedulers.vllm_options import VllmV1Options
from kvsim.sim.schedulers.vllm_v1 import VllmV1

class Mine(Paged):
    def growth_budget(self):
        return super().growth_budget() // 2

@dataclass(frozen=True, kw_only=True)
class LaterOptions(VllmV1Options):
    patience: int | None = option("Requests that must wait before any enters.", default=None, value="N")

class Later(VllmV1):
    declares = LaterOptions

    def schedule(self, server):
        few = len(server.waiting) < (self.own(LaterOptions).patience or 3)
        if few and server.running and server.now_ps < 10**12:
            server.grow_due()
        else:
            super().schedule(server)
"""
DRIVER = """
import sys
from itertools import count
from types import SimpleNamespace
from kvsim import cli
from kvsim.sim import run

tick = count().__next__
run.time = SimpleNamespace(perf_counter=tick, process_time=tick)  # so that every run takes 1 s
for command in sys.argv[1].splitlines():
    print("$", command, flush=True)
    print("exit code", cli.main(command.split()), flush=True)
"""


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """A folder with the compiled package, as a wheel holds it."""
    installed = tmp_path_factory.mktemp("compiled")
    with zipfile.ZipFile(os.environ.get("KVSIM_COMPILED_WHEEL") or built(tmp_path_factory)) as file:
        file.extractall(installed)
    return installed


def built(tmp_path_factory):
    """The wheel, made here."""
    source = tmp_path_factory.mktemp("source") / "kvsim"
    ignored = shutil.ignore_patterns(".*", "build", "*.egg-info", "*.so", "__pycache__", "runs", "tests")
    shutil.copytree(ROOT, source, symlinks=True, ignore=ignored)
    out = tmp_path_factory.mktemp("wheels")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    asked = os.environ | {"KVSIM_COMPILE": "1", "KVSIM_COMPILE_LEVEL": "0"}
    made = subprocess.run(
        [*command, "--wheel-dir", str(out), str(source)],
        capture_output=True,
        text=True,
        env=asked,
        check=False,
    )
    assert made.returncode == 0, made.stdout[-1500:] + made.stderr[-1500:]
    (wheel,) = out.iterdir()
    return wheel


def run(path, *command, folder, **more):
    """A command's output, with kvsim from that path."""
    where = os.environ | {"PYTHONPATH": os.pathsep.join((str(path), str(folder))), "PYTHONHASHSEED": "0"}
    found = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, env=where | more, cwd=folder, check=False
    )
    assert found.returncode == 0, found.stdout[-3000:] + found.stderr[-1500:]
    return found.stdout


def test_each_module_named_is_compiled_and_the_version_says_so(target, tmp_path):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    names = project["tool"]["kvsim"]["compiled"]
    code = "import importlib, sys; [print(importlib.import_module(name).__file__) for name in sys.argv[1:]]"
    files = run(target, "-c", code, *names, folder=tmp_path).splitlines()
    assert len(files) == len(names) and all(file.endswith((".so", ".pyd")) for file in files)
    version = ["-c", "from kvsim import cli; cli.main(['--version'])"]
    assert run(target, *version, folder=tmp_path).endswith(", compiled with mypyc\n")
    assert run(ROOT, *version, folder=tmp_path).endswith(", pure Python\n")


def said_and_written(target, tmp_path, commands):
    """What commands say and the files that they write, by the compiled build and by pure Python."""
    for name, path in (("compiled", target), ("pure", ROOT)):
        folder = tmp_path / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / "own.py").write_text(OWN)
        said = run(path, "-c", f"import sys\nsys.stderr = sys.stdout\n{DRIVER}", commands, folder=folder)
        assert "bug:" not in said, said
        files = {f.relative_to(folder).as_posix(): f.read_bytes() for f in folder.rglob("*") if f.is_file()}
        kept = {file: content for file, content in files.items() if "__pycache__" not in file}
        yield re.sub(r"\d+\.\d+ s CPU", "", said), kept


def compared(target, tmp_path, commands):
    """What both builds say of commands, which is the same, as is every byte that they write."""
    (said, files), (in_pure, pure) = said_and_written(target, tmp_path, commands)
    assert files.keys() == pure.keys()
    assert [name for name, content in pure.items() if files[name] != content] == []
    assert said == in_pure
    return said


def test_every_file_and_every_word_is_that_of_pure_python(target, tmp_path):
    said = compared(target, tmp_path, COMMANDS)
    bad = re.findall(r"(?m)^\$ .*\n(?:(?!\$ ).*\n)*?exit code [1-9].*", said)
    assert not bad, bad


def test_a_fleet_of_each_allocator_is_that_of_pure_python(target, tmp_path):
    command = "run --num-prompts 12 --request-rate inf --kv-tokens 20000 --replicas 2 --no-plots --out"
    commands = "\n".join(f"{command} {name} --allocator {name}" for name in ALLOCATORS)
    said = compared(target, tmp_path, commands)
    assert said.count("exit code 0") > 3 * said.count("exit code 2")


AT_ONCE = 200
"""Random runs in a process."""


def test_random_runs_of_every_part_are_those_of_pure_python(target, tmp_path, request):
    commands = []
    for number in range(request.config.getoption("--fuzz") or 1):
        for kind, name in PARTS:
            rng = Random(f"compiled {kind} {name} {number}")
            words = run_of(parts_around(rng, kind, name), rng, 4)
            commands.append(shlex.join([*words, "--step-log", "--out", f"{len(commands)}"]))
    accepted = 0
    for begin in range(0, len(commands), AT_ONCE):
        said = compared(target, tmp_path, "\n".join(commands[begin : begin + AT_ONCE]))
        accepted += said.count("exit code 0")
    print(f"compiled and pure: {len(commands):,} runs, {accepted:,} accepted")
    assert accepted > len(commands) / 3


def test_mixed_work_is_that_of_pure_python(target, tmp_path, request):
    """Tiers, drafts, policies, pools, deaths and scaling: all that a run finds out, in both modes."""
    cases = request.config.getoption("--fuzz") or 60
    code = f"import sys; sys.path.append({str(ROOT / 'tests')!r}); from support.mixed import digests; "
    code += f"digests(0, {cases})"
    compiled, pure = (run(path, "-c", code, folder=tmp_path) for path in (target, ROOT))
    assert compiled == pure
    assert compiled.count("agree") == cases
    assert compiled.count("True") > cases / 2


def test_recordings_equality_and_contracts_hold(target, tmp_path):
    """The tests of the checkout, on the compiled package: none of them may find the checkout's own."""
    shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\npythonpath = tests\naddopts = -q --import-mode=importlib\n"
        "markers =\n    golden: recordings\n    slow: takes seconds\n"
    )
    (tmp_path / "conftest.py").write_text(
        "import gc\nfrom kvsim.sim import installed_build\n\n"
        "def pytest_configure():\n    assert installed_build() == 'compiled with mypyc'\n\n"
        "def pytest_collection_finish():\n    gc.freeze()\n    gc.set_threshold(20_000, 10, 50)\n"
    )
    goldens = os.environ.get("KVSIM_GOLDENS", str(ROOT.parent / "shared/goldens"))
    options = ["-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist"]
    for chosen in (["-m", "golden or not slow"], ["-m", "slow and not golden", "-k", SLOW_TOO]):
        said = run(target, *options, *chosen, *TRIED, folder=tmp_path, KVSIM_GOLDENS=goldens, COLUMNS="80")
        assert re.search(r"\d+ passed|\[100%\]", said), said[-1000:]


LACKING = """
import inspect
import kvsim

class Half(kvsim.Allocator):
    def from_options(cls, *_): ...

try:
    kvsim.simulate(allocator=Half, num_prompts=2)
except kvsim.KvsimError as told:
    print(kvsim.Allocator.__doc__, kvsim.Scheduler.__doc__, told)
for part in (kvsim.Allocator, kvsim.Scheduler):
    for name in dir(part):
        if callable(method := getattr(part, name)) and not name.startswith("_"):
            print(part.__name__, name, inspect.getdoc(method))
"""


def test_a_class_that_lacks_a_method_is_refused_and_help_is_that_of_pure_python(target, tmp_path):
    compiled, pure = (run(path, "-c", LACKING, folder=tmp_path) for path in (target, ROOT))
    assert compiled == pure
    assert "allocator '__main__:Half' does not say admit, " in pure
    assert "Allocator admit Place a new sequence" in pure


BODY = """
import kvsim
from kvsim.sim.cost.step_cost import CostModel

class Heard(CostModel):
    flags = True
    context_tile = 16
    source = "heard"
    heard_ps = spreads = 0

    def step_ps(self, shape):
        Heard.spreads += shape.spread is not None
        return 1_000_000_000 + shape.context_tokens

    def carried_out(self, shape, duration_ps):
        Heard.heard_ps += duration_ps

    def span_carried_out(self, decode_seqs, context_tokens, ends):
        Heard.heard_ps += ends[-1]

kvsim.simulate(cost=Heard, num_prompts=5, request_rate=9)
print(Heard.heard_ps, Heard.spreads)
"""


def test_what_a_cost_says_in_its_class_body_holds(target, tmp_path):
    """Compiled code reads an attribute of a compiled class from the object, past an interpreted subclass."""
    compiled, pure = (run(path, "-c", BODY, folder=tmp_path) for path in (target, ROOT))
    assert compiled == pure
    heard_ps, spreads = map(int, pure.split())
    assert heard_ps > 0 < spreads
