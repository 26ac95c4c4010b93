"""Facts about the loaders of others' traces: what is read, what is left out, what is said of mistakes."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.shared_data import shared

from kvsim import cli, workloads
from kvsim.sim.errors import KvsimError
from kvsim.sim.workload import LATEST_ARRIVAL_S, PS_PER_S
from kvsim.workloads.delimited import _cell_by_cell, read_csv
from kvsim.workloads.formats import FORMATS, load_file, recognised
from kvsim.workloads.json_stream import WINDOW, ObjectStream
from kvsim.workloads.lengths import Lengths

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty directory for the files."""
    monkeypatch.chdir(tmp_path)


def write(text, name="trace"):
    """A file, whose name says nothing."""
    Path(name).write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    return name


def lines(*rows):
    return write("".join(f"{json.dumps(row)}\n" for row in rows))


def original(name):
    return str(shared(f"data/formats/{name}"))


def twin(name):
    return str(shared(f"data/traces/{name}.parquet"))


def build(trace):
    return workloads.build(trace, num_prompts=None, request_rate=None, burstiness=None, seed=0)


def complaint(path, **options):
    with pytest.raises(KvsimError) as error:
        load_file(path, **options)
    return str(error.value)


def words(text):
    return len(text.split())


def requests(lengths):
    """Arrival, prompt and output of each row."""
    arrivals = [None] * len(lengths) if lengths.arrival_s is None else lengths.arrival_s.tolist()
    return list(zip(arrivals, lengths.prompt_tokens.tolist(), lengths.output_tokens.tolist(), strict=True))


# Recognised by content


ORIGINALS = {
    "azure2023_code_head199.csv": "Azure",
    "azure2023_conv_head199.csv": "Azure",
    "azure2024_rows_from_notebook.csv": "Azure",
    "bailian_rows_from_docs.jsonl": "Bailian",
    "burstgpt_v1_rows_from_docs.csv": "BurstGPT",
    "burstgpt_v2_rows_from_docs.csv": "BurstGPT",
    "mooncake_conversation_head200.jsonl": "Mooncake",
    "mooncake_synthetic_head200.jsonl": "Mooncake",
    "sharegpt_format_synthetic_text.json": "ShareGPT",
    "sharegpt_format_synthetic_text_TRUNCATED.json": "ShareGPT",
}


def test_every_original_is_in_this_list():
    assert {path.name for path in shared("data/formats").iterdir()} == ORIGINALS.keys()


@pytest.mark.parametrize("name", ORIGINALS)
def test_a_format_is_recognised_whatever_the_name(name):
    content = Path(original(name)).read_bytes()
    assert (
        recognised(write(content))
        == recognised(write(b"\xef\xbb\xbf" + content, "x.parquet"))
        == ORIGINALS[name]
    )


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n", "Vidur"),
        (
            "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size\r\n",
            "Splitwise",
        ),
        ('{"prompt_tokens": 3, "output_tokens": 4}\n', "kvsim"),
        ('{"id": "a", "conversations": []}\n', "ShareGPT"),
        (
            '{"timestamp": 0, "input_length": 9, "output_length": 4, "hash_ids": [' + "1, " * 400_000,
            "Mooncake",
        ),
        ("[", "ShareGPT"),
        ("[1]", "kvsim"),
        ("", "kvsim"),
    ],
)
def test_the_beginning_is_enough(text, form):
    assert recognised(write(text)) == form


def test_every_format_can_be_recognised_and_its_loader_be_imported():
    for name, form in FORMATS.items():
        module, function = form.loader.split(":")
        assert callable(getattr(__import__(f"kvsim.workloads.{module}", fromlist=[function]), function)), name


def test_the_page_on_traces_has_a_row_for_every_format():
    page = (Path(cli.__file__).resolve().parent / "docs/traces.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w[^|]*?) \|", page.split("## Public formats")[1], flags=re.MULTILINE)
    for name in FORMATS:
        assert any(row.startswith(re.sub(" in .*", "", name)) for row in rows), name


def test_a_table_of_other_columns_is_refused_with_those_that_are_there():
    found = complaint(write("a,b\n1,2\n"))
    assert found == (
        "trace trace, line 1: one column must be output_tokens, by this or a usual name, got a, b: "
        "say which with --columns output_tokens=NAME"
    )


