"""Fast-forward equals step mode in every integer, and the books of memory are right, for all engines.

Here are the features that the naive reference does not know: prefix caches, samples that fork, beams,
swapping, priorities, asynchronous scheduling. Both modes run the same random workload on memory so small that
somebody is evicted nearly always; in step mode the memory is counted anew at every step, from block
tables and texts, by code that knows nothing of the engine's running sums.
"""

from collections import Counter
from dataclasses import dataclass
from random import Random

import numpy as np
import pytest
from support.serving import everything

from kvsim.allocators.paged import Paged
from kvsim.allocators.prefix import PagedPrefix
from kvsim.sim.build import build_engine
from kvsim.sim.catalog import gpu_named, model_named
from kvsim.sim.config import EngineConfig, Scenario
from kvsim.sim.content import TextBuilder, shared_content
from kvsim.sim.cost import Constant
from kvsim.sim.group_server import GroupServer
from kvsim.sim.metrics import kinds
from kvsim.sim.request import State
from kvsim.sim.schedulers.static import Static
from kvsim.sim.step_cost import CostModel, StepShape
from kvsim.sim.workload import Beam, Samples, Workload

MODEL, GPU = model_named("opt-13b"), gpu_named("h100")
TICK_PS = 20_000_000_000
SUMS = ("time_ps", "token", "used", "internal", "cached", "shared", "running")
KINDS = ("token", "reserved", "internal", "cached", "external", "free")


class Uneven(CostModel):
    """Every part of the shape counts, with odd numbers, so that no two mistakes cancel."""

    source = "test"

    def step_ps(self, shape: StepShape) -> int:
        weights = (
            *(1_000_003, 1_009, 7_001_111, 2_000_029, 30_011, 50_021, 70_001, 90_001),
            *(110_017, 130_021, 0, 0),  # nobody asked for the last two
        )
        return 900_000_001 + sum(w * part for w, part in zip(weights, shape, strict=True))


COSTS = {"constant": lambda: Constant(0.02), "uneven": Uneven}


# -- random work --------------------------------------------------------------------------------------


@dataclass
class Row:
    """A request to be: `kind` says what its text has in common with others."""

    gap: int
    prompt: int
    answers: list[int]
    kind: str
    group: int
    priority: int


def workload(rows: list[Row], beam: Beam | None, samples: bool, gap_ps: int, tick_ps: int) -> Workload:
    """Requests with texts: system prompts, copies, conversations whose turns may overlap in time."""
    builder, said, prompts = TextBuilder(), {}, []
    for row in rows:
        name, answer = f"{row.kind}-{row.group}", row.answers[0]
        prompt = row.prompt
        if row.kind == "alone":
            builder.add(prompt, answer)
        elif row.kind == "system":  # 24 tokens that all of the group begin with
            builder.add(prompt, answer, segments=[(name, min(prompt, 24))])
        elif row.kind == "same":  # the same prompt, and the same answer as far as both go
            builder.add(prompt, answer, session=name, turn=0)
        elif row.kind == "turn":  # all that was said before, and a little more
            prompt = said.get(name, 0) + 1 + row.prompt % 8
            if prompt + max(row.answers) > 120:
                said[name], prompt = 0, row.prompt
                builder.add(prompt, answer)
            else:
                builder.add(prompt, answer, segments=[(name, prompt)], session=name)
                said[name] = prompt + answer
        elif row.kind == "chat":  # a conversation behind a system prompt, sometimes cut short
            before = said.get(name, 0)
            own = max(1, before - row.prompt % 5) + row.prompt % 9
            if own + max(row.answers) > 100:
                own = said[name] = 1 + row.prompt % 9
            prompt = 10 + own
            segments = [(f"system-{row.group}", 10), (name, own)]
            builder.add(prompt, answer, segments=segments, session=name)
            said[name] = own + answer
        prompts.append(prompt)
    several = np.array([len(row.answers) > 1 or beam is not None for row in rows])
    counts = np.cumsum([0] + [len(row.answers) for row in rows])
    arrival = np.cumsum([row.gap * gap_ps for row in rows]).astype(np.int64) // tick_ps * tick_ps
    longest = np.array([max(row.answers) for row in rows])
    table = Samples(counts, np.concatenate([row.answers for row in rows])) if samples else None
    return Workload(
        "test",
        arrival,
        np.array(prompts),
        longest,
        samples=table,
        beam=beam,
        content=shared_content(builder.texts(), np.array(prompts), several),
        priority=np.array([row.priority for row in rows]),
    )


