"""No kind of slot is ever negative, in production either: a wrong count stops the run with its numbers."""

import pytest

import kvsim
from kvsim.allocators.base import InvariantError
from kvsim.allocators.contiguous import Contiguous
from kvsim.sim.errors import KvsimError

CHUNKED = {
    **{"allocator": "dynamic-cache", "scheduler": "vllm-v1", "trace": "agents", "num_prompts": 8},
    **{"model": "deepseek-v2-lite", "gpu": "h200", "kv_tokens": 1_000_000, "cost": "constant:0.03"},
}
"""Memory that is reallocated for each chunk of a prompt has slots to spare after one, not after the next."""
KINDS = ["token", "reserved", "internal", "external", "free"]


def test_what_a_chunk_left_empty_the_next_may_fill():
    table = kvsim.simulate(**CHUNKED).timeline
    assert table[KINDS].min().min() >= 0
    assert (table["internal"] > 0).any()


class Wasteful(Contiguous):
    """Claims that each sequence leaves more slots empty than there are."""

    def surplus(self, seq: int, tokens: int) -> int:
        return super().surplus(seq, tokens) + 10**9


class Scattered(Contiguous):
    """Claims that more slots are external than are free."""

    def external_slots(self, need: int) -> int:
        return super().external_slots(need) + 10**9


@pytest.mark.parametrize("wrong", [Wasteful, Scattered])
def test_a_wrong_count_of_slots_stops_the_run(wrong):
    with pytest.raises(InvariantError, match="no kind of slot can be negative, got Instant"):
        kvsim.simulate(allocator=wrong, num_prompts=5, cost="constant:0.03")


@pytest.mark.parametrize("scheduler", ["sarathi", "sarathi@osdi24", "splitfuse"])
@pytest.mark.parametrize("allocator", ["dynamic", "dynamic-cache", "streaming-llm", "h2o", "buddy"])
def test_who_grows_at_odd_times_grows_under_chunks_too(scheduler, allocator):
    """Sarathi-Serve counts the sequences that must grow before it grows them."""
    where = {"allocator": allocator, "scheduler": scheduler, "gpu": "h200", "kv_tokens": 4000}
    fast, slow = (
        kvsim.simulate(**where, num_prompts=50, cost="roofline", step_mode=mode) for mode in (False, True)
    )
    assert fast.requests.equals(slow.requests)
    assert fast.requests["finish_s"].notna().sum() > 40


def test_a_cache_that_quantises_prompts_does_not_go_with_memory_for_whole_ones():
    with pytest.raises(KvsimError, match="allocator must not be kivi for scheduler sarathi"):
        kvsim.simulate(allocator="kivi", scheduler="sarathi", num_prompts=5)