# The rows of the originals


@pytest.mark.parametrize(
    ("name", "other", "rows"),
    [
        ("azure2023_code_head199.csv", "azure2023_code", 199),
        ("azure2023_conv_head199.csv", "azure2023_conv", 199),
        ("mooncake_conversation_head200.jsonl", "mooncake_conversation", 200),
        ("mooncake_synthetic_head200.jsonl", "mooncake_synthetic", 200),
    ],
)
def test_originals_have_the_rows_of_their_parquet_twins(name, other, rows):
    found, expected = load_file(original(name)), load_file(twin(other))
    expected = expected.rows(np.arange(rows))
    assert len(found) == rows
    assert np.array_equal(found.prompt_tokens, expected.prompt_tokens)
    assert np.array_equal(found.output_tokens, expected.output_tokens)
    assert np.abs(found.arrival_s - expected.arrival_s).max() < 1e-9
    assert (found.texts is None) == (expected.texts is None) == name.startswith("azure")
    if found.texts is not None:
        for column in ("offsets", "streams", "firsts", "lengths"):
            assert np.array_equal(getattr(found.texts, column), getattr(expected.texts, column))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "azure2024_rows_from_notebook.csv",
            [
                (0.0, 1452, 3),
                (0.04052, 584, 3),
                (0.156825, 862, 38),
                (0.157769, 1569, 3),
                (0.247116, 617, 104),
            ],
        ),
        ("burstgpt_v1_rows_from_docs.csv", [(0.0, 472, 18), (40.0, 1087, 230), (113.0, 417, 276)]),
        (
            "burstgpt_v2_rows_from_docs.csv",
            [(0.0, 906, 446), (51.0, 36, 29), (82.0, 1779, 123), (144.0, 935, 178)],
        ),
        ("bailian_rows_from_docs.jsonl", [(0.0, 502, 1494), (61.114, 521, 132), (62.5, 400, 80)]),
    ],
)
def test_rows_quoted_in_documents_load_as_they_stand(name, expected):
    assert requests(load_file(original(name))) == expected


def test_vidur_has_arrivals_or_none():
    untimed = load_file(
        write("num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n3772,54,3826,69.8\n")
    )
    assert requests(untimed) == [(None, 3772, 54)]
    timed = load_file(write("arrived_at,num_prefill_tokens,num_decode_tokens\n2.5,7,8\n0.5,3,4\n"))
    assert requests(timed) == [(0.5, 3, 4), (2.5, 7, 8)]
    assert timed.notes == (
        "2 requests of trace trace (Vidur), at its own arrivals, by which its rows were sorted.",
    )


def test_splitwise_counts_from_0():
    header = "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size\n"
    assert requests(load_file(write(header + "0,2,0,0.75,1,374,44\n"))) == [(0.75, 374, 44)]


def test_a_time_may_lack_its_fraction_and_zones_count():
    text = "2024-05-12 01:00:00+01:00,5,6\n2024-05-12 00:00:01.5Z,7,8\n2024-05-12 00:00:03+00:00,9,1\n"
    assert requests(load_file(write(AZURE + text))) == [(0.0, 5, 6), (1.5, 7, 8), (3.0, 9, 1)]


# The statistics of the compact traces


README_ROW = re.compile(r"^\| (\w+)\.parquet \| (\d+) / (\d+) / (\d+) \|", re.MULTILINE)
README_FIVE = r"\| ([\d.]+) \| ([\d.]+) \|[^|]+\|[^|]+\| ([\d.]+) "
README_MEANS = re.compile(rf"^\| (\w+) {README_FIVE}{README_FIVE}\|", re.MULTILINE)


