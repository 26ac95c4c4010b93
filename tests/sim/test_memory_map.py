"""The memory map and the events: replayed, they equal what the allocators say; they change no result."""

from collections import Counter
from cProfile import Profile
from pstats import Stats
from random import Random

import numpy as np
import pytest
from support.cases import COSTS, HAPPENS, draw_case, told
from support.event_rows import rows
from support.settings import engine_config
from support.stories import workload

from kvsim import simulate
from kvsim.allocators.base import Region
from kvsim.sim.build import build_engine
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.models.catalog import gpu_named, model_named
from kvsim.sim.record import memory_map
from kvsim.sim.record.memory_map import MemoryMap
from kvsim.sim.record.metrics import event_table, map_table
from kvsim.sim.serving.observers import MapDrawer

pytestmark = pytest.mark.slow

CAUSES = {"refuse", "admit", "decode", "finish"}


class Watched(MemoryMap):
    """Also records what the allocator says, slot by slot: (owners, holds a token, cached)."""

    def __init__(self, tokens, instants, server):
        super().__init__(tokens, instants)
        self.server, self.seen = server, {}

    def draw(self, now_ps, allocator, owners, lengths, held=()):
        super().draw(now_ps, allocator, owners, lengths, held)
        names = {seq: f"{r.index}.{r.sample}".removesuffix(".0") for seq, r in owners.items()}
        slots, in_use, findable, said = [], 0, 0, {(): ("", 0)}
        for start, size, seqs, first, cached, *_ in allocator.regions():
            assert len(slots) == start
            if seqs not in said:
                said[seqs] = " ".join(names[seq] for seq in seqs), max(lengths.get(seq, 0) for seq in seqs)
            text, most = said[seqs]
            filled = min(max(most - first, 0), size)
            slots += [(text, True, cached)] * filled + [(text, False, cached)] * (size - filled)
            in_use += filled
            findable += size * cached
        self.seen[now_ps] = slots
        if owners:
            assert in_use == self.server.tokens()[0]
        assert findable == allocator.cached_slots


def run(case, max_span, recorded):
    engine = build_engine(case.scenario, case.work, max_span=max_span, events=recorded)
    engine.replica.pricing.cost = COSTS[case.cost]()
    engine.replica.recorder.timeline.most_rows = case.timeline_rows
    if recorded:
        replica = engine.replica
        replica.recorder.memory_map = Watched(case.work.tokens, 12, replica.server)
        replica.observers.append(MapDrawer(replica.recorder.memory_map, replica.server))
    return told(engine.run()), engine


def replay(found, capacity):
    """(time, owners slot by slot) at each instant, from the table alone."""
    columns, texts = found.table()
    owners = texts["owners"]
    lines = zip(
        *(columns[name].tolist() for name in ("time_ps", "start", "size", "filled", "cached")), strict=True
    )
    slots = [None] * capacity
    for row, (time_ps, start, size, filled, cached) in enumerate(lines):
        name = owners.texts[owners.codes[row]]
        slots[start : start + size] = [(name, True, bool(cached))] * filled + [
            (name, False, bool(cached))
        ] * (size - filled)
        yield time_ps, slots


SET_ASIDE = ("lightllm", "past-future", "sglang", "tensorrt-llm", "vtc-artifact")
"""Engines that reserve memory for the answers of running requests: hardly one is evicted."""


@pytest.mark.parametrize("scheduler", HAPPENS)
def test_recording_changes_nothing_and_tells_what_the_allocator_says_in_both_modes(scheduler, monkeypatch):
    """Regardless of how many instants wait to be put into columns."""
    happened = Counter()
    for seed in range(1000, 1040):
        monkeypatch.setattr(memory_map, "_REGIONS", (1, 100, 1 << 18)[seed % 3])
        case = draw_case(Random(seed), scheduler)
        try:
            bare, _ = run(case, 1 << 20, recorded=False)
            fast, engine = run(case, 1 << 20, recorded=True)
            slow, stepped = run(case, 1, recorded=True)
            assert bare == fast == slow
            assert rows(engine.replica.server.events) == rows(stepped.replica.server.events)
            assert engine.replica.recorder.memory_map.seen == stepped.replica.recorder.memory_map.seen
            capacity = engine.replica.server.allocator.capacity_slots
            seen = dict.fromkeys(engine.replica.recorder.memory_map.seen)
            for time_ps, slots in replay(engine.replica.recorder.memory_map, capacity):
                seen[time_ps] = list(slots)
            before = None
            for time_ps, slots in engine.replica.recorder.memory_map.seen.items():
                before = seen[time_ps] or before  # an instant without a row is as the one before
                assert before == slots
            happened.update(check_events(case, engine, fast))
        except Exception as error:
            error.add_note(f"draw_case(Random({seed}), {scheduler!r})")
            raise
        happened["instants"] += len(engine.replica.recorder.memory_map.seen)
    assert set(happened) > CAUSES
    seldom = scheduler in SET_ASIDE
    assert happened["instants"] > 40 * (5 if seldom else 8)
    if "swap_outs" in HAPPENS[scheduler]:
        assert {"swap_out", "swap_in", "fork", "copy"} < set(happened)
    if "preemptions" in HAPPENS[scheduler]:
        assert happened["preempt"] > (0 if seldom else 20)


