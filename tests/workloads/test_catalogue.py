"""Traces listed, shown, converted and fetched."""

import json
import threading
from functools import partial
from hashlib import sha256
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet
from support.shared_data import shared

from kvsim import cli, workloads
from kvsim.sim.errors import KvsimError
from kvsim.workloads import catalogue, listing
from kvsim.workloads.convert import convert
from kvsim.workloads.delimited import csv_parts
from kvsim.workloads.statistics import statistics
from kvsim.workloads.tokenized import load_counted

pytestmark = pytest.mark.slow

ORIGINALS = [
    "azure2023_code_head199.csv",
    "azure2023_conv_head199.csv",
    "azure2024_rows_from_notebook.csv",
    "bailian_rows_from_docs.jsonl",
    "burstgpt_v1_rows_from_docs.csv",
    "burstgpt_v2_rows_from_docs.csv",
    "mooncake_conversation_head200.jsonl",
    "mooncake_synthetic_head200.jsonl",
    "sharegpt_format_synthetic_text.json",
    "sharegpt_format_synthetic_text_TRUNCATED.json",
]
TOKENIZER = {
    "version": "1.0",
    "pre_tokenizer": {"type": "Whitespace"},
    "model": {"type": "WordLevel", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"},
}
"""A token for each word and each mark."""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty directory, and a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(catalogue, "directory", lambda: tmp_path / "cache")
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def tokenizer():
    pytest.importorskip("tokenizers")
    return write("tokenizer.json", json.dumps(TOKENIZER))


@pytest.fixture
def served(tmp_path, monkeypatch):
    """A catalogue of one trace, on a server of this machine; the number of times that it was asked."""
    asked = []

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args):
            asked.append(args)

    (tmp_path / "served").mkdir()
    (tmp_path / "served/tiny.csv").write_text(AZURE)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "served")))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/tiny.csv"
    offer(monkeypatch, url=url)
    yield asked
    server.shutdown()
    server.server_close()


AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:48,9,2\n"
)


def offer(monkeypatch, **facts):
    entry = {"about": "two rows", "source": "here", "licence": "CC0-1.0", "format": "Azure", **facts}
    monkeypatch.setattr(catalogue, "entries", lambda: {"tiny": catalogue.Entry("tiny", **entry)})
    monkeypatch.setattr("kvsim.workloads.listing.entries", catalogue.entries)


def write(name, text):
    Path(name).write_text(text)
    return name


def sim(capsys, *arguments):
    code = cli.main(["traces", *map(str, arguments)])
    found = capsys.readouterr()
    return code, found.out, found.err


def texts(lengths):
    """The runs of each prompt."""
    found = lengths.texts
    if found is None:
        return [[] for _ in range(len(lengths))]
    columns = (column.tolist() for column in (found.streams, found.firsts, found.lengths))
    runs = list(zip(*columns, strict=True))
    return [runs[a:b] for a, b in zip(found.offsets.tolist(), found.offsets.tolist()[1:], strict=False)]


def common(one, other):
    """Tokens that two texts begin with both, token by token."""
    places = [((s, f + i) for s, f, n in text for i in range(n)) for text in (one, other)]
    shorter = min(sum(n for *_, n in text) for text in (one, other))
    return next((i for i, pair in enumerate(zip(*places, strict=False)) if pair[0] != pair[1]), shorter)


def prompts_in_common(lengths, rows=24):
    """For each two of the first requests, how much of both prompts is the same."""
    found, prompts = texts(lengths), lengths.prompt_tokens.tolist()
    rows = range(min(rows, len(found)))
    return [[min(common(found[a], found[b]), prompts[a], prompts[b]) for b in rows if b < a] for a in rows]


def assert_same(one, other):
    assert one.prompt_tokens.tolist() == other.prompt_tokens.tolist()
    assert one.output_tokens.tolist() == other.output_tokens.tolist()
    assert (one.arrival_s is None) == (other.arrival_s is None)
    assert one.arrival_s is None or one.arrival_s.tolist() == other.arrival_s.tolist()
    assert {k: v.tolist() for k, v in one.labels.items()} == {k: v.tolist() for k, v in other.labels.items()}
    assert statistics(one).shared == statistics(other).shared
    assert prompts_in_common(one) == prompts_in_common(other)