@pytest.mark.slow
def test_compact_traces_have_the_rows_and_about_the_means_of_the_whole():
    text = shared("data/traces/README.md").read_text()
    rows = {name: int(here) for name, here, *_ in README_ROW.findall(text)}
    whole = {name: list(map(float, numbers)) for name, *numbers in README_MEANS.findall(text)}
    assert rows.keys() == whole.keys() == {path.stem for path in shared("data/traces").glob("*.parquet")}
    for name, count in rows.items():
        found, table = load_file(twin(name)), pq.read_table(twin(name))
        prompts = table["prompt_tokens"].to_numpy()
        in_mean, _, in_max, out_mean, _, out_max = whole[name]
        assert len(found) == table.num_rows == count
        assert np.array_equal(found.output_tokens, table["output_tokens"].to_numpy())
        if "conversation_id" not in table.column_names:
            assert np.array_equal(found.prompt_tokens, prompts)
        # Slices: no more than the whole, and near it. Of Mooncake's synthetic trace the kept part differs.
        assert prompts.max() <= in_max and found.output_tokens.max() <= out_max
        near = 0.25 if name == "mooncake_synthetic" else 0.08
        assert prompts.mean() == pytest.approx(in_mean, rel=near), name
        assert found.output_tokens.mean() == pytest.approx(out_mean, rel=near), name
        assert (found.arrival_s is None) == (table["arrival_s"].null_count == count)
        if found.arrival_s is not None:
            assert np.array_equal(found.arrival_s, table["arrival_s"].to_numpy())


README_FIGURES = re.compile(r"^\| (\w+) " + r"\| ([0-9.]+) " * 10 + r"\|", re.MULTILINE)


def possible(slice_, figures, whole):
    """What contradicts that a slice of `whole` values comes from (mean, p50, p90, p99, max), told to 0.1.

    Of the values that are not in the slice nothing is known but that they lie between 1 and the maximum.
    """
    mean, *quantiles, maximum = figures
    missing = whole - len(slice_)
    low, high = (slice_.sum() + missing * each for each in (1, maximum))
    wrong = [] if low <= (mean + 0.05) * whole and (mean - 0.05) * whole <= high else ["mean"]
    for share, value in zip((0.5, 0.9, 0.99), quantiles, strict=True):
        rank = share * (whole - 1)  # linear between the two values around it
        below, above = (slice_ < value - 0.05).sum(), (slice_ > value + 0.05).sum()
        if below > np.ceil(rank) or above > whole - 1 - np.floor(rank):
            wrong.append(f"p{share:g}")
        if missing < np.floor(rank) + 1 - (slice_ <= value + 0.05).sum():
            wrong.append(f"p{share:g}")
    return wrong + ["max"] * bool(slice_.max() > maximum)


def test_no_figure_of_a_whole_trace_contradicts_its_slice():
    text = shared("data/traces/README.md").read_text()
    rows = {name: int(whole) for name, _, _, whole in README_ROW.findall(text)}
    figures = {name: list(map(float, numbers)) for name, *numbers in README_FIGURES.findall(text)}
    assert figures.keys() == rows.keys()
    refused = 0
    for name, whole in rows.items():
        table = pq.read_table(twin(name))
        for column, these in (("prompt_tokens", figures[name][:5]), ("output_tokens", figures[name][5:])):
            values = table[column].to_numpy()
            assert possible(values, these, whole) == [], (name, column)
            for other in figures:  # the figures of another trace are often refused
                refused += bool(possible(values, figures[other][:5], whole))
    assert refused > 100


def test_the_kept_labels_are_those_of_the_file():
    assert len(set(load_file(twin("vtc_arena")).labels["client"].tolist())) == 24
    sessions = load_file(twin("sharegpt_sessions"))
    table = pq.read_table(twin("sharegpt_sessions"))
    assert sessions.labels["session"].tolist() == table["conversation_id"].to_pylist()
    assert sessions.labels["turn"].tolist() == table["turn"].to_pylist()


# What prompts have in common


def hit_shares(prompts, ids, block):
    """Share of tokens and of blocks that an infinite cache holds, from the ids alone."""
    seen, hit_tokens, hit_blocks = set(), 0, 0
    for tokens, chain in zip(prompts, ids, strict=True):
        hits = 0
        while hits < len(chain) and chain[hits] in seen:
            hits += 1
        hit_tokens, hit_blocks = hit_tokens + min(hits * block, tokens), hit_blocks + hits
        seen.update(chain)
    return 100 * hit_tokens / sum(prompts), 100 * hit_blocks / sum(map(len, ids))


