"""The life of a request: stories worked out by hand, and lives that sum to E2E whatever happens."""

import json
from contextlib import suppress
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from rich.console import Console
from support.cases import COSTS, HAPPENS, draw_case
from support.event_rows import rows
from support.lives import run_of, served
from support.mixed import put_below
from support.settings import with_settings
from support.stories import workload

from kvsim import cli
from kvsim.reports.lives.event_log import event_log
from kvsim.reports.lives.lines import Teller
from kvsim.reports.lives.spans import EVENTS, WAITING, WAITS_LOADED, lives
from kvsim.reports.lives.spans import STATES as STATE_NAMES
from kvsim.reports.lives.story import Part, chosen, divided, story
from kvsim.reports.lives.view import Bar, rounded, stories_view, story_view
from kvsim.reports.lives.words import HAPPENED, REASONS, STATES, reason_text
from kvsim.sim.build import build_engine
from kvsim.sim.errors import KvsimError
from kvsim.sim.record import events
from kvsim.sim.workload import PS_PER_S, Beam, Clients, Workload

pytestmark = pytest.mark.slow


def life(scheduler, blocks, work, request, **settings):
    """Its lines as "seconds text", and its parts as (state, reason, seconds)."""
    run, told = served(scheduler, blocks, work, **settings)
    return shown(story(run, told, request))


def shown(told):
    lines = [f"{line.time_ps / PS_PER_S:g} {line.text}" for line in told.lines]
    return lines, [(part.state, part.reason, part.time_ps / PS_PER_S) for part in told.parts]


# -- stories --------------------------------------------------------------------------------------


def test_a_request_that_waits_for_a_contiguous_slab():
    """24 slots, each request reserves 16: the second waits until the first ends, though 8 slots are free."""
    work = workload([(0, 5, 3), (0, 2, 1)])
    assert life("orca", 6, work, 1, allocator="contiguous") == (
        [
            "0 arrived behind 1 other, which entered at 0 s",
            "0 headed the queue for 3.00 s: needs 16 slots, 8 free",
            "3 admitted with 2 tokens",
            "4 prompt computed, first token: TTFT 4.00 s",
            "4 finished: E2E 4.00 s, TPOT 0 s, 4.00 s per token overall",
        ],
        [("head", "no room", 3), ("prefill", "", 1)],
    )


def test_a_request_that_finds_enough_room_but_in_pieces():
    """Three extents of 8 of 24 slots; the first and the last end at 2 s: 16 are free, 8 in one piece."""
    work = workload([(0, 6, 2), (0, 2, 6), (0, 6, 2), (3, 9, 3)])
    lines, parts = life("orca", 6, work, 3, allocator="contiguous", reserve="oracle")
    assert lines[:3] == [
        "3 arrived; the queue was empty",
        "3 headed the queue for 3.00 s: needs 12 contiguous slots, largest free extent 8; 16 free in total",
        "6 admitted with 9 tokens",
    ]
    assert parts == [("head", "no room", 3), ("prefill", "", 1), ("decode", "", 2)]


def test_a_request_that_is_preempted_and_comes_back():
    """4 blocks of 4: at its ninth token the first takes the block of the second."""
    work = workload([(0, 7, 4), (0, 7, 4)])
    assert life("vllm-v1", 4, work, 1, max_num_seqs=2) == (
        [
            "0 arrived behind 1 other, which entered at 0 s",
            "0 admitted with 7 tokens",
            "1 prompt computed, first token: TTFT 1.00 s",
            "2 preempted: request 0 needed the room; 8 tokens thrown away, to be computed again",
            "2 in the queue for 2.00 s: step that evicts for 1.00 s, "
            "no room for 1.00 s (needs 12 slots, 4 free)",
            "4 admitted again with 9 tokens",
            "5 recomputed, decoding on",
            "6 finished: E2E 6.00 s, TPOT 1.67 s, 1.50 s per token overall",
        ],
        [("prefill", "", 1), ("decode", "", 2), ("preempted", "", 2), ("recompute", "", 1)],
    )


def test_a_request_that_a_policy_displaces_reads_which_one_went_first_and_why():
    """One seat: 20 tokens, and from the second 1 on, a shorter answer."""
    work = workload([(0, 4, 20), (1, 4, 2)])
    lines, parts = life("vllm-v1", 16, work, 0, max_num_seqs=1, policy="srpt")
    assert "1 preempted: request 1 went first, as less is predicted of its answer; " in "\n".join(lines)
    assert not any("needed the room" in line for line in lines)
    assert [state for state, _, _ in parts] == ["prefill", "decode", "preempted", "recompute"]
    assert life("vllm-v1", 16, work, 0, max_num_seqs=1, policy="mlfq")[0][3].startswith(
        "2 gave up its seat to request 1, as it was in a higher queue, and keeps the memory of its "
    )


