"""Queueing theory: a server with one seat and steps of one second is a queue whose theory is known.

A request of k output tokens takes exactly k steps (prefill gives the first token), so service times are
whole seconds and nothing else takes time: M/D/1 with fixed outputs, M/G/1 with geometric ones.
"""

from functools import cache

import numpy as np
import pytest
from support.serving import serve

from kvsim.allocators.paged import Paged
from kvsim.sim.cost.constant import Constant
from kvsim.sim.workload import PS_PER_S, Workload

pytestmark = pytest.mark.slow

SEEDS = range(8)
REQUESTS = 6_000
MAX_LEN = 4096


def poisson(rng, rate, outputs):
    """Requests of one prompt token and the given outputs; `rate` arrivals per second."""
    arrivals = np.cumsum(rng.exponential(1 / rate, len(outputs)) * PS_PER_S).astype(np.int64)
    return Workload("test", arrivals, np.ones_like(outputs), outputs)


def served(work, seats=1, **options):
    return serve(work, Paged(1 << 20, 16), "vllm-v1", seats=seats, max_model_len=MAX_LEN, **options)


def waits_s(result):
    return (result.requests["first_scheduled_ps"] - result.workload.arrival_ps) / PS_PER_S


def assert_agrees(measured, expected):
    """The mean measured over several seeds is within 3.5 standard errors of the expected value.

    The errors themselves are small: below 4 %.
    """
    error = np.std(measured, ddof=1) / np.sqrt(len(measured))
    assert error < 0.04 * np.mean(expected)
    assert np.mean(measured) == pytest.approx(np.mean(expected), abs=3.5 * error)


# -- formulas -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rho", "output"), [(0.75, 1), (0.5, 5)])
def test_m_d_1_the_mean_wait_is_rho_over_2_mu_times_1_minus_rho(rho, output):
    mu = 1 / output
    waits = []
    for seed in SEEDS:
        work = poisson(np.random.default_rng(seed), rho * mu, np.full(REQUESTS, output))
        waits.append(waits_s(served(work)).mean())
    assert_agrees(waits, rho / (2 * mu * (1 - rho)))


@cache
def m_g_1():
    """Runs with geometric outputs of 8 tokens on average, at a load of 0.6."""
    runs = []
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        runs.append(served(poisson(rng, 0.6 / 8, rng.geometric(1 / 8, REQUESTS))))
    return runs


def test_m_g_1_with_geometric_outputs_waits_as_pollaczek_and_khinchine_say():
    formula = []
    for work in (run.workload for run in m_g_1()):
        service, rate = work.output_tokens.astype(float), REQUESTS / (work.arrival_ps[-1] / PS_PER_S)
        formula.append(rate * (service**2).mean() / (2 * (1 - rate * service.mean())))
    assert_agrees([waits_s(run).mean() for run in m_g_1()], formula)


def test_utilisation_is_rho():
    busy = []
    for run in m_g_1():
        running_ps = run.saturated.running + run.unsaturated.running
        assert running_ps == run.workload.output_tokens.sum() * PS_PER_S == run.step_count * PS_PER_S
        busy.append(running_ps / run.end_ps)
    assert_agrees(busy, 0.6)


# -- exact facts, in whole picoseconds ----------------------------------------------------------------


def test_every_single_wait_is_as_in_lindleys_recursion():
    rng = np.random.default_rng(1)
    result = served(poisson(rng, 0.9 / 4, rng.geometric(1 / 4, REQUESTS)))
    work, wait, expected = result.workload, 0, []
    gaps = np.diff(work.arrival_ps, append=0).tolist()
    for gap, service in zip(gaps, work.output_tokens.tolist(), strict=True):
        expected.append(wait)
        wait = max(0, wait + service * PS_PER_S - gap)  # it starts when the one before it is done
    assert (result.requests["first_scheduled_ps"] - work.arrival_ps).tolist() == expected


@cache
def batched(seats, slots):
    """A busy server with many seats: chunks, and with few slots preemptions."""
    rng = np.random.default_rng(0)
    n = 2_000
    work = Workload(
        "test",
        np.cumsum(rng.exponential(1.6 * PS_PER_S, n)).astype(np.int64),
        rng.integers(1, 60, n),
        rng.geometric(1 / 20, n).clip(1, 190),
    )
    return serve(
        work,
        Paged(slots, 16),
        "vllm-v1",
        seats=seats,
        budget=64,
        max_model_len=256,
        cost=Constant(0.7),
        step_log=True,
    )