def hit_share_of_content(workload, block):
    """The same of the tokens, from what the engine is told."""
    seen, hit = set(), 0
    for content in workload.content:
        key, still = (), True
        for _, first, length in content:
            for place in range(first, first + length, block):
                key = hash((key, place))
                still = still and key in seen
                hit += still * min(block, first + length - place)
                seen.add(key)
    return 100 * hit / workload.prompt_tokens.sum()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "tokens", "blocks"),
    [("mooncake_conversation", 35.66, 34.99), ("mooncake_synthetic", 41.81, 40.86)],
)
def test_an_infinite_cache_hits_what_the_ids_say(name, tokens, blocks):
    """Slices; the whole traces have 37.4 and 65.1 % of tokens."""
    table = pq.read_table(twin(name))
    shares = hit_shares(table["prompt_tokens"].to_pylist(), table["hash_ids"].to_pylist(), 512)
    assert shares == (pytest.approx(tokens, abs=0.005), pytest.approx(blocks, abs=0.005))
    assert hit_share_of_content(build(twin(name)), 512) == pytest.approx(shares[0], abs=1e-9)


def mooncake(timestamp, tokens, ids, output=5):
    return {"timestamp": timestamp, "input_length": tokens, "output_length": output, "hash_ids": ids}


def test_blocks_are_segments_of_512_tokens_and_the_last_is_partial():
    workload = build(
        lines(mooncake(0, 1500, [7, 8, 9]), mooncake(1500, 1100, [7, 8, 20]), mooncake(2000, 700, [7, 8]))
    )
    assert workload.arrival_ps.tolist() == [0, 3 * PS_PER_S // 2, 2 * PS_PER_S]
    assert workload.content == [((0, 7 * 512, 1024),), ((0, 7 * 512, 1024),), ((0, 7 * 512, 700),)]


def test_ids_that_do_not_cover_the_prompt_exactly_are_counted():
    found = load_file(
        lines(mooncake(0, 1500, [7]), mooncake(9, 500, [7, 8, 9]), mooncake(9, 500, []), mooncake(9, 5, None))
    )
    assert found.texts.offsets.tolist() == [0, 1, 2, 2, 2]
    assert found.texts.lengths.tolist() == [512, 500]
    assert [note.split(";")[0] for note in found.notes[1:]] == [
        "1 row has fewer hash ids than blocks",
        "1 row has more hash ids than blocks",
    ]


def test_rounded_arrivals_are_pointed_out():
    assert (
        "Arrivals are rounded: 8,058 rows have 820 different times"
        in load_file(twin("mooncake_conversation")).notes[1]
    )
    assert len(load_file(twin("mooncake_synthetic")).notes) == 1


def bailian(chat, parent, timestamp, ids, turn=1):
    lengths = {"input_length": 40, "output_length": 9, "type": "text"}
    return {
        "chat_id": chat,
        "parent_chat_id": parent,
        "timestamp": timestamp,
        "turn": turn,
        "hash_ids": ids,
    } | lengths


def test_bailian_has_blocks_of_16_and_sessions_by_parent():
    found = load_file(
        lines(
            bailian(3, 2, 3.0, [1, 2, 9], turn=3),
            bailian(1, -1, 1.0, [1, 2, 3]),
            bailian(2, 1, 2.0, [1, 2, 4], turn=2),
            bailian(8, 77, 5.0, [1, 6, 7], turn=4),
            bailian(9, 77, 6.0, [1, 6, 7], turn=None),
        )
    )
    assert found.labels["session"].tolist() == [1, 1, 1, 77, 77]
    assert found.labels["turn"].tolist() == [1, 2, 3, 4, None]
    assert build(found).content == [((0, 16, 32),)] * 3 + [((0, 16, 16), (0, 96, 24))] * 2


def compact(metadata=None, **columns):
    table = pa.table({"prompt_tokens": [100, 100], "output_tokens": [4, 5]} | columns)
    pq.write_table(table.replace_schema_metadata(metadata), "compact")
    return "compact"


def test_a_compact_table_may_name_its_block_size():
    path = compact({"block_size_tokens": "64"}, hash_ids=[[4, 5], [4, 9]], client=["a", None])
    found = load_file(path)
    assert found.texts.lengths.tolist() == [100, 64, 36]
    assert found.labels["client"].tolist() == ["a", None]


def test_turns_of_a_compact_table_hold_the_whole_conversation():
    columns = {"prompt_tokens": [10, 7, 20, 5], "output_tokens": [4, 5, 6, 7]}
    found = load_file(compact(conversation_id=["a", "b", "a", None], turn=[1, 0, 0, 0], **columns))
    assert found.prompt_tokens.tolist() == [20 + 6 + 10, 7, 20, 5]
    assert build(found).content == [((0, 0, 26),), (), ((0, 0, 26),), ()]
    assert found.labels["session"].tolist() == ["a", "b", "a", None]


def test_the_sessions_of_sharegpt_grow_turn_by_turn():
    found, table = load_file(twin("sharegpt_sessions")), pq.read_table(twin("sharegpt_sessions"))
    held = {}
    for name, new, output, prompt in zip(
        table["conversation_id"].to_pylist(),
        table["prompt_tokens"].to_pylist(),
        table["output_tokens"].to_pylist(),
        found.prompt_tokens.tolist(),
        strict=True,
    ):
        assert prompt == held.get(name, 0) + new
        held[name] = prompt + output


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"hash_ids": [[1], [-1]]}, ", rows 0 to 1: hash_ids must be whole numbers from 0 to "),
        ({"hash_ids": ["a", "b"]}, ": column hash_ids must be lists of whole numbers, got string"),
        ({"hash_ids": [[1], [None]]}, ", rows 0 to 1: hash_ids must be whole numbers from 0 to "),
        (
            {"conversation_id": [1.5, 2]},
            ": column conversation_id must be texts or whole numbers, got double",
        ),
        ({"conversation_id": [1, 2], "turn": [0.5, 1]}, ", row 0: turn must be a whole number of at most"),
        (
            {"hash_ids": [[1], [2]], "prompt_tokens": ["a", "b"]},
            ": column prompt_tokens must be numbers, got string",
        ),
        ({"hash_ids": [[1], [2]], "tokens": [1, 2]}, ": field 'tokens' is unknown"),
        (
            {"hash_ids": [[1], [2]], "conversation_id": [1, 2]},
            ": hash_ids must be left out beside conversation_id",
        ),
    ],
)
def test_a_compact_table_of_other_values_is_refused(columns, message):
    assert complaint(compact(**columns)).startswith(f"trace compact{message}")


