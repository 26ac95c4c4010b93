"""The ledger by kind of layer: it adds up to the whole in every integer, and matches the arena."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.settings import server_with
from support.turns import turns

from kvsim.allocators.arena import Held
from kvsim.allocators.hybrid.grouped import Grouped
from kvsim.allocators.hybrid.kinds import page_sizes
from kvsim.allocators.hybrid.uncached import Uncached
from kvsim.allocators.options import Hybrid as Layers
from kvsim.allocators.options import LayerGroup, layers_named
from kvsim.sim import build
from kvsim.sim.build import build_engine
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.deployment.hybrid import HybridMemory, page_slots
from kvsim.sim.deployment.memory import KvCapacity
from kvsim.sim.models.catalog import gpu_named, model_named
from kvsim.sim.record.metrics import kinds
from kvsim.sim.run import prepare
from kvsim.sim.serving.fleet import FleetConfig
from kvsim.sim.serving.observers import Observer
from kvsim.sim.workload import PS_PER_S, Workload

FULL, WIDE = LayerGroup("full", 4, page_bytes=8), LayerGroup("full", 8, page_bytes=16)
WINDOW, CHUNK = LayerGroup("window", 4, 10, page_bytes=8), LayerGroup("chunk", 4, 12, page_bytes=24)
STATE, ONE_STATE = LayerGroup("state", 8, page_bytes=40), LayerGroup("state", 1 << 20, page_bytes=40)
GROUPS = {
    "windows": (WINDOW, FULL, WINDOW),
    "unlike blocks": (WIDE, WINDOW, WINDOW),
    "chunks": (CHUNK, FULL),
    "two windows": (FULL, WINDOW, WINDOW._replace(reach=20)),
    "states": (STATE, FULL, STATE),
    "one state each": (ONE_STATE, WINDOW, FULL),
}
rows = st.lists(
    st.tuples(st.integers(0, 20), st.integers(1, 80), st.integers(1, 40), st.integers(0, 3)),
    min_size=1,
    max_size=10,
)


def engine_over(groups, allocator, caching, late, drawn, spare=0, max_span=1 << 20, replicas=1):
    """A run over these groups."""
    layers = Layers(groups, 24 * (1 + late), late, None)
    sizes = [page_slots(layers)] * len(groups) if allocator == "hybrid" else page_sizes(layers)
    slots = 40 * sum(sizes) + spare
    attention = [
        (size, each.block_size) for size, each in zip(sizes, groups, strict=True) if each.kind != "state"
    ]
    per_token = sum(size // block for size, block in attention)
    memory = HybridMemory(layers, (), 0, KvCapacity(slots // per_token, 1, "given", per_token, slots))
    gaps, prompts, outputs, shared = (np.array(column, dtype=np.int64) for column in zip(*drawn, strict=True))
    texts = [((0, 0, each),) if each else () for each in np.minimum(16 * shared, prompts).tolist()]
    content = texts if caching else None
    work = Workload("test", np.cumsum(gaps) * PS_PER_S, prompts, outputs, content=content)
    engine = EngineConfig(
        allocator=allocator,
        async_scheduling=late,
        enable_prefix_caching=caching,
        max_model_len=128,
        block_size=4,
        max_num_seqs=4,
        max_num_batched_tokens=24,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "hybrid_groups", lambda *_: memory)
        server = Deployment(
            model=model_named("llama-3.1-8b"),
            gpu=gpu_named("h100"),
            engine=engine,
            cost="constant:1",
            fleet=FleetConfig(replicas=replicas),
        )
        return build_engine(server, work, max_span=max_span, check=max_span == 1)


def assert_adds_up(result):
    """All kinds of layers together are the whole, to the slot-picosecond."""
    held = result.by_kind
    for sums, by_kind in ((result.saturated, held.saturated), (result.unsaturated, held.unsaturated)):
        whole, parts = kinds(sums, result.capacity_slots, ("idle",)), held.ledger(by_kind, sums)
        for kind in ("token", "reserved", "internal", "cached", "idle"):
            assert sum(part[kind] for part in parts.values()) == whole[kind], kind
            assert min(part[kind] for part in parts.values()) >= 0, kind
        if held.pools:
            assert sum(part["free"] for part in parts.values()) == whole["free"] + whole["external"]


class FromTheArena(Observer):
    """Counts what each kind holds page by page at each decision, and compares."""

    def __init__(self, replica, groups):
        super().__init__()
        self.server, self.groups, self.looks = replica.server, groups, 0
        self.ledger = replica.recorder.kinds

    def decided(self, step):
        allocator, lengths = self.server.allocator, self.server.lengths()
        used, filled, never = Counter(), Counter(), Counter()
        for region in allocator.regions():
            if region.owners:
                used[region.layers] += region.size
                filled[region.layers] += region.size if region.layers == "states" else region.filled(lengths)
        grouped = isinstance(allocator, Grouped)
        sizes = allocator.memory.sizes if grouped else [allocator.block_slots] * len(self.groups)
        for seq, request in self.server.running.items():
            tables = zip(self.groups, sizes, allocator.block_tables(seq), strict=True)
            for group, size, table in tables:
                if group.kind != "state":
                    name = layers_named(group.kind, group.reach)
                    beyond = len(table) - request.final_tokens / group.block_size
                    left = sum(bool(block) for block in table) if seq not in lengths else max(0, beyond)
                    never[name] += round(left * size) if request.internal else 0
        for (name, slots), each in zip(self.ledger.held.kinds, self.ledger.now, strict=True):
            held = Held(*each)
            token = slots * sum(lengths.values()) + held.used - held.tables
            assert (held.used, token) == (used[name], filled[name]), name
            assert held.internal == never[name], name
        self.looks += 1


@pytest.mark.parametrize("allocator", ["hybrid", "jenga", "jenga-packed", "split"])
@pytest.mark.parametrize("caching", [True, False])
@settings(deadline=None, max_examples=15)
@given(st.sampled_from(list(GROUPS)), st.booleans(), st.integers(0, 90), rows)
def test_the_kinds_add_up_and_spans_are_steps(allocator, caching, which, late, spare, drawn):
    if which == "states" and not caching:
        which = "one state each"
    runs = []
    for max_span in (1, 1 << 20):
        engine = engine_over(GROUPS[which], allocator, caching, late, drawn, spare, max_span)
        looking = FromTheArena(engine.replica, GROUPS[which])
        if max_span == 1:
            engine.replica.observers.append(looking)
        runs.append(engine.run())
        assert_adds_up(runs[-1])
        assert (looking.looks > 0) == (max_span == 1)
    assert runs[0].by_kind == runs[1].by_kind
    assert runs[0].saturated == runs[1].saturated and runs[0].unsaturated == runs[1].unsaturated


DRAWN = [(gap, 10 + 7 * at, 20 + 3 * at % 20, at % 3) for at, gap in enumerate([0, 0, 3, 0, 9, 1, 0, 60])]


@pytest.mark.parametrize("allocator", ["hybrid", "jenga", "split"])
def test_a_fleet_is_the_sum_of_its_replicas(allocator):
    engine = engine_over(GROUPS["windows"], allocator, True, False, DRAWN, replicas=3)
    result = engine.run()
    assert_adds_up(result)
    whole = result.by_kind.ledger(result.by_kind.unsaturated, result.unsaturated)
    parts = [each.by_kind.ledger(each.by_kind.unsaturated, each.unsaturated) for each in engine.results]
    for name, ledger in whole.items():
        for kind in ("token", "reserved", "internal"):
            assert ledger[kind] == sum(part[name][kind] for part in parts)
        assert ledger["cached"] > sum(part[name]["cached"] for part in parts)  # also behind its last answer
    assert sum(ledger["token"] for ledger in whole.values()) > 0


def test_the_promised_growth_is_that_of_the_books():
    """Without prefixes `hybrid` keeps counts; the block tables agree with them, kind by kind."""
    found = []
    for serves in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            if not serves:
                patch.setattr(Uncached, "serves", lambda *_: False)
            engine = engine_over(GROUPS["one state each"], "hybrid", False, True, DRAWN)
            assert isinstance(engine.replica.server.allocator, Uncached if serves else Grouped)
            found.append(engine.run())
    assert found[0].by_kind == found[1].by_kind
    assert found[0].by_kind.saturated[0][0] > 0


def test_the_summary_says_which_layers_hold_what():
    server = Deployment(
        model=model_named("gemma-3-27b"), gpu=gpu_named("h100"), engine=EngineConfig(), cost="constant:1"
    )
    work = Workload("test", *(np.array(column, np.int64) for column in ([0, 0], [3_000, 200], [20, 400])))
    memory = prepare(server, work, {}).outcome().summary["memory"]
    windows, full = memory["groups"]["window 1,024"], memory["groups"]["full"]
    layers = "4 groups of 9 and 2 of 8 sliding-window layers (1,024 tokens), padded to 10"
    assert windows["in_words"] == layers
    assert full["in_words"] == "1 group of 10 full-attention layers"
    for when in ("average", "saturated"):
        for kind in ("token", "reserved", "internal", "cached"):
            together = windows[when][kind] + full[when][kind]
            assert together == pytest.approx(memory[when][kind], abs=1e-12)
    assert memory["average"]["reserved"] > 0


def test_layers_that_are_all_alike_are_told_once():
    server = Deployment(
        model=model_named("llama-3.1-8b"), gpu=gpu_named("h100"), engine=EngineConfig(), cost="constant:1"
    )
    work = Workload("test", *(np.array(column, np.int64) for column in ([0], [30], [20])))
    assert "groups" not in prepare(server, work, {}).outcome().summary["memory"]


class FromThePools(Observer):
    """Counts what each pool's layers hold, page by page, and compares."""

    def __init__(self, replica):
        super().__init__()
        self.server, self.ledger, self.seen = replica.server, replica.recorder.kinds, Counter()

    def decided(self, step):
        allocator, lengths = self.server.allocator, self.server.lengths()
        used, filled, cached = Counter(), Counter(), Counter()
        for region in allocator.regions():
            (used if region.owners else cached)[region.layers] += region.size * (
                bool(region.owners) or region.cached
            )
            filled[region.layers] += region.filled(lengths)
        for (name, slots), each in zip(self.ledger.held.kinds, self.ledger.now, strict=True):
            held = Held(*each)
            token = slots * sum(lengths.values()) + held.used - held.tables
            assert (held.used, token, held.cached) == (used[name], filled[name], cached[name]), name
            assert 0 <= held.internal <= held.used - token, name
            self.seen += Counter(held._asdict())
            self.seen["shared"] += allocator.shared_tokens


