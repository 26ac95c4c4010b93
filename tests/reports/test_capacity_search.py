"""The search for a capacity: bracket, bisection, windows, and its words."""

from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from kvsim.reports.sweeps.capacity import capacities, limited_by
from kvsim.reports.sweeps.capacity_table import table_rows
from kvsim.reports.sweeps.capacity_words import answer, capacity_words
from kvsim.reports.sweeps.search import Tried, search
from kvsim.reports.sweeps.steady import tells, window
from kvsim.sim.options.goals import Goals
from kvsim.sim.options.sweeps import Sought
from kvsim.sim.record.slo import Slo

SLO = Slo.parse("ttft:p99=0.5s,tpot=50ms")


def within(limit):
    """A server that carries loads up to a limit."""
    return lambda load: Tried(load, load <= limit, load / limit)


@pytest.mark.parametrize("limit", [0.013, 0.7, 1.0, 3.3, 9.99, 250.0])
@pytest.mark.parametrize("start", [0.01, 1.0, 7.0, 900.0])
@pytest.mark.parametrize("tolerance", [0.2, 0.02, 0.001])
def test_the_answer_is_within_the_tolerance_below_the_limit(limit, start, tolerance):
    found = search(within(limit), start, least=0.001, most=1000, tolerance=tolerance)
    assert found.best.load <= limit < found.worst.load <= found.best.load * (1 + tolerance) * (1 + 1e-5)
    loads = [each.load for each in found.tried]
    assert len(set(loads)) == len(loads), "no load is tried twice"


def test_a_search_that_begins_near_takes_small_steps_and_steeper_ones_far_away():
    near = search(within(0.95), 1.0, least=0.001, most=1000, tolerance=0.02, factor=1.04)
    assert near.best.load <= 0.95 < near.worst.load <= near.best.load * 1.02 * (1 + 1e-5)
    assert len(near.tried) == 4 and min(each.load for each in near.tried) > 0.9
    far = search(within(100.0), 1.0, least=0.001, most=1000, tolerance=0.02, factor=1.04)
    assert len(far.tried) < 20


def test_the_edge_lies_between_the_loads_where_the_latency_is_its_limit():
    found = search(within(3.3), 1.0, least=0.001, most=1000, tolerance=0.1)
    assert found.edge == pytest.approx(3.3, rel=1e-6), "a latency that is the load is linear in it"
    every = search(lambda load: Tried(load, True, 0.1), 5.0, least=0.01, most=100, tolerance=0.02)
    none = search(lambda load: Tried(load, False, 2.0), 5.0, least=0.01, most=100, tolerance=0.02)
    assert (every.edge, none.edge) == (100, None)


