"""Traces of agents and of new tools: nested subagents, delays, clients that are drawn, spans."""

import json

import numpy as np
import pytest

from kvsim import workloads
from kvsim.sim.errors import KvsimError
from kvsim.sim.options.traffic import Traffic
from kvsim.sim.serving.facts import Facts, facts_of
from kvsim.workloads.closed import closed_sessions
from kvsim.workloads.formats import load_file, recognised
from kvsim.workloads.source import opened


def call(t, prompt, output, ids=(), **more):
    return {"t": t, "type": "s", "model": "m", "in": prompt, "out": output, "hash_ids": list(ids), **more}


def subagent(t, *calls, name="a", **more):
    return {"t": t, "type": "subagent", "agent_id": name, "requests": list(calls), **more}


def session(*calls, name="s", **more):
    return {
        "id": name,
        "models": ["m"],
        "block_size": 64,
        "hash_id_scope": "local",
        "requests": [*calls],
        **more,
    }


def weka(tmp_path, *sessions, name="trace.json"):
    path = tmp_path / name
    path.write_text("\n".join(json.dumps(each) for each in sessions))
    return str(path)


def label(lengths, name):
    return lengths.labels[name].tolist()


def chain(lengths):
    found = closed_sessions(lengths, None, np.random.default_rng(0))
    return found.after.tolist(), (found.think_ps / 1e12).tolist()


# -- Weka, cc-traces ------------------------------------------------------------------------------

NESTED = session(
    call(0.0, 130, 10, [0, -1], api_time=2.0),
    subagent(
        31.0, call(0.0, 128, 5, [9, 8]), call(4.0, 200, 5, [9, 8, 7, 6], think_time=1.0), duration_ms=50_000
    ),
    call(100.0, 300, 7, [0, -1, 4]),
)


def test_a_session_waits_for_its_subagent_and_a_subagent_for_its_parent(tmp_path):
    lengths = load_file(weka(tmp_path, NESTED))
    assert recognised(str(tmp_path / "trace.json")) == "Weka"
    assert lengths.arrival_s.tolist() == [0, 31, 35, 100]
    assert label(lengths, "agent") == ["", "a", "a", ""] and set(label(lengths, "session")) == {"s"}
    # 31 s after a start that was answered at 2 s; 1 s as told; 100 s less 31 + 50 s
    assert chain(lengths) == ([-1, 0, 1, 2], [0, 29, 1, 19])


def test_times_of_subagents_are_their_own_or_the_sessions(tmp_path):
    own = subagent(31.0, call(0.0, 128, 5), call(4.0, 200, 5))
    of_session = subagent(31.0, call(31.0, 128, 5), call(35.0, 200, 5))
    first, last = call(0.0, 130, 10), call(100.0, 300, 7)
    one, other = (
        load_file(weka(tmp_path, session(first, each, last), name=f"{place}.json"))
        for place, each in enumerate((own, of_session))
    )
    assert one.arrival_s.tolist() == other.arrival_s.tolist() == [0, 31, 35, 100]
    assert chain(one) == chain(other)


def test_of_several_subagents_the_parent_waits_for_the_one_that_ends_last(tmp_path):
    long = subagent(10.0, call(0.0, 64, 5), duration_ms=60_000, name="long")
    short = subagent(11.0, call(0.0, 64, 5), duration_ms=5_000, name="short")
    lengths = load_file(weka(tmp_path, session(call(0.0, 64, 1), long, short, call(90.0, 64, 1))))
    assert label(lengths, "agent") == ["", "long", "short", ""]
    after, delays = chain(lengths)
    assert after == [-1, 0, 0, 1] and delays == [0, 10, 11, 20]


def test_subagents_nest(tmp_path):
    inner = subagent(5.0, call(0.0, 64, 1), name="inner")
    outer = subagent(10.0, call(0.0, 64, 1), inner, call(8.0, 64, 1), name="outer")
    lengths = load_file(weka(tmp_path, session(call(0.0, 64, 1), outer, call(30.0, 64, 1))))
    assert label(lengths, "agent") == ["", "outer", "outer/inner", "outer", ""]
    assert lengths.arrival_s.tolist() == [0, 10, 15, 18, 30]
    assert chain(lengths)[0] == [-1, 0, 1, 2, 3]


