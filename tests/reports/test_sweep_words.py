"""What a sweep says: the answer in words, its bound at the grid's edge, and its curves."""

from support.summaries import plain

from kvsim.reports.figures.style import SCREEN
from kvsim.reports.figures.swept.curves import curves
from kvsim.reports.figures.swept.pareto import pareto
from kvsim.reports.sweeps.headline import headline, rank
from kvsim.reports.sweeps.systems import System, systems
from kvsim.reports.sweeps.words import sweep_words
from kvsim.sim.record.slo import Slo

NAMES = ["allocator", "request_rate"]
SLO = Slo.parse("ttft:p99=1s")


def met_up_to(most, rates=(2.0, 4.0, 8.0), gpus=1):
    """Rows of systems by name that meet an SLO up to some rate."""
    return [
        {
            "allocator": name,
            "request_rate": rate,
            "status": "finished",
            "slo.met": rate <= limit,
            "gpus": gpus,
        }
        | {"throughput.output_tokens_per_s": 100 * rate + len(name)}
        for name, limit in most.items()
        for rate in rates
    ]


def test_a_tie_is_broken_by_tokens_per_second_and_gpu():
    found = systems(met_up_to({"one": 2.0, "two": 4.0, "three": 4.0}), NAMES)
    assert headline(found, "request_rate", SLO) == (
        "three and two sustain the highest load within ttft:p99=1s: 4 requests/s; "
        "three has the highest throughput of these, 405 tokens/s per GPU; 3 of 3 systems meet it"
    )
    assert headline(found[:2], "request_rate", SLO).startswith(
        "two sustains the highest load within ttft:p99=1s: 4 req"
    )
    assert [system.name for system in sorted(found, key=rank)] == ["one", "two", "three"]
    level = systems(met_up_to({"one": 4.0, "two": 4.0}), NAMES)  # seats that are never all taken
    assert headline(level, "request_rate", SLO) == (
        "one and two both sustain 4 requests/s within ttft:p99=1s; each produces 403 tokens/s per GPU"
    )
    assert "; three and seven have the highest throughput of these, 405" in headline(
        systems(met_up_to({"three": 4.0, "seven": 4.0, "one": 4.0}), NAMES), "request_rate", SLO
    )


def test_a_tie_in_throughput_is_told_without_limits_too():
    rows = met_up_to({"one": 8.0, "two": 8.0, "three": 8.0})
    speeds = {"one": 1.774, "two": 1.771, "three": 0.5}
    found = systems([row | {"throughput.requests_per_s": speeds[row["allocator"]]} for row in rows], NAMES)
    assert headline(found, None, None) == "one and two have the highest throughput: 1.77 requests/s"


def test_throughputs_that_seeds_do_not_tell_apart_are_not_ranked():
    by_seed = {"one": (2.0, 2.1), "two": (2.05, 2.07), "three": (0.5, 0.52)}
    rows = [
        {**met_up_to({name: 8.0}, rates=(2.0,))[0], "seed": seed, "throughput.requests_per_s": value}
        for name, values in by_seed.items()
        for seed, value in enumerate(values)
    ]
    found = systems(rows, ["allocator"])
    assert headline(found, None, None) == (
        "two has the highest throughput: 2.06 ± 0.13 requests/s; not distinguishable given seed noise: one"
    )
    assert headline(found[:2], None, None) == (
        "Throughputs of one and two are not distinguishable given seed noise; "
        "two has the highest mean, 2.06 ± 0.13 requests/s"
    )
    assert "2.06 ± 0.13" in plain(sweep_words(rows, ["allocator"], None), width=200).splitlines()[5]


def test_the_highest_load_tried_is_no_answer_but_a_bound():
    found = systems(met_up_to({"one": 2.0, "two": 8.0, "three": 8.0}), NAMES)
    assert headline(found, "request_rate", SLO) == (
        "three and two sustain the highest load within ttft:p99=1s: at least 8 requests/s, the highest "
        "load tried; "
        "three has the highest throughput of these, 805 tokens/s per GPU; 3 of 3 systems meet it"
    )
    (alone,) = systems(met_up_to({"one": 8.0}), ["request_rate"])
    assert headline([alone], "request_rate", SLO) == (
        "Highest load within ttft:p99=1s: at least 8 requests/s, the highest load tried"
    )


