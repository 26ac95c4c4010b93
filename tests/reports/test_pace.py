"""A run at a pace: it waits for its time, and computes what it would have computed anyway."""

import pytest
from support.serving import everything

from kvsim import cli, workloads
from kvsim.reports import pace as paces
from kvsim.reports.pace import keep_pace, pace_of
from kvsim.sim.build import build_engine
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.errors import KvsimError
from kvsim.sim.models.catalog import gpu_named, model_named


class Clock:
    """A clock that moves only during sleeps."""

    def __init__(self, late_s=0.0):
        self.now_s, self.slept, self.late_s = 100.0, [], late_s

    def monotonic(self):
        return self.now_s

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now_s += seconds + self.late_s


def engine():
    where = Deployment(model=model_named("opt-13b"), gpu=gpu_named("a100-40gb"), engine=EngineConfig())
    work = workloads.build("sharegpt", num_prompts=30, request_rate=2.0, burstiness=1.0, seed=0)
    return build_engine(where, work)


@pytest.mark.parametrize("pace", [0.5, 10.0])
def test_simulated_time_over_the_pace_passes_on_the_clock(monkeypatch, pace):
    clock = Clock()
    monkeypatch.setattr(paces, "time", clock)
    slow = engine()
    keep_pace(slow, pace)
    result = slow.run()
    first_s = float(result.workload.arrival_ps[0]) / 1e12
    passed_s = clock.now_s - 100.0
    assert passed_s == pytest.approx((result.end_ps / 1e12 - first_s) / pace, abs=0.5)
    assert max(clock.slept) <= max(0.2, 3 / pace)  # steps come a few at once, arrivals late
    assert everything(result) == everything(engine().run())


def test_a_clock_that_oversleeps_is_made_up_for(monkeypatch):
    clock = Clock(late_s=0.01)
    monkeypatch.setattr(paces, "time", clock)
    slow = engine()
    keep_pace(slow, 1.0)
    end_s = slow.run().end_ps / 1e12
    assert clock.now_s - 100.0 == pytest.approx(end_s, abs=1.0)
    assert len(clock.slept) > 500


@pytest.mark.parametrize(("text", "pace"), [("10x", 10), ("0.5", 0.5), ("2.5X", 2.5), (" 3x ", 3)])
def test_a_pace_is_a_number_with_or_without_x(text, pace):
    assert pace_of(text, live=True) == pace


@pytest.mark.parametrize("text", ["", "x", "0x", "-1x", "fast", "inf", "nan", "10xx", "1 0"])
def test_another_pace_is_refused_with_what_was_given(text):
    with pytest.raises(KvsimError) as error:
        pace_of(text, live=True)
    assert str(error.value) == f"pace must be a number above 0, as in 10x, got {text!r}"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--pace", "10x"), "pace must be left out without --live, got '10x'"),
        (("--live", "--pace", "0x"), "pace must be a number above 0, as in 10x, got '0x'"),
        (("--live", "--pace", "2x", "--seeds", "2"), "live must be left out with seeds 2"),
    ],
)
@pytest.mark.parametrize("command", ["run", "compare"])
def test_a_mistake_is_one_line_before_anything_is_computed(
    tmp_path, monkeypatch, capsys, command, options, said
):
    monkeypatch.chdir(tmp_path)
    assert cli.main([command, "--num-prompts", "5", *options]) == 2
    assert capsys.readouterr().err.startswith(f"error: {said}")
    assert not list(tmp_path.iterdir())
