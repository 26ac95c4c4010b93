"""Runs, comparisons and several seeds whose files were changed: reported on, or refused in one line."""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet
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


@pytest.mark.parametrize("column", ["largest_free_extent", "preemptions"])
def test_a_column_that_only_a_figure_needs_must_hold_numbers(kept, column):
    path = Path("kept/bare/timeline.parquet")
    table = parquet.read_table(path)
    texts = pa.array(["x"] * table.num_rows)
    parquet.write_table(table.set_column(table.column_names.index(column), column, texts), path)
    told = attack(["plot", "kept/bare", "--figure", "fragmentation", "--out", "drawn"])
    assert f"column {column} must be numbers, got string" in told.err


def test_nor_may_it_have_nulls(kept):
    path = Path("kept/bare/timeline.parquet")
    table = parquet.read_table(path)
    column = "largest_free_extent"
    nulls = pa.array([None] * table.num_rows, pa.int32())
    parquet.write_table(table.set_column(table.column_names.index(column), column, nulls), path)
    told = attack(["plot", "kept/bare", "--figure", "fragmentation", "--out", "drawn"])
    assert f"column {column} must have no nulls" in told.err


def test_a_label_with_marks_that_no_font_has_is_drawn_as_escapes(kept):
    path = Path("kept/bare/summary.json")
    summary = json.loads(path.read_text())
    path.write_text(json.dumps(summary | {"label": "a\0b"}))
    assert attack(["plot", "kept/bare", "--figure", "waste,memory,latency", "--out", "drawn"]).code == 0


@pytest.mark.parametrize(
    ("run", "edit", "figure", "said"),
    [
        ("bare", lambda summary: summary["requests"].pop("finished"), "ranking", "requests.finished must be"),
        (
            "bare",
            lambda summary: summary["requests"].update(finished=None),
            "latency",
            "whole number, got None",
        ),
        ("compare", lambda summaries: summaries.append(0.5), "fragmentation", "run 2 must have a label"),
        ("compare", lambda summaries: summaries[0].pop("label"), "block-size", "run 0 must have a label"),
    ],
)
def test_what_every_report_asks_of_a_summary_must_be_there(kept, run, edit, figure, said):
    path = Path("kept", run, "summary.json")
    summary = json.loads(path.read_text())
    edit(summary)
    path.write_text(json.dumps(summary))
    told = attack(["plot", f"kept/{run}", "--figure", figure, "--out", "drawn"])
    assert told.code == 2 and said in told.err


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