def test_points_that_some_seeds_alone_meet_are_hollow_and_the_figure_says_so():
    shared = {"status": "finished", "throughput.requests_per_s": 1.0, "latency.ttft_s.p99": 0.9}
    rows = [
        {"request_rate": rate, "seed": seed, "slo.met": rate + seed < 4.0, **shared}
        for rate in (2.0, 3.0, 5.0)
        for seed in (0, 1)
    ]
    (system,) = systems(rows, ["request_rate"])
    assert system.met() == {2.0: True, 3.0: None, 5.0: False}
    figure = curves([system], "request_rate", SLO, SCREEN)
    dots = [line for line in figure.axes[0].lines if line.get_marker() not in ("None", "", None)]
    inside = {line.get_xdata()[0]: line.get_markerfacecolor() for line in dots}
    assert inside[3.0] == SCREEN.paper and inside[2.0] != SCREEN.paper
    assert [line.get_marker() for line in dots if line.get_xdata()[0] == 5.0][-1] == "x"
    said = "filled points: both seeds meet the SLO;\nhollow: some; crosses: none"
    assert said in figure.axes[0].get_xlabel()
    (once,) = systems([row for row in rows if not row["seed"]], ["request_rate"])
    assert (
        "points: SLO met; crosses: missed" in curves([once], "request_rate", SLO, SCREEN).axes[0].get_xlabel()
    )
    assert "SLO" not in curves([once], "request_rate", None, SCREEN).axes[0].get_xlabel()


def shown(found, slo=None, load="request_rate", width=200):
    rows = [row for system in found for rows in system.points.values() for row in rows]
    return plain(sweep_words(rows, NAMES, slo), width=width)


def test_curves_that_coincide_are_dashed_over_a_larger_marker_and_share_the_unit_of_the_limit():
    def by(factor):
        return [{"latency.ttft_s.p99": factor * x, "slo.met": True} for x in (0.1, 0.2)]

    found = [
        System(name, {"scheduler": name}, {1.0: by(factor)[:1], 2.0: by(factor)[1:]})
        for name, factor in (("vllm-v1", 1.0), ("orca", 1.001), ("sglang", 2.0))
    ]
    figure = curves(found, "request_rate", Slo.parse("ttft:p99=500ms"), SCREEN)
    (axes,) = figure.axes
    lines = [line for line in axes.lines if len(line.get_xdata()) == 2 and line.get_ydata()[0] < 0.5]
    assert [line.get_linestyle() for line in lines] == ["-", "--", "-"]
    sizes = [line.get_markersize() for line in axes.lines if line.get_linestyle() == "None"]
    assert sizes[0] > sizes[2] == sizes[4]
    assert "time to first token, p99 (ms)" in (axes.get_title(), axes.get_title(loc="left"))
    figure.canvas.draw()
    assert "500" in [tick.get_text() for tick in axes.get_yticklabels()]


def test_two_ends_of_the_front_are_told_as_two_points():
    rows = [
        rows_of(ROOFLINE, 100, name, rate)
        | {"throughput.output_tokens_per_s": 100 * rate, "latency.tpot_s.p50": 0.01 * rate}
        for name in ("one", "two")
        for rate in (2.0, 4.0)
    ]
    assert pareto(systems(rows, NAMES), "request_rate", SLO, SCREEN).get_label() == (
        "Within ttft:p99=1s, one and two give up to 400 tokens/s per GPU, at 4 requests/s; "
        "up to 50.0 per user, at 2 requests/s"
    )
    (alone,) = systems(rows[:2], ["request_rate"])
    assert pareto([alone], "request_rate", None, SCREEN).get_label() == (
        "Up to 400 tokens/s per GPU, at 4 requests/s; up to 50.0 per user, at 2 requests/s"
    )
    best = [row | {"latency.tpot_s.p50": 0.01 if row["request_rate"] == 4 else 0.02} for row in rows[:2]]
    best += [row | {"allocator": "two", "latency.tpot_s.p50": 0.03} for row in rows[:2]]
    assert pareto(systems(best, NAMES), "request_rate", None, SCREEN).get_label() == (
        "one gives the most on both axes, 400 tokens/s per GPU and 100 per user, at 4 requests/s"
    )


