"""With drafts, spans, single steps and the naive reference agree in every integer."""

import json
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cached_pages import CachedPages
from support.drafted import DraftRules, Speculative
from support.naive import Uneven, assert_as_told, requests_of
from support.serving import engine_of
from support.settings import engine_config

from kvsim.allocators.paged import Paged
from kvsim.sim.schedulers.vllm_v1 import VllmV1
from kvsim.sim.serving.reservation import reservation
from kvsim.sim.workload import Workload

BLOCK = 16


def speculating(said, longest, caches, late, watermark, seats, budget):
    config = engine_config(
        scheduler="vllm-v1@0.33.0",
        max_num_seqs=seats,
        max_num_batched_tokens=budget,
        async_scheduling=late,
        enable_prefix_caching=caches,
        options={"speculative_config": json.dumps(said), "watermark": watermark},
    )
    return VllmV1(config, longest)


def run_engine(work, blocks, server, max_span):
    scheduler = speculating(*server)
    scheduler.follow(work)
    memory = Paged(blocks * BLOCK, BLOCK, scheduler.order, cache=scheduler.cache)
    options = {"max_span": max_span, "timeline_rows": 16, "check": max_span == 1}
    longest = scheduler.limits.longest
    made = scheduler.new_server(memory, reservation("max", longest))
    return engine_of(work, made, scheduler, Uneven(), longest, **options).run()


def run_reference(work, blocks, said, longest, caches, late, watermark, seats, budget):
    scheduler = speculating(said, longest, caches, late, watermark, seats, budget)
    scheduler.follow(work)
    requests, rules = requests_of(work), DraftRules.of(said, caches)
    for request in requests:
        request.sample = 0  # the first of its answers, as draws know it
    hashing = {"lookahead": rules.hash_lookahead, "late": max(rules.kept_back - 1, 0)}
    return requests, Speculative(
        requests,
        CachedPages(blocks, BLOCK, caches=caches, drops_last=rules.drops_last, **hashing),
        Uneven().step_ps,
        rules=rules,
        late=late,
        events=scheduler.acceptance.event,
        texts=[text_of(request, work.content[request.index]) for request in requests],
        longest=longest,
        watermark=int(watermark * (blocks + 1)),
        seats=seats,
        budget=budget,
    ).run()


def text_of(request, content):
    """The tokens of a request and its answer: those that it may share, then its own."""
    shared = [(stream, first + at) for stream, first, length in content for at in range(length)]
    own = range(request.prompt + request.output - len(shared))
    return (*shared, *(("own", request.index, at) for at in own))


def drawn_method(rng, method):
    """A `speculative_config`."""
    most = rng.randint(1, 5)
    rates = [rng.choice([0, rng.random(), 1]) for _ in range(most)]
    said = {"method": method, "num_speculative_tokens": most, "synthetic_acceptance_rates": rates}
    if method == "draft_model":
        said["model"] = "tiny"
    if method == "mtp":
        said["num_nextn_predict_layers"] = rng.randint(1, 2)
    if method in ("eagle3", "mtp"):
        said["disable_lookahead_block_hashes"] = rng.random() < 0.3
        said["disable_eagle_block_drop"] = rng.random() < 0.2
    return said


def drawn_work(rng, longest, caches):
    """Up to 14 requests; some come up to the longest sequence, some begin as others do."""
    rows = []
    for _ in range(rng.randint(1, 14)):
        prompt = min(
            rng.choice([rng.randint(1, 100), BLOCK * rng.choice([0, 1, 3, 3, 6, 11]) + 1]), longest - 1
        )
        output = rng.choice([rng.randint(1, 90), rng.randint(1, 9), BLOCK * 4 - prompt % BLOCK, longest])
        output = min(output, longest - prompt)
        rows.append((rng.randint(0, 60) * 10**9, prompt, output))
    columns = [np.array(column, dtype=np.int64) for column in zip(*sorted(rows), strict=True)]
    content = [drawn_content(rng, *row[1:]) if caches else () for row in sorted(rows)]
    return Workload("test", *columns, content=content, seed=rng.randint(0, 9))


def drawn_content(rng, prompt, output):
    """What others may begin with, too: one or two runs of tokens."""
    left, runs = prompt + output, []
    for stream, length in ((0, rng.choice([0, 17, 32, 50, prompt, left])), (1, rng.choice([0, 0, 20, left]))):
        if length := min(length, left):
            runs.append((2 * stream + rng.randint(0, 1), 0, length))
            left -= length
    return tuple(runs)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("caches", [False, True])
@pytest.mark.parametrize("method", ["ngram", "eagle3", "mtp", "draft_model"])
@settings(max_examples=25)
@given(st.integers(0, 10**9))
def test_spans_steps_and_the_reference_agree_in_every_integer(method, caches, late, seed):
    method += "_gpu" * (method == "ngram" and late)
    rng = Random(seed)
    longest, blocks = rng.choice([53, 176, 181]), rng.choice([12, rng.randint(12, 40)])
    work, watermark = drawn_work(rng, longest, caches), rng.choice([0.0, 0.1])
    seats, budget = rng.randint(1, 8), rng.choice([12, 24, 64, 200])
    server = (drawn_method(rng, method), longest, caches, late, watermark, seats, budget)
    fast, slow = (run_engine(work, blocks, server, max_span) for max_span in (1 << 20, 1))
    requests, told = run_reference(work, blocks, *server)
    for result in (fast, slow):
        assert result.finished.all()
        assert_as_told(result, requests, told, blocks * BLOCK)
        assert result.hit_tokens == told.hit_tokens
        assert result.saturated.running + result.unsaturated.running == told.running_ps
        assert result.drafts.rows == {index: row for index, row in told.told.items() if row[0]}
