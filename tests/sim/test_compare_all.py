"""`--allocator all`: every built-in allocator that fits, slow ones only by name."""

import pytest

from kvsim.allocators import ALLOCATORS
from kvsim.sim.deployment.registry import allocator_class
from kvsim.sim.errors import KvsimError
from kvsim.sim.options.scenario import Scenario
from kvsim.sim.run import fitting, left_out, side_by_side

SLOW = [name for name in ALLOCATORS if allocator_class(name).slow]


def test_all_is_every_allocator_that_fits_and_is_not_slow():
    deployment = Scenario().deployed()
    names = [each.engine.allocator for each in side_by_side(deployment, ["all"])]
    assert names == list(fitting(deployment))
    assert not set(names) & set(SLOW)
    assert set(names) | set(left_out(deployment)) == set(ALLOCATORS)
    assert len(names) > 10


@pytest.mark.parametrize("slow", SLOW)
def test_a_slow_one_is_left_out_with_advice_and_taken_when_named(slow):
    deployment = Scenario().deployed()
    assert left_out(deployment)[slow] == f"it is slow; for short runs: all,{slow}"
    assert side_by_side(deployment, ["all", slow])[-1].engine.allocator == slow


def test_what_does_not_fit_the_memory_is_left_out_with_the_reason():
    deployment = Scenario(kv_tokens=64).deployed()
    assert "vattention-2m" not in fitting(deployment)
    assert "must hold a token and fit the memory" in left_out(deployment)["vattention-2m"]


def test_with_prefix_caching_on_those_that_keep_no_prefixes_run_without():
    deployment = Scenario(enable_prefix_caching=True).deployed()
    runs = side_by_side(deployment, ["paged", "contiguous", "jenga"])
    assert [each.engine.enable_prefix_caching for each in runs] == [True, False, True]
    assert "contiguous" in fitting(deployment)
    with pytest.raises(KvsimError, match="enable_prefix_caching must be left out for scheduler orca"):
        side_by_side(deployment, ["contiguous"])


def test_a_releases_prefix_caching_is_left_out_where_no_prefixes_are_kept():
    deployment = Scenario(model="qwen3-8b", gpu="h100", scheduler="vllm-v1@0.33.0").deployed()
    (run,) = side_by_side(deployment, ["vattention"])
    assert not run.engine.enable_prefix_caching