# Converted


@pytest.mark.parametrize("out", ["out.jsonl", "out.parquet"])
@pytest.mark.parametrize("turns", ["first", "all"])
@pytest.mark.parametrize("name", ORIGINALS)
def test_a_converted_trace_loads_to_the_same_requests(name, turns, out, tokenizer):
    if turns == "all" and "sharegpt" not in name:
        return
    source = str(shared(f"data/formats/{name}"))
    whole = partial(load_counted, source, tokenizer if "sharegpt" in name else None, turns)
    convert(source, out, lengths=whole)
    assert_same(whole(), workloads.load(out))
    assert [path.name for path in Path.cwd().glob("out*")] == [out]


@pytest.mark.parametrize("out", ["out.jsonl", "out.parquet"])
@pytest.mark.parametrize("name", ["mooncake_synthetic", "sharegpt_sessions", "vtc_arena"])
def test_so_does_a_compact_one(name, out):
    source = str(shared(f"data/traces/{name}.parquet"))
    convert(source, out)
    assert_same(workloads.load(source), workloads.load(out))


def test_the_native_format_keeps_every_field():
    rows = [
        {
            "arrival_s": 2.5,
            "output_tokens": [4, 9],
            "segments": [["a", 3], [7, 2]],
            "session": "s",
            "turn": 0,
        },
        {"arrival_s": 0, "output_tokens": 4, "n": 3, "prompt_token_ids": [5, 6], "priority": -1, "client": 3},
        {"arrival_s": 9, "output_tokens": 4, "prompt_tokens": 8},
    ]
    write("in.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows))
    convert("in.jsonl", "out.jsonl")
    assert [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()] == rows
    convert("in.jsonl", "out.parquet")
    assert_same(workloads.load("in.jsonl"), workloads.load("out.parquet"))


def test_a_csv_comes_in_parts_and_counts_what_it_leaves_out():
    body = "".join(f"{9e6 - i},GPT-4,{i % 50 + 1},{i % 7},9,API log\n" for i in range(150_000))
    write("big.csv", "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n" + body)
    kinds = {"Timestamp": "seconds", "Request tokens": "tokens", "Response tokens": "tokens"}
    found = csv_parts("big.csv", kinds)
    assert (found.rows, found.least["Timestamp"]) == (150_000, 9e6 - 149_999)
    assert len([*found.parts]) > 3
    told = []
    done = convert("big.csv", "out.parquet", done=lambda rows, total: told.append((rows, total)))
    assert done.notes == ("21,429 rows left out: failed call, output of 0 tokens.",)
    assert told[-1] == (done.rows, 150_000) and len(told) > 3
    assert parquet.ParquetFile("out.parquet").metadata.num_rows == done.rows == 150_000 - 21_429
    assert_same(workloads.load("big.csv"), workloads.load("out.parquet"))


def test_what_arrives_after_the_clock_is_left_out_and_counted():
    rows = "0,5,5\n1,5,5\n9000000,5,5\n"
    write("late.csv", "arrived_at,num_prefill_tokens,num_decode_tokens\n" + rows)
    assert convert("late.csv", "out.jsonl").notes == ("1 row left out: arrival after the clock's end.",)
    assert len(workloads.load("out.jsonl")) == 2


def test_what_cannot_be_converted_leaves_nothing_behind():
    bad = write("bad.csv", AZURE + "2023-11-16 18:15:49,x,2\n")
    empty = write("empty.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:49,3,0\n")
    good = write("good.csv", AZURE)
    write("there.jsonl", "mine")
    for source, out, says in (
        (bad, "out.jsonl", "line 4, column ContextTokens"),
        (empty, "out.jsonl", "1 row left out: output of 0 tokens"),
        (good, "out.csv", "must end with .jsonl or .parquet"),
        (good, "there.jsonl", "pass --force to replace it"),
        (good, "no/such/out.jsonl", "No such file"),
        ("synthetic", "out.jsonl", "is drawn, not a table"),
    ):
        with pytest.raises(KvsimError, match=says):
            convert(source, out)
    assert not [*Path.cwd().glob("out*")]
    assert Path("there.jsonl").read_text() == "mine"
    convert(good, "there.jsonl", force=True)
    assert len(workloads.load("there.jsonl")) == 2


# Shown


def test_the_numbers_are_those_of_the_shared_table():
    found = statistics(workloads.load(str(shared("data/traces/mooncake_conversation.parquet"))))
    assert found.rows == 8058
    assert round(found.shared, 3) == 0.357
    code = statistics(workloads.load(str(shared("data/traces/azure2023_code.parquet"))))
    assert (code.sessions, code.shared) == (None, None)
    assert code.burstiness > 10


def test_burstiness_rate_and_sharing_of_a_trace_by_hand():
    rows = [(0, "a", 4), (1, "a", 4), (4, "a", 2), (5, "b", 4)]
    lines = [{"arrival_s": at, "segments": [[name, n]], "output_tokens": 1} for at, name, n in rows]
    write("hand.jsonl", "".join(f"{json.dumps(line)}\n" for line in lines))
    found = statistics(workloads.load("hand.jsonl"))
    gaps = np.array([1, 3, 1])
    assert (found.span_s, found.requests_per_s, found.shared) == (5, 3 / 5, 6 / 14)
    assert found.burstiness == pytest.approx(gaps.std() / gaps.mean())


def test_a_trace_is_shown_and_drawn(capsys):
    source = write("tiny.csv", AZURE + "2023-11-16 18:15:49,7,0\n")
    code, out, err = sim(capsys, "show", source, "--out", "pictures")
    assert (code, err) == (0, "")
    assert "1 row left out: output of 0 tokens." in out
    for name in ("lengths", "arrivals"):
        assert Path(f"pictures/{name}.png").read_bytes().startswith(b"\x89PNG")
    assert max(map(len, out.splitlines())) <= 100


def test_the_list_names_where_each_trace_is(served, capsys):
    assert "to fetch" in sim(capsys)[1]
    assert sim(capsys, "fetch", "tiny")[0] == 0
    _, out, _ = sim(capsys)
    (line,) = (line for line in out.splitlines() if line.startswith("tiny") and "cached" in line)
    assert line.split() == ["tiny", "2", "192", "23.0", "1.32", "s", "0.758", "0", "cached"]
    assert sim(capsys)[1] == out
    assert "not verified" in out and "CC0-1.0" in out


# Fetched


def test_a_trace_is_fetched_once_and_then_used_by_name(served, capsys):
    with pytest.raises(KvsimError, match="not here yet: sim traces fetch tiny"):
        workloads.load("tiny")
    code, out, err = sim(capsys, "fetch", "tiny")
    assert (code, err) == (0, "")
    assert sha256(AZURE.encode()).hexdigest() in out and "not verified" in out
    asked = len(served)
    assert sim(capsys, "fetch", "tiny")[0] == 0
    assert len(served) == asked
    found = workloads.load("tiny")
    assert (found.name, found.prompt_tokens.tolist()) == ("tiny", [374, 9])


def test_a_file_with_another_checksum_is_refused(served, monkeypatch, capsys):
    offer(monkeypatch, url=catalogue.entries()["tiny"].url, sha256="0" * 64)
    code, _, err = sim(capsys, "fetch", "tiny")
    assert code == 2 and "hash" in err
    assert not catalogue.entries()["tiny"].here


def test_without_a_network_it_says_what_to_do_by_hand(monkeypatch, capsys):
    offer(monkeypatch, url="http://127.0.0.1:9/tiny.csv")
    place = catalogue.entries()["tiny"].path
    code, _, err = sim(capsys, "fetch", "tiny")
    assert code == 2 and len(err.splitlines()) == 1
    assert f"download http://127.0.0.1:9/tiny.csv by hand and put it at {place}" in err
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(AZURE)
    assert sim(capsys, "fetch", "tiny")[0] == 0
    assert len(workloads.load("tiny")) == 2


def test_a_slip_in_a_public_name_is_told():
    with pytest.raises(KvsimError, match="did you mean 'mooncake-toolagent'"):
        workloads.load("mooncake-tolagent")


def test_every_entry_of_the_catalogue_is_whole():
    for name, entry in catalogue.entries().items():
        assert name not in workloads.TRACES and ":" not in name
        assert entry.url.startswith("https://") and entry.about and entry.licence and entry.source
        assert entry.sha256 is None or len(bytes.fromhex(entry.sha256)) == 32
        assert entry.format in {"Azure", "Bailian", "BurstGPT", "Mooncake", "ShareGPT", "Weka"}
    assert len({entry.path for entry in catalogue.entries().values()}) == len(catalogue.entries())


# Tokenized


def test_texts_are_counted_in_bulk_as_one_by_one(tokenizer, monkeypatch):
    from tokenizers import Tokenizer

    monkeypatch.setattr("kvsim.workloads.tokenized.TEXTS_AT_ONCE", 3)
    source = str(shared("data/formats/sharegpt_format_synthetic_text.json"))
    count = Tokenizer.from_file(tokenizer)
    for turns in ("first", "all"):
        told = workloads.load(source, count=lambda text: len(count.encode(text)), turns=turns)
        assert_same(load_counted(source, tokenizer, turns), told)


def test_a_run_counts_texts_and_its_config_repeats_it(tokenizer):
    source = str(shared("data/formats/sharegpt_format_synthetic_text.json"))
    common = ["--cost", "constant:0.03", "--no-plots", "-q"]
    chosen = ["--trace", source, "--tokenizer", tokenizer, "--turns", "all"]
    assert cli.main(["run", *chosen, *common, "--out", "one"]) == 0
    config = json.loads(Path("one/config.json").read_text())["workload"]
    assert (config["tokenizer"], config["turns"]) == (tokenizer, "all")
    assert cli.main(["run", "--config", "one/config.json", "--no-plots", "-q", "--out", "two"]) == 0
    assert Path("one/requests.parquet").read_bytes() == Path("two/requests.parquet").read_bytes()


def test_mistakes_about_tokenizers_are_named(tokenizer, monkeypatch):
    source = str(shared("data/formats/sharegpt_format_synthetic_text.json"))
    azure, broken = write("azure.csv", AZURE), write("broken.json", "{}")
    model = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "[UNK]"}
    lacking = write("lacking.json", json.dumps({"version": "1.0", "model": model}))
    for arguments, says in (
        ((source, "none.json"), "cannot be read"),
        ((source, broken), "is no Hugging Face tokenizer.json"),
        ((source, lacking), "lacking.json cannot count a text: WordLevel error: Missing"),
        ((source, tokenizer, "last"), "turns must be one of first, all"),
        ((azure, tokenizer), "tokenizer must be left out for trace azure.csv"),
        (("sharegpt", None, "all"), "turns must be left out for trace sharegpt"),
    ):
        with pytest.raises(KvsimError, match=says):
            load_counted(*arguments)
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(KvsimError, match="pip install tokenizers"):
        load_counted(source, tokenizer)


