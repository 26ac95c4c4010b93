"""Whatever stands in a file, it is a trace or one line of complaint: random, cut off and mutated files.

3,000 small files, of every format; a loader that takes seconds for one fails by hypothesis's deadline.
"""

import json
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.trace_files import BAILIAN, CHATS, HASHED, TABLES, TEXTS

from kvsim.sim.errors import KvsimError
from kvsim.workloads import build
from kvsim.workloads.delimited import _cell_by_cell, _well_formed
from kvsim.workloads.formats import FORMATS, load_file, recognised
from kvsim.workloads.rows import read_rows

pytestmark = pytest.mark.slow

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.integers() | st.text(max_size=1), max_size=3),
    st.dictionaries(st.sampled_from(["from", "value"]), st.text(max_size=2), max_size=2),
)
PIECES = st.sampled_from(
    [
        b'"',
        b",",
        b"\n",
        b"\r",
        b"[",
        b"]",
        b"{",
        b"}",
        b":",
        b"-",
        b"e9",
        b".",
        b"\\ud83d",
        b"\\",
        b"\xff",
        b"\x00",
    ]
) | st.binary(max_size=3)


def careful(cases):
    return settings(
        max_examples=cases,
        deadline=5000,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty directory for the files."""
    monkeypatch.chdir(tmp_path)


def loads_or_complains(content):
    """Both ways of reading texts, where it holds any."""
    Path("trace").unlink(missing_ok=True)  # a file that is written over is first written out to the disk
    Path("trace").write_bytes(content)
    for turns in ("first", "all"):
        try:
            found = load_file("trace", count=len, turns=turns)
            build(found, num_prompts=None, request_rate=None, burstiness=None, seed=0)
        except KvsimError as error:
            assert "\n" not in str(error)
            str(error).encode()
        else:
            assert min(found.prompt_tokens.min(), found.output_tokens.min()) >= 1
            assert all("\n" not in note for note in found.notes)
        if not content.lstrip().startswith((b"[", b"{")):
            return


@st.composite
def mutated(draw, contents):
    """A file, with some bytes replaced, left out or doubled, and its end perhaps cut off."""
    content = bytearray(draw(st.sampled_from(contents)))
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(content)))
        end = min(start + draw(st.integers(0, 12)), len(content))
        content[start:end] = draw(PIECES | st.just(bytes(content[start:end] * 2)))
    if draw(st.booleans()):
        del content[draw(st.integers(0, len(content))) :]
    return bytes(content)


def parquet(columns):
    """The bytes of a table."""
    sink = pa.BufferOutputStream()
    lengths = {"prompt_tokens": [700, 9], "output_tokens": [4, 5]}
    pq.write_table(pa.table(lengths | columns), sink)
    return sink.getvalue().to_pybytes()


def test_every_format_is_fuzzed():
    for name, text in TEXTS.items():
        with open(name, "w") as file:
            file.write(text)
        assert recognised(name) == name.removesuffix(" 2024").removesuffix(" 2")
    assert FORMATS.keys() <= TEXTS.keys() | TABLES.keys()


@given(
    st.sampled_from(
        [b"", b"[{", b"{", b"PAR1", *(text.partition("\n")[0].encode() + b"\n" for text in TEXTS.values())]
    ),
    st.binary(max_size=100),
)
@careful(300)
def test_random_bytes(beginning, content):
    loads_or_complains(beginning + content)


@pytest.mark.parametrize("name", TEXTS)
def test_mutations_of_texts(name):
    @given(mutated([TEXTS[name].encode()]))
    @careful(150)
    def check(content):
        loads_or_complains(content)

    check()


@given(mutated([parquet(columns) for columns in TABLES.values()]))
@careful(300)
def test_mutations_of_tables(content):
    loads_or_complains(content)


@given(
    st.sampled_from([HASHED, BAILIAN, CHATS[0]]),
    st.lists(st.tuples(st.sampled_from([*BAILIAN, "id", "conversations"]), VALUES), min_size=1, max_size=3),
)
@careful(300)
def test_random_values_in_json(row, changes):
    try:
        content = f"{json.dumps(row)}\n{json.dumps(row | dict(changes))}\n".encode()
    except UnicodeEncodeError:
        return
    loads_or_complains(content)


CELLS = st.sampled_from(
    ["", "5", " 5", "5.0", "-3", "1e2", "nan", "null", "inf", "1_0", "x", '"7"', "+4", "0x1", "٣"]
)
TIMES = st.sampled_from(
    """2024-05-12 00:00:00, 2024-05-12T00:00:01.5, 2024-05-12 00:00:02.1234567+00:00, 2024-05-12 00:00:03Z,
    2024-05-12 01:00:00+01:00, 2024-05-12 00:00:04.123456789, 1500-01-01 00:00:00, 2024-05-12,
    2024-05-12 03:04, 2024-05-12 05, 2024-13-12, x, NaT, """.replace("\n    ", " ").split(", ")
)


@given(st.lists(st.tuples(TIMES, CELLS, CELLS), min_size=1, max_size=4))
@careful(300)
def test_the_fast_reader_reads_nothing_that_the_careful_one_reads_otherwise(rows):
    kinds = {"when": "time", "tokens": "tokens", "seconds": "seconds"}
    Path("trace").unlink(missing_ok=True)
    Path("trace").write_text("when,tokens,seconds\n" + "".join(",".join(row) + "\n" for row in rows))
    for zone in (None, "UTC"):
        fast = _well_formed("trace", list(kinds), 1, kinds, zone)
        if fast is not None:
            slow = _cell_by_cell("trace", kinds)
            assert {name: column.tobytes() for name, column in fast.items()} == {
                name: column.tobytes() for name, column in slow.items()
            }


@given(
    st.sampled_from(list(TABLES)),
    st.sampled_from(["prompt_tokens", "hash_ids", "conversation_id", "turn", "client", "arrival_s"]),
    st.lists(VALUES, min_size=2, max_size=2),
)
@careful(300)
def test_random_values_in_tables(name, column, values):
    try:
        content = parquet(TABLES[name] | {column: values})
    except (pa.ArrowException, UnicodeEncodeError, OverflowError):
        return
    loads_or_complains(content)


LIKE_DATES = st.sampled_from(["2026-11-27", "12:00:00", "2026-11-27 12:00:00", "1", "", "a"])
NUMBERS = st.integers(-3, 3) | st.floats(-3, 3, allow_nan=False) | st.integers(2**53, 2**80)
GIVEN = st.sampled_from([True, True, True, False])
ALIKE = st.sampled_from([st.integers(-9, 9), NUMBERS, LIKE_DATES, st.lists(NUMBERS, max_size=2), VALUES])


@careful(400)
@given(st.data())
def test_the_quick_pass_over_json_lines_finds_what_the_slow_one_does(tmp_path, data):
    """Columns of one kind, with gaps, sometimes broken by a piece of something else."""
    names = data.draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=4))
    kinds = [(name, data.draw(ALIKE)) for name in names]
    rows = [
        "{"
        + ", ".join(f'"{name}": {json.dumps(data.draw(kind))}' for name, kind in kinds if data.draw(GIVEN))
        + "}"
        for _ in range(data.draw(st.integers(1, 4)))
    ]
    text = data.draw(st.sampled_from(["\n", "\n", "\r\n", "\n\n", ""])).join(rows).encode()
    at = data.draw(st.integers(0, len(text)))
    path = tmp_path / "log.jsonl"
    path.write_bytes(text[:at] + data.draw(st.just(b"") | st.just(b"") | PIECES) + text[at:])
    quick = slow = None
    with suppress(KvsimError):
        slow = read_rows(str(path), lambda name: name != "c")
    with suppress(KvsimError):
        quick = read_rows(str(path), lambda name: name != "c", quick=True)
    assert (quick is None) == (slow is None)
    if quick and slow:
        assert (quick.columns, list(quick.numbers)) == (slow.columns, list(slow.numbers))
        assert list(quick.places) == list(slow.places)
