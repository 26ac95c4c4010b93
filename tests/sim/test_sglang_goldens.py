"""kvsim's scheduler `sglang` keeps the books of the genuine one, SGLang 0.5.23, in every column."""

import pytest
from support.sglang_runs import RUNS, WRITTEN, busy, inside, rows, written

pytestmark = pytest.mark.golden
SAMPLED = [
    pytest.param(name, marks=pytest.mark.slow) if len(run["per_step"]) > 110 else name
    for name, run in RUNS.items()
]
"""All of them; without the slow ones, the short."""


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_the_step_log_of_the_command_is_as_in_sglang(name):
    steps, _ = written(name)
    told = busy(name)
    assert steps["start_s"] == list(told)
    for column in WRITTEN:
        assert steps[column] == [step[column] for step in told.values()], column


@pytest.mark.parametrize("name", SAMPLED)
def test_memory_ratio_and_batch_are_as_in_sglang_at_every_step(name):
    steps, _, _ = inside(name)
    told = busy(name)
    assert list(steps) == list(told)
    for step, found in steps.items():
        expected = {column: told[step][column] for column in found}
        assert found == expected, step
    unseen = set(RUNS[name]["columns"]) - set(WRITTEN) - set(next(iter(steps.values())))
    assert unseen == {"step"}


@pytest.mark.parametrize("name", SAMPLED)
def test_every_request_is_served_as_in_sglang(name):
    (_, requests), (_, retracted, admitted) = written(name), inside(name)
    executed = list(busy(name))
    told = [RUNS[name]["per_request"][str(row["id"])] for row in rows(name)]
    columns = ("first_scheduled_step", "first_token_step", "finish_step")
    found = list(
        zip(*([executed[int(step)] for step in requests[column]] for column in columns), strict=True)
    )
    assert found == [
        (each["first_prefill_step"], each["first_token_step"], each["finish_step"]) for each in told
    ]
    assert requests["output_tokens"] == [each["output_tokens"] for each in told]
    for row, each in zip(rows(name), told, strict=True):
        assert retracted.get(row["id"], []) == each["retract_steps"]
        assert admitted[row["id"]] == each["admissions"]


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_spans_of_steps_serve_every_request_in_the_same_way(name):
    assert written(name, step_log=False)[1] == written(name)[1]
