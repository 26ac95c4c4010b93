"""The engine over recurrent layers decides as the plain loop that equals vLLM's recordings, on random cases.

The loop is tests/support/hybrid_engine.py. In many cases budgets are multiples of blocks, so that a piece of
a long prompt takes a whole step and later requests get nothing.
"""

from random import Random

import pytest
from support.hybrid_case import differences, engine_of, layers_of
from support.hybrid_engine import HybridEngine

from kvsim.allocators.hybrid import GroupSpec, HybridCache

COLUMNS = (
    *("running", "waiting", "preemptions_cum", "blocks_in_use", "prefill_tokens", "decode_tokens"),
    *("hit_tokens", "recomputed_tokens", "kv_tokens", "finished", "running_end", "waiting_end"),
    "blocks_in_use_end",
)


def random_case(seed, asynchronous=False):
    """A case in the form of a recording, with the plain loop's numbers; and the steps that skip a request."""
    rng = Random(seed)
    size = rng.choice([4, 8])
    budget = size * rng.choice([2, 4, 6]) + rng.choice([0, 0, 1, 3])
    checkpoints = rng.choice([None, 1, size])
    state = {"kind": "mamba", "block_size": size, "window": None, "chunk": None}
    state |= {"num_prefill_checkpoint_blocks": checkpoints, "prefill_checkpoint_alignment": checkpoints}
    full = dict.fromkeys(("window", "chunk", "num_prefill_checkpoint_blocks")) | {"block_size": size}
    groups = [state] * rng.choice([1, 3]) + [
        full | {"kind": "full_attention", "prefill_checkpoint_alignment": None}
    ]
    config = {
        "block_size": size,
        "usable_blocks": rng.choice([60, 120, 400]) * len(groups) // 2,
        "max_num_seqs": rng.choice([4, 8]),
        "max_num_batched_tokens": max(budget, 8),
        "max_model_len": 512,
        "caching": True,
        "prefix_cache_retention_interval": rng.choice([0, None]),
        "max_in_flight_tokens": max(budget, 8) * (2 if asynchronous else 1),
        "scheduler_reserve_full_isl": True,
        "watermark": 0.0,
        "async_scheduling": asynchronous,
        "prefix_match_unit": None,
    }
    requests = []
    for number in range(12):
        prompt = rng.choice([1, 3, 7, rng.randrange(1, 40), rng.randrange(40, 120)])
        row = {"id": number, "arrival": rng.randrange(12), "prompt_len": prompt}
        shared = [number * 4096 + at for at in range(prompt)]
        if rng.random() < 0.4:
            common = min(prompt, 3 * size)
            shared[:common] = range(common)
        requests.append(row | {"output_len": rng.randrange(1, 30), "prompt_ids": shared})
    case = {"engine": "v033", "workload": "random", "config": config, "groups": groups, "requests": requests}
    layers = layers_of(case)
    cache = HybridCache(
        config["usable_blocks"],
        [
            GroupSpec(kind=g.kind, block_size=g.block_size, checkpoint_grid=g.checkpoint_grid)
            for g in layers.groups
        ],
        caching=True,
        max_model_len=config["max_model_len"],
        in_flight_tokens=config["max_in_flight_tokens"],
        retention=config["prefix_cache_retention_interval"],
    )
    engine = HybridEngine(cache, requests, config)
    engine.run()
    told = [
        {"id": each.id, "first_scheduled_step": each.first_scheduled, "num_preemptions": each.preemptions}
        for each in engine.done
    ]
    case |= {"per_step": {name: [row[name] for row in engine.steps] for name in COLUMNS}}
    case |= {"per_request": told, "totals": {"copies": engine.copies}}
    starved = sum(
        len(detail["scheduled"]) < len(detail["running_order"])
        for detail in engine.details
        if detail["scheduled"]
    )
    return case, starved


@pytest.mark.slow
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_random_cases_are_decided_as_by_the_plain_loop(seed, asynchronous, monkeypatch):
    case, _ = random_case(seed, asynchronous)
    assert list(differences(case, engine_of(case, monkeypatch, step_log=True, check=True).run())) == []


@pytest.mark.slow
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("seed", range(0, 40, 2))
def test_spans_of_steps_end_as_single_steps(seed, asynchronous, monkeypatch):
    case, _ = random_case(seed, asynchronous)
    runs = []
    for max_span in (1, 1 << 20):
        result = engine_of(case, monkeypatch, max_span=max_span, check=True).run()
        columns = {key: column.tolist() for key, column in (result.requests | result.timeline).items()}
        runs.append((columns, result.saturated, result.unsaturated, result.peak_used_tokens))
    assert runs[0] == runs[1]


@pytest.mark.slow
def test_some_of_them_leave_decoding_sequences_without_a_token():
    assert sum(random_case(seed)[1] > 0 for seed in range(40)) > 5