def test_a_conversion_never_touches_files_of_others(tmp_path):
    folder = tmp_path / "new"
    folder.mkdir()
    out, beside = folder / "out.jsonl", folder / "out.jsonl.part"
    beside.write_text("theirs")
    convert("sharegpt", str(out))
    assert beside.read_text() == "theirs" and {path.name for path in folder.iterdir()} == {
        out.name,
        beside.name,
    }
    link = folder / "link.jsonl"
    link.symlink_to(beside)
    with pytest.raises(KvsimError, match="it is a link"):
        convert("sharegpt", str(link), force=True)
    assert beside.read_text() == "theirs"


def test_the_kept_numbers_of_a_trace_are_whole_or_not_there(served, tmp_path, monkeypatch):
    assert cli.main(["traces", "fetch", "tiny"]) == 0
    (tiny,) = (each for each in listing.listed() if each["name"] == "tiny")
    (kept,) = (tmp_path / "cache").glob("*.numbers.json")
    assert json.loads(kept.read_text())["rows"] == tiny["rows"] == 2

    def torn(value):
        raise OSError("the disk is gone")

    kept.unlink()
    monkeypatch.setattr(listing.json, "dumps", torn)
    assert [each for each in listing.listed() if each["name"] == "tiny"] == [tiny]
    assert {path.name for path in kept.parent.iterdir()} == {"tiny.csv"}
