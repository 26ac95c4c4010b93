"""Requests that arrive after an earlier answer: closed loops and the turns of a chat."""

from dataclasses import replace

import numpy as np
import pytest
from support.serving import everything, serve, workload

from kvsim.allocators.paged import Paged
from kvsim.sim.errors import KvsimError
from kvsim.sim.workload import PS_PER_S, Chain, Clients


def ints(*values):
    return np.array(values, dtype=np.int64)


def run(work, **options):
    return serve(work, Paged(64 * 16, 16), "vllm-v1", max_model_len=256, **options)


def seconds(column):
    return (column / PS_PER_S).tolist()


def test_two_clients_ask_again_a_second_after_each_answer():
    # One second a step. A (2 tokens) is done at 2, B (4 tokens) at 4. A's client thinks until 3 and asks C
    # (1 token), which is done at 4: the step that starts at 3 sees it. At 4 both are free: D and E come at 5.
    rows = [(0, 10, 2), (0, 10, 4), (0, 10, 1), (0, 10, 3), (0, 10, 2)]
    work = replace(workload(rows), waits=Clients(2, ints(0, 0, *[PS_PER_S] * 3)))
    result = run(work)
    assert seconds(result.arrival_ps) == [0, 0, 3, 5, 5]
    assert seconds(result.requests["finish_ps"]) == [2, 4, 4, 8, 7]


def test_the_next_turn_comes_some_time_after_the_answer_to_the_one_before():
    # Turn 1 arrives at 1 and is done at 4; turn 2 thinks for 2.5 s: it arrives at 6.5, when nobody runs.
    rows = [(1, 10, 3), (1, 20, 2), (0, 10, 6)]
    waits = Chain(ints(-1, 0, -1), ints(0, 5 * PS_PER_S // 2, 0))
    result = run(replace(workload(sorted(rows)), waits=None))
    assert seconds(result.requests["finish_ps"])[0] == 6
    work = replace(workload([(1, 10, 3), (1, 20, 2), (1, 10, 1)]), waits=waits)
    result = run(work)
    assert seconds(result.arrival_ps) == [1, 6.5, 1]
    assert seconds(result.requests["finish_ps"]) == [4, 8.5, 2]


def test_who_waits_for_a_rejected_request_comes_all_the_same():
    rows = [(0, 300, 3), (0, 10, 2)]
    result = run(replace(workload(rows), waits=Chain(ints(-1, 0), ints(0, PS_PER_S))))
    assert result.finished.tolist() == [False, True]
    assert seconds(result.arrival_ps) == [0, 1]


@pytest.mark.parametrize("seed", range(8))
def test_fast_forward_and_step_mode_agree_on_every_arrival(seed):
    rng = np.random.default_rng(seed)
    n = 60
    rows = [(0, int(p), int(o)) for p, o in zip(rng.integers(1, 60, n), rng.integers(1, 90, n), strict=True)]
    think = rng.integers(0, 40 * PS_PER_S, n)
    if seed % 2:
        waits = Clients(1 + seed, think)
    else:
        waits = Chain(np.maximum(np.arange(n) - rng.integers(1, 12, n), -1), think)
    work = replace(workload(rows), waits=waits)
    small = {"timeline_rows": 16}
    fast, slow = (
        serve(work, Paged(30 * 16, 16), "vllm-v1", max_model_len=256, max_span=span, **small)
        for span in (1 << 20, 1)
    )
    assert everything(fast) == everything(slow)
    assert fast.finished.all()
    assert not (waits.think_ps < 0).any()


@pytest.mark.parametrize(
    "waits",
    [
        Clients(0, ints(0, 0)),
        Clients(1, ints(0)),
        Chain(ints(-1, 1), ints(0, 0)),
        Chain(ints(-1, -2), ints(0, 0)),
    ],
)
def test_waits_that_make_no_sense_are_refused(waits):
    with pytest.raises(KvsimError, match=r"clients|think_ps|after"):
        replace(workload([(0, 1, 1), (0, 1, 1)]), waits=waits)


def closed(clients, requests, seed=0, think_s=0):
    rng = np.random.default_rng(seed)
    rows = [(0, int(p), int(o)) for p, o in rng.integers(1, 90, (requests, 2))]
    return replace(workload(rows), waits=Clients(clients, np.full(requests, think_s * PS_PER_S)))


def test_one_client_asks_back_to_back():
    result = run(closed(1, 40))
    finish = seconds(result.requests["finish_ps"])
    assert seconds(result.arrival_ps) == [0, *finish[:-1]]
    assert finish == np.cumsum(result.output_tokens).tolist()  # a token a second, the first with the prompt


@pytest.mark.parametrize("clients", [1, 3, 8])
def test_never_more_than_the_clients_are_in_the_system(clients):
    result = run(closed(clients, 200, think_s=2))
    came, left = result.arrival_ps, result.requests["finish_ps"]
    for when in came:
        assert ((came <= when) & (left > when)).sum() <= clients
    assert result.max_running <= clients


@pytest.mark.slow
def test_littles_law_holds_on_a_long_run():
    # N clients = rate x (time in the system + time to think), up to the ends of the run.
    clients, think_s = 12, 30
    result = run(closed(clients, 3_000, think_s=think_s))
    time_s = (result.requests["finish_ps"] - result.arrival_ps).mean() / PS_PER_S
    rate = 3_000 / (result.end_ps / PS_PER_S)
    assert abs(rate * (time_s + think_s) / clients - 1) < 0.01
