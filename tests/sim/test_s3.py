"""S3's batches: the bins of first-fit decreasing, worked by hand and against a plain packing."""

from fractions import Fraction
from math import ceil, inf
from random import Random

import pytest
from support.serving import engine_of, everything, workload

from kvsim import simulate, workloads
from kvsim.allocators.contiguous import Contiguous
from kvsim.allocators.paged import Paged
from kvsim.sim.build import build_engine
from kvsim.sim.cost.constant import Constant
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.options.scenario import Scenario
from kvsim.sim.record.metrics import request_table
from kvsim.sim.schedulers.orca import Orca
from kvsim.sim.schedulers.s3 import S3
from kvsim.sim.serving.reservation import reservation

ANSWER = 5
"""Tokens of every answer: a batch whose prompts are computed together ends together."""


def packed(sizes, capacity):
    """The bins of first-fit decreasing, as lists of item indices, each in the order of filling."""
    bins, left = [], []
    for index in sorted(range(len(sizes)), key=lambda index: (-sizes[index], index)):
        for at, room in enumerate(left):
            if sizes[index] <= room:
                bins[at].append(index)
                left[at] -= sizes[index]
                break
        else:
            bins.append([index])
            left.append(capacity - sizes[index])
    return bins


def served(rows, allocator, scheduler=S3):
    """A run with steps of one second, whose reservations are what requests need."""
    chosen = scheduler(EngineConfig(async_scheduling=False, max_num_seqs=1_000, scheduler="s3"), 64)
    server = chosen.new_server(allocator, reservation("oracle", 64))
    return engine_of(workload(rows), server, chosen, Constant(1), 64, check=True).run()


def batches(prompts, capacity, scheduler=S3):
    """Requests that entered together, in order of time."""
    result = served([(0.0, prompt, ANSWER) for prompt in prompts], Contiguous(capacity), scheduler)
    steps = {}
    for index, step in enumerate(request_table(result)["first_scheduled_step"]):
        steps.setdefault(step, []).append(index)
    return [steps[step] for step in sorted(steps)]


def test_whoever_fits_enters_the_largest_first():
    # reservations 20, 60, 35, 50 of 100 slots: 60 and 35, then 50 and 20
    assert batches([15, 55, 30, 45], 100) == [[1, 2], [0, 3]]


def test_first_come_first_served_needs_a_batch_more():
    assert len(batches([15, 55, 30, 45], 100, Orca)) == 2
    assert len(batches([55, 45, 35, 30], 100, Orca)) == 3  # 60 | 50 and 40 | 35
    assert len(batches([55, 45, 35, 30], 100)) == 2  # 60 and 40 | 50 and 35


@pytest.mark.parametrize("seed", range(20))
def test_batches_are_the_bins_of_first_fit_decreasing(seed):
    random = Random(seed)
    capacity = random.randint(60, 300)
    prompts = [random.randint(1, 55) for _ in range(random.randint(5, 80))]
    sizes = [prompt + ANSWER for prompt in prompts]
    bins = packed(sizes, capacity)
    assert batches(prompts, capacity) == [sorted(each) for each in bins]
    fewest = ceil(Fraction(sum(sizes), capacity))
    assert len(bins) >= fewest


def test_a_small_request_waits_while_larger_ones_come():
    rows = [(0.0, 55, ANSWER), *((float(at), 55, ANSWER) for at in range(1, 4)), (0.5, 5, ANSWER)]
    result = served(sorted(rows), Contiguous(64))
    small, *larger = (request_table(result)["first_scheduled_step"][index] for index in (1, 0, 2, 3, 4))
    assert small > max(larger)


def test_over_an_allocator_that_grows_the_largest_prompt_comes_first():
    # blocks of 16: 2, 4, 3 and 1 of 6
    result = served([(0.0, prompt, ANSWER) for prompt in (30, 59, 44, 10)], Paged(96, 16))
    first = request_table(result)["first_scheduled_step"]
    assert [index for index, step in enumerate(first) if step == 0] == [0, 1]
    assert len(result.finished) == 4


def engine(rate, max_span, predictor, **settings):
    work = workloads.build(
        "sharegpt", num_prompts=80, request_rate=rate, burstiness=1.0, seed=0, n=1, beam_width=1
    )
    given = {"allocator": "contiguous", "reserve": predictor and f"predicted:{predictor}"} | settings
    scenario = Scenario(scheduler="s3", **given).deployed()
    return build_engine(scenario, work, max_span=max_span, check=True)


@pytest.mark.parametrize("rate", [4.0, inf])
@pytest.mark.parametrize("predictor", ["s3", "noise-0.7"])
def test_spans_end_as_single_steps(rate, predictor):
    many, one = (everything(engine(rate, span, predictor).run()) for span in (1 << 20, 1))
    assert many == one


@pytest.mark.parametrize("allocator", ["paged", "dynamic", "slab"])
def test_spans_end_as_single_steps_over_other_allocators_too(allocator):
    many, one = (everything(engine(inf, span, None, allocator=allocator).run()) for span in (1 << 20, 1))
    assert many == one


def test_packing_serves_a_backlog_faster_than_first_come_first_served():
    """S3's claim in principle: the same predictions, the same memory, less of it left empty."""
    options = {"allocator": "contiguous:predicted:s3", "request_rate": inf, "num_prompts": 300}
    s3, orca = (simulate(scheduler=name, **options).summary["throughput"] for name in ("s3", "orca"))
    assert s3["requests_per_s"] > orca["requests_per_s"]
