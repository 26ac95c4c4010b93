"""Step times from a server's log: what is put in is found, accidents count little, and real runs are met."""

import time

import numpy as np
import pytest
from support.bench_files import bench_serve, step_lines
from support.shared_data import shared

import kvsim
from kvsim import cli
from kvsim.sim.bench.logged import part_of
from kvsim.sim.bench.read import read_result
from kvsim.sim.cost.logged import Logged, StepTimes
from kvsim.sim.cost.step_cost import StepShape
from kvsim.sim.errors import KvsimError
from kvsim.sim.fit.running import RunningLog, read_running
from kvsim.sim.fit.steps import fit_steps

BEGAN = 1_790_000_000
SERVER = {"model": "llama-3.1-8b", "gpu": "l4"}


def lines(n=2000, between_s=0.0, base_s=0.010, seed=0):
    """Steps of base + 0.5 ms a sequence + 0.1 ms a prompt token, 1 % off at random, one after another."""
    rng = np.random.default_rng(seed)
    prompts = (rng.random(n) < 0.1).astype(float)
    tokens, decode = prompts * rng.integers(50, 500, n), rng.integers(1, 30, n).astype(float)
    seconds = (base_s + 5e-4 * (prompts + decode) + 1e-4 * tokens) * (1 + 0.01 * rng.standard_normal(n))
    at = np.floor(np.cumsum(seconds + between_s))
    return np.column_stack([at, prompts, tokens, decode, decode, seconds, np.full(n, 0.1)])


def log_of(steps):
    return RunningLog(steps, np.zeros((0, 7)))


def test_what_was_put_in_is_found():
    fit = fit_steps(log_of(lines()))
    assert fit.times.base_s == pytest.approx(0.010, rel=0.03) and abs(fit.between_s) < 2e-4
    assert fit.times.sequence_s == pytest.approx(5e-4, rel=0.03)
    assert fit.times.token_s == pytest.approx(1e-4, rel=0.03)
    assert (fit.times.most_sequences, fit.steps) == (30, 2000)
    assert fit.step_error < 0.02 and fit.part_error < 0.01 and len(fit.part_errors) == 5


def test_accidents_are_left_out_and_slow_steps_count_in_the_sum():
    steps = lines()
    steps[::300, 5] = 20.0
    assert fit_steps(log_of(steps)).times.sequence_s == pytest.approx(5e-4, rel=0.05)
    slow = lines()
    slow[::50, 5] *= 4
    fit, columns = fit_steps(log_of(slow)), slow[:, [1, 2, 3]]
    said = fit.times.base_s - fit.between_s + 1e-9
    whole = (
        said * 2000
        + fit.times.sequence_s * columns[:, [0, 2]].sum()
        + fit.times.token_s * columns[:, 1].sum()
    )
    assert whole == pytest.approx(slow[:, 5].sum(), rel=0.02)


def test_a_time_in_which_the_machine_was_busy_with_something_else_does_not_count():
    steps = lines()
    steps[300:900, 5] *= 2.5
    assert fit_steps(log_of(steps)).times.sequence_s == pytest.approx(5e-4, rel=0.15)


def test_time_between_two_steps_is_a_part_of_the_base():
    fit = fit_steps(log_of(lines(between_s=0.003)))
    assert fit.between_s == pytest.approx(0.003, rel=0.1)
    assert fit.times.base_s == pytest.approx(0.013, rel=0.05)


def test_what_a_preempted_request_computes_again_counts_as_prompt():
    steps = lines()
    again = steps[:, 1] > 0
    steps[again, 4] += steps[again, 2]  # the same tokens, told with the generated ones
    steps[again, 2] = 0
    assert fit_steps(log_of(steps)).times.token_s == pytest.approx(1e-4, rel=0.03)


def test_no_number_is_below_zero():
    steps = lines()
    steps[:, 5] = 0.02 - 1e-4 * steps[:, 3]
    times = fit_steps(log_of(steps)).times
    assert times.sequence_s == 0 and times.token_s >= 0 and times.base_s > 0


def test_too_few_steps_are_told():
    with pytest.raises(KvsimError, match="at least 100 lines of steps, got 99: start vLLM with --enable"):
        fit_steps(log_of(lines(99)))


# -- the clock ------------------------------------------------------------------------------------


def test_a_span_is_its_steps_one_by_one_and_larger_steps_are_told():
    clock = Logged(StepTimes.parsed("logged:12.5+700+120@8x512"))
    one = clock.step_ps(StepShape(decode_seqs=3, context_tokens=900))
    assert one == round((12.5e-3 + 3 * 700e-6) * 1e12) and list(clock.span_ps(3, 900, 4)) == [one] * 4
    mixed = StepShape(prefill_tokens=100, prefill_seqs=2, decode_seqs=3)
    assert clock.step_ps(mixed) == round((12.5e-3 + 5 * 700e-6 + 100 * 120e-6) * 1e12)
    clock.carried_out(mixed, 100)
    assert clock.extrapolated_share == 0 and not clock.outside()
    clock.span_carried_out(9, 900, [40, 100])
    assert clock.extrapolated_share == 0.5
    assert clock.outside() == ["steps of more than 8 sequences or 512 prompt tokens"]


@pytest.mark.parametrize(
    "text", ["logged:", "logged:1+2", "logged:0+1+1", "logged:1+2+3@5", "logged:1e9+0+0"]
)
def test_what_is_no_step_time(text):
    with pytest.raises(KvsimError, match="cost"):
        kvsim.simulate(**SERVER, cost=text, num_prompts=5)


