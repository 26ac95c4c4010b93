"""Several seeds: the statistics against hand-worked numbers, the words, the tables, the directories."""

import copy
import json
import math
import sys
from pathlib import Path

import pytest
from support.contents import contents, timeless
from support.summaries import BUDDY, CONTIGUOUS, PAGED, plain

import kvsim
from kvsim import cli
from kvsim.reports.palette import count, figures, percent_text, seconds
from kvsim.reports.rundir.run import read_runs
from kvsim.reports.seeds.intervals import (
    Interval,
    alike,
    difference,
    equal,
    interval,
    merged,
    ratio,
    t_quantile,
)
from kvsim.reports.seeds.words import difference_lines, differences, with_spread
from kvsim.reports.terminal import report_table, run_table
from kvsim.sim.options.traffic import Traffic
from kvsim.workloads.source import opened

pytestmark = pytest.mark.slow

SMALL = ("--cost", "constant:0.03", "--num-prompts", "20", "--no-plots")

T_TABLE = {
    1: 12.706,
    2: 4.303,
    3: 3.182,
    4: 2.776,
    5: 2.571,
    6: 2.447,
    7: 2.365,
    8: 2.306,
    9: 2.262,
    10: 2.228,
}
T_TABLE |= {15: 2.131, 20: 2.086, 29: 2.045, 30: 2.042, 60: 2.000, 120: 1.980, 1000: 1.962}
T_99 = {1: 63.657, 2: 9.925, 3: 5.841, 4: 4.604, 9: 3.250, 30: 2.750}


# -- the statistics -------------------------------------------------------------------------------


@pytest.mark.parametrize("degrees", T_TABLE)
def test_the_quantiles_are_those_of_the_printed_tables(degrees):
    assert round(t_quantile(degrees), 3) == T_TABLE[degrees]


@pytest.mark.parametrize("degrees", T_99)
def test_another_confidence_has_its_own_table(degrees):
    assert round(t_quantile(degrees, 0.99), 3) == T_99[degrees]


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.999])
def test_one_and_two_degrees_have_closed_forms(confidence):
    tail = math.tan(math.pi * confidence / 2)  # Cauchy
    assert t_quantile(1, confidence) == pytest.approx(tail, rel=1e-12)
    assert t_quantile(2, confidence) == pytest.approx(
        confidence * math.sqrt(2 / (1 - confidence**2)), rel=1e-12
    )


def test_the_interval_of_one_to_five_is_worked_by_hand():
    found = Interval.of([1, 2, 3, 4, 5])  # s = sqrt(2.5), s / sqrt(5) = sqrt(0.5), t(4) = 2.7764
    assert found.mean == 3
    assert found.half == pytest.approx(2.776445 * math.sqrt(0.5), abs=1e-6)
    assert (round(found.low, 4), round(found.high, 4)) == (1.0368, 4.9632)
    assert not found.fixed


def test_two_numbers_give_an_interval_of_t_of_one():
    assert Interval.of([10, 12]).half == pytest.approx(12.7062, abs=1e-4)  # s = sqrt 2, over sqrt 2 is 1


def test_equal_numbers_are_fixed_and_so_is_one_alone():
    assert Interval.of([0.1, 0.1, 0.1]) == Interval(0.1, 0.1, 0.1, fixed=True)
    assert Interval.of([1.0]) == interval([1.0]) == Interval(1.0, 1.0, 1.0, fixed=True)
    assert interval([]) is interval([None]) is None


def test_the_interval_holds_the_truth_in_nineteen_of_twenty_samples():
    import numpy as np

    rng = np.random.default_rng(0)
    held = sum(Interval.of(rng.normal(7, 2, 4).tolist()).holds(7) for _ in range(4000))
    assert 0.94 < held / 4000 < 0.96


def test_a_ratio_is_paired_and_says_the_same_the_other_way_round():
    slow, fast = [1.0, 2.0, 4.0], [2.1, 4.0, 8.2]  # the seeds differ much, the pairs hardly
    found, back = ratio(fast, slow), ratio(slow, fast)
    assert found.mean == pytest.approx((2.1 * 2 * 2.05) ** (1 / 3))
    assert 1.9 < found.low < 2 < found.high < 2.2
    assert (1 / back.mean, 1 / back.high) == (pytest.approx(found.mean), pytest.approx(found.low))


