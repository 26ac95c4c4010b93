"""Fast-forward, step mode and the naive reference agree in every integer, for every pair of parts."""

from dataclasses import asdict
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.naive import Uneven, assert_as_told, requests_of
from support.serving import engine_of

from kvsim.allocators.base import Allocator
from kvsim.allocators.buddy import Buddy
from kvsim.allocators.contiguous import Contiguous
from kvsim.allocators.dynamic import Dynamic
from kvsim.allocators.paged import Paged
from kvsim.reference import Continuous, Request, Static
from kvsim.sim.cost.constant import Constant
from kvsim.sim.cost.step_cost import CostModel
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.schedulers.base import Scheduler
from kvsim.sim.schedulers.orca import Orca
from kvsim.sim.schedulers.static import Static as StaticScheduler
from kvsim.sim.schedulers.vllm_v1 import VllmV1
from kvsim.sim.serving.reservation import reservation
from kvsim.sim.workload import Workload

MAX_LEN = 256
ALLOCATORS = {
    "contiguous": lambda slots: Contiguous(slots),
    "contiguous-best": lambda slots: Contiguous(slots, "best"),
    "dynamic": lambda slots: Dynamic(slots),
    "buddy": lambda slots: Buddy(slots),
    "paged-16": lambda slots: Paged(slots, 16),
    "paged-1": lambda slots: Paged(slots, 1),
    "paged-64": lambda slots: Paged(slots, 64),
}
SCHEDULERS = {"vllm-v1": VllmV1, "orca": Orca, "static": StaticScheduler}
SCALARS = (
    *("end_ps", "step_count", "max_running", "peak_used_tokens"),
    *("preemptions", "fragmented_refusals", "copied_slots"),
)
LOADS = {"light": 0.4, "near saturation": 1.0, "overload": 20.0}


def logged(allocator: Allocator) -> tuple[Allocator, list[object]]:
    """The allocator, logging at each release where the sequence was."""
    log: list[object] = []
    release = allocator.release

    def release_and_log(seq: int) -> None:
        where = (
            allocator.block_table(seq)
            if isinstance(allocator, Paged)
            else [r[:2] for r in allocator.regions() if seq in r.owners]
        )
        log.append((seq, where))
        release(seq)

    allocator.release = release_and_log
    return allocator, log


def workload(seed: int, requests: int, load: float, tick_ps: int = 1) -> Workload:
    """Random lengths and arrivals; all arrivals at multiples of `tick_ps`."""
    rng = np.random.default_rng(seed)
    gaps = rng.exponential(18e9 / load, requests)
    return Workload(
        "test",
        np.cumsum(gaps).astype(np.int64) // tick_ps * tick_ps,
        rng.integers(1, 100, requests),
        rng.geometric(1 / 50, requests).clip(1, MAX_LEN - 100),
    )


def run_engine(
    work: Workload,
    make,
    slots: int,
    scheduler: type[Scheduler],
    reserve: str,
    *,
    max_span: int,
    seats: int = 24,
    budget: int = 128,
    cost: CostModel | None = None,
):
    allocator, log = logged(make(slots))
    config = EngineConfig(max_num_seqs=seats, max_num_batched_tokens=budget, async_scheduling=False)
    scheduling = scheduler(config, MAX_LEN)
    engine = engine_of(  # few rows, so that the samples cut few spans
        work,
        scheduling.new_server(allocator, reservation(reserve, MAX_LEN)),
        scheduling,
        cost or Uneven(),
        MAX_LEN,
        max_span=max_span,
        timeline_rows=16,
        check=max_span == 1,
    )
    return engine.run(), log


def integers(result) -> dict[str, object]:
    """All that must be equal, as plain values."""
    return {
        **{name: column.tolist() for name, column in result.requests.items()},
        **{f"timeline {name}": column.tolist() for name, column in result.timeline.items()},
        "integrals": (asdict(result.saturated), asdict(result.unsaturated)),
        "gaps": (result.token_gaps.bins(), result.token_gaps.total, result.token_gaps.maximum),
        "finished": result.finished.tolist(),
        "rejected": result.rejected,
        **{name: getattr(result, name) for name in SCALARS},
    }


