"""Sliding windows in the allocator and through the whole simulator, as in vLLM 0.11.0's hybrid manager."""

from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.serving import everything, serve, workload
from support.window_blocks import blocks_held

from kvsim import cli
from kvsim.allocators.base import InvariantError
from kvsim.allocators.contract import check_allocator
from kvsim.allocators.options import Groups, Options, Order
from kvsim.allocators.paged import Paged
from kvsim.allocators.protocols import Forks
from kvsim.allocators.windowed import Windowed
from kvsim.sim.build import build_engine, resolve
from kvsim.sim.cost.constant import Constant
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.deployment.memory import kv_capacity
from kvsim.sim.models.catalog import gpu_named, model_named
from kvsim.sim.models.kv_groups import KvGroups
from kvsim.sim.record.metrics import kinds
from kvsim.sim.run import prepare
from kvsim.sim.serving.observers import Checks
from kvsim.sim.serving.request import State
from kvsim.sim.workload import PS_PER_S, Workload

LLAMA = model_named("llama-3.1-8b")
EXAMPLE = Groups(full=1, windowed=2, window=32)


def model(full, windowed, window=32):
    return replace(LLAMA, layers=full + windowed, window=window, window_layers=windowed)


def scenario(spec, *, gpu="h100", blocks=None, **settings_of_engine):
    return Deployment(
        model=spec,
        gpu=gpu_named(gpu),
        engine=EngineConfig(**{"async_scheduling": False, **settings_of_engine}),
        num_gpu_blocks=blocks,
        cost="constant:1",
    )


def burst(rows):
    """Requests at time 0, from (prompt, output) rows."""
    return workload([(0, prompt, output) for prompt, output in rows])


def steps_of(spec, rows, *, blocks=400, **settings_of_engine):
    """The step log of a run, recounted at every step."""
    server = scenario(spec, blocks=blocks, **settings_of_engine)
    result = build_engine(server, burst(rows), step_log=True, check=True).run()
    assert result.finished.all()
    return result.steps


# -- worked examples --------------------------------------------------------------------------------


def test_ten_full_and_twenty_windowed_layers_hold_eleven_blocks_in_the_step_that_feeds_token_112():
    steps = steps_of(model(10, 20), [(100, 20)])
    held = dict(zip(steps["kv_tokens"].tolist(), steps["blocks_in_use"].tolist(), strict=True))
    assert held[100] == 3 * 7  # the prompt, at once
    assert held[101] == 7 + 2 * (7 - 4)
    assert held[111] == 7 + 2 * (7 - 4)
    assert held[112] == 7 + 2 * 2 == 11
    assert held[113] == 8 + 2 * (8 - 5) == 14
    assert steps["blocks_in_use_end"][-1] == 0


def test_a_prompt_of_112_tokens_holds_21_blocks_until_the_next_step():
    steps = steps_of(model(10, 20), [(112, 3)])
    assert steps["blocks_in_use"].tolist() == [21, 14, 14]


def test_a_prompt_in_pieces_frees_before_each_of_them():
    steps = steps_of(model(10, 20), [(224, 2)], max_num_batched_tokens=64, max_num_seqs=8)
    groups = KvGroups(10, 1, 2, 32)
    chunks = [(64, 0), (128, 64), (192, 128), (224, 192), (225, 224)]
    assert steps["kv_tokens"].tolist() == [tokens for tokens, _ in chunks]
    assert steps["blocks_in_use"].tolist() == [blocks_held(groups, 16, *chunk) for chunk in chunks]


@pytest.mark.parametrize(("piece", "freed"), [(True, 5), (False, 6)])
def test_a_piece_frees_by_what_is_written_and_a_decode_by_what_there_was_room_for(piece, freed):
    windowed = Windowed(400, Groups(0, 1, window=8), block_size=4)
    assert windowed.admit(0, 29, 0)
    assert windowed.grow_chunk(0, 29, 30) and windowed.leaves_at(0) == 32
    assert windowed.grow_chunk(0, 30, 40) if piece else windowed.grow(0, 40)
    assert windowed.block_tables(0)[0].count(None) == freed == ((30 if piece else 31) - 8 + 1) // 4


