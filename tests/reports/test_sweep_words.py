"""What a sweep says: the answer in words, its bound at the grid's edge, and the curves that go with it."""

from kvsim.reports.figures.style import SCREEN
from kvsim.reports.figures.swept.curves import curves
from kvsim.reports.sweeps.systems import systems
from kvsim.reports.sweeps.words import headline, rank
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
        "three carries most within ttft:p99=1s: 4 requests/s, more tokens/s/GPU than 1 other at that load; "
        "3 of 3 systems meet it"
    )
    assert headline(found[:2], "request_rate", SLO).startswith("two carries most within ttft:p99=1s: 4 req")
    assert [system.name for system in sorted(found, key=rank)] == ["one", "two", "three"]


def test_the_highest_load_tried_is_no_answer_but_a_bound():
    found = systems(met_up_to({"one": 2.0, "two": 8.0, "three": 8.0}), NAMES)
    assert headline(found, "request_rate", SLO) == (
        "three and 1 other carry at least 8 requests/s, the highest tried, within ttft:p99=1s; "
        "of these three makes most, 805 tokens/s/GPU; 3 of 3 systems meet it"
    )
    (alone,) = systems(met_up_to({"one": 8.0}), ["request_rate"])
    assert headline([alone], "request_rate", SLO) == (
        "carries at least 8 requests/s, the highest tried, within ttft:p99=1s; it meets the SLO"
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
    assert inside[3.0] == SCREEN.paper and inside[2.0] == inside[5.0] != SCREEN.paper
    assert "SLO met: with all 2 seeds; hollow: with some only" in figure.axes[0].get_xlabel()
