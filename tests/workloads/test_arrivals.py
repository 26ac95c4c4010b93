"""Facts about when requests come: processes whose rate changes, replayed traces, closed loops."""

import math

import numpy as np
import pytest

from kvsim import cli, workloads
from kvsim.sim.errors import KvsimError
from kvsim.sim.workload import PS_PER_S, Chain, Clients
from kvsim.workloads.arrivals import PROCESSES, arrival_times_ps
from kvsim.workloads.closed import think_times_ps
from kvsim.workloads.lengths import Lengths

N = 200_000


def times_s(process, n=N, rate=2.0, burstiness=1.0, seed=1):
    return arrival_times_ps(n, rate, burstiness, np.random.default_rng(seed), process) / PS_PER_S


def timed(*arrival_s, sessions=None):
    n = len(arrival_s)
    labels = {} if sessions is None else {"session": np.array(sessions, dtype=object)}
    return Lengths(
        "W", np.arange(10, 10 + n), np.full(n, 4), arrival_s=np.array(arrival_s, dtype=float), labels=labels
    )


def untimed(n, sessions=None):
    labels = {} if sessions is None else {"session": np.array(sessions, dtype=object)}
    return Lengths("U", np.arange(10, 10 + n), np.full(n, 4), labels=labels)


def build(trace, **options):
    usual = {"num_prompts": None, "request_rate": None, "burstiness": None, "seed": 0}
    return workloads.build(trace, **usual | options)


def seconds(workload):
    return (workload.arrival_ps / PS_PER_S).tolist()


def complaint(trace, **options):
    with pytest.raises(KvsimError) as error:
        build(trace, **options)
    return str(error.value)


# Processes


def test_poisson_is_gamma_with_a_burstiness_of_one():
    assert np.array_equal(times_s("poisson", 1000), times_s("gamma", 1000))


@pytest.mark.slow
@pytest.mark.parametrize("process", ["onoff:10:30", "onoff:0.7:0.1", "diurnal:100:1.9", "diurnal:7:2"])
def test_the_rate_over_whole_cycles_is_the_one_asked_for(process):
    found = times_s(process)
    assert (np.diff(found) >= 0).all()
    # A Poisson process of n arrivals ends at n / rate +- sqrt(n) / rate, and a cycle.
    assert abs(found[-1] - N / 2.0) < 5 * math.sqrt(N) / 2.0 + 100