LOADS = pytest.mark.parametrize(
    ("seats", "slots"), [(1, 1 << 20), (8, 1 << 20), (60, 1 << 20), (60, 800), (60, 400)]
)


def in_system(result):
    """Times at which the number in the system changes, and the number from each on."""
    times = np.concatenate([result.workload.arrival_ps, result.requests["finish_ps"]])
    changes = np.repeat([1, -1], len(result.workload))
    order = np.argsort(times, kind="stable")
    return times[order], np.cumsum(changes[order])


@LOADS
def test_every_row_of_the_step_log_counts_who_arrived_and_is_not_done(seats, slots):
    result = batched(seats, slots)
    starts, done_ps = result.steps["start_ps"], np.sort(result.requests["finish_ps"])
    arrived = np.searchsorted(result.workload.arrival_ps, starts, side="right")
    done = np.searchsorted(done_ps, starts, side="right")
    assert (result.steps["running"] + result.steps["waiting"] == arrived - done).all()
    ends = starts + result.steps["duration_ps"]
    before = np.searchsorted(done_ps, ends, side="right")
    assert (result.steps["running_end"] + result.steps["waiting_end"] == arrived - before).all()


@LOADS
def test_littles_law_the_integral_of_the_number_in_the_system_is_the_sum_of_the_sojourns(seats, slots):
    result = batched(seats, slots)
    times, number = in_system(result)
    steps, ends = result.steps, result.steps["start_ps"] + result.steps["duration_ps"]
    # a step sees who is there at its start; who comes during it is waiting from then to its end
    during = np.searchsorted(ends, result.workload.arrival_ps, side="right")
    late = during < len(ends)
    late[late] &= steps["start_ps"][during[late]] < result.workload.arrival_ps[late]
    rest = int((ends[during[late]] - result.workload.arrival_ps[late]).sum())
    seen = int(((steps["running"] + steps["waiting"]) * steps["duration_ps"]).sum())
    sojourns = int((result.requests["finish_ps"] - result.workload.arrival_ps).sum())
    assert seen + rest == sojourns == int((np.diff(times) * number[:-1]).sum())


@LOADS
def test_the_integral_of_running_is_that_of_the_step_log_and_of_the_stays(seats, slots):
    result = batched(seats, slots)
    running = result.saturated.running + result.unsaturated.running
    assert running == int((result.steps["running"] * result.steps["duration_ps"]).sum())
    stays = int((result.requests["finish_ps"] - result.requests["first_scheduled_ps"]).sum())
    assert running == stays if not result.preemptions else running < stays
    assert bool(result.preemptions) == (slots < 1 << 20)


@LOADS
def test_work_is_conserved_nobody_waits_for_an_idle_server(seats, slots):
    result = batched(seats, slots)
    steps = result.steps
    ends = steps["start_ps"] + steps["duration_ps"]
    assert (steps["running"] > 0).all()
    assert (steps["start_ps"][1:] >= ends[:-1]).all()
    idle = np.flatnonzero(steps["start_ps"][1:] > ends[:-1])
    assert not (steps["running_end"][idle] + steps["waiting_end"][idle]).any()
    assert np.isin(steps["start_ps"][idle + 1], result.workload.arrival_ps).all()
    whole = result.saturated.time_ps + result.unsaturated.time_ps
    assert whole == result.end_ps
    assert (
        steps["duration_ps"].sum()
        == whole - (steps["start_ps"][1:] - ends[:-1])[idle].sum() - (result.workload.arrival_ps[0])
    )


@LOADS
def test_every_token_is_computed_once_and_again_only_after_a_preemption(seats, slots):
    result = batched(seats, slots)
    steps, work = result.steps, result.workload
    stored = work.prompt_tokens.sum() + work.output_tokens.sum() - len(work)  # the last is never stored
    computed = steps["prefill_tokens"].sum() + steps["decode_tokens"].sum()
    assert computed == stored + steps["recomputed_tokens"].sum()
    assert result.token_gaps.count == work.output_tokens.sum() - len(work)
    assert result.token_gaps.total == (result.requests["finish_ps"] - result.requests["first_token_ps"]).sum()
