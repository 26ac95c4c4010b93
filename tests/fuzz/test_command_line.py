"""Odd command lines: words of options that are wrong, doubled, missing or absurd; 0, or one line and 2."""

import os
import shutil
from pathlib import Path
from random import Random

import pytest
from support.attack import attack, tried
from support.commands import commands

from kvsim import cli

pytestmark = pytest.mark.slow

SERVER = "--model llama-3.1-8b --gpu l4"
SMALL = "--cost constant:0.03 --num-prompts 5 --no-plots --out out --force"
GOOD = {
    "run": SMALL.split(),
    "compare": [*SMALL.split(), "--allocator", "paged,buddy"],
    "plot": ["kept", "--figure", "waste", "--out", "drawn"],
    "report": ["kept", "--out", "report.html"],
    "explain": ["kept", "slowest"],
    "trace-events": ["kept", "--out", "trace.json"],
    "reproduce": ["pagedattention", "--figure", "99"],
    "traces": [],
    "traces show": ["sharegpt"],
    "traces convert": ["sharegpt", "converted.jsonl", "--force"],
    "traces fetch": ["nothing"],
    "calibrate": ["--quick", "--name", "/", "--out", "nowhere"],
    "calibrate show": ["h200", "--no-plots"],
    "models": [],
    "gpus": [],
    "allocators": [],
    "schedulers": [],
    "check-allocator": ["paged", "--calls", "2"],
    "check-scheduler": ["orca", "--workloads", "1"],
    "check-eviction": ["lru", "--requests", "2"],
    "routers": [],
    "policies": [],
    "predictors": [],
    "speculation": ["llama-3.1-8b", "--cost", "roofline"],
    "eviction": [],
    "costs": [],
    "sweep": ["sweep.toml", "--jobs", "1", *SMALL.split()],
    "capacity": ["capacity.toml", "--jobs", "1", "--seeds", "1", *SMALL.split()],
    "table": ["swept"],
    "fit": SERVER.replace("--model ", "").split(),
    "replay": ["mine.json", *SERVER.split(), "--cost", "roofline"],
    "validate": ["points.csv", "--cost", "roofline", "--model", "llama-3.1-8b", "--gpu", "h100"],
    "calibrate log": ["steps.log", "--out", "fitted.toml", "--force"],
}
"""A command line of each command that does little."""
REFUSED = ("reproduce", "traces fetch", "calibrate")
"""What would do much is refused whatever stands beside it."""

WORDS = """
    - -- -1 0 1 2 7 1e3 0.5 1e400 -1e400 nan inf -inf 1_0 0x10 \u0663 true x a,b , : 1:2 :: a:b:c uniform:1:2
    uniform:2:1 lognormal:100:1 lognormal:1e300:1 zipf:1.1:50 poisson gamma trace:sharegpt trace onoff:1:2
    onoff:0:0 diurnal:10:3 3x200 0x0 1x999999999 exponential:1 replace:0.5 uniform paged buddy:pow2 vllm-v0
    orca static vllm-v1@9 roofline calibrated constant:0 constant:1e-30 constant:1e300 h200 opt-13b fp8 auto
    swap priority best kept kept/config.json kept/summary.json kept/requests.parquet empty / . .. ~ /dev/null
    /dev/full /proc/self/mem missing locked loop \udcff a\udc80b kept\udcff \x1b[2J \u00e9 \U0001f600
    os:system os:nothing no.such:C png svg pdf memory,waste map ttft:p99 ttft:p98 slowest 3 all 1-2 2-1
"""
VALUES = (*WORDS.split(), "", " ", "a\nb", "9" * 12, "9" * 30, "9" * 5000, "X" * 300, "x" * 5000)


@pytest.fixture
def around(files):
    """A run, an empty directory, a link that leads to itself, and a directory that nobody may read."""
    assert cli.main(["run", *SMALL.split(), "--record-map", "3", "--quiet", "--out", "kept"]) == 0
    Path("empty").mkdir()
    Path("loop").symlink_to("loop")
    Path("locked").mkdir(mode=0)
    yield
    Path("locked").chmod(0o700)


