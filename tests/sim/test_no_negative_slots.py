"""No kind of slot is ever negative, in production too: a wrong count stops the run with its numbers."""

import pytest

import kvsim
from kvsim.allocators.base import InvariantError
from kvsim.sim.serving.server import Server

CHUNKED = {
    **{"allocator": "dynamic-cache", "scheduler": "vllm-v1", "trace": "agents", "num_prompts": 8},
    **{"model": "deepseek-v2-lite", "gpu": "h200", "kv_tokens": 1_000_000, "cost": "constant:0.03"},
}
"""Memory that is made anew for each chunk of a prompt has slots to spare after one, not after the next."""
KINDS = ["token", "reserved", "internal", "external", "free"]


def test_what_a_chunk_left_empty_the_next_may_fill():
    table = kvsim.simulate(**CHUNKED).timeline
    assert table[KINDS].min().min() >= 0
    assert (table["internal"] > 0).any()


@pytest.mark.parametrize("name", ["_set_internal", "external_slots"])
def test_a_wrong_count_stops_the_run(name, monkeypatch):
    right = getattr(Server, name)

    def wrong(server, *arguments):
        if name == "_set_internal":
            request, slots = arguments
            return right(server, request, slots + 10**9)
        return right(server) + 10**9

    monkeypatch.setattr(Server, name, wrong)
    with pytest.raises(InvariantError, match="no kind of slot can be negative, got Instant"):
        kvsim.simulate(allocator="contiguous", num_prompts=5, cost="constant:0.03")
