"""`vllm-v1` without prefix caching keeps the books of the genuine vLLM 0.11.0 and 0.33.0, step by step.

The golden numbers were taken from the engine's own scheduler and block pool (`../shared/goldens/README.md`).
A step takes one second here, so golden step k starts at k seconds. A golden step in which nobody runs has
no row in kvsim's log: rows are matched by time.
"""

import gzip
import json
from functools import cache

import numpy as np
import pytest
from serving import serve, workload
from shared_data import shared

from allocators.paged import Paged
from sim.schedulers.vllm_v1 import VllmV1
from sim.workload import PS_PER_S

WORKLOADS = (
    "a_tiny__b4x12_seqs4_mbt16",
    "a_tiny__b4x8_seqs4_mbt16",
    "a_tiny_aligned__b16x8_seqs4_mbt64",
    "a_tiny_aligned__b4x16_seqs4_mbt64",
    "a_tiny_shared__b4x16_seqs4_mbt16",
    "a_tiny_shared__b4x8_seqs4_mbt16",
    "b_sharegpt200__b16x256_seqs256_mbt2048",
    "b_sharegpt200__b16x512_seqs256_mbt2048",
    "b_sharegpt200__b16x4096_seqs256_mbt2048",
    "c_poisson_r0.1__b16x512_seqs256_mbt2048",
    "d_shared_t0__b16x512_seqs256_mbt2048",
    "n4_parallel_t0__b16x2048_seqs256_mbt2048",
    "n4_tiny__b4x32_seqs8_mbt64",
)
SETTINGS = {
    "v0110/{}_cacheoff": {"scheduler": "vllm-v1@0.11.0"},
    "v033/{}_cacheoff": {"scheduler": "vllm-v1"},
    "v033/{}_cacheoff_nofullisl": {"scheduler": "vllm-v1@0.33.0", "reserve_full_prompt": False},
    "v033/{}_cacheoff_wm0.01": {"watermark": 0.01},
    "v033/{}_cacheoff_wm0.05": {"watermark": 0.05},
}
"""Golden files -> how kvsim is told to behave like that engine."""
SWITCHED = (
    *("a_tiny__b4x8_seqs4_mbt16_cacheoff_nofullisl", "a_tiny_shared__b4x8_seqs4_mbt16_cacheoff_nofullisl"),
    *(f"b_sharegpt200__b16x{blocks}_seqs256_mbt2048_cacheoff_nofullisl" for blocks in (256, 512)),
    "c_poisson_r0.1__b16x512_seqs256_mbt2048_cacheoff_nofullisl",
    *(f"b_sharegpt200__b16x256_seqs256_mbt2048_cacheoff_wm{share}" for share in ("0.01", "0.05")),
)
GOLDENS = (
    *(f"v0110/{name}_cacheoff" for name in WORKLOADS),
    *(f"v033/{name}_cacheoff" for name in WORKLOADS),
    *(f"v033/{name}" for name in SWITCHED),
)
TINY = tuple(name for name in GOLDENS if "_tiny" in name)
SAME_COLUMNS = (
    *("running", "waiting", "preemptions_cum", "prefill_tokens", "decode_tokens", "recomputed_tokens"),
    *("kv_tokens", "finished", "running_end", "waiting_end"),
)


@cache
def golden(name):
    return json.loads(gzip.decompress(shared(f"goldens/{name}.json.gz").read_bytes()))


@cache
def edge_cases(engine):
    return json.loads(shared(f"goldens/{engine}/edge_cases.json").read_bytes())


def settings_of(name):
    """The settings that belong to a golden file."""
    folder, _, stem = name.partition("/")
    return SETTINGS[f"{folder}/{{}}_cacheoff{stem.partition('_cacheoff')[2]}"]


def run(case, settings, scheduler=VllmV1, **options):
    """The golden's requests on a server set up as in its `config`, in the golden's order of addition."""
    config = case["config"]
    requests = case.get("requests") or case["per_request"]
    order = sorted(range(len(requests)), key=lambda i: (requests[i]["arrival"], requests[i]["id"]))
    work = workload([[requests[i][k] for k in ("arrival", "prompt_len", "output_len")] for i in order])
    freed_first = "0.11.0" not in settings.get("scheduler", "")
    memory = Paged(config["block_size"] * config["usable_blocks"], config["block_size"], freed_first)
    result = serve(
        work,
        memory,
        scheduler,
        max_model_len=config["max_model_len"],
        seats=config["max_num_seqs"],
        budget=config["max_num_batched_tokens"],
        config=settings,
        **options,
    )
    return result, order


def steps_of(times_ps):
    """Times as golden steps: they must be whole seconds."""
    steps, rest = np.divmod(times_ps, PS_PER_S)
    assert not rest.any()
    return steps


