"""Requests that are set aside keep their memory: `mlfq` recomputes nothing while there is enough."""

from collections import Counter
from random import Random

import numpy as np
import pytest
from support.cases import COSTS, GPU, MODEL, draw_keyed
from support.settings import engine_config

from kvsim import simulate
from kvsim.sim.build import build_engine
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.record.events import NO_ROOM
from kvsim.sim.serving.request import State
from kvsim.sim.workload import PS_PER_S, Workload

SEATS = 8


def work(seed, count=250, gap_s=0.1):
    """Requests that arrive a little faster than they can be served."""
    rng = Random(seed)
    arrival = np.cumsum([round(rng.expovariate(1 / gap_s) * PS_PER_S) for _ in range(count)])
    prompts = np.array([rng.randint(1, 60) for _ in range(count)])
    answers = np.array([1 + min(round(rng.expovariate(1 / 20)), 60) for _ in range(count)])
    return Workload("keeping", arrival, prompts, answers)


def engine_for(requests, kv_tokens=40_000, events=False, **settings):
    usual = {"scheduler": "vllm-v1", "policy": "mlfq", "max_num_seqs": SEATS, "max_num_batched_tokens": 64}
    usual |= {"block_size": 4, "max_model_len": 256}
    if settings.get("policy", "mlfq") == "mlfq":
        usual["mlfq_quantum"] = 0.1
    where = Deployment(
        model=MODEL,
        gpu=GPU,
        engine=engine_config(**usual | settings),
        kv_tokens=kv_tokens,
        cost="constant:0.05",
    )
    return build_engine(where, requests, check=True, events=events, max_span=1 if events else 1 << 20)


def counted(engine):
    """Its result, and how often its server set a request aside."""
    server, aside = engine.replica.server, 0
    set_aside = server.set_aside

    def noted(request):
        nonlocal aside
        aside += 1
        set_aside(request)

    server.set_aside = noted
    return engine.run(), aside


@pytest.mark.parametrize("late", [False, True], ids=["sync", "async"])
def test_with_memory_for_all_nothing_is_computed_twice(late):
    for seed in range(3):
        requests = work(seed)
        result, aside = counted(engine_for(requests, async_scheduling=late))
        assert result.finished.all()
        assert result.preemptions == result.thrown_tokens == 0
        assert aside > 100
        anew = engine_for(requests, async_scheduling=late, mlfq_displaced="recompute").run()
        assert anew.preemptions > 100
        assert anew.thrown_tokens > 1_000


@pytest.mark.parametrize("displaced", ["keep", "recompute"])
@pytest.mark.parametrize("late", [False, True], ids=["sync", "async"])
def test_in_each_step_the_highest_queues_run(late, displaced):
    """As FastServe's `get_next_batch` fills a batch: from the first queue on, until it is full."""
    own = {"async_scheduling": late, "mlfq_displaced": displaced}
    engine = engine_for(work(4, gap_s=0.07), max_num_batched_tokens=4096, **own)
    replica, full, most = engine.replica, 0, 0
    policy, decide, running = replica.scheduler.policy, replica.decide, replica.server.running

    def watched(server):
        nonlocal full, most
        before = set(running)
        step = decide(server)
        if server.waiting:
            full += 1
            decoding = [each for each in running.values() if each.state is State.DECODE]
            lowest = max((policy.key(each, server.now_ps) for each in decoding), default=0)
            assert len(running) + step.departures == SEATS
            assert all(policy.key(each, server.now_ps) >= lowest for each in server.waiting)
            most = max(most, len(set(running) - before))
        return step

    replica.decide = watched
    assert engine.run().finished.all()
    assert full > 300
    assert most > 2


def at_once(prompt_tokens):
    """Eight long answers, and six more requests that come at one instant while they are decoded."""
    arrival = np.array([0] * SEATS + [5 * PS_PER_S] * 6)
    prompts = np.array([8] * SEATS + [prompt_tokens] * 6)
    return Workload("burst", arrival, prompts, np.array([200] * SEATS + [3] * 6))