def test_on_off_arrivals_come_only_while_on_and_there_as_a_poisson_process():
    on_s, off_s, rate = 10, 30, 2.0
    found = times_s(f"onoff:{on_s}:{off_s}", rate=rate)
    phase = found % (on_s + off_s)
    assert phase.max() <= on_s + 1e-9
    # Counts of bursts: Poisson with a mean, and a variance, of rate * (on + off) = 80.
    cycles = int(found[-1] // (on_s + off_s))
    counts = np.bincount((found // (on_s + off_s)).astype(int))[:cycles]
    mean = rate * (on_s + off_s)
    assert abs(counts.mean() - mean) < 5 * math.sqrt(mean / cycles)
    assert counts.var() == pytest.approx(mean, rel=5 * math.sqrt(2 / cycles))
    # Uniform within a burst: the mean of the phases and the share of each tenth.
    assert abs(phase.mean() - on_s / 2) < 5 * on_s / math.sqrt(12 * N)
    tenths = np.bincount((phase / on_s * 10).astype(int).clip(0, 9))
    assert np.abs(tenths - N / 10).max() < 5 * math.sqrt(N * 0.1 * 0.9)
    # Gaps within a burst are exponential with the rate of the burst.
    gaps = np.diff(found)[np.diff(found // (on_s + off_s)) == 0]
    assert gaps.std() / gaps.mean() == pytest.approx(1, rel=0.05)


def test_without_a_pause_on_off_is_the_plain_process():
    assert times_s("onoff:5:0", 1000) == pytest.approx(times_s("gamma", 1000), rel=1e-12, abs=1e-9)


@pytest.mark.slow
def test_the_diurnal_rate_is_lowest_at_first_and_highest_after_half_a_period():
    period, peak, rate = 50.0, 1.8, 2.0
    found = times_s(f"diurnal:{period}:{peak}", rate=rate)
    cycles = int(found[-1] // period)
    phase = found[found < cycles * period] % period / period
    edges = np.linspace(0, 1, 21)
    counts = np.histogram(phase, edges)[0]
    whole = edges - (peak - 1) / (2 * math.pi) * np.sin(2 * math.pi * edges)
    expected = np.diff(whole) * rate * period * cycles
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected)).all()
    assert expected[9] / expected.mean() == pytest.approx(peak, rel=0.01)


def test_a_flat_diurnal_curve_is_the_plain_process():
    assert times_s("diurnal:60:1", 1000) == pytest.approx(times_s("gamma", 1000), rel=1e-9, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("process", ["gamma", "onoff:10:30", "diurnal:100:1.5"])
def test_burstier_gaps_make_any_process_burstier(process):
    def dispersion(burstiness):
        counts = np.bincount((times_s(process, burstiness=burstiness) // 40).astype(int))[:-1]
        return counts.var() / counts.mean()

    assert dispersion(0.1) > 2 * dispersion(1.0) > 4 * dispersion(10.0) or process.startswith("diurnal")
    assert dispersion(0.1) > dispersion(1.0) > dispersion(10.0)


@pytest.mark.parametrize("process", PROCESSES)
def test_more_requests_only_add_arrivals(process):
    whole = {"onoff": "onoff:1:2", "diurnal": "diurnal:9:1.5"}.get(process, process)
    assert np.array_equal(times_s(whole, 50), times_s(whole, 90)[:50])
    assert times_s(whole, 0).shape == (0,)


ALL = "poisson, gamma, onoff:ON_S:OFF_S or diurnal:PERIOD_S:PEAK_TO_MEAN"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"arrivals": "weibull"}, f"arrivals must be {ALL}, got 'weibull'"),
        ({"arrivals": ""}, f"arrivals must be {ALL}, got ''"),
        ({"arrivals": "gamma:2"}, f"arrivals must be {ALL}, got 'gamma:2'"),
        ({"arrivals": "onoff:1"}, f"arrivals must be {ALL}, got 'onoff:1'"),
        ({"arrivals": "onoff:1:inf"}, f"arrivals must be {ALL}, got 'onoff:1:inf'"),
        (
            {"arrivals": "onoff:0:1"},
            "arrivals must have an ON_S of at least 0.001 and an OFF_S of at least 0, got 'onoff:0:1'",
        ),
        (
            {"arrivals": "diurnal:60:2.5"},
            "arrivals must have a PERIOD_S of at least 0.001 and a PEAK_TO_MEAN from 1 to 2, "
            "got 'diurnal:60:2.5'",
        ),
        (
            {"arrivals": "poisson", "burstiness": 0.5},
            "burstiness must be 1 for poisson arrivals (gamma takes others), got 0.5",
        ),
        (
            {"arrivals": "onoff:1:2", "request_rate": math.inf},
            "request_rate must be finite for arrivals onoff:1:2, got inf",
        ),
        (
            {"arrivals": "trace"},
            "arrivals must be one of poisson, gamma, onoff, diurnal, trace:NAME for trace U, which has no "
            "arrivals of its own, got 'trace'",
        ),
        (
            {"arrivals": "trace:sharegpt"},
            "arrivals must be those of a trace that has some, got trace sharegpt",
        ),
        (
            {"rate_scale": 2.0},
            "rate_scale must be 1 for trace U, which has no arrivals (request_rate sets their rate), got 2.0",
        ),
        (
            {"arrivals": "poisson", "spread": 2.0},
            "spread must be 0 for arrivals that are drawn (request_rate sets their rate), got 2.0",
        ),
        ({"start": 2.0}, "start must be left out for trace U, which has no arrivals, got 2.0"),
        ({"duration": 2.0}, "duration must be left out for trace U, which has no arrivals, got 2.0"),
        ({"think_time": "1"}, "think_time must be left out without clients or closed_sessions, got '1'"),
        ({"closed_sessions": True}, "closed_sessions needs a trace with sessions, which U has not"),
        ({"clients": 0}, "clients must be from 1 to 1,000,000, got 0"),
        (
            {"clients": 2, "request_rate": 3.0},
            "request_rate must be left out with clients, which send when they have their answers, got 3.0",
        ),
        (
            {"clients": 2, "arrivals": "poisson"},
            "arrivals must be left out with clients, which send when they have their answers, got 'poisson'",
        ),
        (
            {"clients": 2, "closed_sessions": True},
            "closed_sessions must be left out with clients, which send when they have their answers, "
            "got True",
        ),
        (
            {"clients": 2, "think_time": "weibull:1"},
            "think_time must be fixed:S or exponential:MEAN_S, got 'weibull:1'",
        ),
        ({"clients": 2, "think_time": "-1"}, "think_time must be from 0 to 46,117 s, got '-1'"),
    ],
)
def test_choices_that_cannot_be_are_named(options, message):
    assert complaint(untimed(20), **options) == message


def test_an_arrival_that_a_quiet_night_puts_past_the_end_of_the_clock_is_refused():
    assert times_s("gamma", 10, rate=5e-6).max() < 4.6e6
    with pytest.raises(KvsimError, match="request_rate 5e-06 is too low for 10 requests"):
        times_s("diurnal:2e7:2", 10, rate=5e-6)


# Replayed


def test_a_part_of_a_trace_begins_at_zero_and_leaves_out_its_end():
    workload = build(timed(0, 5, 5, 7, 9, 12), start=5.0, duration=4.0)
    assert seconds(workload) == [0, 0, 2]
    assert workload.prompt_tokens.tolist() == [11, 12, 13]
    assert workload.notes == ("The 3 of the 6 rows of W from 5 s to 9 s.",)
    assert seconds(build(timed(0, 5, 7), start=5.0)) == [0, 2]
    assert seconds(build(timed(0, 5, 7), duration=6.0)) == [0, 5]


def test_a_part_is_cut_in_seconds_of_the_trace_and_then_made_faster():
    assert seconds(build(timed(0, 5, 7, 9), start=5.0, duration=4.0, rate_scale=4.0)) == [0, 0.5]


def test_num_prompts_takes_the_first_of_the_part():
    assert seconds(build(timed(0, 5, 7, 9), start=5.0, num_prompts=2)) == [0, 2]


def test_a_part_may_come_otherwise():
    options = {"start": 5.0, "num_prompts": 2}
    drawn = build(timed(0, 5, 7, 9), arrivals="poisson", request_rate=3.0, **options)
    assert drawn.prompt_tokens.tolist() == [11, 12]
    assert np.array_equal(drawn.arrival_ps, build(untimed(2), request_rate=3.0).arrival_ps)
    assert "The arrivals of W are left aside." in drawn.notes
    assert build(timed(0, 5, 7, 9), clients=1, **options).prompt_tokens.tolist() == [11, 12]


def test_arrivals_of_one_time_are_spread_uniformly_over_the_step_in_their_order():
    steps, each, step_s = 2000, 20, 3.0
    stamps = np.repeat(np.arange(steps) * step_s, each)
    found = np.array(seconds(build(timed(*stamps), spread=step_s)))
    offsets = found - stamps
    assert (np.diff(found) >= 0).all() and offsets.min() >= 0 and offsets.max() < step_s
    n = steps * each
    assert abs(offsets.mean() - step_s / 2) < 5 * step_s / math.sqrt(12 * n)
    tenths = np.bincount((offsets / step_s * 10).astype(int))
    assert np.abs(tenths - n / 10).max() < 5 * math.sqrt(n * 0.1 * 0.9)


def test_a_spread_beyond_the_step_keeps_the_order():
    workload = build(timed(*np.repeat(np.arange(100.0), 3)), spread=50.0)
    assert (np.diff(workload.arrival_ps) >= 0).all()
    assert (np.diff(workload.prompt_tokens) == 1).all()


def test_the_spread_does_not_depend_on_the_rate_or_the_part_on_the_spread():
    trace = timed(*np.repeat(np.arange(0.0, 30, 3), 4))
    slow, fast = (build(trace, spread=3.0, rate_scale=x) for x in (1.0, 2.0))
    assert np.abs(slow.arrival_ps - 2 * fast.arrival_ps).max() <= 1
    part = build(trace, spread=3.0, start=9.0, duration=6.0)
    assert len(part) == 8 and part.arrival_ps.max() < 6 * PS_PER_S


def test_arrivals_may_be_those_of_another_trace(tmp_path):
    file = tmp_path / "times.jsonl"
    row = '{"arrival_s": %d, "prompt_tokens": 1, "output_tokens": 1}\n'
    file.write_text("".join(row % at for at in (1, 4, 4, 10)))
    options = {"arrivals": f"trace:{file}"}
    workload = build("sharegpt", rate_scale=2.0, **options)
    assert seconds(workload) == [0.5, 2, 2, 5]
    assert np.array_equal(workload.prompt_tokens, workloads.load("sharegpt").prompt_tokens[:4])
    assert "At the arrivals of trace times." in workload.notes
    assert len(build("synthetic", **options)) == 4
    assert seconds(build(untimed(2), start=4.0, **options)) == [0, 0, 6]
    assert complaint("sharegpt", request_rate=1.0, **options).startswith(
        f"request_rate must be left out for arrivals trace:{file}, got"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": 8.0}, "trace W has no request from 8 s on: its arrivals are from 1 to 7 s"),
        ({"duration": 1.0}, "trace W has no request from 0 s to 1 s: its arrivals are from 1 to 7 s"),
        ({"start": -1.0}, "start must be at least 0 and finite, in seconds, got -1.0"),
        ({"start": math.nan}, "start must be at least 0 and finite, in seconds, got nan"),
        ({"duration": 0.0}, "duration must be above 0 and finite, in seconds, got 0.0"),
        ({"duration": math.inf}, "duration must be above 0 and finite, in seconds, got inf"),
        ({"spread": -1.0}, "spread must be at least 0 and finite, in seconds, got -1.0"),
        ({"rate_scale": 0.0}, "rate_scale must be above 0 and finite, got 0.0"),
        ({"rate_scale": math.nan}, "rate_scale must be above 0 and finite, got nan"),
    ],
)
def test_a_replay_that_cannot_be_is_named(options, message):
    assert complaint(timed(1, 7), **options) == message


# Closed loops


def test_think_times_are_fixed_or_exponential():
    rng = np.random.default_rng
    assert think_times_ps("1.5", 3, rng(0)).tolist() == [1.5 * PS_PER_S] * 3
    drawn = think_times_ps("exponential:4", N, rng(0)) / PS_PER_S
    assert drawn.mean() == pytest.approx(4, rel=5 / math.sqrt(N))
    for quantile in (0.1, 0.5, 0.9):
        below = (drawn < -4 * math.log(1 - quantile)).mean()
        assert abs(below - quantile) < 5 * math.sqrt(quantile * (1 - quantile) / N)


def test_clients_take_the_requests_of_a_trace_whatever_its_arrivals():
    for trace in (timed(3, 4, 9), untimed(3)):
        workload = build(trace, clients=2, think_time="0.5")
        assert workload.waits == Clients(2, workload.waits.think_ps)
        assert workload.waits.think_ps.tolist() == [PS_PER_S // 2] * 3
        assert seconds(workload) == [0, 0, 0]
    assert len(build(timed(3, 4, 9), clients=2, num_prompts=50)) == 50


def test_turns_of_a_closed_session_wait_for_the_row_before():
    sessions = ["a", "b", None, "a", "b", "a", None]
    workload = build(timed(0, 1, 2, 3, 4, 5, 6, sessions=sessions), closed_sessions=True)
    assert isinstance(workload.waits, Chain)
    assert workload.waits.after.tolist() == [-1, -1, -1, 0, 1, 3, -1]
    assert not workload.waits.think_ps.any()
    assert seconds(workload) == [0, 1, 2, 3, 4, 5, 6]


def test_a_part_of_a_trace_begins_sessions_anew():
    trace = timed(0, 1, 2, 3, sessions=["a", "a", "a", "a"])
    assert build(trace, closed_sessions=True, start=2.0).waits.after.tolist() == [-1, 0]


def test_only_first_turns_are_drawn_and_the_rate_is_theirs():
    n = 3000
    trace = untimed(3 * n, sessions=np.repeat(np.arange(n), 3))
    workload = build(trace, closed_sessions=True, request_rate=5.0)
    first = workload.arrival_ps[::3]
    assert np.array_equal(first, build(untimed(n), request_rate=5.0).arrival_ps)
    assert (workload.waits.after < 0).sum() == n


def test_a_closed_session_is_not_drawn_from():
    expected = "num_prompts must be at most 2 with closed_sessions, the requests there are, got 3"
    assert complaint(untimed(2, ["a", "a"]), closed_sessions=True, num_prompts=3) == expected


def test_the_think_time_changes_no_arrival_and_no_length():
    trace = untimed(300, sessions=np.repeat(np.arange(100), 3))
    options = {"closed_sessions": True, "arrivals": "onoff:1:2", "input_len": "uniform:1:99"}
    one, other = (build(trace, think_time=text, **options) for text in ("3", "exponential:3"))
    assert np.array_equal(one.arrival_ps, other.arrival_ps)
    assert np.array_equal(one.prompt_tokens, other.prompt_tokens)


# From the command line


@pytest.mark.parametrize(
    "choices",
    [
        "--trace W.jsonl --start 1 --duration 50 --spread 3 --rate-scale 2",
        "--trace W.jsonl --arrivals diurnal:20:1.5 --request-rate 4",
        "--trace W.jsonl --closed-sessions --think-time exponential:2",
        "--trace W.jsonl --clients 3 --think-time 1.5",
        "--trace sharegpt --arrivals trace:W.jsonl",
        "--trace synthetic --arrivals poisson --num-prompts 20 --request-rate inf",
    ],
)
def test_a_run_repeats_from_its_config(choices, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    row = '{"arrival_s": %d, "prompt_tokens": 9, "output_tokens": 5, "session": "%d"}\n'
    (tmp_path / "W.jsonl").write_text("".join(row % (3 * (i // 4), i % 6) for i in range(40)))
    few = ["--no-plots", "--quiet"]
    assert cli.main(["run", *choices.split(), "--out", "one", *few]) == 0, capsys.readouterr().err
    assert cli.main(["run", "--config", "one/config.json", "--out", "two", *few]) == 0
    for name in ("config.json", "requests.parquet"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