def test_nearly_equal_points_of_systems_lie_in_each_other():
    rows = [
        rows_of(ROOFLINE, 100, name, rate)
        | {"throughput.output_tokens_per_s": gpu + rate, "latency.tpot_s.p50": 0.01 * rate}
        for name, gpu in (("one", 400.0), ("two", 400.1), ("three", 500.0))
        for rate in (2.0, 4.0)
    ]
    (axes,) = pareto(systems(rows, NAMES), "request_rate", None, SCREEN).axes
    dots = [line for line in axes.get_lines() if line.get_linestyle() == "None"]
    one, two, three = dots[:2], dots[2:4], dots[4:]
    for below, on_top, apart in zip(one, two, three, strict=True):
        assert below.get_markersize() > 1.5 * on_top.get_markersize() == 1.5 * apart.get_markersize()
        assert below.get_zorder() < on_top.get_zorder()


def rows_of(cost, finished, name, rate=2.0):
    counts = {"requests.finished": finished, "requests.submitted": 100}
    served = {
        "throughput.requests_per_s": 3.0,
        "throughput.output_tokens_per_s": 900.0,
        "gpus": 1,
        "slo.met": True,
    }
    latencies = {"latency.tpot_s.p50": 0.02, "latency.ttft_s.p99": 0.5}
    settings = {"allocator": name, "request_rate": rate, "status": "finished"}
    return {
        **settings,
        **counts,
        **served,
        **latencies,
        **{f"cost.{key}": value for key, value in cost.items()},
    }


ROOFLINE = {"clock": "roofline", "trust": "not validated", "extrapolated_share": 0.0}
MEASURED = {
    "clock": "measured elsewhere",
    "profile": "h100-vllm",
    "date": "2026-11-21",
    "trust": "TPOT 4.0 % off, TTFT 15.0 % (medians of 30 real servers)",
    "extrapolated_share": 0.03,
}


def test_a_sweep_names_its_clock_the_share_extrapolated_and_the_trust():
    rows = [rows_of(MEASURED, 100, name, rate) for name in ("one", "two") for rate in (2.0, 4.0)]
    said = shown(systems(rows, NAMES))
    foot = "clock: measured elsewhere (h100-vllm of 2026-11-21); 3.0 % of the time extrapolated; "
    assert f"{foot}{MEASURED['trust']}" in said
    assert "one and two both have the same throughput: " in said


def test_of_systems_that_served_nobody_none_has_the_highest_throughput():
    rows = [
        rows_of(ROOFLINE, 0, name, rate) | {"throughput.requests_per_s": 0.0}
        for name in ("one", "two")
        for rate in (2.0, 4.0)
    ]
    assert shown(systems(rows, NAMES)).startswith("None of 400 requests was served\n")
    assert curves(systems(rows, NAMES), "request_rate", None, SCREEN).get_label() == (
        "None of 400 requests was served"
    )


def test_systems_on_different_clocks_are_not_ranked_and_told_the_remedy():
    rows = [
        rows_of(cost, 100, name, rate)
        for name, cost in (("one", ROOFLINE), ("two", MEASURED))
        for rate in (2.0, 4.0)
    ]
    found = systems(rows, NAMES)
    apart = "Not comparable: their clocks differ (roofline: one; measured elsewhere: two): "
    for slo in (None, SLO):
        assert headline(found, "request_rate", slo) == f"{apart}--cost roofline puts them all on one clock."
    table = shown(found, SLO)
    assert "one (roofline) " in table and "two (measured elsewhere) " in table
    for figure in (curves, pareto):
        assert figure(found, "request_rate", SLO, SCREEN).get_label().startswith(apart)


def test_who_rejected_requests_is_not_ranked_beside_others():
    rows = [
        rows_of(ROOFLINE, {"one": 7, "two": 100}[name], name, rate)
        for name in ("one", "two")
        for rate in (2.0, 4.0)
    ]
    rows = [{**row, "throughput.requests_per_s": 9.0 if row["allocator"] == "one" else 3.0} for row in rows]
    found = systems(rows, NAMES)
    assert headline(found, "request_rate", None) == (
        "Requests served: one 14 of 200; not ranked with the others. "
        "two has the highest throughput: 3.00 requests/s"
    )
    assert [line.split()[0] for line in shown(found, SLO).splitlines() if line.endswith(" %")] == [
        "two",
        "one",
    ]
    assert pareto(found, "request_rate", SLO, SCREEN).get_label().startswith("Requests served: one 14 of 200")
