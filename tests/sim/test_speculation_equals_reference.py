"""With drafts, spans, single steps and the naive reference agree in every integer."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.drafted import Speculative
from support.naive import Uneven, assert_as_told, requests_of
from support.serving import engine_of
from support.settings import engine_config

from kvsim.allocators.options import Order
from kvsim.allocators.paged import Paged
from kvsim.reference import Pages
from kvsim.sim.schedulers.vllm_v1 import VllmV1
from kvsim.sim.serving.reservation import reservation
from kvsim.sim.workload import Workload

LONGEST, BLOCK = 256, 16


def speculating(said, seats, budget):
    config = engine_config(
        scheduler="vllm-v1@0.33.0",
        max_num_seqs=seats,
        max_num_batched_tokens=budget,
        async_scheduling=False,
        options={"speculative_config": json.dumps(said), "watermark": 0.0},
    )
    return VllmV1(config, LONGEST)


def run_engine(work, blocks, said, seats, budget, max_span):
    scheduler = speculating(said, seats, budget)
    scheduler.follow(work)
    server = scheduler.new_server(Paged(blocks * BLOCK, BLOCK, Order.STACK), reservation("max", LONGEST))
    options = {"max_span": max_span, "timeline_rows": 16, "check": max_span == 1}
    return engine_of(work, server, scheduler, Uneven(), LONGEST, **options).run()


def run_reference(work, blocks, said, seats, budget):
    scheduler = speculating(said, seats, budget)
    scheduler.follow(work)
    requests = requests_of(work)
    for request in requests:
        request.sample = 0  # the first of its answers, as draws know it
    return requests, Speculative(
        requests,
        Pages(blocks * BLOCK, BLOCK),
        Uneven().step_ps,
        rules=scheduler.speculation.rules(False, seats),
        events=scheduler.acceptance.event,
        longest=LONGEST,
        seats=seats,
        budget=budget,
    ).run()


@pytest.mark.parametrize("method", ["ngram", "eagle3", "mtp", "draft_model"])
@settings(max_examples=25)
@given(st.data())
def test_spans_steps_and_the_reference_agree_in_every_integer(method, data):
    draw = data.draw
    most = draw(st.integers(1, 5))
    said = {"method": method, "num_speculative_tokens": most}
    said["synthetic_acceptance_rates"] = draw(st.lists(st.floats(0, 1), min_size=most, max_size=most))
    said |= {"model": "tiny"} if method == "draft_model" else {}
    said |= {"num_nextn_predict_layers": 1} if method == "mtp" else {}
    row = st.tuples(st.integers(0, 60), st.integers(1, 100), st.integers(1, 90))
    rows = sorted(draw(st.lists(row, min_size=1, max_size=12)))
    columns = [np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)]
    work = Workload("test", columns[0] * 10**9, *columns[1:], seed=draw(st.integers(0, 9)))
    server = (
        draw(st.integers(16, 60)),
        said,
        draw(st.integers(1, 8)),
        draw(st.sampled_from([24, 64, 200])),
    )
    fast, slow = (run_engine(work, *server, max_span) for max_span in (1 << 20, 1))
    requests, told = run_reference(work, *server)
    for result in (fast, slow):
        assert result.finished.all()
        assert_as_told(result, requests, told, server[0] * BLOCK)
        assert result.drafts.rows == {index: row for index, row in told.told.items() if row[0]}