def test_freed_blocks_go_to_the_end_of_a_queue_and_to_the_front_of_a_stack_the_last_of_them_first():
    for order, expected in ((Order.QUEUE, [5, 6, 7, 8, 9, 1, 0]), (Order.STACK, [1, 0, 5, 6, 7, 8, 9])):
        windowed = Windowed(40, Groups(0, 1, window=5), block_size=4, order=order)
        assert windowed.admit(0, 13, 0) and windowed.admit(1, 1, 0)
        assert windowed.grow(0, 14)
        assert list(windowed.free_queue()) == expected
        assert windowed.block_tables(0) == ((None, None, 2, 3),)


def test_growing_may_use_the_very_blocks_it_frees():
    windowed = Windowed(32, Groups(0, 1, window=4), block_size=4)
    assert windowed.admit(0, 32, 0) and windowed.free_slots == 0
    assert windowed.grow_chunk(0, 32, 59)  # seven of eight go, seven come
    assert (windowed.free_slots, windowed.expired_slots) == (0, 28)


def test_a_refused_growth_frees_nothing():
    windowed = Windowed(32, Groups(0, 1, window=4), block_size=4)
    assert windowed.admit(0, 32, 0)
    before = (windowed.block_tables(0), windowed.capacity(0), windowed.expired_slots, windowed.free_queue())
    assert not windowed.grow_chunk(0, 32, 61)
    after = (windowed.block_tables(0), windowed.capacity(0), windowed.expired_slots, windowed.free_queue())
    assert before == after


# -- the contract -----------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [Order.STACK, pytest.param(Order.QUEUE, marks=pytest.mark.slow)])
@pytest.mark.parametrize("groups", [EXAMPLE, Groups(0, 1, 20), Groups(2, 1, 1), Groups(1, 6, 100)])
@pytest.mark.parametrize(
    "size", [pytest.param(1, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow), 16]
)
def test_the_contract_holds(groups, size, order):
    make = partial(Windowed, groups=groups, block_size=size, order=order)
    arenas = [arena for arena in (37, 1_000, 4_096) if arena >= groups.each * size]
    check_allocator(make, seed=3, arenas=arenas, calls=150)