@pytest.mark.parametrize("size", ["0", "x", "9" * 40])
def test_a_block_size_that_is_none_is_refused(size):
    path = compact({"block_size_tokens": size}, hash_ids=[[1], [2]])
    assert complaint(path).startswith(
        "trace compact: block_size_tokens of its metadata must be a whole number from 1"
    )


# ShareGPT


def chat(*turns, name="a"):
    """A conversation: `h3` is a question of three words, `g` an answer, `s` a system message."""
    roles = {"h": "human", "u": "user", "g": "gpt", "b": "bing", "s": "system", "x": "tool"}
    said = [{"from": roles[turn[0]], "value": f"{turn[1:]} " * int(turn[1:])} for turn in turns]
    return {"id": name, "conversations": said}


def sharegpt(*chats, turns="all", count=words):
    return load_file(write(json.dumps(chats)), count=count, turns=turns)


def test_texts_without_a_tokenizer_are_guessed_from_their_characters_and_a_note_says_so():
    source = original("sharegpt_format_synthetic_text.json")
    guessed = load_file(source)
    characters = load_file(source, count=lambda text: -(-len(text) // 4))
    assert guessed.prompt_tokens.tolist() == characters.prompt_tokens.tolist()
    assert guessed.output_tokens.tolist() == characters.output_tokens.tolist()
    assert [note for note in guessed.notes if note not in characters.notes] == [
        "Lengths are guessed, a token for every 4 characters: --tokenizer FILE, a Hugging Face "
        "tokenizer.json, counts them."
    ]


def test_turns_are_the_first_or_all():
    assert complaint(write("[{"), count=words, turns="last") == "turns must be one of first, all, got 'last'"


def test_the_first_question_and_answer_are_a_request():
    found = load_file(original("sharegpt_format_synthetic_text.json"), count=words)
    assert requests(found) == [(None, 12, 80), (None, 20 + 15, 25), (None, 1500, 25)]
    assert found.notes[1:] == (
        "2 rows left out: no question and answer to begin with.",
        "1 row left out: empty conversation.",
        "1 row left out: conversation of fewer than 2 messages.",
        "1 row left out: prompt of fewer than 4 tokens.",
    )


def test_all_turns_are_sessions_without_their_chunks():
    found = load_file(original("sharegpt_format_synthetic_text.json"), count=words, turns="all")
    assert found.labels["session"].tolist() == ["AAAAAAA"] * 3 + ["DDDDDDD", "EEEEEEE", "FFFFFFF"]
    assert found.labels["turn"].tolist() == [0, 1, 2, 0, 0, 0]
    assert found.prompt_tokens.tolist() == [12, 12 + 80 + 6, 12 + 80 + 6 + 60 + 9, 35, 1500, 1]
    assert found.output_tokens.tolist() == [80, 60, 40, 25, 25, 25]
    assert build(found).content[:3] == [((0, 0, 92),), ((0, 0, 158),), ((0, 0, 158),)]


@pytest.mark.parametrize("turns", ["first", "all"])
def test_a_file_that_is_cut_off_gives_what_is_whole(turns):
    found = load_file(original("sharegpt_format_synthetic_text_TRUNCATED.json"), count=words, turns=turns)
    assert found.notes[-1] == "Warning: the file is cut off; its 5 whole conversations were read."
    assert found.prompt_tokens.tolist() == {"first": [12, 35], "all": [12, 98, 167, 35]}[turns]


def test_chunks_join_in_file_order_and_a_repeated_message_counts_once():
    chats = [chat("h5", "g6", name="a_0"), chat("h7", "g8", name="b_0"), chat("g6", "h9", "g4", name="a_1")]
    found = sharegpt(*chats)
    assert found.labels["session"].tolist() == ["a", "a", "b"]
    assert found.prompt_tokens.tolist() == [5, 5 + 6 + 9, 7]


def test_messages_of_one_speaker_are_one_and_a_chunk_may_continue_an_answer():
    found = sharegpt(chat("h5", "h6", "g6", "b7", name="a_0"), chat("g8", "u9", "g4", name="a_4"))
    assert found.prompt_tokens.tolist() == [11, 11 + 21 + 9]
    assert found.output_tokens.tolist() == [21, 4]


def test_what_is_no_turn_is_counted():
    talks = [(), ("g5", "h5", "g5", "h5"), ("x5",), ("h5", "g0"), ("h5", "g5", "h0", "g5")]
    found = sharegpt(*(chat(*talk, name=f"{number}") for number, talk in enumerate(talks)))
    assert found.labels["session"].tolist() == ["1", "4"]
    assert set(found.notes[1:]) == {
        "1 row left out: empty conversation.",
        "1 row left out: answer without a question.",
        "1 row left out: question without an answer.",
        "1 row left out: conversation with a message of an unknown role.",
        "1 row left out: prompt of 0 tokens.",
        "1 row left out: output of 0 tokens.",
    }


def test_objects_may_stand_one_per_line_too():
    assert len(load_file(lines(chat("h5", "g6"), chat("h5", "g6", name="b")), count=words)) == 2


def test_half_characters_are_counted_as_something():
    rows = [
        {"id": 1, "conversations": [{"from": "human", "value": "\ud800"}, {"from": "gpt", "value": "\udc00"}]}
    ]
    assert requests(sharegpt(*rows, count=lambda text: len(text.encode()))) == [(None, 3, 3)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"id": "a"}]', 'line 1: a conversation must be {"id": ..., "conversations": [...]}, got '),
        ('[\n{"conversations": [{"from": "gpt"}]}]', "line 2: conversations: a message must be {"),
        (
            '[\n{"conversations": []}\n, {"a"!}' + " " * 50,
            "line 3, column 7: not valid JSON: Expecting ':' delimiter",
        ),
        ('[{"conversations": []}] 5' + " " * 50, "line 1, column 25: nothing may follow the array"),
        (b'[{"conversations": []}, {"\xff"', "line 1, column 1: not valid UTF-8"),
        ("[{" + '"a":{' * 100_000, "line 1, column 2: not valid JSON: "),
    ],
)
def test_mistakes_in_texts_have_their_place(text, message):
    found = complaint(write(text), count=words)
    assert found.startswith(f"trace trace, {message}")


