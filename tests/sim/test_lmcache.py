"""LMCache below vLLM: times worked by hand, laws of hits, and recordings of the genuine 0.5.6.

Spans and steps agree with it in tests/sim/test_tiers.py.
"""

import gzip
import json
from pathlib import Path
from random import Random

import pytest
from support.cases import Row
from support.tiered import TOKEN_BYTES, engine_above, first_tokens_ps, hits, mib, one_by_one, spaced

from kvsim.sim.serving.request import Request

MS = 10**9
RECORDED = Path(__file__).parents[1] / "data" / "lmcache-0.5.6.json.gz"


def lmcache(chunks, link="1000000", tokens=4, **more):
    """LMCache's memory for this many chunks of this many tokens."""
    return {
        "kv_offloading_size": mib(chunks, tokens),
        "kv_offloading_link": link,
        "kv_offloading_backend": "lmcache",
        "lmcache_chunk_size": tokens,
    } | more


# -- worked by hand: steps of 20 ms, a token of 819,200 bytes, a start of 10 us for each copy --------


def test_a_step_waits_for_its_load_and_then_for_its_store_chunk_by_chunk():
    """40 tokens in chunks of 8: five stores of 8.01 ms after a step; 39 are found, in ten blocks."""
    rows = [Row(10, 40, [1], "same", group, 0) for group in (0, 1, 0)]
    engine = engine_above(spaced(rows), 12, enable_prefix_caching=False, **lmcache(20, "0.8192", 8))
    result = engine.run()
    stores = 5 * (8 * MS + MS // 100)
    assert first_tokens_ps(result) == [20 * MS + stores, 20 * MS + stores, 20 * MS + 40 * MS + MS // 100]
    assert (result.tier.hit_tokens, result.tier.loaded_bytes) == (39, 40 * TOKEN_BYTES)
    assert result.tier.stored_bytes == 80 * TOKEN_BYTES
    assert result.tier.steps_waited_ps == 2 * stores + 40 * MS + MS // 100


def test_only_whole_chunks_of_prompts_are_stored():
    """Of 41 tokens two chunks of 16; an answer of 60 tokens adds none."""
    result = engine_above(spaced([Row(0, 41, [60], "alone", 0, 0)]), 60, **lmcache(20, tokens=16)).run()
    assert result.tier.stored_bytes == 32 * TOKEN_BYTES


def test_what_the_gpu_has_behind_a_chunk_is_not_loaded_again():
    """Two chunks of 16 are stored; the GPU still has five blocks of the same prompt, which are left out."""
    rows = [Row(10, 41, [1], "same", 0, 0), Row(10, 24, [1], "alone", 0, 0), Row(10, 41, [1], "same", 0, 0)]
    result = engine_above(spaced(rows), 11, **lmcache(20, tokens=16)).run()
    assert (result.hit_tokens, result.tier.hit_tokens) == (20, 12)
    assert result.tier.loaded_bytes == 12 * TOKEN_BYTES


# -- laws ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_a_memory_as_large_as_the_trace_finds_what_an_endless_cache_finds(seed):
    work = one_by_one(Random(seed), 60)
    assert hits(work, 32, **lmcache(10_000)) == hits(work, 10_000) > hits(work, 32)


@pytest.mark.parametrize("policy", ["lru", "lfu", "fifo", "mru"])
def test_a_slower_link_finds_the_same_later(policy):
    work = one_by_one(Random(1), 60)
    results = [
        engine_above(work, 32, **lmcache(60, link, kv_offloading_policy=policy)).run() for link in ("50", "1")
    ]
    assert results[0].tier.hit_tokens == results[1].tier.hit_tokens > 0
    assert sum(first_tokens_ps(results[0])) < sum(first_tokens_ps(results[1]))


# -- as recorded --------------------------------------------------------------------------------------


def recorded():
    with gzip.open(RECORDED, "rt") as file:
        return json.load(file)


class Replay:
    """Our connector, which is called as LMCache's was."""

    def __init__(self, case):
        settings = lmcache(case["capacity"], tokens=case["chunk"], kv_offloading_policy=case["policy"])
        engine = engine_above(spaced([Row(0, 4, [1], "alone", 0, 0)]), 400, **settings)
        self.server = engine.replica.server
        self.connector = self.server.memory.below.find.__self__
        self.requests = {}
        for own, (prompt, output, content) in case["requests"].items():
            request = self.requests[int(own)] = Request(int(own), prompt, output)
            request.content = tuple(tuple(run) for run in content)

    def ask(self, own, known, here, found):
        """A look-up finds the same length after what the GPU has."""
        request = self.requests[own]
        request.known_tokens = known
        assert self.connector.look_up(self.connector.user(request), here) == found

    def load(self, own, here, below):
        self.connector.begin(self.connector.user(self.requests[own]), self.requests[own], here, below)

    def step(self, computed, there):
        """Requests that compute store as many chunks; then the same ones are there, in the same order."""
        server, size = self.server, self.connector.chunk_bytes
        self.connector.begin_step()
        stored = {}
        for own, _, tokens, generated, chunks in computed:
            request = self.requests[own]
            request.computed, request.generated, request.seq = tokens, generated, own
            server.running[own] = request
            server.step.of_prompts().chunks.append(request)
            stored[own] = chunks
        before = self.connector.totals.stored_bytes
        self.connector.end_step()
        assert self.connector.totals.stored_bytes - before == sum(stored.values()) * size
        order = self.connector.chunks._order
        assert list(getattr(order, "_line", self.connector.chunks._held)) == there
        server.step.prompts = None
        server.running.clear()

    def end(self, own):
        self.connector.finishes(self.requests[own])


@pytest.mark.golden
def test_look_ups_stores_and_evictions_are_those_of_lmcache():
    """40 runs against the genuine adapter, engine, host memory and policies, on a CPU."""
    calls = 0
    for case in recorded():
        replay = Replay(case)
        for name, *said in case["calls"]:
            getattr(replay, name)(*said)
        calls += len(case["calls"])
    assert calls > 5_000
