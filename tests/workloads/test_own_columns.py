"""Traffic of one's own: CSV, JSON lines and parquet, whatever its columns and units are."""

import csv
import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvsim import cli, workloads
from kvsim.sim.errors import KvsimError
from kvsim.workloads import load
from kvsim.workloads.columns import FIELDS, OURS, USUAL_NAMES, column_of, one_letter_off, parse_columns
from kvsim.workloads.convert import convert
from kvsim.workloads.formats import recognised

ROWS = [(0.5, 592, 80), (1.25, 17, 4), (1.25, 1000, 300)]
NAMES = ("arrival_s", "prompt_tokens", "output_tokens")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty directory for the files."""
    monkeypatch.chdir(tmp_path)


def table(names=NAMES, rows=ROWS, delimiter=",", path="log.csv"):
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter).writerows([names, *rows])
    Path(path).write_text(text.getvalue(), encoding="utf-8")
    return path


def lines(names=NAMES, rows=ROWS, path="log.jsonl"):
    Path(path).write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))
    return path


def parquet(names=NAMES, rows=ROWS, path="log.parquet"):
    pq.write_table(pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))), path)
    return path


def text(content, path="log.csv"):
    Path(path).write_text(content, encoding="utf-8")
    return path


def requests(lengths):
    return list(
        zip(
            lengths.arrival_s.tolist(),
            lengths.prompt_tokens.tolist(),
            lengths.output_tokens.tolist(),
            strict=True,
        )
    )


def complaint(path, columns=None):
    with pytest.raises(KvsimError) as error:
        load(path, columns=columns)
    assert "\n" not in str(error.value)
    return str(error.value)


WRITERS = pytest.mark.parametrize("write", [table, lines, parquet])


# Names


@WRITERS
def test_a_table_with_the_names_of_the_fields_is_a_trace(write):
    found = load(write())
    assert requests(found) == ROWS
    assert found.notes == ("3 requests of trace " + Path(write()).name + ", at its own arrivals.",)


@WRITERS
@pytest.mark.parametrize(
    "names",
    [
        ("arrival_time", "num_prompt_tokens", "num_output_tokens"),
        ("Arrival Time", "Prompt Tokens", "Completion Tokens"),
        ("arrivalTime", "inputTokens", "outputTokens"),
        ("ts", "isl", "osl"),
        ("arrived_at", "prompt_len", "output_len"),
        ("start-time", "context_tokens", "generated_tokens"),
    ],
)
def test_usual_names_are_known_and_a_note_says_what_was_read_as_what(write, names):
    found = load(write(names))
    assert requests(found) == ROWS
    time, prompt, output = names
    assert found.notes[1:] == (
        f"Read by other names: {time} as arrivals in seconds, {prompt} as prompt_tokens, "
        f"{output} as output_tokens.",
    )


def test_every_usual_name_is_known_for_its_field_alone():
    for field, names in USUAL_NAMES.items():
        assert {column_of(name, {}).field for name in names} == {field}
        assert {column_of(name.upper().replace("_", " "), {}).field for name in names} == {field}
    assert {column_of(name, {}).field for name in FIELDS} == set(FIELDS)
    assert all(column_of(name, {}) is None for name in ("session_id", "id", "total_tokens", "model", ""))


@WRITERS
def test_the_user_may_say_what_columns_are_called_and_it_goes_before_all_other_names(write):
    names = ("t", "prompt_tokens", "isl", "a")
    rows = [(1.5, 7, 592, 80), (2.5, 8, 17, 4)]
    found = load(write(names, rows), columns="arrival_s=t, prompt_tokens=isl,output_tokens=a")
    assert requests(found) == [(1.5, 592, 80), (2.5, 17, 4)]
    assert "Fields that were not read: prompt_tokens." in found.notes


@WRITERS
def test_other_fields_are_not_read_and_a_note_names_them(write):
    rows = [(*row, "gpt", 5) for row in ROWS]
    found = load(write((*NAMES, "model", "total_tokens"), rows))
    assert requests(found) == ROWS
    assert found.notes[1:] == ("Fields that were not read: model, total_tokens.",)


@WRITERS
def test_a_field_by_its_own_name_goes_before_a_usual_one(write):
    found = load(write((*NAMES, "input_tokens"), [(*row, 1) for row in ROWS]))
    assert requests(found) == ROWS
    assert found.notes[1:] == ("Fields that were not read: input_tokens.",)


@WRITERS
def test_two_usual_names_for_one_field_need_a_choice(write):
    path = write(("created_at", "start_time", *NAMES[1:]), [(1, *row) for row in ROWS])
    assert complaint(path).endswith(
        "arrival_s may be created_at, start_time: say which with --columns arrival_s=created_at "
        "or --columns arrival_s=start_time"
    )
    assert load(path, columns="arrival_s=start_time").arrival_s.tolist() == [0.5, 1.25, 1.25]


@WRITERS
@pytest.mark.parametrize(
    ("slip", "meant"),
    [
        ("arival_s", "arrival_s"),
        ("promt_tokens", "prompt_tokens"),
        ("timestmap", "timestamp"),
        ("turns", "turn"),
    ],
)
def test_a_slip_in_the_name_of_a_field_that_is_missing_is_an_error(write, slip, meant):
    names = {"arival_s": (slip, *NAMES[1:]), "promt_tokens": (NAMES[0], slip, NAMES[2])}.get(
        slip, (slip, *NAMES[1:])
    )
    found = complaint(write(names))
    assert f"field {slip!r} is unknown; did you mean {meant!r}? Rename it, or say --columns " in found


def test_one_letter_missing_added_changed_or_swapped_is_a_slip_and_more_is_not():
    for name in ("sesion", "sessions", "sassion", "sesison"):
        assert one_letter_off(name, "session") and one_letter_off("session", name)
    for name in ("session", "sesio", "mission", "noisses"):
        assert not one_letter_off(name, "session")
    assert not one_letter_off("isl", "osl")


# Arrivals


UNITS = {"s": 1, "seconds": 1, "ms": 10**3, "millis": 10**3, "us": 10**6, "ns": 10**9, "nanoseconds": 10**9}


@WRITERS
@pytest.mark.parametrize("unit", UNITS)
def test_the_name_of_arrivals_may_say_their_unit(write, unit):
    rows = [(round(arrival * UNITS[unit], 3), *lengths) for arrival, *lengths in ROWS]
    for base in ("timestamp", "arrival", "ts"):
        assert requests(load(write((f"{base}_{unit}", *NAMES[1:]), rows))) == ROWS
    assert requests(load(write((f"Timestamp ({unit})", *NAMES[1:]), rows))) == ROWS


@WRITERS
def test_the_user_may_say_the_unit(write):
    path = write(("when", *NAMES[1:]), [(500, 592, 80), (1250, 17, 4)])
    assert load(path, columns="arrival_ms=when").arrival_s.tolist() == [0.5, 1.25]
    assert load(path, columns="arrival_s=when").arrival_s.tolist() == [500, 1250]
    found = load(write(NAMES, [(500, 592, 80), (1250, 17, 4)]), columns="arrival_ms=arrival_s")
    assert found.arrival_s.tolist() == [0.5, 1.25]
    assert found.notes[1] == "Read by other names: arrival_s as arrivals in milliseconds."


@WRITERS
@pytest.mark.parametrize(("name", "per_second"), [("timestamp", 1), ("timestamp_ms", 1000), ("ts_ns", 10**9)])
def test_times_since_1970_count_from_the_earliest(write, name, per_second):
    first = 1_731_000_000 * per_second
    rows = [(first + per_second // 4 if per_second > 1 else first + 1, 5, 6), (first, 7, 8)]
    found = load(write((name, *NAMES[1:]), rows))
    assert requests(found) == [(0.0, 7, 8), (0.25 if per_second > 1 else 1.0, 5, 6)]
    assert "Arrivals count from the earliest row." in found.notes


@pytest.mark.parametrize("write", [table, lines])
@pytest.mark.parametrize(
    "moments",
    [
        ("2024-05-12 00:00:01.25", "2024-05-12 00:00:00"),
        ("2024-05-12T00:00:01.250000Z", "2024-05-12T00:00:00Z"),
        ("2024-05-12 02:00:01.25+02:00", "2024-05-12 00:00:00+00:00"),
    ],
)
def test_dates_count_from_the_earliest(write, moments):
    found = load(write(("created_at", *NAMES[1:]), [(moments[0], 5, 6), (moments[1], 7, 8)]))
    assert requests(found) == [(0.0, 7, 8), (1.25, 5, 6)]
    assert found.notes[1:] == (
        "Read by other names: created_at as arrivals.",
        "Arrivals count from the earliest row.",
    )


def test_a_column_of_times_in_parquet_counts_from_the_earliest():
    first = datetime(2024, 5, 12, tzinfo=UTC)
    times = [first + timedelta(seconds=1.25), first]
    for kind in (pa.timestamp("us"), pa.timestamp("ns", "UTC"), pa.timestamp("ms", "Europe/Berlin")):
        columns = {"timestamp": pa.array(times).cast(kind), "isl": [5, 7], "osl": [6, 8]}
        pq.write_table(pa.table(columns), "log.parquet")
        assert requests(load("log.parquet")) == [(0.0, 7, 8), (1.25, 5, 6)]


@WRITERS
@pytest.mark.parametrize("name", ["timestamp", "arrival_s"])
def test_milliseconds_since_1970_without_their_unit_are_refused_with_advice(write, name):
    found = complaint(write((name, *NAMES[1:]), [(1_731_000_000_250, 5, 6)]))
    assert found.endswith(
        f"{name} must be in seconds unless its name says the unit, as timestamp_ms does (or: --columns "
        f"arrival_ms={name}), got 1731000000250"
    )


def test_what_comes_after_the_clock_ends_is_left_out_of_a_run_as_in_public_formats():
    path = table(rows=[(0, 5, 6), (10**7, 7, 8)])
    workload = workloads.build(path, num_prompts=None, request_rate=None, burstiness=None, seed=0)
    assert len(workload) == 1 and any("1 request left out: arrival too late" in n for n in workload.notes)


# CSV


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_csv_may_have_semicolons_or_tabs_a_byte_order_mark_and_windows_ends(delimiter):
    path = table(delimiter=delimiter)
    Path(path).write_bytes(
        b"\xef\xbb\xbf" + Path(path).read_bytes().replace(b"\r\n", b"\n").replace(b"\n", b"\r\n\r\n")
    )
    assert recognised(path) == "kvsim in CSV"
    assert requests(load(path)) == ROWS


def test_csv_without_arrivals_is_a_trace_without_them():
    found = load(table(NAMES[1:], [row[1:] for row in ROWS]))
    assert found.arrival_s is None
    assert found.notes == ("3 requests of trace log.csv, which has no arrivals.",)


def test_csv_may_have_every_field_that_is_no_list():
    rows = [(0.5, 9, 4, 2, "a", 0, -1, "x, y"), (0.75, 9, 4, 1, "", "", "", "")]
    found = load(table((*NAMES, "n", "session", "turn", "priority", "client"), rows))
    assert found.samples.counts.tolist() == [2, 1]
    assert found.priority.tolist() == [-1, 0]
    assert {name: column.tolist() for name, column in found.labels.items()} == {
        "session": ["a", None],
        "turn": [0, None],
        "client": ["x, y", None],
    }


def test_rows_of_csv_that_are_no_requests_are_left_out_and_counted():
    rows = [
        *ROWS,
        (2, 5, 0),
        (2, 0, 5),
        (3, "", 5),
        (3, 5, "NaN"),
        ("", 5, 5),
        (4, -1, 5),
        (-1, 5, 5),
        (5, 5, 0),
    ]
    found = load(table(rows=rows))
    assert requests(found) == ROWS
    assert found.notes[1:] == (
        "1 row left out: prompt length missing.",
        "1 row left out: negative prompt length.",
        "1 row left out: prompt of 0 tokens.",
        "1 row left out: output length missing.",
        "2 rows left out: output of 0 tokens.",
        "1 row left out: arrival missing.",
        "1 row left out: arrival before 0.",
    )
    assert complaint(table(rows=[(1, 5, 0)])).endswith("got none (1 row left out: output of 0 tokens)")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("isl,osl\n5,6\n5,x\n", "line 3: column osl: must be a whole number, got 'x'"),
        (
            "isl,osl\n5,6\n\n5,6.5\n",
            "line 4: osl (output_tokens) must be a whole number of at least 1",
        ),
        ("isl,osl\n5,6\n5\n", "line 3: must have 2 values, as many as line 1 has names, got 1"),
        ("isl,osl,osl\n5,6,7\n", "line 1: column 'osl' must be there once, got 2"),
        ("ts,isl,osl\n1,5,6\nnow,5,6\n", "line 3: column ts: must be a number, got 'now'"),
        ("ts,isl,osl\nnow,5,6\n", "line 2: ts (arrival_s) must be a number of seconds, got 'now'"),
        (
            "ts,isl,osl\n2024-05-12,5,6\nnow,5,6\n",
            "line 3: ts must be a date and time, as 2024-05-12",
        ),
        (
            "ts,isl\n1,5\n",
            "line 1: one column must be output_tokens, by this or a usual name, got ts, isl: say",
        ),
        (
            "segments,osl\n1,5\n",
            "line 1: segments cannot be in CSV, which has no lists: use",
        ),
        ("isl,osl\n", " must have at least one request, got none"),
        ("isl,osl\n5,1_000\n", "line 2: column osl: must be a whole number, got '1_000'"),
        ('isl,osl\n"5,6\n', "line 2: must have 2 values"),
    ],
)
def test_a_mistake_in_csv_is_named_with_its_line_and_what_was_expected(content, message):
    found = complaint(text(content))
    assert found.startswith(f"trace log.csv{'' if message[0] == ' ' else ', '}{message}")


def test_odd_names_are_told_on_one_line_of_whole_characters():
    for name in ("\ud83d isl", "isl\n", "isl" + " " * 200):
        found = load(lines((NAMES[0], name, "x\ud83d\n", NAMES[2]), [(0.5, 592, 1, 80)]))
        for note in found.notes:
            assert "\n" not in note and len(note) < 200
            note.encode()
        assert found.prompt_tokens.tolist() == [592]


# What --columns says


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("isl", "columns must be OURS=THEIRS,..., as in prompt_tokens=isl, got 'isl'"),
        ("", "columns must be OURS=THEIRS,..., as in prompt_tokens=isl, got ''"),
        (
            "isl=prompt_tokens",
            "columns must be OURS=THEIRS, got isl=prompt_tokens; did you mean pro",
        ),
        ("promt_tokens=isl", "columns: field 'promt_tokens' is unknown; did you mean 'prompt_tokens'?"),
        ("prompt_tokens=isl,prompt_tokens=x", "columns must name each field and each column once, got "),
        ("prompt_tokens=isl,output_tokens=isl", "columns must name each field and each column once, got "),
        ("arrival_s=a,arrival_ms=b", "columns must name each field and each column once, got "),
    ],
)
def test_another_form_is_refused(columns, message):
    with pytest.raises(KvsimError) as error:
        parse_columns(columns)
    assert str(error.value).startswith(message)


def test_every_field_may_be_named():
    for ours in OURS:
        (column,) = parse_columns(f"{ours}=x").values()
        assert column.field == ours or (column.field == "arrival_s" and ours.startswith("arrival_"))


@WRITERS
def test_a_column_that_is_not_there_is_named_with_those_that_are(write):
    found = complaint(write(), columns="prompt_tokens=isl")
    assert found.endswith(
        "columns names 'isl', which is not there (there are: arrival_s, prompt_tokens, output_tokens)"
    )


def test_it_makes_a_file_of_a_public_format_ones_own():
    path = lines(("timestamp", "input_length", "output_length"), [(500, 5, 6), (1500, 7, 8)])
    assert load(path).arrival_s.tolist() == [0.5, 1.5]  # Mooncake's milliseconds
    assert load(path, columns="arrival_s=timestamp").arrival_s.tolist() == [500, 1500]
    azure = text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n", "azure.csv")
    assert load(azure, columns="output_tokens=ContextTokens,prompt_tokens=GeneratedTokens").prompt_tokens == [
        44
    ]


def test_it_is_for_files_alone():
    with pytest.raises(KvsimError, match=r"columns must be left out for trace sharegpt, which is no file"):
        load("sharegpt", columns="prompt_tokens=isl")


# Everywhere


@WRITERS
@pytest.mark.parametrize("out", ["out.jsonl", "out.parquet"])
def test_a_converted_file_has_kvsims_names_and_seconds(write, out):
    path = write(
        ("when", "isl", "osl", "model"), [(1_731_000_000_500, 5, 6, "m"), (1_731_000_000_000, 7, 8, "m")]
    )
    columns = "arrival_ms=when"
    notes = convert(path, out, columns=columns).notes
    assert "Fields that were not read: model." in notes
    found, again = load(path, columns=columns), load(out)
    assert requests(found) == requests(again) == [(0.0, 7, 8), (0.5, 5, 6)]
    assert len(again.notes) == 1


def test_the_command_line_takes_it_in_runs_and_in_traces(capsys):
    path = table(("t", "q", "a", "model"), [(k, 100 + k, 10, "m") for k in range(20)])
    columns = "arrival_s=t,prompt_tokens=q,output_tokens=a"
    words = ["run", "--trace", path, "--columns", columns, "--no-plots", "-q", "--out"]
    assert cli.main([*words, "one"]) == 0
    config = json.loads(Path("one/config.json").read_text())
    assert config["workload"]["columns"] == columns
    notes = json.loads(Path("one/summary.json").read_text())["notes"]
    assert "Fields that were not read: model." in notes
    assert cli.main(["run", "--config", "one/config.json", "--no-plots", "-q", "--out", "two"]) == 0
    assert Path("one/requests.parquet").read_bytes() == Path("two/requests.parquet").read_bytes()
    assert cli.main(["traces", "show", path, "--columns", columns]) == 0
    assert "Fields that were not read: model." in capsys.readouterr().out
    assert cli.main(["traces", "convert", path, "out.jsonl", "--columns", columns]) == 0
    assert np.array_equal(load("out.jsonl").prompt_tokens, np.arange(100, 120))
    assert cli.main(["run", "--trace", path, "--columns", "q=prompt_tokens"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_config_from_before_there_were_columns_still_reads():
    path = table(rows=[(k, 100, 10) for k in range(3)])
    assert cli.main(["run", "--trace", path, "--no-plots", "-q", "--out", "one"]) == 0
    config = json.loads(Path("one/config.json").read_text())
    del config["workload"]["columns"], config["scenario"]["model"]["hub_name"]
    Path("old.json").write_text(json.dumps(config))
    assert cli.main(["run", "--config", "old.json", "--no-plots", "-q", "--out", "two"]) == 0
    assert Path("one/config.json").read_bytes() == Path("two/config.json").read_bytes()
