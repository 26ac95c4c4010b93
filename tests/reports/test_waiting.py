"""What reports say first about a server that cannot keep up, and which limits they name."""

import copy

from support.summaries import BUDDY, CONTIGUOUS, PAGED, plain

from kvsim.reports.headline import headline, memory, verdict
from kvsim.reports.seeds.words import difference_lines
from kvsim.reports.terminal import report_table, run_table
from kvsim.reports.waiting import held_back, overload, overloads, rounded_share


def loaded(summary, *, overloaded=True, come=3.0, leave=2.0, arrivals="open", **held):
    """The summary with a load; `held` are shares of the time by limit."""
    shares = dict.fromkeys(("kv_memory", "max_num_seqs", "max_num_batched_tokens", "batch"), 0.0) | held
    return copy.deepcopy(summary) | {
        "load": {
            "arrivals": arrivals,
            "overloaded": overloaded,
            "arriving_requests_per_s": come,
            "leaving_requests_per_s": leave,
            "waiting_at_last_arrival": 300,
            "held_back_share": shares,
        }
    }


OVERLOADED = loaded(PAGED, kv_memory=0.912, max_num_seqs=0.02, max_num_batched_tokens=0.002)


def test_a_run_whose_queue_grows_says_so_first_and_names_the_limits():
    lines = plain(run_table([OVERLOADED])).splitlines()
    assert " ".join(lines[:2]) == (
        "overloaded: 3.00 requests/s arrive, 2.00 are served; blocked by KV memory 91 % of the time, "
        "seats (max_num_seqs) 2 %"
    )
    assert lines[2] == ""
    assert lines[3].startswith("paged served 1,000 requests")
    assert any(line.startswith("note: The queue kept growing while requests arrived") for line in lines)


def test_limits_below_half_a_per_cent_are_told_below_and_not_in_the_first_line():
    at = plain(run_table([OVERLOADED])).partition("blocked    by ")[2]
    assert " ".join(at.split()).startswith(
        "KV memory 91 % of the time, seats (max_num_seqs) 2 %, token budget (max_num_batched_tokens) < 1 %"
    )


def test_a_run_that_keeps_up_has_no_such_line_but_tells_what_held_requests_back():
    run = loaded(PAGED, overloaded=False, max_num_seqs=0.5)
    assert overload([run]) == ""
    assert plain(run_table([run])).startswith("paged served")
    assert held_back([run]) == "seats (max_num_seqs) 50 % of the time"


def test_a_run_of_an_older_version_has_no_load_and_no_words_about_it():
    assert overload([PAGED]) == held_back([PAGED]) == ""
    assert overloads([[PAGED], [BUDDY]]) == []


def test_a_comparison_names_each_overloaded_run_above_its_table():
    lines = plain(
        report_table([[loaded(CONTIGUOUS, leave=1, kv_memory=0.99), PAGED]], compared=True), width=120
    ).splitlines()
    assert lines[0] == (
        "contiguous is overloaded: 3.00 requests/s arrive, 1.00 are served; blocked by KV memory 99 % of "
        "the time"
    )
    assert lines[1] == ""
    assert any(line.split() == ["blocked", "by", "KV", "memory", "99.0", "%", "-"] for line in lines)
    assert not any(line.startswith("blocked by seats") for line in lines)


def test_several_seeds_say_how_many_of_them_are_overloaded():
    seeds = [OVERLOADED, loaded(PAGED, come=2.8, leave=2.4, overloaded=False, kv_memory=0.5)]
    words = overload(seeds)
    assert words == (
        "overloaded with 1 of 2 seeds: 2.90 requests/s arrive, 2.20 are served; blocked by "
        "KV memory 71 % of the time, seats (max_num_seqs) 1 %"
    )
    assert plain(report_table([[each] for each in seeds], compared=False), width=200).startswith(words)
    assert overload([PAGED, PAGED]) == ""


def test_all_at_once_is_said_and_is_no_overload():
    run = loaded(PAGED, overloaded=False, arrivals="all at once", come=None, leave=None)
    assert headline([run]).startswith("paged served 1,000 requests, which all arrived at once, in 512.8 s")
    assert overload([run]) == ""


def test_shares_are_never_rounded_to_nothing_or_to_all():
    assert [rounded_share(value) for value in (0, 0.001, 0.5, 0.996, 1)] == [
        *("0 %", "< 1 %", "50 %", "> 99 %", "100 %")
    ]


# -- tokens in the memory -----------------------------------------------------------------------------


def test_the_memory_is_told_of_the_whole_run_and_beside_it_of_the_time_in_which_requests_waited():
    assert memory([PAGED]) == (
        "KV memory 95.1 % tokens, 3.9 % waste over the whole run, 96.1 % and 3.9 % while requests waited "
        "(93 % of the time)"
    )
    short = copy.deepcopy(PAGED)
    short["memory"]["saturated_share"] = 0.001
    assert memory([short]).endswith("96.1 % and 3.9 % while requests waited (< 1 % of the time)")


def rarely_waiting(summary):
    run = copy.deepcopy(summary)
    run["memory"]["saturated_share"] = 0.01
    run["memory"]["average"] |= {"internal": 1.0, "external": 0.5}
    return run


def test_waste_is_compared_over_the_same_part_of_both_runs():
    assert verdict([PAGED, CONTIGUOUS]).endswith("waste 3.9 % against 79.4 % while requests waited.")
    assert verdict([rarely_waiting(PAGED), CONTIGUOUS]).endswith(
        "waste 1.5 % against 79.4 % over the whole run."
    )


def test_the_seeds_compare_waste_over_the_same_part_of_all_runs():
    few, waiting = [rarely_waiting(PAGED)] * 2, [CONTIGUOUS] * 2
    assert difference_lines([few, waiting])[-1] == (
        "over the whole run, paged wastes 77.9 percentage points less than contiguous"
    )
