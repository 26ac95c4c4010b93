"""Whose code runs: what the user names on the command line, and nothing that merely lies there."""

import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import kvsim
from kvsim import cli
from kvsim.reports.sweeps.plan import SWEPT
from kvsim.sim.errors import KvsimError

pytestmark = pytest.mark.slow

ROOT = Path(cli.__file__).resolve().parent
SMALL = ("--cost", "constant:0.03", "--num-prompts", "20", "--no-plots", "--quiet")
RAN = "from pathlib import Path\nPath(__file__).with_name('ran').touch()\n"
MINE = "from kvsim.allocators.paged import Paged\nclass Mine(Paged):\n    pass\n"


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def sim(*arguments, how=("-m", "kvsim")):
    """The command as a process: exit code, stdout, stderr."""
    site = Path("../site")  # with nothing in it but kvsim
    if not site.exists():
        site.mkdir()
        (site / "kvsim").symlink_to(ROOT / "kvsim")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    process = subprocess.run(
        [sys.executable, *how, *arguments],
        env=environment | {"PYTHONPATH": str(site.resolve())},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return process.returncode, process.stdout, process.stderr


@pytest.fixture
def here(capsys, monkeypatch):
    """The command in this process, which forgets the modules of the working directory afterwards."""
    monkeypatch.setattr(sys, "meta_path", sys.meta_path[:])
    before = set(sys.modules)

    def here(*arguments):
        code = cli.main(list(arguments))
        return code, *capsys.readouterr()

    yield here
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(os.getcwd()):
            del sys.modules[name]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A run, to be changed."""
    out = tmp_path_factory.mktemp("plain") / "out"
    assert sim("run", *SMALL, "--out", str(out)) == (0, "", "")
    return out


def planted(plain, where, field, name):
    """A copy of the run whose config names code; importing that leaves a file `ran`."""
    shutil.copytree(plain, "theirs")
    config = json.loads(Path("theirs/config.json").read_text())
    where(config)[field] = name
    Path("theirs/config.json").write_text(json.dumps(config))
    for folder in (".", "theirs"):
        Path(folder, "bait.py").write_text(RAN + MINE)


def engine(config):
    return config["scenario"]["engine"]


def workload(config):
    return config["workload"]


PLANTS = [
    (engine, "allocator", "bait:Mine"),
    (engine, "scheduler", "bait:Mine"),
    (engine, "allocator", "theirs/bait:Mine"),
    (workload, "trace", "bait:Mine"),
    (workload, "arrivals", "trace:bait:Mine"),
    (workload, "input_len", "trace:bait:Mine"),
    (workload, "output_len", "trace:bait:Mine"),
]


@pytest.mark.parametrize(("where", "field", "name"), PLANTS)
@pytest.mark.parametrize(
    "command",
    [
        ("run", "--config", "theirs/config.json", "--out", "mine"),
        ("run", "--config", "theirs/config.json", "--out", "mine", "--seeds", "2"),
        ("explain", "theirs", "0"),
        ("trace-events", "theirs"),
    ],
    ids=lambda command: " ".join(command[:1] + command[5:]),
)
def test_code_that_a_config_names_does_not_run(plain, where, field, name, command, capsys):
    planted(plain, where, field, name)
    code = cli.main(command)
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("error: ")
    bare = name.removeprefix("trace:")
    said = f"{bare!r} is code that only a file names: pass --allow-code if you trust it"
    assert said in err.splitlines()[-1]
    assert not list(Path().rglob("ran")) and not Path("mine").exists()


def test_code_that_a_config_names_runs_if_it_is_named_again_or_allowed(plain):
    planted(plain, engine, "allocator", "bait:Mine")
    config = ("run", "--config", "theirs/config.json", *SMALL[4:])
    assert sim(*config, "--allocator", "bait:Mine", "--out", "named") == (0, "", "")
    assert sim(*config, "--allow-code", "--out", "allowed") == (0, "", "")
    assert sim("explain", "theirs", "0", "--allow-code")[0] == 0
    assert sim("trace-events", "theirs", "--allow-code")[0] == 0
    wrong = sim(*config, "--allocator", "other:Mine", "--out", "wrong")
    assert wrong[0] == 2 and "leave out --allocator" in wrong[2]


def test_a_name_beside_a_config_that_names_another_is_a_mistake(plain, here):
    line = "error: config {} holds every choice: leave out --allocator\n"
    for name in ("bait:Mine", "buddy:pow2"):
        found = here("run", "--config", str(plain / "config.json"), "--allocator", name)
        assert found == (2, "", line.format(plain / "config.json"))


OURS = (
    "pandas",
    "torch",
    "triton",
    "tokenizers",
    "matplotlib",
    "numpy",
    "pyarrow",
    "rich",
    "typer",
    "cloudpickle",
)
STANDARD = ("json", "dataclasses", "pickle", "secrets", "multiprocessing", "sim", "allocators")


def console_script(*arguments):
    """The command as its console script runs it."""
    Path("bin").mkdir(exist_ok=True)
    Path("bin/sim").write_text("import sys\nfrom kvsim.cli import main\nsys.exit(main())\n")
    return sim(*arguments, how=("bin/sim",))


@pytest.mark.parametrize("run", [sim, console_script])
def test_what_lies_in_the_working_directory_is_not_run(run):
    names = OURS + STANDARD if run is console_script else OURS  # Python itself puts it first for -m
    for name in names:
        Path(f"{name}.py").write_text(RAN)
    for command in (
        ("run", "--num-prompts", "20", "--quiet", "--out", "out"),
        ("run", *SMALL, "--seeds", "2", "--jobs", "2", "--out", "seeds"),
        ("run", *SMALL, "--allocator", "paged", "--out", "own"),
        ("report", "out"),
        ("plot", "out"),
        ("traces", "show", "sharegpt"),
        ("calibrate", "show", "a100-40gb-sosp23"),
    ):
        code, _, err = run(*command)
        assert (code, err) == (0, ""), command
        assert not Path("ran").exists(), command


def test_an_own_module_brings_its_siblings_but_not_ours():
    Path("mine.py").write_text(
        "import beside\nfrom folder.inner import Base\nfrom kvsim.allocators.paged import Paged\n"
        "class Mine(Base):\n    def admit(self, *how):\n"
        "        import late\n        import importlib\n        importlib.import_module('later')\n"
        "        return super().admit(*how)\n"
    )
    Path("folder").mkdir()
    Path("folder/inner.py").write_text("from kvsim.allocators.paged import Paged as Base\n")
    for name in ("beside", "late", "later"):
        Path(f"{name}.py").write_text("")
    Path("tokenizers.py").write_text(RAN)
    own = ("run", *SMALL, "--allocator", "mine:Mine", "--scheduler", "vllm-v1")
    assert sim(*own, "--out", "one") == (0, "", "")
    assert sim(*own, "--seeds", "2", "--jobs", "2", "--out", "two") == (0, "", "")
    assert not Path("ran").exists()


def test_an_own_module_may_have_any_name_that_is_not_installed():
    for name in ("sim", "reports", "cli"):
        Path(f"{name}.py").write_text(MINE)
        found = sim("run", *SMALL, "--allocator", f"{name}:Mine", "--scheduler", "vllm-v1", "--out", name)
        assert found == (0, "", "")


def test_a_matplotlibrc_of_the_working_directory_changes_no_picture():
    draw = ("run", *SMALL[:4], "--quiet", "--out")
    assert sim(*draw, "plain") == (0, "", "")
    Path("bait.py").write_text(RAN)
    Path("matplotlibrc").write_text("backend: module://bait\ntext.usetex: True\nlines.linewidth: 30\n")
    assert sim(*draw, "beside") == (0, "", "")
    drawn = {path.name: path.read_bytes() for path in Path("plain").glob("*.png")}
    assert drawn and drawn == {path.name: path.read_bytes() for path in Path("beside").glob("*.png")}
    assert not Path("ran").exists()


MISTAKES = {
    "class Mine(:\n    pass\n": "mine.py, line 1: invalid syntax",
    "import os\n\nclass Mine\n    pass\n": "mine.py, line 3: expected ':'",
    "x = 1\nclass Mine(Missing):\n    pass\n": "mine.py, line 2: NameError: name 'Missing' is not defined",
    "import no_such_module\n": "mine.py, line 1: No module named 'no_such_module'",
    "from allocators.paged import Paged\n": "mine.py, line 1: No module named 'allocators'",
    "import broken\n": "broken.py, line 2: '(' was never closed",
    "raise ValueError('two\\nlines')\n": "mine.py, line 1: ValueError: two lines",
    "import sys\nsys.exit(3)\n": "mine.py, line 2: SystemExit: 3",
    "x = 1\n": "module 'mine' has no attribute 'Mine'",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_in_an_own_module_is_one_line_with_its_place(text, here):
    """Where the tests run, `allocators` can be imported: that one needs processes."""
    say = sim if "allocators" in text else here
    Path("mine.py").write_text(text)
    Path("broken.py").write_text("x = 1\ny = (\n")
    line = f"error: allocator 'mine:Mine' cannot be imported: {MISTAKES[text]}\n"
    for command in (("run",), ("compare",), ("check-allocator", "mine:Mine")):
        options = () if command[0] == "check-allocator" else ("--allocator", "mine:Mine")
        assert say(*command, *options) == (2, "", line)


# -- every file, every place in it ------------------------------------------------------------------

RUN = f"run --no-plots --quiet --force --out made {' '.join(SMALL[:4])}"
SERVER = "--model opt-13b --gpu a100-40gb"
NUMBERS = {"memory_gib": 48, "bandwidth_gb_per_s": 960, "bf16_tflops": 250, "pcie_gb_per_s": 32}
PROFILE = json.loads((ROOT / "tests/data/calibrated-example.json").read_text())
RESULT = json.loads(sorted((ROOT / "tests/data/bench").glob("*.json"))[0].read_text())
LLAMA = {
    **{"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4},
    **{"num_hidden_layers": 2, "vocab_size": 100, "max_position_embeddings": 2048, "torch_dtype": "bfloat16"},
}
READ = {
    "model": (LLAMA, f"{RUN} --gpu h100 --model theirs/model", "fit theirs/model"),
    "gpu": (NUMBERS | {"name": "x", "source": "y"}, f"{RUN} --gpu theirs/gpu"),
    "profile": (
        PROFILE,
        f"{RUN} --kv-tokens 9000 --gpu theirs/profile".replace("--cost constant:0.03 ", ""),
        "calibrate show theirs/profile --no-plots",
    ),
    "result": (RESULT, f"replay theirs/result {SERVER}", f"validate theirs/result {SERVER}"),
}
"""A file of each kind but runs and sweeps, and commands that read it."""


def places(value):
    """All places in a JSON value where no number stands, those in long lists only at their start."""
    if isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value[:2]):
            yield from ([key, *rest] for rest in places(each))
    elif value is None or isinstance(value, str):
        yield []


def put(value, place, said):
    """The JSON value with something else at a place."""
    if not place:
        return said
    items = value.items() if isinstance(value, dict) else enumerate(value)
    found = {key: put(each, place[1:], said) if key == place[0] else each for key, each in items}
    return found if isinstance(value, dict) else [*found.values()]


def nothing_ran(commands, file, texts, capsys):
    """Each command on a file with each of these texts: it ends, in one line or well, and the bait lies."""
    Path("bait.py").write_text(RAN + MINE)
    refused = 0
    for text in texts:
        file.write_text(text)
        for command in commands:
            cli.main(command.split())
            told = capsys.readouterr().err
            assert "bug:" not in told, (command, text, told)
            refused += "is code that only a file names" in told
            assert not Path("ran").exists() and "bait" not in sys.modules, (command, text)
    return refused


@pytest.mark.parametrize("kind", READ)
def test_no_file_runs_code_wherever_it_names_some(kind, capsys):
    value, *commands = READ[kind]
    Path("theirs").mkdir()
    texts = [json.dumps(put(value, place, "bait:Mine")) for place in places(value)]
    nothing_ran(commands, Path("theirs", kind), texts, capsys)


@pytest.mark.parametrize(
    "command",
    [
        "run --config theirs/config.json --no-plots --quiet --force --out made",
        "explain theirs 0",
        "trace-events theirs --force",
        "table theirs",
        "report theirs --force",
    ],
)
def test_no_run_runs_code_wherever_its_config_names_some(plain, command, capsys):
    shutil.copytree(plain, "theirs")
    config = Path("theirs/config.json")
    value = json.loads(config.read_text())
    value["fleet"] = {"replicas": 2, "router": "round-robin", "seed": 0}
    texts = [
        json.dumps(put(value, place, said))
        for place in places(value)
        for said in (["bait:Mine", "trace:bait:Mine"] if place[0] == "workload" else ["bait:Mine"])
    ]
    refused = nothing_ran([command], config, texts, capsys)
    assert refused >= (5 if command.split()[0] in ("run", "explain", "trace-events") else 0)


@pytest.mark.parametrize("command", ["sweep", "sweep --dry-run", "capacity --dry-run --slo ttft:p99=1s"])
def test_no_sweep_runs_code_whichever_option_names_some(command, capsys):
    texts = [
        f'cost = "constant:0.03"\nnum_prompts = [5, 6]\n{name} = {json.dumps(said)}\n'
        for name in SWEPT
        for said in ("bait:Mine", ["bait:Mine", "paged"], "trace:bait:Mine")
    ]
    assert nothing_ran([f"{command} theirs.toml"], Path("theirs.toml"), texts, capsys) >= 8


@pytest.mark.parametrize("command", ["sweep", "capacity --slo ttft:p99=9s --seeds 1"])
def test_a_sweep_runs_code_that_is_named_again_or_allowed(command):
    Path("bait.py").write_text(RAN + MINE)
    Path("theirs.toml").write_text(
        'cost = "constant:0.03"\nnum_prompts = 5\nallocator = ["bait:Mine", "paged"]\n'
    )
    words = (*command.split(), "theirs.toml", "--quiet", "--no-plots", "--jobs", "2", "--out", "made")
    code, _, err = sim(*words)
    assert (
        code == 2
        and "allocator 'bait:Mine' is code that only a file names" in err
        and not Path("made").exists()
    )
    assert sim(*words, "--allocator", "bait:Mine,paged")[0] == 0 and Path("ran").exists()
    assert sim(*words, "--allow-code", "--force")[0] == 0


@pytest.mark.parametrize(
    "words",
    [
        ("capacity", "--slo", "bait:p99=1s", "--seeds", "1"),
        ("capacity", "--slo", "ttft:p99=1s,bait:p99=1s", "--seeds", "1"),
        ("sweep", "--slo", "bait:p99=1s"),
        ("sweep", "--out", "./bait:p99"),
    ],
)
def test_a_limit_of_the_slo_is_no_name_of_code(words, capsys):
    """A folder with a sweep and a `ttft.py` in it: what a user says of latencies does not call for that."""
    Path("theirs.toml").write_text('cost = "constant:0.03"\nnum_prompts = 5\nallocator = "bait:p99"\n')
    Path("bait.py").write_text(RAN + MINE)
    assert cli.main([words[0], "theirs.toml", *words[1:]]) == 2
    assert "bait" not in sys.modules and not Path("ran").exists(), capsys.readouterr().err


def test_what_cannot_be_a_name_is_not_imported(here):
    """`constant:0.03` is said on many command lines; a file that lists it as an allocator runs nothing."""
    Path("theirs.toml").write_text('num_prompts = 5\nallocator = "constant:0"\n')
    Path("constant.py").write_text(RAN + MINE)
    code, _, err = here("sweep", "theirs.toml", "--cost", "constant:0")
    assert code == 2 and "allocator 'constant:0' must be package.module:Name" in err
    assert not Path("ran").exists()


def test_in_python_a_file_runs_no_code_either(monkeypatch):
    Path("bait.py").write_text(RAN + MINE)
    Path("theirs.toml").write_text('cost = "constant:0.03"\nnum_prompts = 5\nallocator = "bait:Mine"\n')
    monkeypatch.setattr(sys, "meta_path", sys.meta_path[:])
    for call in (kvsim.sweep, partial(kvsim.capacity, slo="ttft:p99=9s", seeds=1)):
        with pytest.raises(KvsimError, match="allocator 'bait:Mine' is code that only a file names"):
            call(file="theirs.toml")
    assert not Path("ran").exists()
    assert len(kvsim.sweep(file="theirs.toml", allow_code=True, jobs=1)) == 1 and Path("ran").exists()
    del sys.modules["bait"]
    assert len(kvsim.sweep(file="theirs.toml", allocator="bait:Mine", jobs=1)) == 1
    del sys.modules["bait"]