def test_the_interval_of_a_ratio_is_worked_by_hand():
    found = ratio([math.e, 1.0], [1.0, 1.0])  # logs 1 and 0: mean 0.5, s = sqrt 0.5, half = 12.7062 * 0.5
    assert found.mean == pytest.approx(math.exp(0.5))
    assert math.log(found.high) == pytest.approx(0.5 + 6.3531, abs=1e-4)


@pytest.mark.parametrize("bad", [0.0, None, -1.0])
def test_there_is_no_ratio_to_nothing(bad):
    assert ratio([1.0, 2.0], [1.0, bad]) is None
    assert ratio([bad, 2.0], [1.0, 1.0]) is None


def test_a_difference_is_paired_too_and_needs_all_numbers():
    assert difference([3.0, 13.0], [1.0, 11.0]) == Interval(2, 2, 2, fixed=True)
    assert difference([3.0, None], [1.0, 11.0]) is None
    assert interval([1.0, None]) is None


# -- summaries ------------------------------------------------------------------------------------


def test_merging_keeps_the_shape_and_replaces_numbers():
    one = {"label": "paged", "duration_s": 1.0, "notes": ["a"], "memory": {"saturated": {"token": 5.0}}}
    other = {"label": "paged", "duration_s": 3.0, "notes": ["b"], "memory": {"saturated": None}}
    found = merged([one, other])
    assert (found["label"], found["notes"]) == ("paged", [["a"], ["b"]])
    bounds = {name: pytest.approx(value, abs=1e-4) for name, value in (("low", -10.7062), ("high", 14.7062))}
    assert found["duration_s"] == {"mean": 2.0, **bounds, "values": [1.0, 3.0]}
    assert found["memory"]["saturated"]["token"] == {
        **dict.fromkeys(("mean", "low", "high")),
        "values": [5.0, None],
    }


def test_a_counter_that_a_seed_lacks_is_zero_there():
    assert merged([{"too long": 2}, {}])["too long"]["values"] == [2, 0]


def test_seeds_are_equal_whatever_time_they_took():
    slow = copy.deepcopy(PAGED)
    slow["simulation"]["cpu_s"] = 99.0
    assert equal([[PAGED], [slow]])
    assert not equal([[PAGED], [BUDDY]])


def test_the_memory_is_described_by_one_part_of_the_run():
    hardly = copy.deepcopy(PAGED)
    hardly["memory"]["saturated_share"] = 0.001
    assert alike([PAGED, PAGED]) == [PAGED, PAGED]
    assert [each["memory"]["saturated"] for each in alike([PAGED, hardly])] == [None, None]


# -- in words -------------------------------------------------------------------------------------


def scaled(summary, factor, waste=0.0):
    """A summary with another rate, and some free slots wasted instead."""
    found = copy.deepcopy(summary)
    found["throughput"] = {name: value * factor for name, value in summary["throughput"].items()}
    found["duration_s"] /= factor
    found["engine"]["mean_running"] *= factor
    for latency in found["latency"].values():
        for point in latency:
            latency[point] /= factor
    for part in ("average", "saturated"):
        found["memory"][part]["token"] -= waste
        found["memory"][part]["internal"] += waste
    return found


SEEDS = (1.0, 1.02, 0.98)
LARGE = [[scaled(each, factor, 3 * (factor - 1)) for each in (CONTIGUOUS, BUDDY, PAGED)] for factor in SEEDS]


def by_allocator(runs):
    return [list(each) for each in zip(*runs, strict=True)]


def test_the_best_is_compared_with_each_other_in_words():
    crooked = copy.deepcopy(LARGE)
    crooked[0][2]["throughput"]["requests_per_s"] *= 1.1
    lines = difference_lines(by_allocator(crooked))
    assert lines[0] == (
        "paged serves 3.83 (3.34-4.40) times the requests per second of contiguous, "
        "2.60 (2.27-2.98) times those of buddy"
    )
    assert lines[1].startswith("paged holds 4.34 times as many requests at once as contiguous, 3.10 times")
    assert lines[2] == "contiguous takes 30.0 times as long per token as paged, buddy 14.0 times"
    assert lines[3] == (
        "while requests waited, paged wastes 75.5 percentage points less than contiguous, "
        "69.3 percentage points less than buddy"
    )


