"""The help of a command: short by itself, whole by --help-all, in the order of use."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from kvsim import cli
from kvsim.command_line.help import NARROW, ORDER, OTHER, USUAL
from kvsim.command_line.words import joined

ROOT = Path(__file__).parents[2]


@pytest.fixture
def sim(capsys):
    """Call the command line; returns the exit code and what it printed."""

    def call(*words):
        code = cli.main([*words])
        return code, *capsys.readouterr()

    return call


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("command", USUAL)
def test_the_usual_options_and_two_examples_fit_a_narrow_terminal(command, width, sim, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    code, out, err = sim(command, "--help")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert max(map(len, lines)) <= min(width, 80)
    assert len(lines) < 60 or width < NARROW
    named = re.findall(r"^  (--\S+)", out, re.MULTILINE)
    assert named == [f"--{name}" for name in USUAL[command].options] and len(named) <= 14
    copied = out.split("Examples:\n")[1].split("\n\n")[0].replace(" \\\n", " ")
    assert [" ".join(line.split()) for line in copied.splitlines()] == list(USUAL[command].examples)
    assert f"sim {command} --help-all" in out


@pytest.mark.parametrize("command", USUAL)
def test_the_whole_help_has_its_panels_in_the_order_of_use(command, sim):
    code, out, err = sim(command, "--help-all")
    assert (code, err) == (0, "")
    panels = [name for name in re.findall(r"^([A-Z][\w ]*):$", out, re.MULTILINE) if name != "Arguments"]
    places = [[*ORDER, OTHER].index(name) for name in panels]
    assert places == sorted(places) and panels[0] == "Model and GPU" and panels[-1] == OTHER


@pytest.mark.parametrize("width", [40, 80])
def test_no_help_is_cut_in_a_narrow_terminal(width, sim, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    every = sim("--help")[1]
    names = re.findall(r"^  ([a-z-]+)  ", every.partition("Commands:")[2], re.MULTILINE)
    assert len(names) > 25
    texts = [every, *(sim(name, "--help")[1] for name in names), sim("run", "--help-all")[1]]
    for text in texts:
        assert "..." not in text.partition("Commands:")[2] and "…" not in text and "╭" not in text
        assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize("command", USUAL)
def test_the_examples_run(command, tmp_path, monkeypatch, sim):
    monkeypatch.chdir(tmp_path)
    for example in USUAL[command].examples:
        name, *words = shlex.split(example)
        if command == "replay":  # there is no result: the options are read, then the file is missed
            assert sim(*words)[2].startswith("error: result ")
        else:
            many = command in ("sweep", "capacity")
            assert (name, sim(*words, "--dry-run" if many else "--quiet")[0]) == ("sim", 0)


def test_the_short_help_imports_nothing_slow():
    slow = "{'pyarrow', 'matplotlib', 'simpy', 'rich'}"
    code = f"import sys, cli; cli.main(['run', '--help']); sys.exit(str({slow} & set(sys.modules)))"
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert process.stderr == "set()\n"


def test_all_options_named_as_usual_are_the_commands_own():
    for name, usual in USUAL.items():
        there = {flag for each in cli.command(name).commands[name].params for flag in each.opts}
        assert {f"--{option}" for option in usual.options} <= there


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("compare --allocator paged --allocator=buddy", "compare --allocator=paged,buddy"),
        ("compare --seed 1 --seed 2", "compare --seed 1 --seed 2"),
        ("sweep --request-rate 1:3:1 --request-rate 8", "sweep --request-rate=1:3:1,8"),
        ("fit llama-7b --gpu h100 --gpu a100-80gb,l4", "fit llama-7b --gpu=h100,a100-80gb,l4"),
        ("run --pool both:1 --pool both:2", "run --pool both:1 --pool both:2"),
        ("plot a --figure memory b --figure", "plot a --figure=memory b --figure"),
        ("traces show agents --eviction lru --eviction fifo", "traces show agents --eviction=lru,fifo"),
    ],
)
def test_a_list_may_be_said_in_several_options(given, meant):
    name = given.split()[0]
    assert joined(given.split(), cli.command(name).commands[name]) == meant.split()


def test_a_comparison_has_the_allocators_of_all_its_options(sim):
    code, out, err = sim(
        *("compare", "--num-prompts", "5", "--no-out", "--json"),
        *("--allocator", "paged", "--allocator", "contiguous"),
    )
    assert (code, err) == (0, "")
    assert [run["label"] for run in json.loads(out)] == ["paged", "contiguous"]
