"""kvsim keeps the books of the genuine engines, step by step and request by request.

The golden numbers were taken from the engines' own schedulers and block managers
(`../shared/goldens/README.md`). kvsim answers through its command line alone (`golden.py`).
"""

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.golden import (
    EDGE_CASES,
    GOLDENS,
    REQUEST_COLUMNS,
    SCHEDULERS,
    STEP_COLUMNS,
    TOTALS,
    Answer,
    answer,
    busy_steps,
    command,
    detail,
    differences,
    golden,
    notes,
    rows,
)
from support.shared_data import goldens

from kvsim import cli
from kvsim.sim.files.marker import MARKER

ERRORS = [name for name in EDGE_CASES if golden(name)["totals"]["error"]]
WORKING = [*GOLDENS, *(name for name in EDGE_CASES if name not in ERRORS)]
TINY = [name for name in GOLDENS if "_tiny" in name]
ONE_OF_EACH = tuple({name.partition("/")[0]: name for name in reversed(TINY)}.values())

pytestmark = pytest.mark.golden
SAMPLED = [name if name in TINY else pytest.param(name, marks=pytest.mark.slow) for name in WORKING]
"""All of them; without the slow ones, the smallest of every engine."""


@pytest.mark.skipif("KVSIM_GOLDENS" in os.environ, reason="KVSIM_GOLDENS may hold any of them")
def test_every_engine_has_its_golden_files():
    goldens()
    assert {name.partition("/")[0] for name in GOLDENS} == set(SCHEDULERS)
    assert {name.partition("/")[0] for name in ERRORS} == set(SCHEDULERS) - {"v042"}
    assert {name.partition("/")[0] for name in TINY} == set(SCHEDULERS)
    assert [name for name in GOLDENS if "detail" in golden(name)] == TINY


@pytest.mark.parametrize("name", SAMPLED)
def test_every_step_and_every_request_is_as_in_the_engine(name):
    assert differences(golden(name), answer(name)) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLED)
def test_fast_forward_leaves_the_same_files(name):
    steps, spans = dict(answer(name).files), dict(answer(name, step_log=False).files)
    assert set(steps) == {*spans, "steps.parquet"}
    listed = [json.loads(files.pop(MARKER))["files"] for files in (steps, spans)]
    assert set(listed[0]) == {*listed[1], "steps.parquet"}
    assert [file for file, content in spans.items() if steps[file] != content] == []


@pytest.mark.parametrize("name", ERRORS)
def test_what_makes_the_engine_hang_or_stop_is_rejected_and_the_rest_served(name):
    case = golden(name)
    room = case["config"]["block_size"] * case["config"]["usable_blocks"]
    fits = [row["prompt_len"] + row["output_len"] - 1 <= room for row in case["requests"]]
    assert not all(fits)
    told = answer(name).requests
    assert told["status"] == ["finished" if each else "rejected" for each in fits]
    alone = [
        row["arrival"] + row["output_len"] for row in case["requests"]
    ]  # a prompt of one step, then decodes
    assert told["finish_s"] == [time if each else None for each, time in zip(fits, alone, strict=True)]


@pytest.mark.parametrize("name", TINY)
def test_block_tables_queues_and_the_order_of_free_blocks_are_as_in_the_engine(name):
    case = golden(name)
    seen = notes(name)
    assert list(seen) == busy_steps(case)
    for step, facts in seen.items():
        assert facts == detail(case, step), step


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_OF_EACH[:1])
def test_the_command_in_a_process_of_its_own_answers_the_same(name, tmp_path):
    arguments = command(golden(name), tmp_path, step_log=True)
    root = str(Path(cli.__file__).resolve().parent)
    code = f"import sys; sys.path.insert(0, {root!r}); from kvsim import cli; sys.exit(cli.main())"
    call = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert differences(golden(name), Answer.read(tmp_path / "run")) == []


# -- the comparison itself ----------------------------------------------------------------------------


def spoiled(case):
    """(what, the golden with one number changed) for each number that the comparison must check."""
    for column in STEP_COLUMNS[case["engine"]]:
        for step in {busy_steps(case)[0], busy_steps(case)[-1]}:
            wrong = copy.deepcopy(case)
            wrong["per_step"][column][step] += 1
            yield f"{column} of step {step}", wrong
    for column in REQUEST_COLUMNS:
        wrong = copy.deepcopy(case)
        for row in wrong["per_request"][: len(rows(case)[0])]:  # of all answers to the first request
            row[column] += 1
        yield f"{column} of the first request", wrong
    for child in range(len(case["per_request"])):
        wrong = copy.deepcopy(case)
        wrong["per_request"][child]["finish_step"] += 1
        yield f"finish_step of {child}", wrong
    for total in set(TOTALS) & set(case["totals"]):
        wrong = copy.deepcopy(case)
        wrong["totals"][total] += 1
        yield f"total {total}", wrong


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_the_comparison_notices_one_wrong_number(name):
    case, found = golden(name), answer(name)
    assert differences(case, found) == []
    missed = [what for what, wrong in spoiled(case) if not differences(wrong, found)]
    assert missed == []
