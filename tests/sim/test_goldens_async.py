"""With asynchronous scheduling kvsim decides, step by step, what the genuine vLLM 0.33.0 decides.

The engine calls `schedule()` of a step before the update of the previous step, so that only decisions can
be compared: see the last section of `../shared/goldens/README.md`.
"""

import gzip
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from support import golden
from support.shared_data import golden_names, goldens

from kvsim import cli

STEP_COLUMNS = (
    *("waiting", "preemptions_cum", "prefill_tokens", "decode_tokens", "hit_tokens", "recomputed_tokens"),
)


def _names():
    return golden_names("v033_async")


def unzipped(path):
    return json.loads(gzip.decompress(goldens(path).read_bytes()))


def case_named(name):
    stem = name.partition("__")[0]
    case = unzipped(f"v033_async/{name}") | {"engine": "v033"}
    return case | unzipped(f"workloads/{stem}.json.gz")


def answer_to(case):
    """The run of the golden's workload, as the release schedules by default."""
    with TemporaryDirectory() as directory:
        arguments = golden.command(case, Path(directory), step_log=True)
        arguments.remove("--no-async-scheduling")
        assert cli.main(arguments) == 0
        return golden.Answer.read(Path(directory) / "run")


def test_there_are_goldens_of_the_asynchronous_scheduler():
    goldens("v033_async")
    names = _names()
    assert len(names) >= 16
    assert sum(case_named(name)["totals"]["preemptions"] > 0 for name in names) > len(names) // 2


@pytest.mark.parametrize("name", _names())
def test_every_decision_is_as_in_the_engine(name):
    case = case_named(name)
    found, busy = answer_to(case), golden.busy_steps(case)
    assert found.steps["start_s"] == busy
    for column in STEP_COLUMNS:
        assert found.steps[column] == [case["per_step"][column][step] for step in busy], column
    told = {row["id"]: row for row in case["per_request"]}
    ids = [each for (each,) in golden.rows(case)]
    first = [busy[int(step)] for step in found.requests["first_scheduled_step"]]
    assert first == [told[each]["first_scheduled_step"] for each in ids]
    assert found.requests["num_preemptions"] == [told[each]["num_preemptions"] for each in ids]
    assert set(found.requests["status"]) == {"finished"}
