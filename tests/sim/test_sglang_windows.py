"""SGLang's pools for windows in the whole simulator: a fixed split, a unified pool that moves pages."""

import numpy as np
import pytest
from support.serving import everything
from support.settings import server_with
from support.turns import turns

from kvsim.sim.build import build_engine
from kvsim.sim.content import TextBuilder, shared_content
from kvsim.sim.errors import KvsimError
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


def twice() -> Workload:
    """The same prompt again, when the server is idle."""
    builder, prompts = TextBuilder(), np.array([150, 150])
    for _ in prompts:
        builder.add(150, 200, segments=[("prompt", 150)])
    content = shared_content(builder.texts(), prompts, np.zeros(2, dtype=bool))
    return Workload("test", np.array([0, 10**15]), prompts, np.array([200, 200]), content=content)


def run(chosen, max_span=1 << 20, check=False, workload=work):
    scenario = server_with(
        **{"model": "gpt-oss-20b", "gpu": "h100", "kv_tokens": 2400, "block_size": 4, **chosen}
    )
    engine = build_engine(scenario.deployed(), workload(), max_span=max_span, check=check)
    return engine.run(), engine.replica.server.allocator


@pytest.mark.slow
@pytest.mark.parametrize("name", CHOICES)
def test_spans_equal_steps_with_the_memory_recounted(name):
    fast, _ = run(CHOICES[name])
    slow, allocator = run(CHOICES[name], max_span=1, check=True)
    assert everything(fast) == everything(slow)
    assert (allocator.used_slots, allocator.expired_slots) == (0, 0)
    assert fast.preemptions > 0


PREFIXES = {
    "sglang": {"scheduler": "sglang", "schedule_conservativeness": 0.02},
    "sglang, small pages of windows": {"scheduler": "sglang", "swa_eviction_interval": 1, "block_size": 1},
    "vllm-v1": {"enable_prefix_caching": True, "swa_full_tokens_ratio": 0.5},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PREFIXES)
def test_with_prefixes_spans_equal_steps_with_the_memory_recounted(name):
    chosen = {"allocator": "sglang-dual", **PREFIXES[name]}
    fast, _ = run(chosen, workload=turns)
    slow, allocator = run(chosen, max_span=1, check=True, workload=turns)
    assert everything(fast) == everything(slow)
    assert (allocator.used_slots, allocator.expired_slots, allocator.shared_tokens) == (0, 0, 0)
    assert fast.hit_tokens > 2000
    assert fast.preemptions > 0


def test_a_pool_of_windows_that_a_cached_prefix_fills_is_refused_in_one_line():
    with pytest.raises(KvsimError, match="would wait forever, as in SGLang: the pool of windowed layers"):
        run(
            {
                **{"allocator": "sglang-dual", "scheduler": "sglang", "swa_full_tokens_ratio": 0.06},
                **{"swa_eviction_interval": 1, "max_num_batched_tokens": 64, "max_num_seqs": 8},
            },
            workload=twice,
        )


def test_a_prompt_that_the_pool_of_windows_never_holds_is_turned_away():
    chosen = {"allocator": "sglang-dual", "scheduler": "sglang", "enable_chunked_prefill": False}
    result, _ = run({**chosen, "swa_full_tokens_ratio": 0.1})
    assert any("windowed pool" in reason for reason in result.rejected)


@pytest.mark.parametrize("field", ["swa_full_tokens_ratio", "swa_eviction_interval"])
def test_other_allocators_have_no_second_pool(field):
    with pytest.raises(
        KvsimError,
        match=f"{field} must be left out for allocator paged: it belongs to allocator sglang-dual, got 1",
    ):
        run({"allocator": "paged", "enable_prefix_caching": False, field: 1})


@pytest.mark.slow
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