def check_events(case, engine, result):
    """Check that events add up to the totals of the run; returns how many there are of each."""
    found = rows(engine.replica.server.events)
    count = Counter(row["event"] for row in found)
    server, recorder = engine.replica.server, engine.replica.recorder
    unsaid = server.totals.preemptions - count["preempt"]
    if engine.replica.scheduler.asynchronous:  # of a victim whose last token is under way nothing is said
        preempted = Counter(row["request"] for row in found if row["event"] == "preempt")
        counted = result["requests"]["num_preemptions"]
        missing = {row: n - preempted[row] for row, n in enumerate(counted) if n != preempted[row]}
        assert unsaid == sum(missing.values())
        assert set(missing.values()) <= {1}
    else:
        assert unsaid == 0
    assert count["reject"] == sum(recorder.rejected.values())
    copied = sum(row["tokens"] for row in found if row["event"] == "copy")
    assert copied == server.allocator.copied_slots
    hits = sum(row["cached"] for row in found if row["event"] == "admit")
    assert hits == server.totals.hit_tokens
    times = [row["time_ps"] for row in found]
    assert times == sorted(times)
    finished = {row["request"] for row in found if row["event"] == "finish"}
    assert finished >= set(np.flatnonzero(recorder.log.finished).tolist())
    return count


def engine_of(scheduler, blocks, work, **settings):
    usual = {"scheduler": scheduler, "block_size": 4, "max_model_len": 16, "async_scheduling": False}
    config = engine_config(**usual | settings)
    scenario = Deployment(
        model=model_named("opt-13b"),
        gpu=gpu_named("h100"),
        engine=config,
        num_gpu_blocks=blocks,
        cost="constant:1",
    )
    engine = build_engine(scenario, work, events=True, map_instants=100)
    engine.run()
    return engine


def story(engine):
    """Each event as one line: second, event, request, and the numbers that apply."""
    return [
        f"{row.pop('time_ps') / 1e12:g} {row.pop('event')} {row.pop('request')} "
        + " ".join(f"{name}={value}" for name, value in row.items() if name not in ("step", "sample"))
        for row in rows(engine.replica.server.events)
    ]


def test_the_life_of_a_request_that_waits_for_a_contiguous_slab():
    """24 slots, each request reserves 16: the second waits until the first ends, though 8 slots are free."""
    engine = engine_of("orca", 6, workload([(0, 5, 3), (0, 2, 1)]), allocator="contiguous")
    assert story(engine) == [
        "0 admit 0 tokens=5 cached=0",
        "0 refuse 1 need=16 free=8 largest=8 reason=no room",
        "1 decode 0 tokens=5",
        "3 finish 0 tokens=7",
        "3 admit 1 tokens=2 cached=0",
        "4 decode 1 tokens=2",
        "4 finish 1 tokens=2",
    ]


def test_the_life_of_a_request_that_is_preempted_and_whose_preemptor_is_named():
    """4 blocks of 4: both prompts fit; at its ninth token the first takes the block of the second."""
    engine = engine_of("vllm-v1", 4, workload([(0, 7, 4), (0, 7, 4)]), max_num_seqs=2)
    told = story(engine)
    assert "2 preempt 1 tokens=8 by=0" in told
    assert told.index("2 preempt 1 tokens=8 by=0") < told.index("4 admit 1 tokens=9 cached=0")
    assert "2 refuse 1 need=12 free=4 largest=4 reason=eviction" in told


def test_seats_budgets_batches_and_watermarks_are_told_apart():
    two = workload([(0, 5, 3), (0, 5, 3)])
    reasons = {
        "seats": ("vllm-v1", 99, {"max_num_seqs": 1}),
        "token budget": ("vllm-v1", 99, {"max_num_batched_tokens": 5, "max_num_seqs": 5}),
        "batch": ("static", 4, {}),
        "watermark": ("vllm-v1", 4, {"watermark": 0.4}),
        "no room": ("vllm-v1", 3, {}),
    }
    for reason, (scheduler, blocks, settings) in reasons.items():
        told = story(engine_of(scheduler, blocks, two, **settings))
        assert any(line.startswith("0 refuse 1") and line.endswith(f"reason={reason}") for line in told), told


def test_a_rejected_request_is_told_with_its_reason():
    engine = engine_of("vllm-v1", 99, workload([(0, 16, 1)]))
    assert story(engine) == ["0 reject 0 reason=prompt leaves no room for an answer within 16 tokens"]


def test_the_tables_hold_seconds_and_no_sentinels():
    engine = engine_of("orca", 6, workload([(0, 5, 3), (0, 2, 1)]), allocator="contiguous")
    events, drawn = event_table(engine.replica.server.events), map_table(engine.replica.recorder.memory_map)
    assert events["time_s"].tolist() == [0, 0, 1, 3, 3, 4, 4]
    assert np.isnan(events["need"]).tolist() == [True, False, True, True, True, True, True]
    assert list(drawn) == ["time_s", "start", "size", "owners", "filled", "cached"]
    assert drawn["owners"].texts[drawn["owners"].codes[0]] == "0"
    assert event_table(None) is None
    assert map_table(None) is None


def test_a_region_is_filled_as_far_as_its_longest_owner_goes():
    region = Region(32, 16, (1, 2), first=16)
    assert [region.filled({1: tokens, 2: 3}) for tokens in (3, 16, 17, 40)] == [0, 0, 1, 16]
    assert Region(0, 16, ()).filled({1: 9}) == 0


@pytest.mark.slow
@pytest.mark.parametrize("allocator", ["sglang", "sglang-dual"])
def test_ten_pictures_of_a_large_memory_cost_no_more_than_the_run(allocator):
    """For pools of tokens, where the map once asked for every slot: thirty times the calls."""

    def calls(**recorded):
        profile = Profile()
        settings = {"allocator": allocator, "scheduler": "sglang", "model": "gemma-3-12b", "gpu": "b200"}
        profile.runcall(
            simulate, num_prompts=40, request_rate=8, cost="constant:0.03", **settings, **recorded
        )
        return Stats(profile).total_calls

    calls()  # some modules come late
    assert calls(record_map=10) < 2 * calls()