POOLS = [
    ({"allocator": "sglang-dual"}, ["internal"]),
    ({"allocator": "sglang-dual", "scheduler": "sglang", "cached": True}, ["cached", "shared"]),
    ({"allocator": "sglang-dual", "cached": True}, ["cached", "shared", "internal"]),
    ({"allocator": "sglang-dual", "scheduler": "sglang"}, []),
    ({"allocator": "sglang-dual", "scheduler": "static"}, ["internal"]),
    ({"allocator": "sglang-unified"}, ["internal"]),
    ({"allocator": "sglang-unified", "compaction": "lazy", "scheduler": "sglang"}, []),
]
"""SGLang's pools, and what the servers over them hold besides tokens."""


@pytest.mark.parametrize(
    ("chosen", "seen"),
    [pytest.param(*each, marks=[pytest.mark.slow] * (at > 1)) for at, each in enumerate(POOLS)],
    ids=str,
)
def test_pools_of_sglang_tell_what_each_kind_holds(chosen, seen):
    chosen = {"model": "gpt-oss-20b", "gpu": "h100", "kv_tokens": 2400, "block_size": 4, **chosen}
    caches = chosen.pop("cached", False)
    server = server_with(**chosen, enable_prefix_caching=caches).deployed()
    found = []
    for max_span in (1, 1 << 20):
        engine = build_engine(server, turns(), max_span=max_span, check=max_span == 1)
        looking = FromThePools(engine.replica)
        if max_span == 1:
            engine.replica.observers.append(looking)
            counted = looking.seen
        found.append(engine.run())
        assert_adds_up(found[-1])
    assert found[0].by_kind == found[1].by_kind
    assert all(counted[each] > 0 for each in ["used", *seen])
    names = ["full", "window 128"]
    assert [name for name, _ in found[0].by_kind.kinds] == [*found[0].by_kind.in_words] == names
    assert bool(found[0].by_kind.pools) == (chosen["allocator"] == "sglang-dual")