def shared(lengths, one, other):
    """Tokens that two requests have in common at their start."""
    texts, found = lengths.texts, 0
    runs = [
        [
            (stream, first + at)
            for stream, first, length in zip(
                texts.streams[low:high].tolist(),
                texts.firsts[low:high].tolist(),
                texts.lengths[low:high].tolist(),
                strict=True,
            )
            for at in range(length)
        ]
        for low, high in ((texts.offsets[row], texts.offsets[row + 1]) for row in (one, other))
    ]
    for left, right in zip(*runs, strict=False):
        if left != right:
            break
        found += 1
    return found


def test_ids_below_1_and_partial_last_blocks_are_shared_as_far_as_they_go(tmp_path):
    lengths = load_file(weka(tmp_path, NESTED))
    assert shared(lengths, 0, 3) == 128  # two whole blocks of 64; two tokens of the first are in no id
    assert shared(lengths, 1, 2) == 128 and shared(lengths, 0, 1) == 0
    partial = session(call(0.0, 100, 1, [-5, 0]), call(9.0, 100, 1, [-5, 0]))
    assert shared(load_file(weka(tmp_path, partial)), 0, 1) == 100


def test_ids_are_local_to_a_session_unless_it_says_otherwise(tmp_path):
    for scope, common in (("local", 0), ("global", 64)):
        pair = [session(call(0.0, 64, 1, [1]), name=name, hash_id_scope=scope) for name in ("one", "two")]
        assert shared(load_file(weka(tmp_path, *pair)), 0, 1) == common


def test_a_directory_of_sessions_is_one_trace(tmp_path):
    weka(tmp_path, session(call(0.0, 64, 1), name="one"), name="1.json")
    weka(tmp_path, session(call(5.0, 64, 1), name="two"), name="2.json")
    lengths = workloads.load(str(tmp_path))
    assert label(lengths, "session") == ["one", "two"]


def test_a_session_that_is_cut_off_leaves_those_before(tmp_path):
    path = weka(tmp_path, session(call(0.0, 64, 1), name="one"), session(call(0.0, 64, 1), name="two"))
    text = (tmp_path / "trace.json").read_text()
    (tmp_path / "trace.json").write_text(text[:-20])
    lengths = load_file(path)
    assert label(lengths, "session") == ["one"]
    assert "The file is cut off: the sessions before are read." in lengths.notes


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (session(call("x", 64, 1)), "line 1, session s, request 0: t must be a number, got 'x'"),
        (session(call(0.0, 1.5, 1)), "in must be a whole number, got 1.5"),
        (session(call(0.0, 64, 1, ["a"])), r"hash_ids must be a list of whole numbers, got \['a'\]"),
        (session(3), "request 0: must be an object, got 3"),
        (session(3, name=5_000 * "x"), r"session x{50,200}\.\.\.x+ \(5,000 characters\), request 0"),
        (session(call(0.0, 64, 1), block_size=0), "block_size must be a whole number of at least 1, got 0"),
        ({"id": "s", "block_size": 64, "requests": 3}, "requests must be a list, got 3"),
    ],
)
def test_what_is_no_session_is_named_with_its_place(tmp_path, broken, words):
    with pytest.raises(KvsimError, match=words):
        load_file(weka(tmp_path, broken))


def test_closed_sessions_run_a_session_to_its_end(tmp_path):
    lengths = load_file(weka(tmp_path, NESTED))
    work = workloads.build(
        lengths, num_prompts=None, request_rate=None, burstiness=None, seed=0, closed_sessions=True
    )
    assert work.waits.after.tolist() == [-1, 0, 1, 2]
    assert any("the trace's own delay" in note for note in work.notes)
    source = opened(Traffic(trace=str(tmp_path / "trace.json"), closed_sessions=True))
    assert source.as_json()["think_time"] == "trace"
    assert source.workload().waits.think_ps.tolist() == work.waits.think_ps.tolist()
    slow = workloads.build(
        lengths,
        num_prompts=None,
        request_rate=None,
        burstiness=None,
        seed=0,
        closed_sessions=True,
        think_time="3",
    )
    assert set(slow.waits.think_ps.tolist()) == {3 * 10**12}


# -- Mooncake's dialect ---------------------------------------------------------------------------