@pytest.mark.parametrize(("tokens", "why"), [(2, "its rank was lower"), (30, "it had starved")])
def test_ltr_displaces_by_rank_or_for_who_starved(tokens, why):
    """One seat, 20 tokens: a shorter answer goes first at once, a longer one after 5 s."""
    work = workload([(0, 4, 20), (1, 4, tokens)])
    lines, _ = life("vllm-v1", 64, work, 0, max_num_seqs=1, policy="ltr", starvation=5.0)
    first = next(line for line in lines if "preempted" in line)
    assert f"preempted: request 1 went first, as {why}; " in first


def test_seats_budget_batch_and_watermark_are_said_in_words():
    two = workload([(0, 5, 3), (0, 5, 3)])
    said = {
        "all 1 seats were taken": ("vllm-v1", 99, {"max_num_seqs": 1}),
        "the token budget of 5 was spent (prompt of 0)": (
            "vllm-v1",
            99,
            {"max_num_batched_tokens": 5, "max_num_seqs": 5},
        ),
        "the batch was not over": ("static", 4, {}),
        "needs 8 slots; of the 8 free ones the watermark keeps too many": ("vllm-v1", 4, {"watermark": 0.4}),
        "needs 8 slots, 4 free": ("vllm-v1", 3, {}),
    }
    for words, (scheduler, blocks, settings) in said.items():
        lines, _ = life(scheduler, blocks, two, 1, **settings)
        assert lines[1].startswith("0 headed the queue for ") and lines[1].endswith(f": {words}"), lines


def test_the_token_budget_goes_to_decodes_too():
    """Request 0 decodes from 1 s on; at 1 s a prompt of 5 finds 4 tokens left, and that of 2 none."""
    work = workload([(0, 4, 9), (1, 5, 2), (1, 2, 2)])
    settings = {"max_num_batched_tokens": 5, "max_num_seqs": 5}
    lines, _ = life("vllm-v1", 99, work, 2, **settings)
    assert lines[:2] == [
        "1 arrived behind 1 other, which entered at 1.00 s",
        "1 headed the queue for 1.00 s: the token budget of 5 was spent (prompt of 1, 1 decode)",
    ]


