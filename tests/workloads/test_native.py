"""Facts about kvsim's own trace format: what its fields mean, and what is said of every mistake."""

import json
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvsim import cli, workloads
from kvsim.sim.errors import KvsimError
from kvsim.sim.workload import PS_PER_S, Beam
from kvsim.workloads.columns import FIELDS
from kvsim.workloads.lines import LONGEST_LINE

PLAIN = {"arrival_s": 0.5, "prompt_tokens": 9, "output_tokens": 4}
ANY_TEXT_OR_NUMBER = "a text or a whole number"
UNTIMED = [{"prompt_tokens": 9 + row, "output_tokens": 4 + row} for row in range(3)]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty directory for the files."""
    monkeypatch.chdir(tmp_path)


def lines(*rows):
    """A file of JSON lines: each a row, or text as it stands."""
    texts = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    Path("W.jsonl").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return "W.jsonl"


def parquet(*rows, **columns):
    table = pa.table(columns) if columns else pa.Table.from_pylist(list(rows))
    pq.write_table(table, "W.parquet")
    return "W.parquet"


def build(trace, **options):
    usual = {"num_prompts": None, "request_rate": None, "burstiness": None, "seed": 0}
    return workloads.build(trace, **usual | options)


def complaint(trace, **options):
    with pytest.raises(KvsimError) as error:
        build(trace, **options)
    return str(error.value)


# What the fields mean


@pytest.mark.parametrize("write", [lines, parquet])
def test_a_plain_trace_is_its_arrivals_and_lengths(write):
    workload = build(write(PLAIN, {"arrival_s": 2, "prompt_tokens": 1, "output_tokens": 7}))
    assert workload.name == "W"
    assert workload.arrival_ps.tolist() == [PS_PER_S // 2, 2 * PS_PER_S]
    assert workload.prompt_tokens.tolist() == [9, 1]
    assert workload.output_tokens.tolist() == [4, 7]
    assert workload.samples is workload.beam is workload.content is workload.priority is None
    assert workload.labels == {}
    assert workload.notes[0].startswith("2 requests of trace W.") and "own arrivals" in workload.notes[0]


def test_blank_lines_a_byte_order_mark_and_windows_ends_do_not_matter():
    Path("W.jsonl").write_bytes(b"\xef\xbb\xbf" + json.dumps(PLAIN).encode() + b"\r\n\r\n  \n" * 2)
    assert len(build("W.jsonl")) == 1


def test_a_line_has_a_most_length_whoever_reads_it():
    path = lines({**PLAIN, "note": "x" * LONGEST_LINE}, PLAIN)
    with pytest.raises(KvsimError, match=f"line 1: a line must have at most {LONGEST_LINE:,} characters"):
        workloads.load(path)


def test_numbers_that_are_whole_may_be_written_as_fractions():
    assert build(lines(PLAIN | {"prompt_tokens": 9.0, "n": 2.0})).prompt_tokens.tolist() == [9]


@pytest.mark.parametrize("write", [lines, parquet])
def test_rows_out_of_order_are_sorted_stably_and_a_note_says_so(write):
    rows = [PLAIN | {"arrival_s": at, "prompt_tokens": n} for n, at in enumerate([3.0, 1.0, 3.0, 1.0], 1)]
    workload = build(write(*rows))
    assert workload.prompt_tokens.tolist() == [2, 4, 1, 3]
    assert "sorted" in workload.notes[0]


def test_output_tokens_may_be_one_length_per_answer():
    rows = [PLAIN | {"output_tokens": [3, 8], "n": 2}, PLAIN, PLAIN | {"n": 3}]
    workload = build(lines(*rows))
    assert workload.output_tokens.tolist() == [8, 4, 4]
    assert workload.samples.offsets.tolist() == [0, 2, 3, 6]
    assert workload.samples.tokens.tolist() == [3, 8, 4, 4, 4, 4]
    assert workload.content == [((0, 0, 9),), (), ((2, 0, 9),)]


def test_n_is_for_the_rows_that_do_not_say():
    rows = [PLAIN | {"output_tokens": [3, 8]}, PLAIN, PLAIN | {"n": 1}]
    workload = build(lines(*rows), n=3)
    assert workload.samples.offsets.tolist() == [0, 2, 5, 6]
    assert workload.samples.tokens.tolist() == [3, 8, 4, 4, 4, 4]


def test_n_answers_share_their_prompt_whatever_the_trace():
    workload = build("sharegpt", num_prompts=3, n=2)
    assert workload.samples.counts.tolist() == [2, 2, 2]
    assert workload.content == [((row, 0, tokens),) for row, tokens in enumerate(workload.prompt_tokens)]


def test_a_beam_is_its_width_its_process_and_the_seed():
    assert build("sharegpt", num_prompts=3, beam_width=4, seed=7).beam == Beam(4, "replace:0.1", 7)


@pytest.mark.parametrize("write", [lines, parquet])
def test_segments_are_the_prompt_and_what_is_shared(write):
    rows = [
        {
            "arrival_s": 0.0,
            "output_tokens": 5,
            "segments": [{"id": "system", "tokens": 512}, {"id": i, "tokens": 80}],
        }
        for i in ("a", "b")
    ]
    if write is lines:
        for row in rows:
            row["segments"] = [[part["id"], part["tokens"]] for part in row["segments"]]
    workload = build(write(*rows))
    assert workload.prompt_tokens.tolist() == [592, 592]
    assert workload.content == [((0, 0, 512),)] * 2


@pytest.mark.parametrize("write", [lines, parquet])
def test_token_ids_are_the_prompt(write):
    rows = [{"output_tokens": 5, "prompt_token_ids": ids} for ids in ([7, 8, 9, 1], [7, 8, 3])]
    workload = build(write(*rows))
    assert workload.prompt_tokens.tolist() == [4, 3]
    assert workload.content == [((0, 7, 2),)] * 2


@pytest.mark.parametrize("write", [lines, parquet])
def test_a_session_shares_its_turns_and_keeps_its_labels(write):
    rows = [
        PLAIN | {"session": "s", "turn": 0, "client": 7},
        PLAIN | {"session": "s", "turn": 1, "client": 8},
    ]
    rows[1]["prompt_tokens"] = 20
    workload = build(write(*rows))
    assert workload.content == [((0, 0, 13),)] * 2
    assert {name: column.tolist() for name, column in workload.labels.items()} == {
        "session": ["s", "s"],
        "turn": [0, 1],
        "client": [7, 8],
    }


def test_an_id_is_the_same_as_a_number_and_as_text():
    rows = [{"output_tokens": 5, "segments": [[name, 4]]} for name in (1, "1")]
    assert build(lines(*rows)).content == [((0, 0, 4),)] * 2


def test_a_turn_without_a_number_counts_in_order_of_arrival():
    late = {"arrival_s": 9, "output_tokens": 4, "segments": [["a", 3]], "session": "s"}
    third = {"arrival_s": 10, "output_tokens": 4, "segments": [["a", 3], ["s/1", 4]]}
    contents = build(lines(late, late | {"arrival_s": 1}, third)).content
    assert [len(content) for content in contents] == [1, 2, 2]


@pytest.mark.parametrize("write", [lines, parquet])
def test_labels_and_priorities_may_have_gaps(write):
    workload = build(write(PLAIN | {"priority": -2, "turn": 3, "client": "c"}, PLAIN | {"client": None}))
    assert workload.priority.tolist() == [-2, 0]
    assert workload.labels["turn"].tolist() == [3, None]
    assert workload.labels["client"].tolist() == ["c", None]


def test_a_table_as_pandas_writes_it_has_fractions_for_gaps_and_an_index():
    table = pa.table({"prompt_tokens": [9.0, 8.0], "output_tokens": [1, 2], "n": [None, 2.0]})
    pq.write_table(table.append_column("__index_level_0__", pa.array([5, 3])), "W.parquet")
    assert build("W.parquet").samples.counts.tolist() == [1, 2]


def test_the_example_of_the_page_shares_what_the_page_says():
    page = (Path(cli.__file__).resolve().parent / "docs/traces.md").read_text(encoding="utf-8")
    Path("chat.jsonl").write_text(page.split("```json\n")[1].split("```")[0], encoding="utf-8")
    system, first = (0, 0, 512), (1, 0, 30 + 90)
    assert build("chat.jsonl").content == [(system, first), (system,), (system, first)]


# How many, and when


def test_a_trace_without_arrivals_comes_at_the_request_rate_and_may_be_drawn_from():
    workload = build(lines(*UNTIMED), request_rate=math.inf, num_prompts=50)
    assert not workload.arrival_ps.any()
    assert np.array_equal(workload.output_tokens, workload.prompt_tokens - 5)
    assert np.array_equal(
        build("W.jsonl").arrival_ps, build("sharegpt", num_prompts=3, request_rate=2.0).arrival_ps
    )


def test_fewer_prompts_are_the_first_to_arrive():
    rows = [PLAIN | {"arrival_s": at, "output_tokens": [at, 1], "session": at} for at in (3, 1, 2)]
    workload = build(lines(*rows), num_prompts=2)
    assert workload.output_tokens.tolist() == [1, 2]
    assert workload.samples.tokens.tolist() == [1, 1, 2, 1]
    assert workload.labels["session"].tolist() == [1, 2]


def test_a_row_drawn_twice_shares_what_has_a_name_and_nothing_else():
    named, own = UNTIMED[0] | {"session": "s"}, UNTIMED[0]
    assert build(lines(named), num_prompts=2).content == [((0, 0, 13),)] * 2
    assert build(lines(own), num_prompts=2).content is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"num_prompts": 3},
            "num_prompts must be at most 1, the requests of trace W, which have their own arrival times, "
            "got 3",
        ),
        ({"num_prompts": 0}, "num_prompts must be at least 1, got 0"),
        (
            {"request_rate": 2.0},
            "request_rate must be left out for trace W, which has its own arrivals (arrivals gamma draws "
            "others), got 2.0",
        ),
        (
            {"burstiness": 1.0},
            "burstiness must be left out for trace W, which has its own arrivals (arrivals gamma draws "
            "others), got 1.0",
        ),
        ({"n": 0}, "n must be a whole number from 1 to 64, got 0"),
        ({"n": 65}, "n must be a whole number from 1 to 64, got 65"),
        ({"beam_width": 0}, "beam_width must be a whole number from 1 to 64, got 0"),
        ({"beam_process": ""}, "beam_process must be a name, as in replace:0.1, got ''"),
        ({"n": 2, "beam_width": 2}, "n must be 1 with beam search (beam_width 2), got 2"),
    ],
)
def test_choices_that_exclude_each_other_are_named(options, message):
    assert complaint(lines(PLAIN), **options) == message


def test_several_answers_exclude_a_beam():
    expected = "beam_width must be 1 for trace W, in which some requests have several answers, got 2"
    assert complaint(lines(PLAIN | {"n": 2}), beam_width=2) == expected


# Mistakes

TOKENS = "a whole number of at least 1"
PAIRS = "segments must be a list of [id, tokens], with at least one, got"
MISTAKES = [
    ({"prompt_tokens": -4}, f"prompt_tokens must be {TOKENS}, got -4"),
    ({"prompt_tokens": 0}, f"prompt_tokens must be {TOKENS}, got 0"),
    ({"prompt_tokens": 1.5}, f"prompt_tokens must be {TOKENS}, got 1.5"),
    ({"prompt_tokens": True}, f"prompt_tokens must be {TOKENS}, got true"),
    ({"prompt_tokens": "9"}, f"prompt_tokens must be {TOKENS}, got '9'"),
    (
        {"prompt_tokens": 10**10},
        "prompt_tokens must be a whole number of at most 1,000,000,000, got 10000000000",
    ),
    (
        {"prompt_tokens": 10**30},
        f"prompt_tokens must be a whole number of at most 1,000,000,000, got {10**30}",
    ),
    ({"prompt_tokens": None}, "prompt_tokens must be there, or segments, or prompt_token_ids, got none"),
    ({"output_tokens": None}, "output_tokens must be there, got null"),
    ({"output_tokens": []}, "output_tokens must be there, got []"),
    ({"output_tokens": [3, 0]}, f"output_tokens must be {TOKENS}, got 0"),
    ({"output_tokens": [1] * 65}, "output_tokens must be at most 64 lengths, got 65"),
    ({"output_tokens": [3, 4], "n": 3}, "n must be the number of output_tokens, 2, got 3"),
    ({"n": 0}, f"n must be {TOKENS}, got 0"),
    ({"n": 65}, "n must be a whole number of at most 64, got 65"),
    ({"arrival_s": None}, "arrival_s must be there in all rows or in none, got none"),
    ({"arrival_s": -1}, "arrival_s must be at least 0 and at most 1e+15 seconds, got -1"),
    ({"arrival_s": 10**400}, "arrival_s must be at least 0 and at most 1e+15 seconds, got 1000~"),
    ({"arrival_s": "now"}, "arrival_s must be a number of seconds, got 'now'"),
    ({"arrival_s": False}, "arrival_s must be a number of seconds, got false"),
    ({"segments": [["a", 8]]}, "prompt_tokens must be 8, the sum of its segments, got 9"),
    ({"segments": []}, f"{PAIRS} []"),
    ({"segments": "a"}, f"{PAIRS} 'a'"),
    ({"segments": ["a"]}, f"{PAIRS} 'a' in it"),
    ({"segments": [["a", 8, 1]]}, f"{PAIRS} ['a', 8, 1] in it"),
    ({"segments": [["a", 0]]}, f"tokens of a segment must be {TOKENS}, got 0"),
    ({"segments": [[None, 9]]}, f"id of a segment must be {ANY_TEXT_OR_NUMBER}, got null"),
    (
        {"segments": [["a", 10**9], ["b", 1]]},
        "the sum of its segments must be at most 1,000,000,000, got 1000000001",
    ),
    ({"prompt_token_ids": [1, 2]}, "prompt_tokens must be 2, the number of its prompt_token_ids, got 9"),
    ({"prompt_token_ids": [-1]}, "a token id must be a whole number of at least 0, got -1"),
    ({"prompt_token_ids": 5}, "prompt_token_ids must be a list of whole numbers, with at least one, got 5"),
    ({"session": 1.5}, f"session must be {ANY_TEXT_OR_NUMBER}, got 1.5"),
    ({"session": [1]}, f"session must be {ANY_TEXT_OR_NUMBER}, got [1]"),
    ({"client": "\ud800"}, f"client must be {ANY_TEXT_OR_NUMBER}, without half characters, got '\\ud800'"),
    ({"turn": -1}, "turn must be a whole number of at least 0, got -1"),
    ({"priority": "high"}, "priority must be a whole number, got 'high'"),
    ({"priority": 2**63}, f"priority must be a whole number of at most {2**63 - 1:,}, got {2**63}"),
    ({"sesion": 3}, "field 'sesion' is unknown; did you mean 'session'? Rename it, or say --columns ~"),
]


@pytest.mark.parametrize(("wrong", "message"), MISTAKES, ids=lambda part: str(part)[:40])
def test_a_mistake_is_named_with_its_line(wrong, message):
    expected = f"trace W.jsonl, line 3: {message}"
    found = complaint(lines(PLAIN, "", PLAIN | wrong))
    assert found == expected if expected[-1] != "~" else found.startswith(expected[:-1])


def test_a_mistake_in_parquet_is_named_with_its_row():
    wrong = PLAIN | {"prompt_tokens": -4}
    assert (
        complaint(parquet(PLAIN, wrong)) == f"trace W.parquet, row 1: prompt_tokens must be {TOKENS}, got -4"
    )


def test_a_mistake_keeps_its_line_when_rows_are_sorted():
    found = complaint(lines(PLAIN | {"arrival_s": 9, "prompt_tokens": -4}, PLAIN))
    assert found.startswith("trace W.jsonl, line 1: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "trace W.jsonl must have at least one request, got none"),
        (b"\n \n", "trace W.jsonl must have at least one request, got none"),
        (
            b"{",
            "trace W.jsonl, line 1: not valid JSON: Expecting property name enclosed in double quotes at",
        ),
        (b"[1]", "trace W.jsonl, line 1: each line must be a JSON object, got a list"),
        (b'{"n": NaN}', "trace W.jsonl, line 1: not valid JSON: NaN is not JSON"),
        (b'{"n": -Infinity}', "trace W.jsonl, line 1: not valid JSON: -Infinity is not JSON"),
        (b'{"n": "\xff"}', "trace W.jsonl, line 1: not valid UTF-8: invalid start byte at byte 8"),
        (
            b'{"n": ' + b"[" * 100_000,
            "trace W.jsonl, line 1: not valid JSON: maximum recursion depth exceeded",
        ),
        (b'{"n": ' + b"1" * 5000, "trace W.jsonl, line 1: not valid JSON: Exceeds the limit (4300 digits)"),
        (b"PAR1 is no parquet file", "trace W.jsonl is damaged: "),
    ],
    ids=lambda part: str(part)[:30],
)
def test_a_file_that_is_no_trace_is_refused(text, message):
    Path("W.jsonl").write_bytes(text)
    assert complaint("W.jsonl").startswith(message)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"prompt_tokens": [True], "output_tokens": [1]},
            f", row 0: prompt_tokens must be {TOKENS}, got true",
        ),
        (
            {"prompt_tokens": [math.nan], "output_tokens": [1]},
            f", row 0: prompt_tokens must be {TOKENS}, got nan",
        ),
        (
            {"prompt_tokens": pa.array([0], pa.timestamp("s")), "output_tokens": [1]},
            ", row 0: prompt_tokens must be",
        ),
        (
            {"prompt_tokens": [b"x"], "output_tokens": [1]},
            f", row 0: prompt_tokens must be {TOKENS}, got b'x'",
        ),
        ({"prompt_tokens": pa.array([], pa.int64())}, " must have at least one request, got none"),
        ({"prompt": [1]}, ": one column must be output_tokens, by this or a usual name, got prompt: say"),
        ({"output_tokens": [1]}, ": one column must be prompt_tokens, by this or a usual name, got output_"),
        ({"prompt_tokens": [1], "output_token": [1]}, ": field 'output_token' is unknown; did you mean 'ou"),
    ],
    ids=lambda part: str(part)[:30],
)
def test_a_parquet_file_with_other_values_is_refused(columns, message):
    assert complaint(parquet(**columns)).startswith(f"trace W.parquet{message}")


def test_a_file_that_cannot_be_read_is_refused():
    assert complaint("none.jsonl") == "trace none.jsonl cannot be read: No such file or directory"
    assert complaint("./none") == "trace ./none cannot be read: No such file or directory"
    Path("folder").mkdir()
    assert complaint("folder") == (
        "trace folder is a directory, which must hold ServeGen's clients (*-trace.csv), sessions of agents "
        "(*.json) or a benchmark's result, got none of them"
    )


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.integers(1, 9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["id", "tokens"]), inner),
    max_leaves=4,
)
ROWS = st.dictionaries(st.sampled_from(FIELDS), VALUES | st.integers(1, 5))
CAREFUL = settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def loads_or_complains(content):
    Path("W.jsonl").write_bytes(content)
    try:
        build("W.jsonl")
    except KvsimError as error:
        assert "\n" not in str(error)
        str(error).encode()


@pytest.mark.slow
@given(st.binary(max_size=200))
@CAREFUL
def test_random_bytes_are_a_trace_or_one_line_of_complaint(content):
    loads_or_complains(content)


@pytest.mark.slow
@given(st.lists(ROWS, min_size=1, max_size=3))
@CAREFUL
def test_random_values_are_a_trace_or_one_line_of_complaint(rows):
    loads_or_complains("\n".join(json.dumps(PLAIN | row) for row in rows).encode())


@pytest.mark.slow
@given(st.data())
@CAREFUL
def test_a_damaged_trace_is_a_trace_or_one_line_of_complaint(data):
    content = bytearray(json.dumps(PLAIN | {"segments": [["a", 9]], "session": "s", "n": 2}).encode() * 2)
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    loads_or_complains(bytes(content))


@pytest.mark.slow
@given(st.data())
@CAREFUL
def test_a_damaged_parquet_file_is_a_trace_or_one_line_of_complaint(data):
    content = bytearray(Path(parquet(PLAIN, PLAIN)).read_bytes())
    content = content[: data.draw(st.integers(4, len(content)))]
    loads_or_complains(bytes(content))


# On the command line


def sim(*arguments):
    return cli.main([*arguments, "--no-plots", "--quiet"])


def test_a_run_of_a_file_is_named_after_it_and_repeats_from_its_config():
    assert sim("run", "--trace", lines(PLAIN | {"n": 2}, PLAIN)) == 0
    config = Path("runs/W-paged/config.json")
    chosen = json.loads(config.read_text())["workload"]
    assert chosen == {
        "trace": "W.jsonl",
        "num_prompts": 2,
        "shuffle": False,
        "tokenizer": None,
        "turns": "first",
        "columns": None,
        "start": 0.0,
        "duration": None,
        "input_len": None,
        "output_len": None,
        "shared_prefix": None,
        "clients_mix": None,
        "arrivals": "trace",
        "request_rate": None,
        "burstiness": None,
        "rate_scale": 1.0,
        "spread": 0.0,
        "clients": None,
        "think_time": None,
        "closed_sessions": False,
        "n": 1,
        "beam_width": 1,
        "beam_process": "replace:0.1",
        "seed": 0,
    }
    assert sim("run", "--config", str(config), "--out", "again") == 0
    assert Path("again/requests.parquet").read_bytes() == Path("runs/W-paged/requests.parquet").read_bytes()
    assert Path("again/config.json").read_bytes() == config.read_bytes()


def test_a_run_without_arrivals_names_the_usual_ones():
    assert sim("run", "--trace", lines(*UNTIMED), "--out", "out") == 0
    chosen = json.loads(Path("out/config.json").read_text())["workload"]
    assert (chosen["num_prompts"], chosen["request_rate"], chosen["burstiness"]) == (3, 2.0, 1.0)


def test_a_config_whose_file_is_gone_says_so(capsys):
    assert sim("run", "--trace", lines(PLAIN), "--out", "out") == 0
    Path("W.jsonl").unlink()
    assert sim("run", "--config", "out/config.json", "--out", "again") == 2
    assert capsys.readouterr().err == "error: trace W.jsonl cannot be read: No such file or directory\n"