def test_turns_of_mooncakes_dialect_have_delays(tmp_path):
    rows = [
        {"session_id": "a", "timestamp": 1000, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]},
        {"session_id": "a", "delay": 1500, "input_length": 700, "output_length": 5, "hash_ids": [1, 2]},
        {"session_id": "b", "timestamp": 2000, "input_length": 10, "output_length": 5, "hash_ids": [3]},
        {"session_id": "a", "delay_ms": 500, "input_length": 900, "output_length": 5, "hash_ids": [1, 2]},
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    lengths = load_file(str(path))
    assert lengths.arrival_s.tolist() == [1, 2, 2.5, 3]
    assert label(lengths, "session") == ["a", "b", "a", "a"]
    assert any(note.startswith("2 turns have a delay but no time") for note in lengths.notes)
    assert chain(lengths) == ([-1, -1, 0, 2], [0, 0, 1.5, 0.5])


def test_mooncakes_dialect_may_name_its_blocks_and_when_requests_were_made(tmp_path):
    rows = [
        {
            "created_time": 1e9 + 3,
            "input_length": 64,
            "output_length": 1,
            "hash_ids": [0, 1],
            "block_size": 32,
        },
        {"created_time": 1e9 + 5, "input_length": 96, "output_length": 1, "hash_ids": [0, 1, 2]},
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(json.dumps({"timestamp": None, **row}) for row in rows))
    lengths = load_file(str(path))
    assert lengths.arrival_s.tolist() == [0, 2] and shared(lengths, 0, 1) == 64
    path.write_text(json.dumps({"timestamp": 0, "input_length": 1, "output_length": 1, "block_size": "x"}))
    with pytest.raises(KvsimError, match="line 1: block_size must be a whole number"):
        load_file(str(path))


def test_rows_of_mooncake_may_say_whose_they_are_and_what_is_due(tmp_path):
    plain = {"input_length": 600, "output_length": 5, "hash_ids": [1, 2]}
    told = {"client": "a", "priority": 2, "slo_ttft_s": 0.5, "deadline_s": 9, "predicted_tokens": 7}
    path = tmp_path / "trace.jsonl"
    path.write_text(
        "\n".join(json.dumps({"timestamp": 0, **plain, **row}) for row in (told, {}, {"client": 4}))
    )
    lengths = load_file(str(path))
    assert label(lengths, "client") == ["a", None, "4"]
    assert lengths.priority.tolist() == [2, 0, 0]
    found = facts_of(lengths.labels)
    assert found[0] == Facts("a", 5 * 10**11, None, 9 * 10**12, 7) and found[1] == Facts()
    path.write_text(json.dumps({"timestamp": 0, **plain, "slo_tpot_s": 0}))
    with pytest.raises(KvsimError, match="slo_tpot_s must be above 0 and at most 1,000,000, got 0"):
        load_file(str(path))


# -- ServeGen -------------------------------------------------------------------------------------


def servegen(tmp_path, rows, lengths="{10: 0.5, 20: 0.5}"):
    (tmp_path / "chunk-3-trace.csv").write_text("\n".join(rows))
    content = {"0": {"input_tokens": lengths, "output_tokens": "{7: 1.0}"}}
    (tmp_path / "chunk-3-dataset.json").write_text(json.dumps(content))
    return str(tmp_path)


def test_clients_of_servegen_come_at_their_rates(tmp_path):
    rows = ["0,2.0,1.0,Gamma,1.0,0.5", "600,0,0,,0,0", "1200,4.0,0.5,Weibull,2.1,0.28"]
    lengths = workloads.load(servegen(tmp_path, rows))
    counts = np.histogram(lengths.arrival_s, [0, 600, 1200, 1800])[0]
    assert counts[1] == 0 and counts[0] == pytest.approx(1200, rel=0.1)
    assert counts[2] == pytest.approx(600 / (0.28 * 0.8857), rel=0.1)
    assert set(lengths.prompt_tokens) == {10, 20} and set(lengths.output_tokens) == {7}
    assert (lengths.prompt_tokens == 10).mean() == pytest.approx(0.5, abs=0.05)
    again = workloads.load(str(tmp_path))
    np.testing.assert_array_equal(again.arrival_s, lengths.arrival_s)
    assert set(label(lengths, "client")) == {"chunk-3"}