def test_what_the_seeds_do_not_tell_apart_is_called_no_difference():
    other = [scaled({**BUDDY, "label": "other"}, factor) for factor in (1.02, 0.98, 1.0)]
    runs = [[*each[:2], more] for each, more in zip(LARGE, other, strict=True)]
    lines = difference_lines(by_allocator(runs))
    assert lines[0].startswith("buddy serves 1.47 times the requests per second of contiguous; ")
    assert lines[0].endswith("not distinguishable given seed noise from other")
    twins = [[each[1], more] for each, more in zip(LARGE, other, strict=True)]
    assert difference_lines(by_allocator(twins))[:2] == [
        "requests per second: not distinguishable given seed noise",
        "requests at once: not distinguishable given seed noise",
    ]


def test_a_difference_that_rounds_to_none_is_hardly_any():
    near = [scaled({**PAGED, "label": "near"}, factor * 0.999) for factor in SEEDS]
    runs = [[*each[1:], more] for each, more in zip(LARGE, near, strict=True)]
    lines = difference_lines(by_allocator(runs))
    assert lines[0].endswith("times the requests per second of buddy; hardly any from near")
    assert lines[2] == "buddy takes 14.0 times as long per token as paged; paged: hardly any from near"


def test_a_pair_whose_interval_ends_just_beside_one_differs():
    found = {each.to: each for each in differences(by_allocator(LARGE)) if each.measure == "time per token"}
    assert found["buddy"].beyond_spread and found["buddy"].high < 1
    assert found["buddy"].values == pytest.approx([0.05 / 0.7] * 3)


def test_who_finished_nothing_is_compared_with_nobody():
    runs = copy.deepcopy(LARGE)
    runs[1][0]["requests"]["finished"] = 0
    assert {each.to for each in differences(by_allocator(runs))} == {"buddy"}


# -- in tables ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "bounds", "said"),
    [
        (seconds, (0.0315, 0.0311, 0.0319), "31.5 ± 0.4 ms"),
        (seconds, (2.1, 2.0, 2.2), "2.10 ± 0.10 s"),
        (figures, (1.95, 1.93, 1.97), "1.95 ± 0.02"),
        (figures, (649, 606, 692), "649 ± 43"),
        (figures, (12345.0, 11111.0, 13579.0), "12,345 ± 1,234"),
        (percent_text, (96.1, 95.8, 96.4), "96.1 ± 0.3 %"),
        (percent_text, (0.0, -0.0012, 0.0012), "0.0 ± 0.001 %"),
        (count, (1.4, -0.4, 3.2), "1.4 ± 1.8"),
        (count, (1000, 988, 1012), "1,000 ± 12"),
        (percent_text, (35.0, 24.0, 46.0), "35 ± 11 %"),
        (seconds, (0.0315, 0.0205, 0.0425), "32 ± 11 ms"),
    ],
)
def test_half_the_interval_is_written_as_finely_as_the_mean(text, bounds, said):
    assert with_spread(text, Interval(*bounds)) == said


def test_a_number_without_spread_stands_alone():
    assert with_spread(count, Interval(1000, 1000, 1000, fixed=True)) == "1,000"
    assert with_spread(seconds, None) == "-"


def test_the_report_of_a_run_has_an_interval_beside_every_number():
    lines = plain(report_table([[each[2]] for each in LARGE], compared=False)).splitlines()
    assert " ".join(lines[:4]) == (
        "paged served 1,000 requests in 513 ± 25 s: 1.95 ± 0.10 requests/s, 649 ± 32 output tokens/s; "
        "KV memory 95.1 ± 0.1 % tokens, 3.9 ± 0.1 % waste over the whole run, "
        "96.1 ± 0.1 % and 3.9 ± 0.1 % while requests waited (93 % of the time). Means of 3 seeds ± half of "
        "their 95 % confidence interval."
    )
    at = next(number for number, line in enumerate(lines) if line.startswith("normalised latency"))
    assert lines[at].split()[-6:] == ["50.0", "50.0", "90.0", "95.0", "99.0", "150"]
    assert lines[at + 1].split() == ["±2.5", "±2.5", "±4.5", "±4.7", "±4.9", "±7"]
    token = next(line for line in lines if line.startswith("token: holds a key and value"))
    assert token.split()[-7:] == ["±", "0.1", "%", "96.1", "±", "0.1", "%"]
    assert any(line.startswith("counted    4 preemptions (recomputed);") for line in lines)


