"""The engine pauses the search for reference cycles while it runs: it must make none, and resume it."""

import gc

import pytest
from support.serving import serve, workload

from kvsim.allocators.contiguous import Contiguous
from kvsim.allocators.dynamic import Dynamic
from kvsim.allocators.paged import Paged

pytestmark = pytest.mark.slow

REQUESTS = [(i // 3, 1 + i % 20, 1 + i % 30) for i in range(300)]


@pytest.mark.parametrize("scheduler", ["vllm-v1", "orca", "static"])
@pytest.mark.parametrize("make", [lambda: Paged(256, 4), lambda: Contiguous(256), lambda: Dynamic(256)])
def test_a_run_leaves_no_reference_cycles_that_grow_with_it(make, scheduler):
    def garbage(requests):
        gc.collect()
        gc.freeze()  # what lives now is not looked through again
        gc.disable()
        try:
            serve(workload(requests), make(), scheduler)
            return gc.collect()
        finally:
            gc.enable()

    garbage(REQUESTS[:10])  # what is made once, at the first run
    assert garbage(REQUESTS) <= garbage(REQUESTS[:30]) + 20


@pytest.mark.parametrize("enabled", [True, False])
def test_the_search_for_cycles_is_as_before_after_a_run(enabled):
    (gc.enable if enabled else gc.disable)()
    try:
        serve(workload(REQUESTS[:5]), Paged(256, 4), "vllm-v1")
        assert gc.isenabled() == enabled
    finally:
        gc.enable()