def test_an_object_may_be_longer_than_the_window_but_not_endless(monkeypatch):
    text = json.dumps([chat("h5", f"g{WINDOW}"), chat("h5", "g5")])
    with open(write(text), "rb") as file:
        assert [len(found["conversations"]) for _, found in ObjectStream("trace", file)] == [2, 2]
    monkeypatch.setattr("kvsim.workloads.json_stream.LARGEST_OBJECT", WINDOW)
    assert "an object must have at most 262,144 characters" in complaint(write(text), count=words)


@pytest.mark.parametrize("cut", [2, 30, 70, 100, 140])
def test_wherever_a_file_is_cut_the_rest_is_read_or_there_is_none(cut):
    whole = json.dumps([chat("h4", "g4"), chat("h4", "g5", name="b")])
    path = write(whole[:cut])
    if cut < 120:
        assert "none (no rows)" in complaint(path, count=words)
    else:
        assert len(load_file(path, count=words)) == 1


# What is left out, and what is a mistake


def test_rows_that_cannot_be_used_are_counted_by_reason():
    rows = [
        "5,m,10,0,1,x",
        "6,m,10,-3,1,x",
        "7,m,,4,1,x",
        "8,m,NaN,4,1,x",
        "9,m,0,4,1,x",
        ",m,3,4,1,x",
        "2,m,3,4,1,x",
    ]
    found = load_file(write(BURST + "\n".join(rows)))
    assert requests(found) == [(0.0, 3, 4)]
    assert found.notes[1:] == (
        "2 rows left out: prompt length missing.",
        "1 row left out: prompt of 0 tokens.",
        "1 row left out: negative output length.",
        "1 row left out: failed call, output of 0 tokens.",
        "1 row left out: arrival missing.",
    )