def test_a_comparison_stars_what_is_no_different_from_the_best():
    wide = [scaled({**PAGED, "label": "wide"}, factor) for factor in (0.5, 1.4, 0.9)]
    runs = [[*each, more] for each, more in zip(LARGE, wide, strict=True)]
    lines = plain(report_table(runs, compared=True), width=120).splitlines()
    rate = next(line for line in lines if line.startswith("requests/s"))
    assert " ".join(rate.split()[1:]) == "0.525 ± 0.026 0.774 ± 0.038 1.95 ± 0.10 * 1.8 ± 2.2 *"
    assert "Of 3 seeds, paired, with 95 % confidence:" in lines
    assert not any("*" in line for line in lines if line.startswith("requests finished"))


def test_equal_seeds_are_shown_once_with_a_line_that_says_so():
    shown = plain(report_table([[PAGED], [PAGED]], compared=False))
    assert shown.startswith(plain(run_table([PAGED])))
    assert shown.endswith("\nBoth seeds give the same numbers: nothing here is drawn at random.")
    assert "±" not in shown


@pytest.mark.parametrize("width", [40, 80])
def test_the_tables_fit_the_width(width):
    for compared in (False, True):
        lines = plain(report_table(LARGE, compared), width=width).splitlines()
        assert max(map(len, lines)) <= width


# -- on disk --------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("COLUMNS", "80")


def sim(*arguments):
    assert cli.main(arguments) == 0


def test_each_seed_is_what_the_command_writes_with_it_alone():
    sim("run", *SMALL, "--quiet", "--seed", "7", "--seeds", "2", "--jobs", "1", "--out", "both")
    for seed in (7, 8):
        sim("run", *SMALL, "--quiet", "--shuffle", "--seed", str(seed), "--out", f"alone-{seed}")
        assert contents(f"both/seed-{seed}") == contents(f"alone-{seed}")
    assert {path.name for path in Path("both").iterdir()} == {
        ".kvsim.json",
        "seed-7",
        "seed-8",
        "config.json",
        "summary.json",
    }
    summary, config = (json.loads(Path("both", name).read_text()) for name in ("summary.json", "config.json"))
    rates = [
        json.loads(Path(f"alone-{seed}/summary.json").read_text())["throughput"]["requests_per_s"]
        for seed in (7, 8)
    ]
    found = Interval.of(rates)
    assert summary["runs"][0]["throughput"]["requests_per_s"] == {
        "mean": found.mean,
        "low": found.low,
        "high": found.high,
        "values": rates,
    }
    assert (summary["seeds"], summary["confidence"], summary["depends_on_seed"]) == ([7, 8], 0.95, True)
    assert config["seeds"] == [7, 8] and config["workload"]["seed"] == 7
    assert [config["runs"][f"seed-{seed}"]["workload"]["seed"] for seed in (7, 8)] == [7, 8]


def prompts_of(directory):
    """The prompt lengths of each seed's run."""
    return [run.requests.prompt_tokens.tolist() for run in kvsim.load(directory)]


def test_several_seeds_draw_the_rows_anew_unless_told_otherwise():
    several = ("run", *SMALL, "--quiet", "--seeds", "2", "--jobs", "1")
    sim(*several, "--out", "drawn")
    sim(*several, "--no-shuffle", "--out", "first")
    first, second = prompts_of("drawn")
    assert sum(first) != sum(second), "the traffic is part of the interval"
    rows = kvsim.simulate(num_prompts=len(first)).requests.prompt_tokens.tolist()
    assert prompts_of("first") == [rows, rows]
    both = kvsim.compare(["paged"], seeds=2, num_prompts=len(first))
    assert [run.requests.prompt_tokens.tolist() for run in both] == [first, second]
    at_once = {"num_prompts": 20, "request_rate": float("inf"), "seeds": 2, "jobs": 1}
    assert kvsim.sweep(**at_once).duration_s.nunique() == 2
    assert kvsim.sweep(**at_once, shuffle=False).duration_s.nunique() == 1


def test_rows_whose_order_means_something_are_not_drawn_anew(tmp_path):
    own = tmp_path / "own.csv"
    own.write_text("arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{k},{20 + k},9\n" for k in range(9)))
    sim("run", "--trace", str(own), "--no-plots", "--quiet", "--seeds", "2", "--jobs", "1", "--out", "own")
    assert prompts_of("own") == [[20 + k for k in range(9)]] * 2
    assert opened(Traffic(trace=str(own), request_rate=2.0, arrivals="gamma")).drawn_anew().traffic.shuffle
    assert opened(Traffic(trace="synthetic")).drawn_anew().traffic.shuffle is None