@dataclass
class Case:
    """Settings and work; `rows` and the rest make the workload."""

    engine: EngineConfig
    kv_tokens: int
    cost: str
    timeline_rows: int
    rows: list[Row]
    beam: Beam | None
    samples: bool

    @property
    def scenario(self) -> Scenario:
        return Scenario(
            model=MODEL, gpu=GPU, engine=self.engine, kv_tokens=self.kv_tokens, cost="constant:0.02"
        )

    @property
    def work(self) -> Workload:
        gap_ps, tick_ps = (TICK_PS // 7, 1) if self.cost == "uneven" else (TICK_PS, TICK_PS)
        return workload(self.rows, self.beam, self.samples, gap_ps, tick_ps)


def draw_case(rng: Random, scheduler: str) -> Case:
    """A scheduler with random settings, and work that is too much for its memory."""
    base = scheduler.partition("@")[0]
    caches = base == "nano-vllm" or (base in ("vllm-v1", "vllm-v0") and rng.random() < 0.6)
    caches = caches and scheduler not in ("vllm-v0@0.1.0", "vllm-v0@0.1.7")
    size = rng.choice([1, 4, 4, 16])
    seats = rng.choice([2, 3, 5, 8, 30])
    chunked = base != "vllm-v0" or (scheduler == "vllm-v0" and not caches and rng.random() < 0.4)
    budget = max(seats, rng.choice([9, 30, 64, 500] if chunked else [60, 120, 500]))
    v0, v033 = base == "vllm-v0", scheduler == "vllm-v1@0.33.0"
    if base == "vllm-v1" and rng.random() < 0.2:
        chunked, budget = False, 200
    beams = v0 and rng.random() < 0.3
    samples = not beams and rng.random() < 0.5
    allocator = "paged"
    if base in ("orca", "static") or (base == "vllm-v1" and not caches and rng.random() < 0.2):
        allocator = rng.choice(["paged", "dynamic", "buddy", "contiguous"])
    elif base == "vllm-v1" and caches and rng.random() < 0.25:
        allocator = "radix"
    engine = EngineConfig(
        allocator=allocator,
        scheduler=scheduler,
        block_size=size,
        max_num_seqs=seats,
        max_num_batched_tokens=budget,
        enable_chunked_prefill=chunked,
        max_model_len=128,
        watermark=rng.choice([0.0, 0.01, 0.1]) if v0 or v033 else 0.0,
        reserve_full_prompt=rng.choice([None, True, False]) if v033 else None,
        enable_prefix_caching=caches,
        async_scheduling=v033 and rng.random() < 0.4,
        policy=rng.choice(["fcfs", "fcfs", "priority", "sjf"]),
        preemption=rng.choice([None, "swap", "recompute"]) if v0 else None,
        num_cpu_blocks=rng.choice([0, 3 * 16 // size, 1000, 1000, 1000]) if v0 else None,
        reserve=rng.choice(["pow2", "oracle"]) if allocator in ("buddy", "contiguous") else None,
    )
    width = rng.randint(2, min(4, seats)) if beams else 1
    most = min(4, seats) if samples else 1
    kind = rng.sample(["alone", "system", "same", "turn", "chat"], rng.randint(1, 3))
    length = rng.choice([8, 30])
    burst = rng.choice([0.3, 0.8, 1.0])
    rows = [
        Row(
            gap=0 if rng.random() < burst else rng.randint(0, 40),
            prompt=rng.randint(1, 40) if rng.random() < 0.8 else size * rng.randint(1, 3),
            answers=[
                1 if rng.random() < 0.2 else min(60, 1 + int(rng.expovariate(1 / length)))
                for _ in range(rng.randint(1, most))
            ],
            kind=rng.choice(kind),
            group=rng.randrange(3),
            priority=rng.randrange(3),
        )
        for _ in range(rng.randint(2, 16))
    ]
    cost = rng.choice(sorted(COSTS))
    process = rng.choice(["uniform", "replace:0.3", "replace:1"])
    return Case(
        engine,
        kv_tokens=rng.choice([64, 80, 100, 128, 128, 160, 240]) if rng.random() < 0.95 else 20_000,
        cost=cost,
        timeline_rows=rng.choice([8, 64, 1024]),
        rows=rows,
        beam=Beam(width, process, rng.randrange(99)) if beams else None,
        samples=samples,
    )


# -- counting anew ------------------------------------------------------------------------------------


class Timed(CostModel):
    """A cost model, writing down the duration of the last single step."""

    source = "test"

    def __init__(self, cost: CostModel) -> None:
        self.cost, self.last = cost, 0

    def step_ps(self, shape: StepShape) -> int:
        self.last = self.cost.step_ps(shape)
        return self.last

    def span_ps(self, decode_seqs: int, context_tokens: int, steps: int):
        durations = self.cost.span_ps(decode_seqs, context_tokens, steps)
        self.last = durations[0]
        return durations


class Books:
    """Counts the memory anew at each step of step mode: from block tables, texts and lengths alone."""

    def __init__(self, engine) -> None:
        self.engine, self.server, self.allocator = engine, engine.server, engine.server.allocator
        self.sums = {True: Counter(), False: Counter()}
        self.most_running = self.most_tokens = 0
        self._open: tuple[int, dict[str, int], bool, bool] | None = None
        self._check, self._sample = self.server.check, engine.recorder.sample
        engine.cost = self.cost = Timed(engine.cost)
        self.server.check, engine.recorder.sample = self.check, self.sample

    def sample(self, server, now_ps, held):
        if not (server.waiting or server.running or server.swapped):
            self.close(now_ps)
            self._open = now_ps, {"cached": server.allocator.cached_slots}, False, True
        self._sample(server, now_ps, held)

    def close(self, now_ps: int | None) -> None:
        """The step, or the time without one, has passed: add it to the integrals."""
        if self._open and not (now_ps is None and self._open[3]):
            start_ps, held, saturated, idle = self._open
            duration = now_ps - start_ps if idle else self.cost.last
            for name, slots in held.items():
                self.sums[saturated][name] += slots * duration
            self.sums[saturated]["time_ps"] += duration
        self._open, self.cost.last = None, 0

    def check(self) -> None:
        """What `check=True` does, and all that it takes for granted."""
        self._check()
        server, allocator = self.server, self.allocator
        clock = server.clock if server.paused else server.clock + 1
        lengths = {
            seq: r.base + clock if r.state is State.DECODE else r.computed
            for seq, r in server.running.items()
            if r.state is not State.FINISHED
        }
        used, cached = allocator.used_slots, allocator.cached_slots
        token = sum(lengths.values()) - allocator.shared_tokens
        rooms = {seq: allocator.capacity(seq) for seq in lengths}
        if isinstance(allocator, Paged):
            used, token, cached = self.count_blocks(lengths)
            assert (used, cached) == (allocator.used_slots, allocator.cached_slots)
            assert token == sum(lengths.values()) - allocator.shared_tokens
            rooms = self.count_rooms(lengths)
        reserved = sum(min(rooms[seq], server.running[seq].final_tokens) - lengths[seq] for seq in lengths)
        assert server.decoding == sum(r.state is State.DECODE for r in server.running.values())
        if isinstance(server, GroupServer):
            living = [request.seq for group in server.groups for request in group.sequences]
            assert sorted(living) == sorted(server.running)
        self.close(server.now_ps)
        departed = sum(r.state is State.FINISHED for r in server.running.values())
        if isinstance(self.engine.scheduler, Static):
            running = len(server.running) - departed
        else:
            running = len(server.running)
        held = {
            "token": token,
            "used": used,
            "internal": used - token - reserved,
            "cached": cached,
            "shared": sum(lengths.values()) - token,
            "running": running,
        }
        self._open = server.now_ps, held, bool(server.waiting or server.swapped), False
        self.most_running = max(self.most_running, len(server.running))
        self.most_tokens = max(self.most_tokens, token)

    def count_blocks(self, lengths: dict[int, int]) -> tuple[int, int, int]:
        """(lent, holding a token, cached) slots."""
        allocator = self.allocator
        size, tables = allocator.block_size, allocator._tables
        assert set(tables) == set(self.server.running)
        owners = Counter(block for table in tables.values() for block in table)
        written = {
            table[token // size] * size + token % size
            for seq, table in tables.items()
            for token in range(lengths.get(seq, 0))
        }
        for seq, held in lengths.items():  # nobody writes where another may read
            for block in tables[seq][-(-held // size) :]:
                assert owners[block] == 1
        free = allocator.free_queue()
        assert not set(free) & set(owners)
        assert len(free) == len(set(free)) == allocator.num_blocks - len(owners)
        cached = 0
        if isinstance(allocator, PagedPrefix):
            cached = sum(block in allocator._key for block in free)
            self.check_texts(lengths)
        return len(owners) * size, len(written), cached * size

    def count_rooms(self, lengths: dict[int, int]) -> dict[int, int]:
        """Tokens up to which each sequence can write in blocks that it owns alone."""
        size, tables = self.allocator.block_size, self.allocator._tables
        owners = Counter(block for table in tables.values() for block in table)
        return {
            seq: len(tables[seq]) * size if owners[tables[seq][-1]] == 1 else held
            for seq, held in lengths.items()
        }

    def check_texts(self, lengths: dict[int, int]) -> None:
        """Every block that can be found holds the text it is found by, as far as sequences say."""
        allocator, size = self.allocator, self.allocator.block_size
        for seq, table in allocator._tables.items():
            request = self.server.running[seq]
            known = allocator._texts.keys(request.content) if request.content else []
            held = lengths.get(seq, request.final_tokens)
            for index, block in enumerate(table):
                key = allocator._key.get(block)
                if isinstance(key, int):
                    assert held >= (index + 1) * size, "a block can be found before it is full"
                    if index < len(known):
                        assert key == known[index]
                elif key is not None and request.group is None:
                    assert key == (request.own, index)


def run(case: Case, max_span: int, books: bool = False):
    work = case.work
    engine = build_engine(case.scenario, work, max_span=max_span, check=True)
    engine.cost = COSTS[case.cost]()
    engine.recorder.timeline_rows = case.timeline_rows
    kept = Books(engine) if books else None
    result = engine.run()
    if kept:
        kept.close(None)
    server, allocator = engine.server, engine.server.allocator
    assert not (server.waiting or server.running or server.swapped)
    assert (allocator.used_slots, allocator.shared_tokens, allocator.host_used_slots) == (0, 0, 0)
    assert (server.decoding, server.prefill_held, server.internal) == (0, 0, 0)
    return result, kept


def told(result) -> dict[str, object]:
    found = everything(result)
    if result.samples is not None:
        found["samples"] = {name: column.tolist() for name, column in result.samples.items()}
    return found


def check_case(case: Case):
    slow, books = run(case, 1, books=True)
    fast, _ = run(case, 1 << 20)
    one, other = told(fast), told(slow)
    assert {k: v for k, v in one.items() if other[k] != v} == {k: v for k, v in other.items() if one[k] != v}
    assert slow.finished.sum() + sum(slow.rejected.values()) == len(case.rows)
    for sums in (slow.saturated, slow.unsaturated):
        parts = kinds(sums, slow.capacity_slots)
        assert min(parts.values()) >= 0, parts
        assert sum(parts[kind] for kind in KINDS) == slow.capacity_slots * sums.time_ps
        counted = books.sums[sums is slow.saturated]
        assert {name: counted[name] for name in SUMS} == {name: getattr(sums, name) for name in SUMS}
    assert slow.peak_used_tokens == books.most_tokens
    assert slow.max_running >= books.most_running
    if not case.engine.async_scheduling and case.engine.scheduler[:7] != "vllm-v0":
        assert slow.max_running == books.most_running
    return slow


HAPPENS = {
    "vllm-v1@0.11.0": ("preemptions", "hit_tokens", "cached"),
    "vllm-v1@0.33.0": ("preemptions", "hit_tokens", "cached"),
    "vllm-v0": ("preemptions", "hit_tokens", "cached", "swap_outs", "swapped_in_blocks", "cow_copies"),
    "vllm-v0@0.1.0": ("preemptions", "swap_outs", "swapped_in_blocks", "cow_copies"),
    "vllm-v0@0.1.7": ("preemptions", "swap_outs", "swapped_in_blocks", "cow_copies"),
    "nano-vllm": ("preemptions", "hit_tokens", "cached"),
    "orca": ("preemptions",),
    "static": (),
}
"""What the random work of each engine must be full of, or the test below says nothing."""


@pytest.mark.parametrize("block", range(4))
@pytest.mark.parametrize("scheduler", HAPPENS)
def test_fast_forward_equals_step_mode_and_the_memory_counted_anew(scheduler, block):
    cases, happened = 60, Counter()
    for seed in range(block * cases, (block + 1) * cases):
        try:
            result = check_case(draw_case(Random(seed), scheduler))
        except Exception as error:
            error.add_note(f"draw_case(Random({seed}), {scheduler!r})")
            raise
        for name in HAPPENS[scheduler]:
            times = result.saturated.cached if name == "cached" else getattr(result, name)
            happened[name] += times > 0
        happened["finished"] += result.finished.any()
    assert happened["finished"] > cases // 2
    assert [name for name in HAPPENS[scheduler] if happened[name] < 2] == []