def assert_same_steps(result, case):
    config, expected = case["config"], {k: np.array(column) for k, column in case["per_step"].items()}
    rows = steps_of(result.steps["start_ps"])
    idle = np.ones(len(expected["running"]), dtype=bool)
    idle[rows] = False
    assert not (expected["prefill_tokens"] + expected["decode_tokens"])[idle].any()
    got = {name: result.steps[name] for name in SAME_COLUMNS}
    for name in ("used_slots", "used_slots_end"):
        blocks, rest = np.divmod(result.steps[name], config["block_size"])
        assert not rest.any()
        got[name.replace("used_slots", "blocks_in_use")] = blocks
    for name, column in got.items():
        assert column.tolist() == expected[name][rows].tolist(), name


def assert_same_requests(result, order, case):
    expected = [case["per_request"][i] for i in order]
    got = {
        "first_scheduled_step": steps_of(result.requests["first_scheduled_ps"]),
        "first_token_step": steps_of(result.requests["first_token_ps"]) - 1,
        "finish_step": steps_of(result.requests["finish_ps"]) - 1,
        "num_preemptions": result.requests["num_preemptions"],
    }
    for name, column in got.items():
        assert column.tolist() == [request[name] for request in expected], name
    assert result.finished.all()


@pytest.mark.parametrize("name", GOLDENS)
def test_every_step_and_every_request_is_as_in_vllm(name):
    case = golden(name)
    result, order = run(case, settings_of(name), step_log=True)
    assert_same_steps(result, case)
    assert_same_requests(result, order, case)
    totals = case["totals"]
    assert result.step_count == totals["busy_steps"]
    assert result.preemptions == totals["preemptions"]


@pytest.mark.parametrize("name", GOLDENS)
def test_fast_forward_too_is_as_in_vllm(name):
    case = golden(name)
    result, order = run(case, settings_of(name), timeline_rows=16)  # few samples, so that they cut few spans
    assert_same_requests(result, order, case)
    assert result.step_count == case["totals"]["busy_steps"]


@pytest.mark.parametrize("engine", ["v0110", "v033"])
@pytest.mark.parametrize("name", ["maxlen", "fits_exact", "last_token_no_slot"])
def test_edge_cases_are_as_in_vllm(name, engine):
    case = edge_cases(engine)[name]
    result, order = run(case, SETTINGS[f"{engine}/{{}}_cacheoff"], step_log=True)
    assert_same_steps(result, case)
    assert_same_requests(result, order, case)


@pytest.mark.parametrize("engine", ["v0110", "v033"])
@pytest.mark.parametrize("name", ["grow_past_pool", "prompt_too_big", "prompt_too_big_blocks_next"])
def test_what_makes_vllm_hang_is_refused_here(name, engine):
    case = edge_cases(engine)[name]
    assert case["totals"]["error"] == "max_steps"
    result, _ = run(case, SETTINGS[f"{engine}/{{}}_cacheoff"])
    assert result.finished.tolist() == [False, True][: len(case["requests"])]


# -- block tables, queues and the free list -----------------------------------------------------------


def free_queue(memory):
    """The free blocks in the order in which they will be lent, as vLLM numbers them (from 1)."""
    return [block + 1 for block in memory.free_queue()]


def watching(seen, order):
    """`vllm-v1`, noting after each decision what vLLM's `detail` holds, and before it what was left."""

    class Watching(VllmV1):
        def schedule(self, server):
            memory, now = server.allocator, server.now_ps // PS_PER_S
            if seen:
                seen[max(seen)]["free_queue_end"] = free_queue(memory)
            super().schedule(server)
            running = {order[request.index]: request for request in server.running.values()}
            tables = {name: memory.block_table(request.seq) for name, request in running.items()}
            seen[now] = {
                "running_order": list(running),
                "waiting_order": [order[request.index] for request in server.waiting],
                "tables": {str(i): [block + 1 for block in table] for i, table in tables.items()},
                "free_queue": free_queue(memory),
            }

    return Watching


@pytest.mark.parametrize("name", TINY)
def test_block_tables_queues_and_the_order_of_free_blocks_are_as_in_vllm(name):
    case, seen = golden(name), {}
    ids = [request["id"] for request in case["per_request"]]
    assert ids == sorted(ids) == list(range(len(ids)))
    _, order = run(case, settings_of(name))
    run(case, settings_of(name), watching(seen, order), max_span=1)
    for step, facts in seen.items():
        expected = case["detail"][step]
        assert expected["step"] == step
        for fact, value in facts.items():
            assert value == expected[fact], (step, fact)
    assert len(seen) == case["totals"]["busy_steps"]