def test_a_run_tells_little_where_late_requests_come_together():
    rng = np.random.default_rng(0)
    apart = rng.exponential(1.0, 20_000)
    assert tells(apart, 0.99, 4.7), "200 late requests, each by itself"
    assert not tells(apart[:500], 0.99, 5.0), "five late requests tell of no share"
    together = np.where(np.arange(20_000) // 250 == 41, 10.0, 1.0)
    assert not tells(together, 0.99, 4.7), "one busy time: with other seeds there are none, or three"
    assert tells(np.full(2000, 9.0) + apart[:2000], 0.99, 4.7), "all late: no need to know how many"


@pytest.mark.parametrize("limit", [1, 2, 3, 17, 100, 12345])
def test_whole_loads_are_whole_and_next_to_each_other(limit):
    found = search(within(limit), 40, least=1, most=100_000, tolerance=0.0005, whole=True)
    assert found.best.load == int(found.best.load) <= limit < found.worst.load
    assert found.worst.load - found.best.load <= max(1, 0.0005 * limit + 1)


def test_where_no_load_is_within_the_closest_is_known():
    found = search(
        lambda load: Tried(load, False, 1.5 + abs(load - 0.3)), 5.0, least=0.01, most=100, tolerance=0.02
    )
    assert found.best is None
    assert found.closest.load == min((each.load for each in found.tried), key=lambda load: abs(load - 0.3))
    assert min(each.load for each in found.tried) == 0.01


def test_where_every_load_is_within_the_most_is_tried():
    found = search(lambda load: Tried(load, True, 0.1), 5.0, least=0.01, most=100, tolerance=0.02)
    assert found.worst is None and found.best.load == 100 and found.at_least
    low = search(lambda load: Tried(load, True, 0.1), 5.0, least=0.01, most=1.23456789, tolerance=0.02)
    assert low.best.load == 1.23456789 and len(low.tried) == 1, "no load above the most is tried"


def table(arrival_s, e2e_s):
    return {"arrival_s": np.asarray(arrival_s, float), "e2e_s": np.asarray(e2e_s, float)}


def test_the_window_leaves_out_warm_up_and_cool_down():
    found = window(table(np.arange(1000) / 10, np.full(1000, 2.0)))
    kept = np.flatnonzero(found.rows) / 10
    assert (kept.min(), kept.max()) == (6.0, 97.9)
    assert found.long_enough and not found.grows and found.growth == 1


def test_a_run_may_be_too_short_or_grow():
    assert not window(table(np.arange(1000) / 100, np.full(1000, 2.0))).long_enough, "10 s are 5 times 2 s"
    assert not window(table(np.arange(100), np.full(100, 2.0))).long_enough, "less than 200 requests"
    assert window(table(np.arange(1000), np.linspace(1, 3, 1000))).grows
    noise = np.random.default_rng(0).exponential(2.0, 1000)
    assert not window(table(np.arange(1000), noise)).grows
    nothing = window(table(np.arange(3), np.full(3, np.nan)))
    assert nothing.rows.all() and not nothing.grows


def above(**changes):
    """What is known about a load that misses."""
    return {
        "load": 2.1,
        "overloaded": False,
        "missed": ["ttft:p99"],
        "measured_s": {"ttft:p99": 0.7, "tpot": 0.04},
        "recomputed_share": 0.12,
        "mean_running": 40.0,
        "held_back_share": {"kv_memory": 0.71, "max_num_seqs": 0.001},
    } | changes


def row(load, seed, gpu="h100", **changes):
    """The row of a search."""
    about = {"output_tokens_per_s": 1000.0, "tpot_p50_s": 0.025, "attained_share": 0.99, "requests": 1000}
    found = {
        "gpu": gpu,
        "seed": seed,
        "status": "finished",
        "reason": "",
        "gpus": 2,
        "load": load,
        "edge": load,
    }
    closest = {**above(), "load": 0.1, "excess": 1.4}
    return found | {"at_load": about if load else None, "above": above(), "closest": closest} | changes


def described(rows, for_rate=None, more_kv=None, price="h100=3,l40s=1"):
    found = capacities(rows, ["gpu"], [each["gpu"] for each in rows])
    goals = Goals(slo=str(SLO), gpu_price=price)
    return table_rows(found, goals, Sought(for_rate=for_rate, more_kv=more_kv))


def test_the_reason_names_the_latency_and_what_held_requests_back():
    (system,) = capacities([row(2.0, 0), row(2.2, 1)], ["gpu"], ["h100"] * 2)
    assert limited_by(system, SLO) == "TTFT p99 700 ms: KV memory full 71 % of the time, 12 % recomputed"
    quiet = above(held_back_share={}, recomputed_share=0.0, missed=["tpot"], measured_s={"tpot": 0.051})
    (system,) = capacities([row(2.0, 0, above=quiet)], ["gpu"], ["h100"])
    assert limited_by(system, SLO) == "TPOT max 51.0 ms: the time of steps, 40.0 requests at once"
    (system,) = capacities([row(2.0, 0, above=above(overloaded=True, missed=[]))], ["gpu"], ["h100"])
    assert limited_by(system, SLO).startswith("requests arrive faster than they leave: KV memory full 71 %")


def test_an_slo_that_no_load_meets_says_where_it_came_closest():
    (system,) = capacities([row(None, 0), row(None, 1)], ["gpu"], ["h100"] * 2)
    assert limited_by(system, SLO) == "no load meets it; even at 0.100 requests/s TTFT p99 is 700 ms"
    assert "even at 0.100 times the trace's speed" in limited_by(system, SLO, "rate-scale")
    (system,) = capacities([row(None, 0), row(2.0, 1)], ["gpu"], ["h100"] * 2)
    assert system.load is None
    assert limited_by(system, SLO).startswith("met with 1 of 2 seeds; closest at 0.100 requests/s: TTFT")


def test_the_interval_is_that_of_the_seeds():
    (found,) = described([row(2.0, 0), row(2.2, 1), row(2.4, 2)])
    assert found["requests_per_s"] == pytest.approx(2.2)
    half = 4.302653 * 0.2 / 3**0.5
    assert found["requests_per_s_high"] - 2.2 == pytest.approx(half, rel=1e-6)
    (low,) = described([row(2.0, 0, edge=2.02), row(2.0, 1, edge=2.03), row(2.0, 2, edge=2.04)])
    assert (low["requests_per_s"], low["requests_per_s_low"]) == (2.0, 2.0), "loads within lie below the edge"
    assert low["requests_per_s_high"] == pytest.approx(2.03 + half / 20, rel=1e-6)
    assert found["requests_per_s_per_gpu"] == pytest.approx(1.1) and found["seeds"] == 3
    assert found["tokens_per_s_per_user"] == pytest.approx(40) and found["output_tokens_per_s_per_gpu"] == 500
    assert found["price_per_million_output_tokens"] == pytest.approx(2 * 3 / 3600 / 1000 * 1e6)


def test_the_cheapest_fleet_comes_first():
    rows = [row(4.0, 0), row(3.0, 0, gpu="l40s"), row(None, 0, gpu="b200")]
    found = described(rows, for_rate=10, price="h100=3,l40s=1,b200=9")
    assert [each["gpu"] for each in found] == ["l40s", "h100", "b200"]
    assert [each["fleet_servers"] for each in found] == [4, 3, None]
    assert [each["fleet_price_per_hour"] for each in found] == [8, 18, None]
    said = answer(found, ["l40s", "h100", "b200"], Sought(for_rate=10), SLO)
    assert said.endswith("cheapest with l40s: 4 servers, 8 GPUs, 8.00 per hour")
    unpriced = described(rows, for_rate=10, price=None)
    assert [each["fleet_gpus"] for each in unpriced] == [6, 8, None]


def test_what_seeds_do_not_tell_apart_is_said():
    rows = [row(load, seed) for seed, load in enumerate((2.0, 3.0, 4.0))]
    rows += [row(load, seed, gpu="l40s") for seed, load in enumerate((2.1, 2.8, 4.3))]
    rows += [row(load, seed, gpu="b200") for seed, load in enumerate((1.1, 1.5, 2.2))]
    found = described(rows, price=None)
    assert [each["best_per_gpu"] for each in found] == [True, True, False], "b200 is less with every seed"
    said = answer(found, ["h100", "l40s", "b200"], Sought(), SLO)
    assert said.startswith("l40s has the highest capacity per GPU within")
    assert said.endswith("; not distinguishable given seed noise: h100")


def on(clock, load, gpu):
    """The row of a search on this clock."""
    about = {"output_tokens_per_s": 1000.0, "tpot_p50_s": 0.025, "attained_share": 0.99, "requests": 1000}
    return row(load, 0, gpu=gpu, at_load={**about, "cost": {"clock": clock}})


def test_systems_on_different_clocks_are_not_ranked():
    """The roofline's 21 requests/s cannot be compared with 13 measured ones."""
    rows = [on("roofline", 21.0, "l40s"), on("measured", 13.0, "h100"), on("measured", 12.0, "b200")]
    gpus = [each["gpu"] for each in rows]
    found = described(rows, price=None)
    assert [each["best_per_gpu"] for each in found] == [True, True, False], "each against its own clock"
    said = answer(found, gpus, Sought(), SLO)
    assert said.startswith("Not comparable: their clocks differ") and "--cost roofline" in said
    assert "l40s (roofline): 10.5 requests/s per GPU, 21.0 in total" in said
    assert "h100 (measured) has the highest capacity per GPU: 6.50 requests/s" in said
    fleets = described(rows, for_rate=10, price="h100=3,l40s=1,b200=2")
    assert [each["gpu"] for each in fleets] == ["b200", "h100", "l40s"], "the cheapest of each clock first"
    said = answer(fleets, [each["gpu"] for each in fleets], Sought(for_rate=10, margin="20%"), SLO)
    assert said.startswith("Not comparable") and "10 requests/s and 20 % more within" in said
    assert "cheapest with b200 (measured)" in said and "cheapest with l40s (roofline)" in said


def test_a_load_that_is_the_highest_tried_is_a_bound():
    (found,) = described([row(12.0, 0, above=None, at_least=True)])
    assert found["at_least"] and found["limited_by"] == "nothing up to 12.0, the highest load tried"
    assert answer([found], ["h100"], Sought(), SLO).startswith("h100 sustains at least 12.0 requests/s")


def test_rounding_adds_no_server_to_a_fleet():
    for rate in (0.1, 0.7, 12.3456789, 14.399999999999999):
        load = float(f"{rate:.15g}")
        (found,) = described([row(load / 3, seed) for seed in range(3)], for_rate=load)
        assert found["fleet_servers"] == 3


def test_more_memory_is_compared_seed_by_seed():
    (found,) = described([row(2.0, 0, more_kv_load=2.2), row(4.0, 1, more_kv_load=4.4)], more_kv=1.0)
    assert found["more_kv_gain_percent"] == pytest.approx(10)
    assert found["more_kv_gain_percent_low"] == pytest.approx(10), "however much the seeds themselves differ"


def test_a_search_that_fails_is_its_systems_reason():
    (found,) = described([row(2.0, 0), {"gpu": "h100", "seed": 1, "status": "failed", "reason": "no luck"}])
    assert found["requests_per_s"] is None and found["limited_by"] == "no luck"


def test_gpus_of_replicas_that_come_and_go_are_means_of_the_seeds():
    rows = [row(4.0, 0, "l40s", gpus=2.0, gpus_of_all=4), row(4.0, 1, "l40s", gpus=3.0, gpus_of_all=4)]
    (found,) = described(rows, for_rate=8.0)
    assert (found["gpus"], found["gpus_of_all"], found["requests_per_s_per_gpu"]) == (2.5, 4, 1.6)
    assert (found["fleet_gpus"], found["fleet_price_per_hour"]) == (5.0, 5.0)
    assert "cheapest with l40s: 2 servers, 5 GPUs, 5.00 per hour" in answer(
        [found], ["l40s"], Sought(for_rate=8.0), SLO
    )
    console = Console(width=200, file=StringIO())
    console.print(capacity_words([found], ["l40s"], Sought(), Goals(slo=str(SLO)), []))
    assert "2.50 of 4" in console.file.getvalue() and "billed on average" in console.file.getvalue()


def test_fleets_of_pools_cost_what_their_gpus_cost_and_say_which_side_binds():
    sides = {"ttft:p99": {"prefill": 0.9, "link": 0.04, "decode": 0.06}, "tpot": {}}
    rows = [
        row(
            2.0, seed, "apart", gpus=3, gpus_by_kind={"h100": 2, "l40s": 1}, above={**above(), "sides": sides}
        )
        for seed in (0, 1)
    ]
    rows += [row(1.5, seed, "alike", gpus=3, gpus_by_kind={"l40s": 3}) for seed in (0, 1)]
    apart, alike = described(rows, for_rate=3.9)[::-1]
    assert (apart["fleet_price_per_hour"], alike["fleet_price_per_hour"]) == (14, 9)
    assert apart["price_per_thousand_requests"] == pytest.approx(7 / 3600 / 2 * 1000)
    assert (apart["bound_by"], alike["bound_by"]) == ("prefill", None)
    assert "TTFT p99 700 ms: prefill-bound (90 %), KV memory full 71 %" in apart["limited_by"]
    said = answer(described(rows), ["apart", "alike"], Sought(), SLO)
    assert said.endswith("; cheapest per request: alike, 0.556 per thousand")
    assert "price_per_thousand_requests" not in described([row(2.0, 0)])[0]
