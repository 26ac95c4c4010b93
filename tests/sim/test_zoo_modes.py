"""Virtual memory, size classes and predicted lengths: spans of steps end as steps one by one, books kept."""

from math import inf

import pytest

from kvsim import workloads
from kvsim.sim.build import build_engine
from kvsim.sim.options.scenario import Scenario

CASES = [
    *("offset:oracle", "offset-exact:oracle", "tlsf:oracle", "segregated:oracle", "slab:oracle"),
    *("contiguous:predicted:noise-0.7", "buddy:predicted:s3-pile"),
    *("vattention", "vattention-2m", "vattention-best", "vattention-eager", "kvcached"),
]


def outcome(allocator, max_span, rate, **settings):
    workload = workloads.build(
        "sharegpt",
        num_prompts=60,
        request_rate=rate,
        burstiness=1.0,
        seed=0,
        n=1,
        beam_width=1,
        beam_process="uniform",
    )
    scenario = Scenario(allocator=allocator, **settings).deployed()
    result = build_engine(scenario, workload, max_span=max_span, check=True).run()
    columns = {name: column.tolist() for name, column in result.requests.items()}
    return columns, result.copied_slots, result.step_count


@pytest.mark.parametrize("rate", [3.0, inf])
@pytest.mark.parametrize("allocator", CASES)
def test_spans_end_as_single_steps(allocator, rate):
    assert outcome(allocator, 1 << 20, rate) == outcome(allocator, 1, rate)


@pytest.mark.parametrize("fit", ["next", "worst"])
def test_fits_end_alike_too(fit):
    many, one = (outcome("contiguous:oracle", span, inf, fit=fit) for span in (1 << 20, 1))
    assert many == one