def assert_equals_reference(
    work, make, slots, name, reserve, result, log, *, seats=24, budget=128, cost=None
):
    memory, reference_log = logged(make(slots))
    requests = requests_of(work)
    requests = [each for each, served in zip(requests, result.finished, strict=True) if served]

    def bound(request: Request) -> int:
        return {
            "max": MAX_LEN,
            "pow2": min(MAX_LEN, request.prompt + 2 ** int(np.ceil(np.log2(request.output)))),
            "oracle": request.prompt + request.output,
        }[reserve]

    if name == "static":  # as many seats as fit at the longest length
        seats = min(seats, max(1, memory.capacity_slots // memory.slots_needed(MAX_LEN, MAX_LEN)))
    price = (cost or Uneven()).step_ps
    more = {"budget": budget} if name == "vllm-v1" else {}
    kind = Static if name == "static" else Continuous
    told = kind(requests, memory, price, bound=bound, seats=seats, **more).run()
    assert_as_told(result, requests, told, memory.capacity_slots)
    assert sorted(log) == sorted(reference_log)
    assert log == reference_log


def pairs_at_a_load():
    """Every allocator under every scheduler at every load; only one load of each pair is quick enough."""
    for number, triple in enumerate(product(LOADS, SCHEDULERS, ALLOCATORS)):
        load, scheduler, allocator = triple
        quick = list(LOADS).index(load) == number % len(LOADS)
        name = f"{allocator}-{scheduler}-{load}"
        yield pytest.param(allocator, scheduler, load, id=name, marks=[] if quick else pytest.mark.slow)


@pytest.mark.parametrize(("allocator", "scheduler", "load"), list(pairs_at_a_load()))
def test_fast_forward_step_mode_and_reference_agree(allocator, scheduler, load):
    make, slots = ALLOCATORS[allocator], 1333
    work = workload(seed=7, requests=70, load=LOADS[load])
    fast, fast_log = run_engine(work, make, slots, SCHEDULERS[scheduler], "pow2", max_span=1 << 20)
    slow, slow_log = run_engine(work, make, slots, SCHEDULERS[scheduler], "pow2", max_span=1)
    assert integers(fast) == integers(slow)
    assert fast_log == slow_log
    assert_equals_reference(work, make, slots, scheduler, "pow2", fast, fast_log)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    requests=st.integers(1, 40),
    load=st.sampled_from([0.1, 1.0, 5.0, 1e9]),
    allocator=st.sampled_from(sorted(ALLOCATORS)),
    scheduler=st.sampled_from(sorted(SCHEDULERS)),
    reserve=st.sampled_from(["max", "pow2", "oracle"]),
    slots=st.integers(300, 2000),
    seats=st.integers(1, 30),
    budget=st.sampled_from([30, 64, 500]),
    constant=st.booleans(),
)
def test_any_configuration_agrees(
    seed, requests, load, allocator, scheduler, reserve, slots, seats, budget, constant
):
    make = ALLOCATORS[allocator]
    work = workload(seed, requests, load, tick_ps=20_000_000_000 if constant else 1)  # at step boundaries
    options = {"seats": seats, "budget": budget, "cost": Constant(0.02) if constant else Uneven()}
    fast, fast_log = run_engine(
        work, make, slots, SCHEDULERS[scheduler], reserve, max_span=1 << 20, **options
    )
    slow, slow_log = run_engine(work, make, slots, SCHEDULERS[scheduler], reserve, max_span=1, **options)
    assert integers(fast) == integers(slow)
    assert fast_log == slow_log
    assert_equals_reference(work, make, slots, scheduler, reserve, fast, fast_log, **options)