@given(
    st.sampled_from((1, 4, 16)),
    st.integers(1, 70),
    st.sampled_from(((0, 1), (1, 1), (1, 2), (2, 3))),
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 30)), min_size=1, max_size=8),
)
def test_it_holds_what_the_formula_says_whatever_the_pieces(size, window, counts, pieces):
    """Pieces of a prompt, followed by single tokens."""
    groups, allocator = KvGroups(1, *counts, window), None
    tokens = 0
    for chunk, decodes in pieces:
        if allocator is None:
            allocator = Windowed(1 << 16, Groups(*counts, window), size)
            assert allocator.admit(7, chunk, 0)
        else:
            assert allocator.grow_chunk(7, tokens, tokens + chunk)
        held = blocks_held(groups, size, tokens + chunk, tokens)
        tokens += chunk
        assert allocator.used_slots == held * size
        for _ in range(decodes):
            tokens += 1
            if allocator.capacity(7) < tokens or allocator.leaves_at(7) == tokens:
                assert allocator.grow(7, tokens)
            assert allocator.used_slots == blocks_held(groups, size, tokens) * size
            assert allocator.expired_slots % size == 0
            seen = max(0, tokens - window)
            for table in allocator.block_tables(7):
                assert all(table[token // size] is not None for token in range(seen, tokens))
    allocator.release(7)
    assert (allocator.used_slots, allocator.expired_slots) == (0, 0)


@given(
    st.sampled_from((1, 4, 16)),
    st.integers(1, 70),
    st.integers(1, 50),
    st.lists(st.booleans(), min_size=1, max_size=200),
)
def test_no_moment_is_larger_than_the_largest(size, window, chunk, kinds_of_step):
    windowed, tokens = Windowed(1 << 16, Groups(1, 2, window, chunk), size), chunk
    assert windowed.admit(0, tokens, 0)
    for whole in kinds_of_step:
        more = chunk if whole else 1
        assert windowed.grow_chunk(0, tokens, tokens + more)
        tokens += more
        assert windowed.used_slots <= windowed.peak_slots(tokens, 0)


def test_what_it_cannot_do_is_an_error():
    for arguments, message in (
        ((100, Groups(1, 0, 32)), "groups must have a windowed one"),
        ((47, EXAMPLE), "capacity_slots must hold 3 blocks of 16, got 47"),
        ((100, EXAMPLE, 0), "block_size must be at least 1, got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            Windowed(*arguments)
    windowed = Windowed(100, Groups(0, 1, 32))
    windowed.admit(0, 5, 0)
    with pytest.raises(InvariantError, match="has room for 16 tokens, not 17"):
        windowed.grow_chunk(0, 17, 18)
    assert not isinstance(windowed, Forks)


def test_paged_is_windowed_where_the_options_say_so():
    made = Paged.from_options(480, Options(16, groups=EXAMPLE, order=Order.QUEUE))
    assert isinstance(made, Windowed)
    assert (made.groups, made.order, made.slots_per_token, made.block_slots) == (EXAMPLE, Order.QUEUE, 3, 16)


# -- through the simulator --------------------------------------------------------------------------


class Books:
    """Checks the engine against `blocks_held` and its own block tables, at every step."""

    def __init__(self, engine, groups):
        self.server, self.groups = engine.replica.server, groups
        self.before, self.decoded = {}, Counter()
        (checks,) = [each for each in engine.replica.observers if isinstance(each, Checks)]
        self._check, checks.check = checks.check, self.check
        self.steps = 0

    def check(self):
        self._check()
        server, allocator = self.server, self.server.allocator
        size, blocks, held = allocator.block_size, 0, 0
        now = {}
        for seq, request in server.running.items():
            tables = allocator.block_tables(seq)
            mine = sum(block is not None for table in tables for block in table)
            blocks += mine
            if request.state == State.FINISHED:
                continue
            decodes = request.state == State.DECODE
            tokens = now[seq] = request.base + server.progress.clock + 1 if decodes else request.computed
            computed = tokens - 1 if decodes else self.before.get(seq, 0)
            if decodes or computed < tokens:
                assert mine == blocks_held(self.groups, size, tokens, computed)
            written = [sum(table[i // size] is not None for i in range(tokens)) for table in tables]
            held += sum(written)
        assert allocator.used_slots == blocks * size
        assert server.tokens()[0] == held
        free = allocator.free_queue()
        assert len(set(free)) == len(free) == allocator.num_blocks - blocks
        self.before, self.steps = now, self.steps + 1


def run_twice(server, work):
    """Step mode under the books, and fast-forward: they must agree in everything."""
    slow = build_engine(server, work, max_span=1, check=True)
    books = Books(slow, resolve(server).kept.groups)
    fast = build_engine(server, work, check=True)
    for engine in (slow, fast):
        engine.replica.recorder.timeline.most_rows = 4  # few, as a span ends at each
    one, other = slow.run(), fast.run()
    assert everything(one) == everything(other)
    for engine in (slow, fast):
        left = engine.replica.server
        assert (left.allocator.used_slots, left.allocator.expired_slots) == (0, 0)
        assert (left.memory.internal, left.prefill_held, left.decoding) == (0, 0, 0)
        assert sorted(left.allocator.free_queue()) == list(range(left.allocator.num_blocks))
    for sums in (one.saturated, one.unsaturated):
        parts = kinds(sums, one.capacity_slots)
        assert min(parts.values()) >= 0
    assert one.finished.sum() + sum(one.rejected.values()) == len(work)
    return one, books


@pytest.mark.slow
@settings(deadline=None, max_examples=120)
@given(
    st.sampled_from(("vllm-v1@0.11.0", "vllm-v1@0.33.0", "vllm-v1 async", "orca", "static")),
    st.sampled_from(((1, 2), (0, 1), (1, 1), (2, 1))),
    st.sampled_from((1, 4, 16)),
    st.integers(1, 60),
    st.integers(0, 120),
    st.sampled_from((4, 16, 100)),
    st.sampled_from(("fcfs", "priority")),
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 80), st.integers(1, 60)), min_size=1, max_size=12),
)
def test_both_modes_agree_and_every_step_holds_what_the_formula_says(
    scheduler, counts, size, window, spare, budget, policy, rows
):
    spec = model(*counts, window=window)
    name, _, mode = scheduler.partition(" ")
    server = scenario(
        spec,
        blocks=sum(counts) * -(-64 // size) + spare // size,
        scheduler=name,
        block_size=size,
        max_num_seqs=4,
        max_num_batched_tokens=budget,
        max_model_len=128,
        policy=policy if name.startswith("vllm") else "fcfs",
        async_scheduling=mode == "async",
    )
    gaps, prompts, outputs = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    work = Workload("test", np.cumsum(gaps) * PS_PER_S, prompts, outputs)
    run_twice(server, work)


def test_preemption_under_pressure_gives_everything_back():
    server = scenario(model(10, 20), blocks=40, max_num_seqs=8, max_num_batched_tokens=64)
    result, _ = run_twice(server, burst([(40, 90)] * 12))
    assert result.preemptions > 5
    assert result.finished.all()
    assert result.requests["num_preemptions"].sum() == result.preemptions


def test_a_request_whose_largest_moment_exceeds_the_pool_is_refused_when_it_arrives():
    """Full: 20 blocks of 16; each window: at most 31 and 64 tokens, 6 blocks, plus one if it is cut."""
    largest = 20 + 2 * 7
    for blocks, finished in ((largest, 1), (largest - 1, 0)):
        for release in ("0.11.0", "0.33.0"):
            server = scenario(
                model(10, 20),
                blocks=blocks,
                scheduler=f"vllm-v1@{release}",
                max_num_seqs=8,
                max_num_batched_tokens=64,
            )
            result, _ = run_twice(server, burst([(310, 11)]))
            assert result.finished.sum() == finished
            if not finished:
                assert result.rejected == {f"does not fit an empty arena of {blocks * 16} slots": 1}
    whole = scenario(model(10, 20), blocks=59, scheduler="orca", max_num_seqs=8)
    assert not run_twice(whole, burst([(310, 11)]))[0].finished.any()  # 60 blocks, as orca cuts no prompt


def test_mistral_beyond_its_window_holds_a_window_and_a_block():
    spec = model_named("mistral-7b")
    steps = steps_of(spec, [(4000, 400), (8000, 300)], blocks=1200, max_model_len=16_384)
    most = 4096 // 16 + 1
    both = steps["blocks_in_use"][(steps["prefill_tokens"] == 0) & (steps["running"] == 2)]
    assert both.max() == 2 * most
    alone = steps["blocks_in_use"][(steps["prefill_tokens"] == 0) & (steps["running"] == 1)]
    assert set(alone.tolist()) <= {most, most - 1}


def test_a_finished_sequence_of_a_static_batch_is_dead_weight_without_what_it_freed():
    server = scenario(model(0, 8), blocks=60, scheduler="static", max_num_seqs=2, max_model_len=256)
    result, _ = run_twice(server, burst([(1, 250), (100, 2), (3, 30), (3, 90)]))
    assert result.finished.all()


def gemma(**switches):
    """Gemma-3-27B on one H100, its layers in groups unless switched off."""
    return scenario(model_named("gemma-3-27b"), scheduler="vllm-v1@0.11.0", **switches)


def test_of_gemma_fewer_tokens_fit_in_all_groups_but_more_long_requests():
    """70 layers' worth of slots for 62 layers; but a long request keeps only 1 group of 7 whole."""
    server, without = gemma(), gemma(disable_hybrid_kv_cache_manager=True)
    windows, plain = kv_capacity(server, resolve(server).kept.groups), kv_capacity(without)
    assert resolve(without).kept.groups is None
    assert (windows.slots_per_token, plain.slots_per_token) == (7, 1)
    assert (windows.tokens, plain.tokens) == (34_305, 38_718)
    assert windows.slots // 16 // blocks_held(windows.groups, 16, 32_000) == 6
    assert plain.slots // 16 // (32_000 // 16) == 1


@pytest.mark.parametrize(
    ("prompt", "output", "requests", "with_windows", "without"),
    [(8000, 500, 60, 15.6, 4.7), (2000, 500, 60, 27.1, 16.6), (300, 200, 600, 82.5, 93.1)],
)
def test_how_many_gemma_requests_run_at_once_while_others_wait(
    prompt, output, requests, with_windows, without
):
    """The figures of docs/allocators.md."""
    running = []
    for server in (gemma(), gemma(disable_hybrid_kv_cache_manager=True)):
        summary = prepare(server, burst([(prompt, output)] * requests), {}).outcome().summary
        assert summary["requests"]["finished"] == requests
        running.append(summary["engine"]["mean_running_saturated"])
    assert running == pytest.approx([with_windows, without], abs=0.06)


def test_other_allocators_keep_every_token():
    spec = model(10, 20)
    for allocator in ("contiguous", "buddy", "dynamic", "radix"):
        server = scenario(spec, blocks=50, allocator=allocator)
        assert resolve(server).kept.groups is None
        assert build_engine(server, burst([(10, 5)])).replica.server.allocator.slots_per_token == 1
    plain = scenario(spec, blocks=50, disable_hybrid_kv_cache_manager=True)
    assert type(build_engine(plain, burst([(10, 5)])).replica.server.allocator) is Paged


def test_without_windows_nothing_changes():
    """A window that is never reached holds the same as a paged allocator of one group, block for block."""
    rows = [(0, 20, 30), (1, 33, 10), (2, 5, 50), (3, 40, 9)]
    alone = serve(workload(rows), Windowed(320, Groups(0, 1, 1000)), "vllm-v1", check=True)
    plain = serve(workload(rows), Paged(320), "vllm-v1", check=True)
    one, other = everything(alone), everything(plain)
    assert one == other


# -- on the command line ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--model", "gemma-3-27b", "--enable-prefix-caching", "--scheduler", "vllm-v1@0.11.0"],
            "error: enable_prefix_caching must be off for model gemma-3-27b, which frees memory behind its "
            "sliding window, got on (scheduler vllm-v1@0.11.0); or use --disable-hybrid-kv-cache-manager",
        ),
        (
            ["--model", "mistral-7b", "--scheduler", "nano-vllm"],
            "error: enable_prefix_caching must be off for model mistral-7b, which frees memory behind its "
            "sliding window, got on (scheduler nano-vllm)",
        ),
        (
            ["--model", "gemma-3-27b", "--scheduler", "vllm-v0", "--max-model-len", "8192"],
            "error: scheduler must be vllm-v1, orca or static for model gemma-3-27b, which frees memory "
            "behind its sliding window, got vllm-v0; or use --disable-hybrid-kv-cache-manager",
        ),
        (
            ["--model", "gemma-3-27b", "--num-gpu-blocks", "6"],
            "error: num_gpu_blocks must be at least 7, one of each group of layers, got 6",
        ),
    ],
)
def test_what_does_not_go_with_windows_is_refused_with_the_way_out(arguments, message, capsys):
    assert cli.main(["run", "--gpu", "h100", *arguments]) == 2
    assert capsys.readouterr().err.strip() == message


@pytest.mark.parametrize(
    "switch", [["--enable-prefix-caching"], ["--scheduler", "vllm-v0", "--max-model-len", "8192"]]
)
def test_the_switch_lets_them_in(switch, tmp_path, capsys):
    arguments = ["--model", "gemma-3-27b", "--gpu", "h100", "--num-prompts", "5", "--no-plots", "-q", *switch]
    out = ["--out", str(tmp_path / "run"), "--disable-hybrid-kv-cache-manager"]
    assert cli.main(["run", *arguments, *out]) == 0, capsys.readouterr().err


def test_a_run_tells_its_groups_and_can_be_repeated(tmp_path, capsys):
    import json

    first, second = tmp_path / "one", tmp_path / "two"
    plain = ["--no-plots", "-q"]
    arguments = ["--model", "gemma-3-27b", "--gpu", "h100", "--num-prompts", "5", "--num-gpu-blocks", "7000"]
    arguments += ["--scheduler", "vllm-v1@0.11.0"]
    assert cli.main(["run", *arguments, *plain, "--out", str(first)]) == 0
    assert cli.main(["run", "--config", str(first / "config.json"), *plain, "--out", str(second)]) == 0
    config, summary = (json.loads((first / name).read_text()) for name in ("config.json", "summary.json"))
    again = json.loads((second / "summary.json").read_text())
    assert config["kv_capacity"]["slots"] == 7000 * 16
    assert config["kv_capacity"]["slots_per_token"] == 7
    assert config["kv_capacity"]["groups"] == {
        "layers_per_group": 10,
        "full_groups": 1,
        "window_groups": 6,
        "window": 1024,
    }
    assert summary["memory"]["capacity_tokens"] == 7000 * 16 // 7
    assert sum(summary["memory"]["average"].values()) == pytest.approx(100)
    windows = "52 sliding-window layers (1,024 tokens) in 6 groups, each padded to 10"
    note = f"Groups of layers: 1 group of 10 full-attention layers; {windows}. A slot is one token of one "
    assert any(note in text for text in summary["notes"])
    assert {**summary, "simulation": None} == {**again, "simulation": None}


def test_constant_costs_do_not_depend_on_windows():
    rows = [(60, 40)] * 5
    windows, plain = (
        build_engine(scenario(model(10, 20), blocks=900, disable_hybrid_kv_cache_manager=off), burst(rows))
        for off in (False, True)
    )
    assert isinstance(windows.replica.pricing.cost, Constant)
    assert windows.run().end_ps == plain.run().end_ps
