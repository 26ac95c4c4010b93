"""The clock holds 106 days: what would take longer is refused in one line, whatever comes to its end."""

from dataclasses import replace

import numpy as np
import pytest
from support.serving import serve, workload

from kvsim import cli
from kvsim.allocators.paged import Paged
from kvsim.sim.cost.named import Constant
from kvsim.sim.errors import KvsimError
from kvsim.sim.record.metrics import request_table, summary
from kvsim.sim.workload import LATEST_PS, Chain

DAY_S = 86_400


def served(answers, **options):
    """One request after another, a day a token."""
    work = workload([(0, 4, answer) for answer in answers])
    return serve(work, Paged(10_000, 16), "vllm-v1", cost=Constant(DAY_S), max_model_len=4000, **options)


@pytest.mark.parametrize("options", [{}, {"max_span": 1}, {"step_log": True}, {"seats": 1}])
def test_a_run_of_106_days_is_told_and_one_of_107_is_refused(options):
    answers = [50, 56] if "seats" in options else [106]
    result = served(answers, **options)
    assert result.end_ps == 106 * DAY_S * 10**12 <= LATEST_PS
    told = summary(result, request_table(result))
    assert told["latency"]["e2e_s"]["max"] == 106 * DAY_S
    answers[-1] += 1
    with pytest.raises(KvsimError, match=r"goes to 9,244,800 s, the clock only to 9,223,372 s \(106 days\)"):
        served(answers, **options)


def test_a_question_that_comes_too_late_is_refused_too():
    """A month of steps, then 80 days of thinking."""
    work = workload([(0, 4, 30), (0, 4, 1)])
    late = Chain(np.array([-1, 0]), np.array([0, 80 * DAY_S * 10**12]))
    with pytest.raises(KvsimError, match="served and 30 steps done it goes to 9,504,000 s"):
        serve(replace(work, waits=late), Paged(10_000, 16), "vllm-v1", cost=Constant(DAY_S))


def test_the_command_says_it_in_one_line(capsys, tmp_path):
    code = cli.main(["run", "--cost", "constant:86400", "--num-prompts", "9", "--out", str(tmp_path / "out")])
    error = capsys.readouterr().err
    assert (code, error.count("\n")) == (2, 1)
    assert error.startswith("error: the simulation takes too long: with ")
    assert not (tmp_path / "out").exists()
