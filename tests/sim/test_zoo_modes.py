"""Virtual memory, size classes and predicted lengths: spans end like single steps, and accounts hold."""

from dataclasses import replace
from math import inf

import pytest
from support.serving import everything
from support.settings import server_with

from kvsim import workloads
from kvsim.sim.build import build_engine

CASES = [
    *("offset:oracle", "offset-exact:oracle", "tlsf:oracle", "segregated:oracle", "slab:oracle"),
    *("contiguous:predicted:noise-0.7", "buddy:predicted:s3-pile"),
    *("vattention", "vattention-2m", "vattention-best", "vattention-eager", "kvcached"),
]


def engine_of(allocator, max_span, rate, cost=None, shared_prefix=None, **settings):
    workload = workloads.build(
        "sharegpt",
        num_prompts=60,
        request_rate=rate,
        burstiness=1.0,
        seed=0,
        n=1,
        beam_width=1,
        beam_process="uniform",
        shared_prefix=shared_prefix,
    )
    scenario = replace(
        server_with(allocator=allocator, **settings).deployed(), **({"cost": cost} if cost else {})
    )
    return build_engine(scenario, workload, max_span=max_span, check=True)


def outcome(*choices, **settings):
    return everything(engine_of(*choices, **settings).run())


@pytest.mark.slow
@pytest.mark.parametrize("rate", [3.0, inf])
@pytest.mark.parametrize("allocator", CASES)
def test_spans_end_as_single_steps(allocator, rate):
    assert outcome(allocator, 1 << 20, rate) == outcome(allocator, 1, rate)


@pytest.mark.slow
@pytest.mark.parametrize("cost", ["constant:0.004", "constant:0.0005"])
@pytest.mark.parametrize("allocator", ["vattention", "vattention-2m", "vattention-eager", "kvcached"])
def test_work_that_takes_longer_than_a_step_ends_a_span(allocator, cost):
    many, one = (outcome(allocator, span, 40.0, cost=cost) for span in (1 << 20, 1))
    assert many == one
    assert many["upkeep"].exceeded_ps


@pytest.mark.parametrize(
    "scheduler", [pytest.param("static", marks=pytest.mark.slow), "sglang", "tensorrt-llm"]
)
@pytest.mark.parametrize("allocator", [pytest.param("vattention", marks=pytest.mark.slow), "kvcached"])
def test_under_other_schedulers_too(allocator, scheduler):
    plain = {"enable_prefix_caching": False}
    many, one = (outcome(allocator, span, 8.0, scheduler=scheduler, **plain) for span in (1 << 20, 1))
    assert many == one


@pytest.mark.parametrize("scheduler", ["vllm-v1", pytest.param("tensorrt-llm", marks=pytest.mark.slow)])
def test_kvcached_with_prefixes_too(scheduler):
    settings = {"scheduler": scheduler, "enable_prefix_caching": True, "shared_prefix": "4x256"}
    many, one = (outcome("kvcached", span, 8.0, **settings) for span in (1 << 20, 1))
    assert many == one
    assert many["hit_tokens"]


def test_many_steps_are_taken_at_once_although_pages_are_mapped_behind_them():
    for allocator in ("vattention", "kvcached"):
        engine, planned = engine_of(allocator, 1 << 20, 3.0), []
        engine.replica.recorder.timeline.most_rows = 4  # few, as a span ends at each
        engine.replica.recorder.tally.add = lambda span: planned.append(len(span[0]))  # noqa: B023
        result = engine.run()
        assert sum(planned) == result.step_count > 2 * len(planned)


@pytest.mark.parametrize("fit", ["next", "worst"])
def test_fits_end_alike_too(fit):
    many, one = (outcome("contiguous:oracle", span, inf, fit=fit) for span in (1 << 20, 1))
    assert many == one