def test_a_request_that_comes_between_steps_waits_for_the_one_under_way():
    work = Workload("test", np.array([0, PS_PER_S // 2]), np.array([4, 4]), np.array([3, 1]))
    lines, parts = life("vllm-v1", 99, work, 1)
    assert lines[:2] == ["0.5 arrived; the queue was empty", "1 admitted with 4 tokens"]
    assert parts == [("step", "", 0.5), ("prefill", "", 1)]


def test_a_request_of_one_token_in_an_empty_server():
    assert life("vllm-v1", 99, workload([(7, 3, 1)]), 0) == (
        [
            "7 arrived; the queue was empty",
            "7 admitted with 3 tokens",
            "8 prompt computed, first token: TTFT 1.00 s",
            "8 finished: E2E 1.00 s, TPOT 0 s, 1.00 s per token overall",
        ],
        [("prefill", "", 1)],
    )


def test_a_prompt_in_pieces():
    """9 tokens, 4 per step."""
    lines, parts = life("vllm-v1", 99, workload([(0, 9, 1)]), 0, max_num_batched_tokens=4, max_num_seqs=4)
    assert lines[1] == "0 admitted with 4 tokens; the prompt has 9"
    assert parts == [("prefill", "", 3)]


def test_a_rejected_request_says_why():
    run, told = served("vllm-v1", 99, workload([(0, 16, 1), (0, 2, 1)]))
    one = story(run, told, 0)
    assert shown(one) == (
        [
            "0 arrived; the queue was empty",
            "0 rejected: prompt leaves no room for an answer within 16 tokens",
        ],
        [],
    )
    assert "rejected: prompt leaves no room" in seen(story_view(one))
    assert shown(story(run, told, 1))[0][0] == "0 arrived; the queue was empty"


def test_answers_that_fork_and_copy():
    """A prompt of 6 in blocks of 4 forks at 1 s: the last answer writes first and copies the half block."""
    run, told = served("vllm-v0", 99, workload([(0, 6, [2, 4])]))
    one = story(run, told, 0)
    assert shown(one) == (
        [
            "0 arrived; the queue was empty",
            "0 admitted with 6 tokens",
            "1 prompt computed, first token: TTFT 1.00 s",
            "1 one more answer forked off, sharing 6 tokens",
            "1 2 slots copied, on a write into a shared block",
            "4 finished: E2E 4.00 s, TPOT 1.00 s, 1.00 s per token overall",
        ],
        [("prefill", "", 1), ("decode", "", 3)],
    )
    assert (one.sample, [answer.sample for answer in one.answers]) == (1, [0, 1])
    assert [answer.end_ps // PS_PER_S for answer in one.answers] == [2, 4]
    assert [[(p.state, p.time_ps // PS_PER_S) for p in answer.parts] for answer in one.answers] == [
        [("prefill", 1), ("decode", 1)],
        [("prefill", 1), ("decode", 3)],
    ]
    assert [line.text for line in Teller(run, told, 0, one.facts).lines()][3] == (
        "forked off, sharing 6 tokens with another answer"
    )
    first = told.spans(0)
    assert [STATE_NAMES[span.state] for span in first if span.end_ps > span.start_ps] == ["prefill", "decode"]
    text = seen(story_view(one))
    assert "sample 1" in text and "4.0000 *" in text


def test_the_copy_of_one_answer_is_not_told_of_another():
    run, told = served("vllm-v0", 99, workload([(0, 6, [4, 2])]))
    one = story(run, told, 0)
    assert one.sample == 0
    assert "copy" not in [line.event for line in one.lines]


def test_a_request_that_is_swapped_out_and_back():
    """Both fill 2 of 4 blocks; as a step wants a free block for each, the later one goes to the host."""
    work = workload([(0, 7, 4), (0, 7, 4)])
    settings = {"preemption": "swap", "num_cpu_blocks": 99, "watermark": 0.0, "max_model_len": 64}
    assert life("vllm-v0", 4, work, 1, **settings) == (
        [
            "0 arrived behind 1 other, which entered at 0 s",
            "0 admitted with 7 tokens",
            "1 prompt computed, first token: TTFT 1.00 s",
            "1 swapped out to the host pool with 7 tokens: request 0 needed the room",
            "4 swapped in again with 7 tokens",
            "7 finished: E2E 7.00 s, TPOT 2.00 s, 1.75 s per token overall",
        ],
        [("prefill", "", 1), ("decode", "", 3), ("swapped", "", 3)],
    )


def test_candidates_of_a_beam_search_are_one_life():
    run, told = served("vllm-v0", 99, workload([(0, 4, 9)], beam=Beam(2, "uniform", 0)))
    one = story(run, told, 0)
    assert shown(one) == (
        [
            "0 arrived; the queue was empty",
            "0 admitted with 4 tokens",
            "1 prompt computed, first token: TTFT 1.00 s",
            "1 one more candidate of the beam search forked off, sharing 4 tokens",
            "4 3 times a candidate gave way to a fork of another, last at 8.00 s; 8 slots copied, "
            "on a write into a shared block",
            "9 finished: E2E 9.00 s, TPOT 1.00 s, 1.00 s per token overall",
        ],
        [("prefill", "", 1), ("decode", "", 8)],
    )
    assert one.answers == []


def test_a_request_displaced_from_the_head_is_behind_again():
    """While 2 heads the queue, 1 is evicted: it comes back before 2, which is then behind it."""
    work = workload([(0, 7, 5), (0, 7, 4), (1, 7, 2)])
    lines, parts = life("vllm-v1", 4, work, 2, max_num_seqs=3)
    assert lines[1] == "1 headed the queue for 1.00 s: needs 8 slots, 0 free"
    assert lines[2] == "2 behind others again for 3.00 s"
    assert dict(((state, why), s) for state, why, s in parts)["behind", ""] == 3


def test_who_heads_the_queue_for_many_reasons_gets_one_line():
    """As the reasons change with every eviction, they are summed up; the first is given in full."""
    for seed in range(200):
        case = draw_case(Random(seed), "vllm-v1@0.33.0")
        engine = build_engine(case.scenario, case.work, events=True)
        run, told, _ = run_of(engine, case.scenario)
        for request in range(len(run.columns.requests["request"])):
            one = story(run, told, request)
            spells = [span for span in one.spans if span.reason and STATE_NAMES[span.state] == "head"]
            if len(spells) > 3:
                (line,) = [each for each in one.lines if "in the queue for" in each.text][:1]
                assert sum(each.event == "refuse" for each in one.lines) <= 1 + one.facts["num_preemptions"]
                assert line.text.count("(needs") <= 2
                return
    raise AssertionError("nobody headed the queue so often")


# -- all of it, always ----------------------------------------------------------------------------


def naive(engine, case, table):  # noqa: PLR0912, PLR0915 - a walk with all its cases
    """(request, sample) -> [(start, end, state, reason)], from the events one by one."""
    found = rows(engine.replica.server.events)
    arrival = np.rint(table["arrival_s"] * PS_PER_S).astype(np.int64).tolist()
    forks, admitted = {}, set()
    for row in found:
        if row["event"] == "fork" and case.beam is None:
            forks[row["request"]] = forks.get(row["request"], 0) + 1
        if row["event"] != "reject":
            admitted.add(row["request"])
    for request in [request for request, count in forks.items() if count == 1]:
        if not any(row["request"] == request and row["sample"] for row in found):
            del forks[request]  # both answers dropped before any event of the second: one life
    tracks, at, ended, evicted = {}, {}, {}, set()
    finishes = {}
    for row in found:
        if row["event"] == "finish":
            finishes[row["request"], row["sample"]] = id(row)

    def move(track, when, state, reason=""):
        if track in at:
            since, before, why = at[track]
            tracks.setdefault(track, []).append((since, when, before, why))
        if state is None:
            at.pop(track, None)
            ended[track] = when
        else:
            at[track] = (when, state, reason)

    def waits(track):
        return track in at and at[track][1] in ("step", "behind", "head", "preempted", "loaded")

    samples = {}
    for row in found:
        samples.setdefault(row["request"], set()).add(row["sample"])
    coming = sorted(range(len(arrival)), key=lambda r: (arrival[r], r))
    forked = set()

    def arrive(until):
        while coming and arrival[coming[0]] <= until:
            request = coming.pop(0)
            names = [forks[request]] if request in forks else sorted(samples[request])
            if request not in admitted:
                names = [0]
            for sample in names:
                state = "behind" if any(map(waits, at)) else "step"
                move((request, sample), arrival[request], state)
                gone = [row for row in found if row["request"] == request]
                if len(gone) == 1 and gone[0]["event"] == "reject" and gone[0]["time_ps"] == arrival[request]:
                    move((request, sample), arrival[request], None)

    for row in found:
        when, request, event = row["time_ps"], row["request"], row["event"]
        arrive(when)
        sample = row["sample"]
        if request in forks and request not in forked and event != "fork":
            sample = forks[request]
        track = (request, sample)
        if event == "refuse":
            for other in list(at):
                if other != track and at[other][1] in ("head", "step"):
                    move(other, when, "behind")
                elif other != track and at[other][1] in ("preempted", "loaded") and at[other][2]:
                    move(other, when, at[other][1])
            still = "loaded" if at[track][1] == "loaded" else "preempted" if track in evicted else "head"
            move(track, when, still, row["reason"])
        elif event == "admit":
            move(track, when, "recompute" if track in evicted else "prefill")
        elif event in ("decode", "swap_in"):
            move(track, when, "decode")
        elif event == "load" or (event == "loaded" and at[track][1] == "loading"):
            move(track, when, "loading" if event == "load" else "loaded")
        elif event == "preempt":
            evicted.add(track)
            move(track, when, "preempted")
        elif event == "swap_out":
            move(track, when, "swapped")
        elif event == "fork" and request in forks:
            forked.add(request)
            move(track, when, "decode")
        elif event == "finish" and finishes[request, row["sample"]] == id(row):
            move(track, when, None)
        elif event == "reject":
            for other in [other for other in at if other[0] == request]:
                move(other, when, None)
    assert not at and not coming
    return tracks, ended


def joined(spans):
    """Spans without empty ones, and with equal neighbours joined."""
    out = []
    for start, end, state, reason in spans:
        if start == end:
            continue
        if out and out[-1][2:] == (state, reason):
            out[-1] = (out[-1][0], end, state, reason)
        else:
            out.append((start, end, state, reason))
    return out


def above(kind):
    """Random cases above a tier, as far as it goes with their engine."""
    for seed in range(2000, 2060):
        rng = Random(seed)
        case = draw_case(rng, "sglang" if kind == "hicache" else "vllm-v1@0.33.0")
        rows = [replace(row, answers=row.answers[:1]) for row in case.rows]
        case = replace(case, engine=put_below(rng, case.engine, kind), rows=rows, samples=False)
        with suppress(KvsimError):
            build_engine(case.scenario, case.work)
            yield seed, case


@pytest.mark.parametrize("kind", ["tier", "second pool", "stack", "lmcache", "hicache"])
def test_lives_above_tiers_are_those_of_a_naive_walk(kind):
    found = walked(above(kind))
    waits = {("loading", ""), ("loaded", ""), ("loaded", "no room")}
    if kind in {"lmcache", "hicache"}:  # nobody waits for a load outside of a step
        assert not waits & found
    else:
        assert waits <= found
        assert ("loaded", "seats") in found or kind == "second pool"


@pytest.mark.parametrize("kind", ["tier", "second pool"])
def test_the_timeline_counts_who_waits_to_be_scheduled(kind):
    after_loads = 0
    for _, case in above(kind):
        where = replace(case.scenario, engine=with_settings(case.engine, async_scheduling=False))
        engine = build_engine(where, case.work, events=True)
        engine.replica.pricing.cost = COSTS[case.cost]()
        _, told, result = run_of(engine, where)
        for now_ps, waiting in zip(*(result.timeline[name] for name in ("time_ps", "waiting")), strict=True):
            there = (told.start_ps <= now_ps) & (told.stop_ps > now_ps) & np.isin(told.state, WAITING)
            assert waiting == there.sum()
            after_loads += (there & (told.state == WAITS_LOADED)).sum()
    assert after_loads > 2


@pytest.mark.parametrize("scheduler", HAPPENS)
def test_lives_are_those_of_a_naive_walk_and_sum_to_e2e(scheduler):
    cases = ((seed, draw_case(Random(seed), scheduler)) for seed in range(2000, 2040))
    states = {state for state, _ in walked(cases)}
    assert {"step", "behind", "head", "prefill", "decode"} <= states
    assert "swapped" in states or "swap_outs" not in HAPPENS[scheduler]
    assert "recompute" in states or "preemptions" not in HAPPENS[scheduler]


def walked(cases):
    """Compare the lives of cases, each with its seed, with a naive walk; returns their states and reasons."""
    states = set()
    for seed, case in cases:
        engine = build_engine(case.scenario, case.work, events=True)
        engine.replica.pricing.cost = COSTS[case.cost]()
        run, told, result = run_of(engine, case.scenario)
        expected, ended = naive(engine, case, run.columns.requests)
        try:
            found = {}
            for track, key in enumerate(zip(told.request.tolist(), told.sample.tolist(), strict=True)):
                own = range(told.first[track], told.first[track + 1])
                spans = [told._span(place) for place in own]
                found[key] = joined((s.start_ps, s.end_ps, STATE_NAMES[s.state], s.reason) for s in spans)
                assert ended[key] == told.end_ps[track]
                states.update((STATE_NAMES[s.state], s.reason) for s in spans)
            assert found == {key: joined(spans) for key, spans in expected.items()}
            check_sums(run, told, result)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    return states


def check_sums(run, told, result):
    for request in range(len(result.finished)):
        one = story(run, told, request)
        for before, after in zip(one.spans, one.spans[1:], strict=False):
            assert before.end_ps == after.start_ps
        if result.finished[request]:
            e2e_ps = result.requests["finish_ps"][request] - result.arrival_ps[request]
            assert sum(part.time_ps for part in one.parts) == one.e2e_ps == e2e_ps
        if one.answers and result.samples is not None and result.finished[request]:
            ends = [answer.end_ps for answer in one.answers]
            offset = result.workload.samples.offsets[request]
            assert ends == result.samples["finish_ps"][offset : offset + len(ends)].tolist()
        assert [line.time_ps for line in one.lines] == sorted(line.time_ps for line in one.lines)
        shares = rounded(one.parts, 3)
        whole = sum(round(float(text.replace(",", "")) * 1000) for text in shares)
        assert whole == round(one.e2e_ps / 1e9)


def test_closed_loops_count_from_when_a_request_came():
    """Two clients, three requests: the third comes when the first has its answer."""
    work = workload([(0, 4, 2), (0, 4, 3), (0, 4, 2)])
    work = Workload(
        "test",
        work.arrival_ps,
        work.prompt_tokens,
        work.output_tokens,
        waits=Clients(2, np.zeros(3, np.int64)),
    )
    lines, parts = life("vllm-v1", 99, work, 2)
    assert lines[:2] == ["2 arrived; the queue was empty", "2 admitted with 4 tokens"]
    assert parts == [("prefill", "", 1), ("decode", "", 1)]


def test_every_event_state_and_reason_has_words():
    assert list(STATES) == list(STATE_NAMES)
    besides = {"admit again", "decode again", "cached", "forked", "candidates", "survivors"}
    assert set(EVENTS) == set(HAPPENED) - besides | {"refuse", "lost", "send"}
    told = events.__doc__
    assert all(f"    {name} " in told for name in EVENTS)
    assert all(reason in told for reason in REASONS)
    pieces = {"need": 2048, "free": 6400, "largest": 1792}
    assert reason_text("no room", pieces) == (
        "needs 2,048 contiguous slots, largest free extent 1,792; 6,400 free in total"
    )
    assert reason_text("seats", {}) == "all seats were taken"
    assert reason_text("seats", {}, seats=256) == "all 256 seats were taken"
    assert reason_text("a new one", {}) == "a new one"


# -- how it looks ---------------------------------------------------------------------------------


def seen(what, width=80):
    """The terminal's output, without colour."""
    console = Console(width=width, color_system=None, force_terminal=False, highlight=False)
    with console.capture() as captured:
        console.print(what)
    return captured.get()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_story_fits_the_terminal(width):
    work = workload([(0, 7, 5), (0, 7, 4), (1, 7, 2)])
    run, told = served("vllm-v1", 4, work, max_num_seqs=3)
    for request in range(3):
        text = seen(story_view(story(run, told, request)), width)
        assert max(map(len, text.splitlines())) <= width
        assert "E2E" in text and "…" not in text
    both = [story(run, told, 1), story(run, told, 2)]
    assert max(map(len, seen(stories_view(both), width).splitlines())) <= width


def test_the_bar_shows_each_state_for_its_share():
    run, told = served("vllm-v1", 4, workload([(0, 7, 4), (0, 7, 4)]), max_num_seqs=2)
    one = story(run, told, 1)  # prefill, decode, preempted 2, recompute, decode
    assert "".join(STATES[state].ascii for state in Bar(one, one.e2e_ps).cells(12)) == "pp##xxxxrr##"
    assert "".join(STATES[state].ascii for state in Bar(one, 2 * one.e2e_ps).cells(12)) == "p#xxr#"


def test_shown_times_sum_to_the_shown_whole():
    third = [Part("prefill", "", PS_PER_S // 3)] * 3
    assert sorted(rounded(third, 1)) == ["0.3", "0.3", "0.4"]
    assert rounded([], 3) == []


def test_a_long_life_shows_its_beginning_and_its_end():
    run, told = served("vllm-v1", 4, workload([(0, 7, 4), (0, 7, 4)]), max_num_seqs=2)
    one = story(run, told, 1)
    object.__setattr__(one, "lines", one.lines * 30)
    text = seen(story_view(one))
    assert f"... {8 * 30 - 36} more lines, see --json" in text


def test_runs_side_by_side_say_how_long_a_request_waited_in_each():
    work = workload([(0, 5, 3), (0, 2, 1)])
    pairs = [
        served("orca", 6, work, "contiguous", allocator="contiguous"),
        served("vllm-v1", 6, work, "paged"),
    ]
    text = seen(stories_view([story(run, told, 1) for run, told in pairs]))
    assert "request 1 of 2 runs" in text
    assert "contiguous: waited 3.00 s at the head of the queue (no room); E2E 4.00 s" in text
    assert "paged: did not wait; E2E 1.00 s" in text


# -- which request --------------------------------------------------------------------------------


def test_a_request_may_be_named_by_what_is_special_about_it():
    run, _ = served("vllm-v1", 4, workload([(0, 7, 4), (0, 7, 4), (9, 2, 1)]), max_num_seqs=2)
    assert chosen([run], "slowest")[1:] == (1, "the slowest of the 3 that finished in test")
    assert chosen([run], "median")[1:] == (0, "the median by E2E of the 3 that finished in test")
    how = "preempted 1 time, most of the 3 that finished in test"
    assert chosen([run], "most-preempted") == ([run], 1, how)
    assert chosen([run], "2") == ([run], 2, "")


def test_what_is_special_is_sought_in_all_runs_and_told_of_those_with_that_request():
    rows = [(0, 7, 4), (0, 7, 4), (9, 2, 1)]
    roomy, _ = served("vllm-v1", 99, workload(rows), "roomy", max_num_seqs=2)
    tight, _ = served("vllm-v1", 4, workload(rows), "tight", max_num_seqs=2)
    other, _ = served("vllm-v1", 99, workload([(0, 6, 12)]), "other", max_num_seqs=2)
    runs = [roomy, tight, other]
    how = "preempted 1 time, most of the 7 that finished in 3 runs, in tight"
    assert chosen(runs, "most-preempted") == ([roomy, tight], 1, how)
    how = "the slowest of the 7 that finished in 3 runs, in other"
    assert chosen(runs, "slowest") == ([other], 0, how)
    e2e_s = sorted(float(value) for run in runs for value in run.columns.requests["e2e_s"])
    told, number, how = chosen(runs, "median")
    assert how.startswith("the median by E2E of the 7 that finished in 3 runs, in ")
    assert e2e_s[3] in [float(run.columns.requests["e2e_s"][number]) for run in told]
    with pytest.raises(KvsimError, match="cannot be most-preempted: no request was preempted in 2 runs"):
        chosen([roomy, other], "most-preempted")


def test_seeds_with_equal_prompts_are_not_the_same_requests():
    one, two = (served("vllm-v1", 99, workload([(0, 2, 1)]), name)[0] for name in ("one", "two"))
    for seed, run in enumerate((one, two)):
        run.config["workload"] = {"seed": seed}
    with pytest.raises(KvsimError, match="served different requests"):
        chosen([one, two], "0")
    assert chosen([one, two], "slowest")[0] == [two]


@pytest.mark.parametrize("text", ["3", "-1", "x", "1.5", "²"])
def test_another_number_is_refused_with_the_range(text):
    run, _ = served("vllm-v1", 4, workload([(0, 7, 4), (0, 7, 4), (9, 2, 1)]), max_num_seqs=2)
    line = f"request must be a number from 0 to 2, or one of slowest, median, most-preempted, got {text!r}"
    with pytest.raises(KvsimError) as error:
        chosen([run], text)
    assert str(error.value) == line


def test_runs_without_a_finish_or_a_preemption_have_no_slowest_and_no_most_preempted():
    run, _ = served("vllm-v1", 99, workload([(0, 16, 1)]))
    with pytest.raises(KvsimError, match="request cannot be slowest: no request of test finished"):
        chosen([run], "slowest")
    run, _ = served("vllm-v1", 99, workload([(0, 2, 1)]))
    with pytest.raises(KvsimError, match="cannot be most-preempted: no request was preempted in test"):
        chosen([run], "most-preempted")


def test_runs_of_different_requests_are_not_told_side_by_side():
    one, _ = served("vllm-v1", 99, workload([(0, 2, 1)]), "one")
    two, _ = served("vllm-v1", 99, workload([(0, 3, 1)]), "two")
    with pytest.raises(KvsimError, match="served different requests: explain one of them at a time"):
        chosen([one, two], "0")


def test_an_empty_run_has_no_request_to_explain():
    run, told = served("vllm-v1", 99, Workload("none", *(np.array([], np.int64) for _ in range(3))))
    assert len(told.request) == 0
    with pytest.raises(KvsimError, match="request must be in the run, which has no requests, or one of"):
        chosen([run], "0")


# -- the command ----------------------------------------------------------------------------------

SMALL = ("--cost", "constant:0.03", "--num-prompts", "12", "--request-rate", "inf", "--no-plots", "-q")


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    """A run with events, the same without, and a comparison without."""
    place = tmp_path_factory.mktemp("explain")
    assert cli.main(["run", *SMALL, "--out", str(place / "with"), "--record-map", "4"]) == 0
    assert cli.main(["run", *SMALL, "--out", str(place / "without")]) == 0
    both = ["--allocator", "contiguous,paged", "--out", str(place / "both")]
    assert cli.main(["compare", *SMALL, *both]) == 0
    return place


@pytest.fixture
def explain(directories, capsys, monkeypatch):
    """Run `sim explain`: exit code, stdout and stderr."""
    monkeypatch.chdir(directories)
    monkeypatch.setenv("COLUMNS", "80")

    def explain(*arguments):
        code = cli.main(["explain", *arguments])
        return code, *capsys.readouterr()

    return explain


def test_a_run_without_events_is_repeated_and_tells_the_same(explain):
    code, out, err = explain("with", "slowest")
    assert (code, err) == (0, "")
    code, again, err = explain("without", "slowest")
    assert (code, again) == (0, out)
    assert err == "paged: no events were recorded: repeating the run\n"
    assert max(map(len, out.splitlines())) <= 80


def test_json_holds_what_is_printed_and_sums_exactly(explain):
    code, out, _ = explain("with", "3", "--json")
    told = json.loads(out)
    assert code == 0
    assert (told["request"], told["run"], told["status"]) == (3, "paged", "finished")
    whole = sum(part["picoseconds"] for part in told["division"])
    assert whole == round((told["finish_s"] - told["arrival_s"]) * 1e12)
    assert [line["event"] for line in told["lines"]][-1] == "finish"
    assert told["spans"][-1]["end_s"] == told["finish_s"]


def test_a_comparison_tells_of_every_run(explain):
    code, out, err = explain("both", "11")
    assert code == 0
    assert "contiguous: waited " in out and "paged: " in out
    assert err.count("repeating the run") == 2
    code, out, _ = explain("both/contiguous", "11", "--json")
    assert json.loads(out)["run"] == "contiguous"
    code, out, _ = explain("both", "11", "--json")
    assert [told["run"] for told in json.loads(out)] == ["contiguous", "paged"]


def test_a_run_that_cannot_be_repeated_is_named(explain, directories, tmp_path):
    import shutil

    damaged = tmp_path / "run"
    shutil.copytree(directories / "without", damaged)
    config = json.loads((damaged / "config.json").read_text())
    config["scenario"]["cost"] = "constant:0.031"
    (damaged / "config.json").write_text(json.dumps(config))
    code, out, err = explain(str(damaged), "0")
    assert (code, out) == (2, "")
    assert err.splitlines()[1].startswith(f"error: {damaged} cannot be repeated: finish_s of request 0 was ")
    config["workload"]["trace"] = "gone.jsonl"
    (damaged / "config.json").write_text(json.dumps(config))
    code, out, err = explain(str(damaged), "0")
    assert (code, out) == (2, "")
    assert "has no events, and cannot be repeated: " in err.splitlines()[1]
    assert len(err.splitlines()) == 2


def test_damaged_events_are_one_line(explain, directories, tmp_path):
    import shutil

    damaged = tmp_path / "run"
    shutil.copytree(directories / "with", damaged)
    (damaged / "events.parquet").write_bytes(b"PAR1 and nothing more")
    code, out, err = explain(str(damaged), "0")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"error: {damaged / 'events.parquet'} is damaged: ")
    shutil.copy(directories / "with/map.parquet", damaged / "events.parquet")
    code, out, err = explain(str(damaged), "0")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "is damaged: it lacks the columns" in err


def test_events_of_another_run_are_not_believed():
    run, _ = served("vllm-v1", 99, workload([(0, 2, 1), (0, 2, 1)]))
    _, other = served("vllm-v1", 99, workload([(0, 2, 1)]))
    with pytest.raises(KvsimError, match="it does not tell of the 2 requests of the run"):
        lives(other.log, run.columns.requests)
    cut = event_log({**_table(other.log, slice(0, 2))})
    with pytest.raises(KvsimError, match="request 0 neither finishes nor is rejected"):
        lives(cut, _first(run, 1))


def _table(log, rows):
    names = [name for name in log.numbers if name != "time_ps"]
    texts = events.Texts(log.kind[rows], list(EVENTS))
    reasons = events.Texts(log.reason[rows], log.reasons)
    times = log.numbers["time_ps"][rows] / PS_PER_S
    return {"time_s": times, **{n: log.numbers[n][rows] for n in names}, "event": texts, "reason": reasons}


def _first(run, count):
    return {name: column[:count] for name, column in run.columns.requests.items()}


def test_parts_of_one_state_and_reason_are_added_up():
    _, told = served("vllm-v1", 4, workload([(0, 7, 4), (0, 7, 4)]), max_num_seqs=2)
    parts = divided(told.spans(1))
    assert [part.state for part in parts] == ["prefill", "decode", "preempted", "recompute"]


def test_a_run_of_an_engine_that_hides_its_host_is_repeated_as_it_was(tmp_path, capsys):
    """SGLang's steps hide its host's work, unless that is switched off."""
    for said in ([], ["--no-async-scheduling"]):
        out = tmp_path / f"run{len(said)}"
        words = (
            "run --model llama-3.1-8b --gpu h100 --num-prompts 3 --scheduler sglang --no-plots --quiet --out"
        )
        assert cli.main([*words.split(), str(out), *said]) == 0
        assert cli.main(["explain", str(out), "slowest"]) == 0
