"""Hybrid groups without prefixes, which grow by promise, against the tables of groups.py, page by page."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.serving import everything

from kvsim.allocators.contract import check_allocator
from kvsim.allocators.hybrid import kinds
from kvsim.allocators.hybrid.groups import Hybrid
from kvsim.allocators.hybrid.uncached import OneKindOfLargePages, Uncached
from kvsim.allocators.options import Hybrid as Layers
from kvsim.allocators.options import LayerGroup
from kvsim.allocators.paged import Paged
from kvsim.sim import build
from kvsim.sim.build import build_engine
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.deployment.hybrid import HybridMemory, page_slots
from kvsim.sim.deployment.memory import KvCapacity
from kvsim.sim.models.catalog import gpu_named, model_named
from kvsim.sim.workload import PS_PER_S, Workload

pytestmark = pytest.mark.slow

STATE = LayerGroup("state", 1 << 20)
WINDOW, CHUNK, FULL = LayerGroup("window", 4, 10), LayerGroup("chunk", 4, 6), LayerGroup("full", 4)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("groups", [(WINDOW, FULL, FULL), (STATE, FULL, STATE, CHUNK), (WINDOW,), (FULL,)])
def test_the_contract_holds(groups, late):
    make = partial(Uncached, layers=Layers(groups, 1 << 20, late), max_model_len=1 << 20)
    check_allocator(make, seed=3, arenas=[37, 1_000], calls=150)


def engine_over(layers, pages, work, monkeypatch, *, promised, max_span, **engine):
    """A run over these groups, with either class."""
    slots = pages * page_slots(layers)
    capacity = KvCapacity(slots // len(layers.groups), 1, "given", len(layers.groups), slots)
    memory = HybridMemory(layers, (), 1, capacity)
    monkeypatch.setattr(build, "hybrid_groups", lambda *_: memory)
    monkeypatch.setattr(Uncached, "serves", lambda *_: promised)
    monkeypatch.setattr(kinds, "is_one_kind", lambda _: promised)
    server = Deployment(
        model=model_named("llama-3.1-8b"),
        gpu=gpu_named("h100"),
        engine=EngineConfig(async_scheduling=layers.late, max_model_len=128, **engine),
        cost="constant:1",
    )
    found = build_engine(server, work, max_span=max_span, check=max_span == 1, events=True, map_instants=6)
    found.replica.recorder.timeline.most_rows = 4  # few, as a span ends at each
    return found


def told(engine):
    """All results of a run, with the owners of all pages."""
    result = engine.run()
    numbers, texts = engine.replica.server.events.table()
    lay, lay_texts = engine.replica.recorder.memory_map.table()
    owners = lay_texts["owners"]
    columns = {name: column.tolist() for name, column in (numbers | lay).items()}
    texts = {
        name: (column.codes.tolist(), column.texts) for name, column in (texts | {"owners": owners}).items()
    }
    return everything(result), columns, texts


@settings(deadline=None, max_examples=150)
@given(
    st.sampled_from(("window", "chunk", "full")),
    st.lists(st.sampled_from((True, False, None)), min_size=1, max_size=4).filter(any),
    st.sampled_from((1, 4, 16)),
    st.integers(1, 60),
    st.integers(0, 40),
    st.booleans(),
    st.sampled_from((4, 16, 100)),
    st.sampled_from(("fcfs", "priority")),
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 80), st.integers(1, 60)), min_size=1, max_size=10),
)
def test_the_books_are_equal_page_by_page(kind, which, size, reach, spare, late, budget, policy, rows):
    apart = FULL._replace(block_size=size) if kind == "full" else LayerGroup(kind, size, reach)
    kinds = {True: apart, False: LayerGroup("full", size), None: STATE}
    groups = tuple(kinds[each] for each in which)
    layers = Layers(groups, budget * (1 + late), late)
    gaps, prompts, outputs = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    work = Workload("test", np.cumsum(gaps) * PS_PER_S, prompts, outputs)
    pages = len(groups) * -(-80 // size) + spare
    runs = []
    with pytest.MonkeyPatch.context() as patch:
        for promised, max_span in ((False, 1), (True, 1), (True, 1 << 20)):
            engine = engine_over(
                layers,
                pages,
                work,
                patch,
                promised=promised,
                max_span=max_span,
                block_size=size,
                max_num_seqs=4,
                max_num_batched_tokens=budget,
                policy=policy,
            )
            assert type(engine.replica.server.allocator) is (Uncached if promised else Hybrid)
            runs.append(told(engine))
    assert runs[0] == runs[1] == runs[2]


ONE_KIND = {
    "jenga": (kinds.Jenga, OneKindOfLargePages),
    "jenga-packed": (kinds.JengaPacked, OneKindOfLargePages),
    "split": (kinds.Split, Uncached),
}


@pytest.mark.parametrize("allocator", ONE_KIND)
@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from((1, 4, 16)),
    st.integers(0, 40),
    st.booleans(),
    st.sampled_from((4, 16, 100)),
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 80), st.integers(1, 60)), min_size=1, max_size=10),
)
def test_one_kind_has_the_pages_that_many_would(allocator, size, spare, late, budget, rows):
    layers = Layers((FULL._replace(block_size=size, page_bytes=2 * size),), budget * (1 + late), late)
    gaps, prompts, outputs = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    work = Workload("test", np.cumsum(gaps) * PS_PER_S, prompts, outputs)
    settings = {"block_size": size, "max_num_seqs": 4, "max_num_batched_tokens": budget}
    runs = []
    with pytest.MonkeyPatch.context() as patch:
        for promised, max_span in ((False, 1), (True, 1), (True, 1 << 20)):
            engine = engine_over(
                layers,
                -(-80 // size) + spare,
                work,
                patch,
                promised=promised,
                max_span=max_span,
                allocator=allocator,
                **settings,
            )
            assert type(engine.replica.server.allocator) is ONE_KIND[allocator][promised]
            runs.append(told(engine))
    assert runs[0] == runs[1] == runs[2]


@pytest.mark.parametrize("kind", [OneKindOfLargePages, Uncached])
def test_the_contract_holds_of_one_kind(kind):
    make = partial(kind, layers=Layers((FULL,), 1 << 20), max_model_len=1 << 20)
    check_allocator(make, seed=3, arenas=[37, 1_000], calls=150)


def test_which_groups_it_serves():
    window, chunk, full = LayerGroup("window", 16, 64), LayerGroup("chunk", 16, 64), LayerGroup("full", 16)
    for groups, serves in (
        ((window, full, window), True),
        ((chunk, full), True),
        ((full,), True),
        ((window, chunk), False),
        ((window, LayerGroup("window", 16, 32)), False),
        ((window, LayerGroup("full", 32)), False),
        ((LayerGroup("state", 16), full), False),
        ((LayerGroup("state", 2048), full), True),
        ((LayerGroup("state", 2048),), False),
    ):
        assert Uncached.serves(Layers(groups, 2048), 2048) is serves


def test_a_gemma_without_prefixes_is_promised_its_growth():
    engine = EngineConfig()
    where = Deployment(model=model_named("gemma-3-27b"), gpu=gpu_named("h100"), engine=engine)
    allocator = build.build_allocator(where, build.build_scheduler(where))
    assert isinstance(allocator, Uncached)
    assert allocator.growth_unit == 16 and allocator.growth_budget() == allocator.num_blocks // 7
    assert not isinstance(allocator, Paged)