def test_json_rows_that_cannot_be_used_are_counted_too():
    rows = [
        mooncake(0, 9, [1], output=0),
        mooncake(-5, 9, [1]),
        mooncake(0, float("nan"), [1]),
        mooncake(0, 9, [1]),
    ]
    assert load_file(lines(*rows)).notes[1:] == (
        "1 row left out: prompt length missing.",
        "1 row left out: output of 0 tokens.",
        "1 row left out: arrival before 0.",
    )


def test_a_trace_without_a_row_that_can_be_used_is_refused():
    assert complaint(write(BURST + "5,m,10,0,1,x")) == (
        "trace trace must have at least one request that can be used, got none "
        "(1 row left out: failed call, output of 0 tokens)"
    )
    assert complaint(write(BURST)).endswith("got none (no rows)")


GOOD = "2023-11-16 18:15:46.6805900,374,44\r\n"
MOST = "1,000,000,000"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "2023-11-16 18:15:46,x,44",
            f"line 3, column ContextTokens: must be a whole number of at most {MOST}, got 'x'",
        ),
        (
            "2023-11-16 18:15:46,1,4.5",
            f"line 3, column GeneratedTokens: must be a whole number of at most {MOST}, got '4.5'",
        ),
        (
            "2023-11-16 18:15:46,1,1e99",
            f"line 3, column GeneratedTokens: must be a whole number of at most {MOST}, got '1e99'",
        ),
        (
            "2023-11-16 18:15:46,1,inf",
            f"line 3, column GeneratedTokens: must be a whole number of at most {MOST}, got 'inf'",
        ),
        ("yesterday,1,4", "line 3, column TIMESTAMP: must be a date and time, got 'yesterday'"),
        (
            "2023-13-16 18:15:46,1,4",
            "line 3, column TIMESTAMP: must be a date and time, got '2023-13-16 18:15:46'",
        ),
        (
            "9999-12-31 18:15:46,1,4",
            "line 3, column TIMESTAMP: must be a date and time, got '9999-12-31 18:15:46'",
        ),
        ("2023-11-16 18:15:46,1", "line 3: must have 3 values, as many as line 1 has names, got 2"),
        ("2023-11-16 18:15:46,1,2,3", "line 3: must have 3 values, as many as line 1 has names, got 4"),
    ],
)
def test_a_mistake_in_a_table_is_named_with_line_column_and_value(line, message):
    assert (
        complaint(write(AZURE.replace("\n", "\r\n") + GOOD + line + "\r\n" + GOOD))
        == f"trace trace, {message}"
    )


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (mooncake("now", 5, [1]), "timestamp must be a number of at most 1e+15, got 'now'"),
        (mooncake(0, 5.5, [1]), f"input_length must be a whole number of at most {MOST}, got 5.5"),
        (mooncake(0, True, [1]), f"input_length must be a whole number of at most {MOST}, got true"),
        (mooncake(0, 10**400, [1]), f"input_length must be a whole number of at most {MOST}, got 1000"),
        (mooncake(0, 5, 1), "hash_ids must be a list of whole numbers from 0 to 18014398509481982, got 1"),
        (
            mooncake(0, 5, [1.5]),
            "hash_ids must be a list of whole numbers from 0 to 18014398509481982, got [1.5]",
        ),
        (
            mooncake(0, 5, [-1]),
            "hash_ids must be a list of whole numbers from 0 to 18014398509481982, got [-1]",
        ),
        (
            mooncake(0, 5, ["a"]),
            "hash_ids must be a list of whole numbers from 0 to 18014398509481982, got ['a']",
        ),
        (
            mooncake(0, 5, [2**70]),
            "hash_ids must be a list of whole numbers from 0 to 18014398509481982, got [1180",
        ),
    ],
)
def test_a_mistake_in_a_json_line_is_named_with_line_field_and_value(row, message):
    assert complaint(lines(mooncake(0, 5, [1]), row)).startswith(f"trace trace, line 2: {message}")


