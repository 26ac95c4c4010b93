"""Systems that served different requests, or are timed by different clocks, are never ranked."""

import pytest
from support.summaries import BUDDY, CONTIGUOUS, PAGED, plain

import kvsim
from kvsim.reports.figures.systems import first_words, last_words, rankable, systems
from kvsim.reports.headline import headline, verdict
from kvsim.reports.html.numbers import numbers
from kvsim.reports.html.words import answer
from kvsim.reports.ranked import by_scheduler, rejections
from kvsim.reports.seeds.words import difference_lines
from kvsim.reports.terminal import report_table

FULL = "does not fit an empty arena of 64 slots"


def rejecting(summary, served):
    counts = {"submitted": 1000, "finished": served, "rejected": 1000 - served}
    return {**summary, "requests": counts | {"rejected_reasons": {FULL: 1000 - served}}}


def on(clock, summary):
    return {**summary, "cost": {**summary["cost"], "clock": clock}}


def starred(table):
    return {line.split("  ")[0].strip() for line in plain(table).splitlines() if " *" in line}


def test_who_rejects_everything_wins_nothing():
    none, few = rejecting(CONTIGUOUS, 0), rejecting(PAGED, 7)
    said = plain(report_table([[none, few]], compared=True), width=200)
    assert said.startswith(
        f"Served: paged 7 of 1,000 requests, contiguous none of 1,000 requests; rejected: {FULL}."
    )
    assert starred(report_table([[none, few]], compared=True)) == {"requests finished"}
    assert starred(report_table([[none, few], [none, {**few, "duration_s": 1.0}]], True)) == {
        "requests finished"
    }


def test_those_that_served_most_are_ranked_among_themselves():
    some = [rejecting(CONTIGUOUS, 900), BUDDY, PAGED]
    assert verdict(some).startswith("paged holds 3.1 times as many requests at once as buddy")
    assert verdict(some).endswith("; not ranked, with fewer requests served: contiguous.")
    rows = plain(report_table([some], compared=True)).splitlines()
    (at_once,) = [line for line in rows if line.startswith("total waste")]
    assert at_once.endswith("3.9 % *")
    lines = difference_lines([[each, each] for each in some])
    assert lines[-1] == "not ranked, with fewer requests served: contiguous"
    assert not any("contiguous" in line for line in lines[:-1])


def test_equal_rejections_are_ranked_and_told_first():
    some = [rejecting(BUDDY, 900), rejecting(PAGED, 900)]
    assert rejections([[each] for each in some]) == f"Served: 900 of 1,000 requests; rejected: {FULL}."
    assert "*" in plain(report_table([some], compared=True))


def test_if_nothing_was_served_one_sentence_says_so():
    none = [rejecting(CONTIGUOUS, 0), rejecting(PAGED, 0)]
    assert rejections([[none[0]]]) == f"All 1,000 requests were rejected: {FULL}."
    both = rejections([[each] for each in none])
    assert both == f"All 1,000 requests were rejected by both systems: {FULL}."
    one = {**PAGED, "requests": {"submitted": 1, "finished": 0, "rejected": 1, "rejected_reasons": {FULL: 1}}}
    assert rejections([[one]]) == f"The only request was rejected: {FULL}."
    assert rejections([[one], [none[0]]]) == f"All requests were rejected by both systems: {FULL}."
    assert rejections([[{**PAGED, "requests": {"submitted": 0, "finished": 0, "rejected": 0}}]]) == ""


def test_the_headline_of_a_run_says_what_it_rejected():
    assert headline([rejecting(PAGED, 7)]).startswith(
        f"paged served 7 of 1,000 requests (rejected: {FULL}) in "
    )
    assert headline([rejecting(PAGED, 0)]) == f"paged served 0 of 1,000 requests (rejected: {FULL})."


def test_different_clocks_are_marked_and_nothing_is_ranked():
    some = [on("roofline", BUDDY), on("measured elsewhere", PAGED)]
    said = "Not comparable: their clocks differ (roofline: buddy; measured elsewhere: paged): "
    assert verdict(some) == f"{said}--cost roofline puts them all on one clock."
    assert plain(report_table([some], compared=True), width=200).startswith(said)
    assert not starred(report_table([some], compared=True))
    assert difference_lines([[each, each] for each in some]) == []


@pytest.fixture(scope="module")
def unlike():
    """Two GPUs, one timed by a profile, one by the roofline; and two allocators, one of which rejects all."""
    shared = {"model": "llama-3.1-8b", "num_prompts": 40, "request_rate": 20}
    clocks = kvsim.compare(
        [{"gpu": "a100-40gb", "cost": "roofline"}, {"gpu": "a100-80gb", "cost": "measured-elsewhere"}],
        **shared,
    )
    served = kvsim.compare(["contiguous", "paged"], num_gpu_blocks=4, num_prompts=100)
    return clocks, served


def test_figures_and_pages_say_so_too(unlike):
    clocks, served = (systems([run.stored() for run in runs]) for runs in unlike)
    assert not rankable(clocks) and not rankable(served)
    assert first_words(clocks).startswith("Not comparable: their clocks differ (roofline: ")
    assert first_words(served).startswith("Served: paged 7 of 100 requests, contiguous none of 100 requests;")
    assert last_words(served).startswith(
        "clock: roofline; not validated. Schedulers differ: orca (contiguous)"
    )
    waste = unlike[1].plot("waste").get_label()
    assert waste.startswith("Served: paged 7 of 100") and "wastes" not in waste
    for runs in unlike:
        told = numbers([run.stored() for run in runs])
        marked = {row["name"] for row in told["rows"] if any(row["best"])}
        assert not told["ranked"] and marked <= {"Requests finished", "Requests rejected"}
    page = answer([run.stored() for run in unlike[1]])
    assert page.startswith("Served: paged 7 of 100") and "Schedulers differ: orca (contiguous)" in page


def test_of_many_systems_the_allocators_are_named_beside_their_schedulers():
    rates = [
        [{**summary, "label": f"{summary['label']} at {rate}/s", "engine": {**summary["engine"], **engine}}]
        for rate in range(6)
        for summary, engine in (
            (BUDDY, {"scheduler": "orca", "allocator": "buddy-pow2"}),
            (PAGED, {"scheduler": "vllm-v1", "allocator": "paged"}),
        )
    ]
    assert by_scheduler(rates) == "Schedulers differ: orca (buddy-pow2), vllm-v1 (paged)."


def test_a_comparison_names_the_schedulers_that_came_with_the_allocators(unlike):
    said = plain(report_table([[run.summary for run in unlike[1]]], compared=True), width=100)
    assert "Schedulers differ: orca (contiguous), vllm-v1 (paged)." in said
    (row,) = [line.split() for line in said.splitlines() if line.startswith("scheduler ")]
    assert row == ["scheduler", "orca", "vllm-v1"]
    same = [{**each, "engine": {**each["engine"], "scheduler": "orca"}} for each in (BUDDY, PAGED)]
    assert "cheduler" not in plain(report_table([same], compared=True))
