"""The default scenario with a queue that never empties: the use of OPT-13B's memory on an A100-40GB.

All requests arrive at once. "Saturated" is the time during which requests wait.
"""

from dataclasses import asdict
from functools import cache

import numpy as np
import pytest
from support.settings import engine_config

from kvsim import workloads
from kvsim.sim.build import build_engine
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.models.catalog import gpu_named, model_named
from kvsim.sim.record.instants import TIMELINE_COLUMNS
from kvsim.sim.record.metrics import kinds, request_table, summary
from kvsim.sim.workload import PS_PER_S

SLOTS, LONGEST, BLOCK = 15_744, 2_048, 16
KINDS = TIMELINE_COLUMNS[1:7]
ALLOCATORS = [
    *(("contiguous", reserve) for reserve in ("max", "pow2", "oracle")),
    *(("buddy", reserve) for reserve in ("max", "pow2", "oracle")),
    *(("dynamic", None), ("paged", None)),
]


def sharegpt(n, rate=float("inf")):
    return workloads.build("sharegpt", num_prompts=n, request_rate=rate, burstiness=1.0, seed=0)


@cache
def run(allocator, reserve=None, *, n=600, rate=float("inf"), scheduler=None, cost="roofline", fit=None):
    engine = engine_config(allocator=allocator, reserve=reserve, scheduler=scheduler, fit=fit)
    model, gpu = model_named("opt-13b"), gpu_named("a100-40gb")
    scenario = Deployment(model=model, gpu=gpu, engine=engine, cost=cost)
    result = build_engine(scenario, sharegpt(n, rate)).run()
    assert result.capacity_slots == SLOTS and result.finished.all()
    return result


def mean_running(result):
    return result.saturated.running / result.saturated.time_ps


def shares(result):
    """Percent of the capacity by kind, over the saturated time."""
    counted = kinds(result.saturated, SLOTS)
    assert sum(counted.values()) == SLOTS * result.saturated.time_ps
    return {kind: 100 * slots / SLOTS / result.saturated.time_ps for kind, slots in counted.items()}


def waiting_rows(result):
    rows = result.timeline["waiting"] > 0
    assert rows.sum() > 100
    return {name: column[rows] for name, column in result.timeline.items()}


# -- what the project must show -----------------------------------------------------------------------


@pytest.mark.parametrize("allocator", ["contiguous", "buddy"])
def test_reserving_the_maximum_holds_exactly_7_requests_all_the_time(allocator):
    result = run(allocator, "max")
    assert result.max_running == SLOTS // LONGEST == 7
    assert result.saturated.running == 7 * result.saturated.time_ps
    assert (waiting_rows(result)["running"] == 7).all()
    assert shares(result)["token"] == pytest.approx(20, abs=2)
    assert shares(result)["external"] == pytest.approx(100 * (SLOTS - 7 * LONGEST) / SLOTS, abs=1e-9)
    assert shares(result)["free"] == 0


def test_paging_fills_the_memory_with_tokens_and_wastes_less_than_a_block_a_sequence():
    result = run("paged")
    rows, share = waiting_rows(result), shares(result)
    assert share["token"] >= 95
    waste = result.saturated.internal + result.saturated.external
    assert waste < BLOCK * result.saturated.running
    assert waste + kinds(result.saturated, SLOTS)["reserved"] < BLOCK * result.saturated.running
    assert (rows["reserved"] + rows["internal"] < BLOCK * rows["running"]).all()
    assert not rows["external"].any()


def test_better_informed_reservations_hold_more_and_paging_holds_most():
    systems = [("contiguous", "max"), ("buddy", "pow2"), ("buddy", "oracle"), ("paged", None)]
    running = [mean_running(run(*system)) for system in systems]
    assert running == sorted(running)
    assert running[-1] > 2 * running[-2] > 4 * running[0]
    ends = [run(*system).end_ps for system in systems]
    assert ends == sorted(ends, reverse=True)


def test_the_summary_shows_the_same_shares():
    result = run("contiguous", "max")
    memory = summary(result, request_table(result))["memory"]
    assert memory["saturated"] == pytest.approx(shares(result))
    assert sum(memory["saturated"].values()) == pytest.approx(100)


# -- closed forms -------------------------------------------------------------------------------------


@pytest.mark.parametrize("allocator", ["contiguous", "buddy"])
def test_orca_max_agrees_with_the_closed_forms(allocator):
    result = run(allocator, "max", n=2_000)
    prompt, output = (
        column.astype(float) for column in (result.workload.prompt_tokens, result.output_tokens)
    )

    def by_stay(x):
        return (x * output).mean() / output.mean()

    expected = {
        "token": 7 * (by_stay(prompt) + by_stay(output) / 2),
        "reserved": 7 * by_stay(output) / 2,
        "internal": 7 * by_stay(LONGEST - prompt - output),
        "external": SLOTS - 7 * LONGEST,
    }
    got = shares(result)
    for kind, slots in expected.items():
        assert got[kind] == pytest.approx(100 * slots / SLOTS, abs=0.5), kind


@pytest.mark.parametrize(("allocator", "reserve"), [a for a in ALLOCATORS if a[1]])
def test_with_equal_steps_the_memory_integral_is_a_sum_over_requests(allocator, reserve):
    result = run(allocator, reserve, n=300, cost="constant:1")
    prompt, output = result.workload.prompt_tokens, result.output_tokens
    whole = {k: v + getattr(result.unsaturated, k) for k, v in asdict(result.saturated).items()}
    assert result.preemptions == 0
    assert whole["running"] == int(output.sum()) * PS_PER_S
    assert whole["token"] == int((prompt * output + output * (output - 1) // 2).sum()) * PS_PER_S
    if allocator == "contiguous":
        bound = {
            "max": np.full_like(prompt, LONGEST),
            "pow2": np.minimum(LONGEST, prompt + 2 ** np.ceil(np.log2(output)).astype(np.int64)),
            "oracle": prompt + output,
        }[reserve]
        assert whole["used"] == int((bound * output).sum()) * PS_PER_S
        never_written = bound - (prompt + output - 1)
        assert whole["internal"] == int((never_written * output).sum()) * PS_PER_S


# -- the ledger ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [float("inf"), pytest.param(3.0, marks=pytest.mark.slow)])
@pytest.mark.parametrize("scheduler", ["vllm-v1", "orca", "static"])
@pytest.mark.parametrize(("allocator", "reserve"), ALLOCATORS)
def test_the_ledger_sums_to_the_capacity_in_every_row_and_no_kind_is_negative(
    allocator, reserve, scheduler, rate
):
    result = run(allocator, reserve, scheduler=scheduler, rate=rate, n=80)
    rows = np.array([result.timeline[kind] for kind in KINDS])
    assert rows.shape[1] > 100
    assert (rows.sum(axis=0) == SLOTS).all()
    assert rows.min() >= 0
    for sums in (result.saturated, result.unsaturated):
        counted = kinds(sums, SLOTS)
        assert sum(counted.values()) == SLOTS * sums.time_ps
        assert min(counted.values()) >= 0
    assert result.saturated.time_ps + result.unsaturated.time_ps == result.end_ps
    assert result.peak_used_tokens >= rows[0].max()


def test_both_fits_of_contiguous_hold_the_same_reservations_of_equal_size():
    assert mean_running(run("contiguous", "max", fit="best")) == 7
