"""Runs, comparisons and several seeds whose files were changed: reported on, or refused in one line."""

import shutil
from pathlib import Path

import pytest
from support.attack import attack, tried
from support.mutations import mutated_folder

from kvsim import cli
from kvsim.reports.figures.catalogue import FIGURES

pytestmark = pytest.mark.slow

SMALL = "--cost constant:0.03 --num-prompts 12 --request-rate 4 --kv-tokens 5000 --no-plots --quiet"
READERS = (
    "explain {} slowest",
    "explain {} 3 --json",
    "trace-events {} --out trace.json",
    "trace-events {} --out trace.json --steps --requests 5",
    "report {} --out report.html",
    *(f"plot {{}} --figure {name} --out drawn" for name in FIGURES),
)
SLOW = ("plot {} --out drawn", "plot {} --figure ledger,occupancy,requests --style paper --out drawn")
REPEATED = "run --config {}/config.json --no-plots --quiet --out again --force"


@pytest.fixture
def kept(here):
    """One of each, in `kept`."""
    for words in (
        "run --record-map 4 --step-log --out kept/run",
        "run --n 2 --scheduler vllm-v0 --record-map 3 --out kept/samples",
        "run --out kept/bare",
        "compare --allocator paged,buddy --record-map 3 --out kept/compare",
        "run --seeds 2 --jobs 1 --out kept/seeds",
    ):
        assert cli.main([*words.split(), *SMALL.split()]) == 0
    return sorted(path.name for path in Path("kept").iterdir())


def test_mutated_run_directories(cases, kept):
    def case(rng):
        shutil.rmtree("one", ignore_errors=True)
        name = rng.choice(kept)
        shutil.copytree(Path("kept", name), "one", symlinks=True)
        mutated_folder(rng, Path("one"))
        words = rng.choice(READERS if rng.random() < 0.9 else SLOW)
        if rng.random() < 0.2 and name in ("run", "samples", "bare"):
            words = REPEATED
        return attack(words.format("one").split())

    found = tried("run directories", cases(60), case)
    assert min(found["accepted"], found["refused"]) > 0