def test_a_comparison_with_seeds_is_a_comparison_per_seed_whatever_the_jobs():
    chosen = ("compare", *SMALL, "--allocator", "contiguous,paged", "--request-rate", "inf", "--quiet")
    sim(*chosen, "--input-len", "uniform:10:500", "--seeds", "3", "--jobs", "1", "--out", "one")
    sim(*chosen, "--input-len", "uniform:10:500", "--seeds", "3", "--jobs", "2", "--out", "two")
    assert contents("one") == contents("two")
    sim(*chosen, "--input-len", "uniform:10:500", "--seed", "1", "--shuffle", "--out", "alone")
    assert contents("one/seed-1") == contents("alone")
    labels = [run.label for run in read_runs(Path("one"))]
    assert labels == [f"{name}, seed {seed}" for name in ("contiguous", "paged") for seed in range(3)]
    found = json.loads(Path("one/summary.json").read_text())["differences"]
    assert {(each["of"], each["to"], each["unit"]) for each in found} >= {("paged", "contiguous", "points")}


def test_the_figures_can_be_drawn_again(capsys):
    sim("run", *SMALL[:-1], "--quiet", "--seeds", "2", "--jobs", "1", "--out", "both")
    assert Path("both/seeds.png").stat().st_size > 10_000
    assert {path.name for path in Path("both").rglob("*.png")} == {
        f"{name}.png" for name in ("seeds", "memory", "waste", "requests", "latency")
    }
    assert not list(Path("both/seed-1").glob("*.png"))
    sim("plot", "both", "--out", "figures", "--format", "svg")
    assert {path.name for path in Path("figures").iterdir()} >= {
        f"{name}.svg" for name in ("memory", "waste", "requests", "latency")
    }


def test_one_seed_is_no_option_at_all():
    sim("run", *SMALL, "--quiet", "--out", "plain")
    sim("run", *SMALL, "--quiet", "--seeds", "1", "--jobs", "2", "--out", "one")
    assert contents("plain") == contents("one")


def test_json_has_means_and_bounds(capsys):
    sim("run", *SMALL, "--json", "--seeds", "2", "--jobs", "1", "--out", "both")
    printed = json.loads(capsys.readouterr().out)
    assert timeless(printed) == timeless(json.loads(Path("both/summary.json").read_text()))
    ttft = printed["runs"][0]["latency"]["ttft_s"]["p99"]
    assert ttft["low"] < ttft["mean"] < ttft["high"] and len(ttft["values"]) == 2


def test_a_trace_of_its_own_arrivals_gives_equal_runs_and_a_line(capsys):
    Path("mine.jsonl").write_text(
        "".join(
            json.dumps({"arrival_s": 0.5 * row, "prompt_tokens": 20 + row, "output_tokens": 5}) + "\n"
            for row in range(30)
        )
    )
    sim(
        "run", "--trace", "mine.jsonl", "--cost", "constant:0.03", "--no-plots", "--seeds", "3", "--jobs", "1"
    )
    out = capsys.readouterr().out
    assert "All 3 seeds give the same numbers: nothing here is drawn at random." in out
    assert "±" not in out
    assert not json.loads(next(Path("runs").glob("mine-paged-*3-seeds/summary.json")).read_text())[
        "depends_on_seed"
    ]


def test_a_repeated_config_may_have_seeds():
    sim("run", *SMALL, "--quiet", "--seed", "3", "--out", "first")
    sim(
        "run",
        "--config",
        "first/config.json",
        "--no-plots",
        "--quiet",
        "--seeds",
        "2",
        "--jobs",
        "1",
        "--out",
        "two",
    )
    assert contents("two/seed-3") == contents("first")


def test_a_mistake_in_a_helper_process_is_one_line_and_leaves_nothing(capsys):
    line = ("run", *SMALL, "--request-rate", "0", "--seeds", "2", "--jobs", "2", "--out", "none")
    assert cli.main(line) == 2
    assert (
        capsys.readouterr().err
        == "error: request_rate must be above 0 requests/s (inf: all at once), got 0.0\n"
    )
    assert not list(Path().iterdir())


def test_who_alone_has_a_number_is_not_the_best_of_its_row():
    """Waste while requests waited, if one system never let any wait: 99.7 % had the star."""
    never = copy.deepcopy(PAGED)
    never["memory"]["saturated"] = None
    lines = plain(report_table([[never], [BUDDY]], compared=True)).splitlines()
    waiting = [line for line in lines if "requests waiting" in line]
    assert len(waiting) == 2 and not any("*" in line for line in waiting)