@pytest.mark.parametrize(
    ("rows", "lengths", "words"),
    [
        (["0,2.0"], "{1: 1}", "chunk-3-trace.csv, line 1: must have 6 columns, got 2"),
        (["0,2,1,Pareto,1,1"], "{1: 1}", "gaps must be Gamma or Weibull, got 'Pareto'"),
        (["0,2,1,Gamma,0,1"], "{1: 1}", "shape and scale must be above 0"),
        (["9,2,1,Gamma,1,1", "3,2,1,Gamma,1,1"], "{1: 1}", "windows must be in order"),
        (["0,2,1,Gamma,1,1"], "__import__('os')", "window 0: must have input_tokens and output_tokens"),
        (["0,2,1,Gamma,1,1"], "{1: -1}", "must have shares of at least 0"),
    ],
)
def test_what_is_not_servegens_is_named(tmp_path, rows, lengths, words):
    with pytest.raises(KvsimError, match=words):
        workloads.load(servegen(tmp_path, rows, lengths))


def test_a_directory_of_something_else(tmp_path):
    with pytest.raises(KvsimError, match="is a directory, which must hold ServeGen's clients"):
        workloads.load(str(tmp_path))


# -- Azure 2025, OpenTelemetry --------------------------------------------------------------------


def test_azure_2025_tells_how_many_images(tmp_path):
    path = tmp_path / "lmm.csv"
    path.write_text(
        "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n"
        "2024-10-01 00:00:00.001,2,1452,3\n2024-10-01 00:00:02.001,0,10,4\n"
    )
    lengths = load_file(str(path))
    assert label(lengths, "images") == [2, 0] and lengths.arrival_s.tolist() == [0, 2]


def otlp(*spans):
    return {"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]}


def span(start_s, tokens, trace="t", **more):
    attributes = [
        {"key": "gen_ai.usage.input_tokens", "value": {"intValue": str(tokens[0])}},
        {"key": "gen_ai.usage.output_tokens", "value": {"intValue": str(tokens[1])}},
    ]
    return {"traceId": trace, "startTimeUnixNano": str(int(start_s * 1e9)), "attributes": attributes} | more


def test_spans_of_a_collector_are_requests(tmp_path):
    path = tmp_path / "spans.jsonl"
    tool = {"traceId": "t", "startTimeUnixNano": "1", "attributes": []}
    lines = [otlp(span(100.5, (812, 40)), tool), otlp(span(100.0, (10, 3)), span(103.0, (20, 4), "u"))]
    path.write_text("\n".join(map(json.dumps, lines)))
    lengths = load_file(str(path))
    assert recognised(str(path)) == "OpenTelemetry"
    assert lengths.arrival_s.tolist() == [0, 0.5, 3] and lengths.prompt_tokens.tolist() == [10, 812, 20]
    assert label(lengths, "session") == ["t", "t", "u"]
    assert "1 spans without token counts left out." in lengths.notes


def test_spans_of_an_sdk_are_requests(tmp_path):
    path = tmp_path / "spans.jsonl"
    rows = [
        {
            "start_time": f"2026-02-03T10:00:0{at}.500000Z",
            "attributes": {
                "gen_ai.usage.prompt_tokens": 5 + at,
                "gen_ai.usage.completion_tokens": 2,
                "gen_ai.conversation.id": "c",
            },
        }
        for at in range(3)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    lengths = load_file(str(path))
    assert lengths.arrival_s.tolist() == [0, 1, 2] and lengths.prompt_tokens.tolist() == [5, 6, 7]
    rows[1]["attributes"]["gen_ai.usage.prompt_tokens"] = "many"
    path.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(
        KvsimError, match=r"line 2: gen_ai.usage.prompt_tokens must be a whole number, got 'many'"
    ):
        load_file(str(path))


# -- the stand-in ---------------------------------------------------------------------------------


def test_the_agents_are_about_as_long_as_published_and_share_as_much():
    lengths = workloads.load("agents")
    prompts, outputs = (
        np.percentile(column, [10, 50, 90]) for column in (lengths.prompt_tokens, lengths.output_tokens)
    )
    np.testing.assert_allclose(prompts, [43_000, 110_000, 300_000], rtol=0.1)
    np.testing.assert_allclose(outputs, [103, 218, 937], rtol=0.1)
    assert lengths.labels["agent"].tolist().count("") < len(lengths)
    after = closed_sessions(lengths, None, np.random.default_rng(0)).after
    assert (after < np.arange(len(after))).all() and (after == -1).sum() == 40