def test_long_times_are_told_in_whole_numbers():
    assert StepTimes(0.0174, 0.00106, 180e-6).words == (
        "17.4 ms + 1,060 us per sequence + 180 us per prompt token"
    )


def test_times_are_written_as_they_are_read():
    for text in ("logged:12.5+700+120", "logged:12.5+700+120@8x512"):
        assert str(StepTimes.parsed(text)) == text


# -- the command, and replay ----------------------------------------------------------------------


def written(path, steps, tail=""):
    """A log of these steps."""
    found = []
    for at, prompts, tokens, decode, generated, seconds, share in steps.tolist():
        stamp = time.strftime("%m-%d %H:%M:%S", time.gmtime(BEGAN + at))
        asked = (
            f"{prompts:.0f} context requests, {tokens:.0f} context tokens, {decode:.0f} generation requests"
        )
        what = f"Iteration(1): {asked}, {generated:.0f} generation tokens"
        took = f"iteration elapsed time: {1e3 * seconds:.2f} ms, GPU KV cache usage: {100 * share:.1f}%"
        found.append(f"(APIServer pid=1) INFO {stamp} [l.py:199] Engine 000: {what}, {took}")
    path.write_text("INFO GPU KV cache size: 40,000 tokens\n" + "\n".join(found) + tail)
    return path


def test_the_command_writes_a_profile_that_runs_take(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "server.log", lines(400))
    assert cli.main(["calibrate", "log", "server.log"]) == 0
    out = capsys.readouterr().out
    assert "400 steps of server.log" in out and "held out: a step" in out and "written to server.toml" in out
    run = kvsim.simulate(**SERVER, cost="server.toml", num_prompts=30)
    assert run.summary["cost"]["source"].startswith("steps of a log: ")
    again = kvsim.simulate(**SERVER, cost=run.config["scenario"]["cost"], num_prompts=30)
    assert again.summary["latency"] == run.summary["latency"]
    assert cli.main(["calibrate", "log", "server.log"]) == 0  # its own profile is replaced
    (tmp_path / "server.toml").write_text("mine")
    assert cli.main(["calibrate", "log", "server.log"]) == 2
    assert (tmp_path / "server.toml").read_text() == "mine"
    with pytest.raises(KvsimError, match=r"profile server.toml is none of sim calibrate log"):
        kvsim.simulate(**SERVER, cost="server.toml", num_prompts=30)


def test_a_replay_takes_the_steps_of_its_log_by_itself(tmp_path):
    rows = [(0.2 * place, 100, 11, 0.1, [0.02] * 10) for place in range(40)]
    run, log = bench_serve(tmp_path / "r.json", rows), written(tmp_path / "server.log", lines(1000))
    replay = kvsim.replay(run, log=log, **SERVER)
    assert str(replay.server.scenario.cost).startswith("logged:")
    assert any("Step times are the log's: " in note and "Held out" in note for note in replay.notes())
    assert replay.found.numbers["TPOT", "mean"] == pytest.approx(0.012, rel=0.3)
    with pytest.raises(
        KvsimError, match=r"what_if: tensor_parallel_size must be left out with step times from"
    ):
        kvsim.replay(run, log=log, **SERVER, what_if="tensor_parallel_size=2")
    with pytest.raises(KvsimError, match="fit must be scale with the step times of a log"):
        kvsim.replay(run, log=log, **SERVER, fit="host")
    other = kvsim.replay(run, log=log, **SERVER, what_if="max_num_seqs=4").changed
    assert other.scenario.max_num_seqs == 4
    assert kvsim.replay(run, log=log, **SERVER, cost="roofline").server.scenario.cost == "roofline"


# -- a server that really ran ---------------------------------------------------------------------

RUNS = ["big-r4", "big-r8", "big-c16", "big-prefix", "small-c24", "small-r2", "comp-ramp"]


@pytest.mark.parametrize("name", RUNS)
def test_steps_of_a_real_run_are_met_from_the_other_runs_of_its_server(name):
    """Two busy cores: the same step takes a fifth more or less from one run to the next."""
    log = read_running(shared(f"data/live/logs/{name.partition('-')[0]}.server.log.gz"))
    part = part_of(read_result(shared(f"data/live/vllm/{name}.json.gz")), log)
    inside = (log.steps[:, 0] >= part.steps[0, 0]) & (log.steps[:, 0] <= part.steps[-1, 0])
    fit = fit_steps(RunningLog(log.steps[~inside], log.statistics))
    _, factor = fit.during(part)
    assert 0.8 < factor < 1.25


@pytest.mark.parametrize("name", RUNS)
def test_real_runs_are_met_with_the_steps_of_their_log(name):
    replay = kvsim.replay(
        shared(f"data/live/vllm/{name}.json.gz"),
        log=shared(f"data/live/logs/{name.partition('-')[0]}.server.log.gz"),
        model=str(shared("data/live/model/config.json")),
        gpu=str(shared("data/live/profiles/two-cpu-cores.toml")),
        frontend_latency=0.015,
    )
    off = replay.table.set_index(["what", "statistic"]).off
    assert abs(off["TPOT", "mean"]) < 0.08 and abs(off["requests", "per s"]) < 0.04


def test_a_line_whose_number_is_damaged_is_left_out(tmp_path):
    lines = step_lines(4).splitlines()
    path = tmp_path / "server.log"
    path.write_text("\n".join([*lines[:3], lines[3].replace(" ms,", ".50 ms,"), ""]))
    assert len(read_running(path).steps) == 3