def test_a_column_that_is_there_twice_is_refused():
    text = AZURE.replace("\n", ",ContextTokens\n") + "2023-11-16 18:15:46,1,2,3\n"
    assert complaint(write(text)) == "trace trace: column 'ContextTokens' must be there once, got 2"


def test_a_file_that_is_not_there_is_named():
    assert complaint("none.csv") == "trace none.csv cannot be read: No such file or directory"
    with pytest.raises(KvsimError, match="cannot be read: No such file"):
        workloads.load("none.json")


def test_the_careful_reader_reads_what_the_fast_one_reads():
    kinds = {"TIMESTAMP": "time", "ContextTokens": "tokens", "GeneratedTokens": "tokens"}
    path = original("azure2023_conv_head199.csv")
    for name, column in read_csv(path, kinds).items():
        assert np.array_equal(column, _cell_by_cell(path, kinds)[name])


def test_odd_tables_are_read_with_care():
    text = '5,"a,b",1e2,2.0,3,x\n\n  \n7.5,y, 1 ,null,3,"t\nt"\n9,"""",3,4,5,\n'
    assert requests(load_file(write(BURST + text))) == [(0.0, 100, 2), (4.0, 3, 4)]


# Into a run


def test_arrivals_beyond_the_clock_are_left_out_of_a_run():
    rows = ["0,m,3,4,7,x", "5,m,5,6,7,x", f"{LATEST_ARRIVAL_S + 9:.0f},m,7,8,7,x"]
    workload = build(write(BURST + "\n".join(rows)))
    assert workload.prompt_tokens.tolist() == [3, 5]
    assert workload.notes[-1].startswith(
        "1 request left out: arrival too late, the clock ends at 4,611,686 s (53 days)"
    )
    late = write(f"arrived_at,num_prefill_tokens,num_decode_tokens\n{LATEST_ARRIVAL_S + 9:.0f},1,2\n")
    with pytest.raises(
        KvsimError, match="trace trace begins too late: the first request arrives at 4,611,695 s"
    ):
        build(late)


@pytest.mark.parametrize("name", [name for name, form in ORIGINALS.items() if form != "ShareGPT"])
def test_each_original_runs_without_any_other_option(name, capsys):
    assert cli.main(["run", "--trace", original(name), "--no-plots"]) == 0
    shown = " ".join(re.sub(r"[│|]", " ", capsys.readouterr().out).split())
    assert f"({ORIGINALS[name]})" in shown


def test_a_trace_may_be_the_users_own_code(monkeypatch):
    code = "from workloads import load\n\nnumber = 3\n\ndef table():\n    return load('sharegpt')\n"
    write(code, "own_trace.py")
    monkeypatch.setattr(sys, "path", [*sys.path, str(Path.cwd())])
    assert isinstance(workloads.load("own_trace:table"), Lengths)
    for trace, message in (
        ("own_trace:number", "must return kvsim.workloads.lengths.Lengths, got int"),
        ("own_trace:none", "cannot be imported"),
        ("no_such_module:none", "cannot be imported"),
        (":", "trace ':' must be package.module:Name"),
    ):
        with pytest.raises(KvsimError, match=message):
            workloads.load(trace)
    sys.modules.pop("own_trace")
