"""No kind of slot is ever negative, in production too: a wrong count stops the run with its numbers."""

import pytest

import kvsim
from kvsim.allocators.base import InvariantError
from kvsim.sim.serving.memory import KvMemory
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


def test_a_wrong_count_of_internal_slots_stops_the_run(monkeypatch):
    right = KvMemory.set_internal
    monkeypatch.setattr(KvMemory, "set_internal", lambda memory, of, slots: right(memory, of, slots + 10**9))
    assert_stops()


def test_a_wrong_count_of_external_slots_stops_the_run(monkeypatch):
    right = Server.external_slots
    monkeypatch.setattr(Server, "external_slots", lambda server: right(server) + 10**9)
    assert_stops()


def assert_stops():
    with pytest.raises(InvariantError, match="no kind of slot can be negative, got Instant"):
        kvsim.simulate(allocator="contiguous", num_prompts=5, cost="constant:0.03")