SENSIBLE = {
    "--num-prompts": "7", "--seed": "3", "--request-rate": "inf", "--max-num-seqs": "4", "--block-size": "32",
    "--max-num-batched-tokens": "4096", "--kv-tokens": "9000", "--num-gpu-blocks": "700", "--n": "2",
    "--scheduler": "vllm-v0", "--policy": "sjf", "--input-len": "uniform:5:90", "--output-len": "9",
    "--arrivals": "onoff:1:2", "--burstiness": "0.5", "--clients": "3", "--think-time": "1", "--fit": "best",
    "--trace": "synthetic", "--shared-prefix": "3x200", "--watermark": "0.1", "--model": "llama-3-8b",
    "--gpu": "h100", "--cost": "roofline", "--record-map": "5", "--kv-cache-dtype": "fp8", "--start": "1",
    "--duration": "9", "--rate-scale": "2", "--spread": "1", "--max-model-len": "1024", "--reserve": "pow2",
    "--style": "dark", "--format": "svg", "--figure": "waste", "--at": "3", "--requests": "2", "--calls": "3",
}  # fmt: skip
"""Values that are right, for most commands."""


def options() -> dict[str, list[str]]:
    """The options of each command, as the command line itself knows them."""
    return {
        name: [word for each in parameters for word in each.opts if word.startswith("-")]
        for name, parameters in commands().items()
    }


def odd(rng: Random, known: dict[str, list[str]], name: str) -> list[str]:
    """A command line of a command with one to three words changed."""
    words = [*GOOD[name]]
    for _ in range(rng.choice([1, 1, 2, 3])):
        what, place = rng.random(), rng.randint(0, len(words))
        if what < 0.7 and known[name]:
            option = rng.choice(known[name])
            if option in ("--live", "--jobs"):
                continue
            value = SENSIBLE[option] if option in SENSIBLE and rng.random() < 0.5 else rng.choice(VALUES)
            words += [f"{option}={value}"] if rng.random() < 0.3 else [option, value]
        elif what < 0.85 and words:
            words[min(place, len(words) - 1)] = rng.choice(VALUES)
        elif what < 0.93 and words:
            del words[min(place, len(words) - 1)]
        else:
            words.insert(place, rng.choice([*VALUES, *words]))
    return [*name.split(), *words]


def small(words: list[str]) -> bool:
    """Whether the command may be tried: it stays here, and does not take long."""
    return not any(
        (word in ("--out", "--interpret") and following.startswith(("/", "~", ".."))) or word == "--interpret"
        for word, following in zip(words, [*words[1:], ""], strict=True)
    ) and not any(word.startswith(("--out=/", "--out=~", "--out=..")) for word in words)


def test_every_command_is_tried():
    assert options().keys() == GOOD.keys(), "say in GOOD a command line of it that does little"


@pytest.mark.parametrize("name", GOOD)
def test_the_whole_command_line_is_good(around, name):
    assert attack([*name.split(), *GOOD[name]]).code == 0 or name in REFUSED


@pytest.mark.parametrize("name", GOOD)
def test_odd_words_of_each_command(cases, around, name):
    known = options()

    def case(rng):
        words = odd(rng, known, name)
        return attack(words) if small(words) else None

    tried(f"words of {name}", cases(4), case)


def test_odd_words_of_any_command(cases, around):
    known = options()

    def case(rng):
        words = odd(rng, known, rng.choice(["run", "run", "run", "compare", *GOOD]))
        return attack(words) if small(words) else None

    found = tried("command lines", cases(60), case)
    assert min(found["accepted"], found["refused"]) > 0
    assert not os.path.exists("locked/out")


FOUND = {
    "speculation llama-3.1-8b --cost roofline --format buddy:pow2 --out drawn": 2,
    "speculation llama-3.1-8b --cost roofline --style buddy:pow2 --out drawn": 2,
    "validate points.csv --table wide.csv": 2,
    "plot kept \x1b[2J --figure waste --out drawn": 0,
    "plot kept \u6a21\u578b --figure waste --out drawn": 0,
}
"""What went wrong once, among ten thousand: the code that each ends with."""


@pytest.mark.parametrize("words", FOUND)
def test_what_went_wrong_once_does_not_again(around, words):
    Path("wide.csv").write_text("x" * 200_000)
    for name in ("\x1b[2J", "\u6a21\u578b"):
        shutil.copytree("kept", name)
    assert attack(words.split()).code == FOUND[words]