@pytest.mark.parametrize("late", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize(
    ("prompt_tokens", "tokens", "steps", "reason"), [(20, 256, 1, ""), (20, 64, 2, "token budget")]
)
def test_all_that_come_at_once_enter_in_one_step_if_it_has_their_tokens(
    late, prompt_tokens, tokens, steps, reason
):
    settings = {"async_scheduling": late, "max_num_batched_tokens": tokens, "mlfq_quantum": 1.0}
    result = engine_for(at_once(prompt_tokens), **settings).run()
    came = result.requests["first_scheduled_ps"][SEATS:]
    assert len(set(came.tolist())) == steps
    engine = engine_for(at_once(prompt_tokens), events=True, **settings)
    engine.run()
    numbers, texts = engine.replica.server.events.table()
    events = [texts["event"].texts[code] for code in texts["event"].codes.tolist()]
    reasons = [texts["reason"].texts[code] for code in texts["reason"].codes.tolist()]
    new = numbers["request"] >= SEATS
    told = {why for why, event, row in zip(reasons, events, new, strict=True) if row and event == "refuse"}
    assert told == ({reason} if reason else set())
    entered, left = new & (np.array(events) == "admit"), np.array(events) == "set_aside"
    first = numbers["step"] == numbers["step"][entered].min()
    assert numbers["by"][left & first].tolist() == numbers["request"][entered & first].tolist()
    assert (left & first).sum() == 6 // steps


def test_where_memory_is_short_the_last_of_the_queue_loses_it():
    lost = 0
    for seed in range(6):
        engine = engine_for(work(seed, 150), kv_tokens=480)
        server, policy = engine.replica.server, engine.replica.scheduler.policy
        preempt = server.preempt

        def watched(request, *args, server=server, policy=policy, preempt=preempt, **named):
            nonlocal lost
            now_ps = server.now_ps

            def place(other):
                return policy.key(other, now_ps), other.index, other.sample

            if request.state is State.ASIDE:
                lost += 1
                assert place(request) == max(map(place, server.batch.aside.values()))
            else:
                assert all(other is server.waiting[0] for other in server.batch.aside.values())
            preempt(request, *args, **named)

        server.preempt = watched
        result = engine.run()
        assert result.finished.all()
    assert lost > 50


@pytest.mark.parametrize("late", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("whole", [None, False], ids=["whole prompts", "chunks"])
def test_who_loses_memory_in_a_step_does_not_enter_again_in_it(late, whole):
    """FastServe's `reserve_free_blocks` swaps out who is then not executed in that iteration."""
    lost, kept_out = set(), 0
    for seed in range(4):
        engine = engine_for(
            work(seed, 150), kv_tokens=240, events=True, async_scheduling=late, reserve_full_prompt=whole
        )
        replica, server = engine.replica, engine.replica.server
        preempt, keep_out, decide = server.preempt, server.keep_out, replica.decide

        def preempting(request, *args, preempt=preempt, **named):
            lost.add(request)
            preempt(request, *args, **named)

        def keeping_out(tokens, server=server, keep_out=keep_out):
            nonlocal kept_out
            kept_out += 1
            assert server.waiting[0] in lost
            keep_out(tokens)

        def watched(server, decide=decide):
            lost.clear()
            step = decide(server)
            assert not lost & set(server.running.values())
            return step

        server.preempt, server.keep_out, replica.decide = preempting, keeping_out, watched
        assert engine.run().finished.all()
    assert kept_out > (10 if whole is False else 0)


@pytest.mark.parametrize("allocator", ["contiguous", "vattention"])
def test_where_places_matter_they_are_preempted(allocator):
    result, aside = counted(engine_for(work(2), allocator=allocator))
    assert not aside
    assert result.preemptions > 50


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"allocator": "vattention"}, "the allocator works between steps"),
        ({"allocator": "contiguous"}, "memory is not kept in blocks"),
        ({"allocator": "vattention", "mlfq_displaced": "recompute"}, ""),
        ({}, ""),
    ],
)
def test_a_run_notes_that_displaced_requests_are_recomputed_against_the_choice(settings, why):
    note = engine_for(work(0, 5), **settings).replica.scheduler.policy.note
    assert note == (f"Policy mlfq: displaced requests are recomputed, as {why}." if why else "")


def test_the_note_is_among_those_of_the_summary():
    told = {"num_prompts": 5, "policy": "mlfq", "gpu": "h100"}
    notes = simulate(model="gemma-3-12b", **told).summary["notes"]
    assert (
        "Policy mlfq: displaced requests are recomputed, as several kinds of layers share the blocks."
        in notes
    )
    assert not any("mlfq" in note for note in simulate(model="llama-3.1-8b", **told).summary["notes"])


def test_events_tell_who_was_set_aside_and_came_back():
    engine = engine_for(work(5), events=True)
    engine.run()
    numbers, texts = engine.replica.server.events.table()
    events = [texts["event"].texts[code] for code in texts["event"].codes.tolist()]
    assert events.count("set_aside") == events.count("resume") > 100
    reasons = [texts["reason"].texts[code] for code in texts["reason"].codes.tolist()]
    told = [row for row, event in enumerate(events) if event == "set_aside"]
    assert {reasons[row] for row in told} == {"it was in a higher queue"}
    assert all(numbers["by"][row] != numbers["request"][row] for row in told)
    state: dict[int, str] = {}
    for event, request in zip(events, numbers["request"].tolist(), strict=True):
        if event == "resume":
            assert state[request] == "set_aside"
        if event in {"set_aside", "finish"}:
            assert state[request] in {"decode", "resume"}
        if event != "refuse":
            state[request] = event


@pytest.mark.parametrize("policy", ["fcfs", "mlfq", "srpt"])
def test_an_engine_that_decides_ahead_waits_for_seats_not_for_tokens(policy):
    """A request that has just ended has its seat until the next step is decided; nobody spends the budget."""
    plenty = {"max_num_batched_tokens": 4096, "policy": policy}
    for late in (False, True):
        engine = engine_for(work(6), events=True, async_scheduling=late, **plenty)
        engine.run()
        _, texts = engine.replica.server.events.table()
        refused = texts["event"].codes == texts["event"].texts.index("refuse")
        told = {texts["reason"].texts[code] for code in texts["reason"].codes[refused].tolist()}
        assert told == {"seats"}


def reasons_for_rivals(seed):
    """Why the head of the queue waits in steps in which requests in lower queues decode; a random run."""
    case = draw_keyed(Random(seed), "mlfq")
    engine = build_engine(case.scenario, case.work, max_span=1)
    engine.replica.pricing.cost = COSTS[case.cost]()
    replica, found = engine.replica, []
    scheduler, policy, decide = replica.scheduler, replica.scheduler.policy, replica.decide

    def watched(server):
        step = decide(server)
        if server.waiting:
            level = policy.key(server.waiting[0], server.now_ps)
            decoding = [each for each in server.running.values() if each.state is State.DECODE]
            if any(policy.key(each, server.now_ps) > level for each in decoding):
                found.append(NO_ROOM if step.no_room else scheduler.held_back(server))
        return step

    replica.decide = watched
    engine.run()
    return found


def test_who_may_displace_a_request_and_does_not_lacks_tokens_or_memory_never_a_seat():
    told = Counter()
    for seed in range(120):
        told.update(reasons_for_rivals(seed))
    assert told["token budget"] > 5
    assert told[NO_ROOM] > 5
    assert not told["seats"]
