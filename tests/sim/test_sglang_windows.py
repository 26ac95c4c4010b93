"""SGLang's pools for windows in the whole simulator: a fixed split, a unified pool that moves pages."""

import numpy as np
import pytest
from support.serving import everything

from kvsim.sim.build import build_engine
from kvsim.sim.errors import KvsimError
from kvsim.sim.options.scenario import Scenario
from kvsim.sim.workload import Workload

CHOICES = {
    "dual": {"allocator": "sglang-dual"},
    "eager": {"allocator": "sglang-unified"},
    "lazy": {"allocator": "sglang-unified", "compaction": "lazy"},
    "dual, sglang": {"allocator": "sglang-dual", "scheduler": "sglang", "enable_prefix_caching": False},
    "lazy, sglang": {
        **{"allocator": "sglang-unified", "compaction": "lazy", "scheduler": "sglang"},
        "enable_prefix_caching": False,
    },
}


def work() -> Workload:
    rng = np.random.default_rng(4)
    none = np.zeros(40, dtype=np.int64)
    return Workload("test", none, rng.integers(50, 700, 40), rng.integers(20, 400, 40))


def run(chosen, max_span=1 << 20, check=False):
    scenario = Scenario(model="gpt-oss-20b", gpu="h100", kv_tokens=2400, block_size=4, **chosen)
    engine = build_engine(scenario.deployed(), work(), max_span=max_span, check=check)
    return engine.run(), engine.replica.server.allocator


@pytest.mark.parametrize("name", CHOICES)
def test_spans_equal_steps_with_the_memory_recounted(name):
    fast, _ = run(CHOICES[name])
    slow, allocator = run(CHOICES[name], max_span=1, check=True)
    assert everything(fast) == everything(slow)
    assert (allocator.used_slots, allocator.expired_slots) == (0, 0)
    assert fast.preemptions > 0


def test_the_fixed_split_strands_what_the_unified_pool_uses():
    shares = {}
    for name in ("dual", "eager", "lazy"):
        result, allocator = run(CHOICES[name])
        sums = result.saturated
        shares[name] = sums.external / (allocator.capacity_slots * sums.time_ps), allocator.copied_slots
    assert shares["dual"][0] > 0.05
    assert max(shares["eager"][0], shares["lazy"][0]) < 0.01
    assert shares["dual"][1] == 0 < shares["lazy"][1] < shares["eager"][1]


def test_the_order_along_the_tree_needs_the_tree():
    with pytest.raises(KvsimError, match="policy dfs-weight needs allocator sglang, got paged"):
        run(
            {
                "allocator": "paged",
                "scheduler": "sglang",
                "policy": "dfs-weight",
                "enable_prefix_caching": False,
            }
        )
