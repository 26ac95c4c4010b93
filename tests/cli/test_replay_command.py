"""`sim replay`: what it prints and draws, and mistakes in one line."""

import json

import pytest
from support.bench_files import GUIDELLM, INFERENCE_PERF

from kvsim import cli

SERVER = ["--model", "llama-3.1-8b", "--gpu", "l4", "--cost", "roofline"]


@pytest.mark.slow
def test_it_prints_80_columns_and_draws(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    asked = ["replay", str(GUIDELLM), *SERVER, "--fit", "scale", "--what-if", "max_num_seqs=2"]
    assert cli.main([*asked, "--out", str(tmp_path / "pictures")]) == 0
    out = capsys.readouterr().out
    lines = [line for line in out.splitlines() if "pictures" not in line]
    assert max(map(len, lines)) <= 80
    for words in (
        "12 requests of GuideLLM",
        "a closed loop of 3 clients",
        "TTFT p99 (s)",
        "steps",
        "--time-scale",
    ):
        assert words in " ".join(out.split()), words
    drawn = {path.name: path.read_bytes() for path in (tmp_path / "pictures").glob("*.png")}
    assert drawn.keys() == {"replay-requests.png", "replay-time.png"}
    assert cli.main(["plot", str(tmp_path / "pictures"), "--out", str(tmp_path / "again")]) == 0
    assert drawn == {path.name: path.read_bytes() for path in (tmp_path / "again").glob("*.png")}
    assert cli.main(["report", str(tmp_path / "pictures")]) == 0
    page = (tmp_path / "pictures/report.html").read_text()
    for words in ("12 requests of GuideLLM: simulated over measured", "TTFT p99 (s)", "what if", "Clock: "):
        assert words in page, words


def test_a_result_without_requests_leaves_its_numbers_and_no_picture(tmp_path, capsys):
    out = str(tmp_path / "out")
    assert cli.main(["replay", str(INFERENCE_PERF), *SERVER, "--out", out]) == 0
    assert [path.name for path in (tmp_path / "out").glob("[!.]*")] == ["replay.json"]
    assert cli.main(["report", out]) == 0
    assert cli.main(["plot", out]) == 2
    assert "holds no requests, so there is nothing to draw" in capsys.readouterr().err
    assert cli.main(["plot", out, out]) == 2
    assert "a sweep or a replay is drawn alone" in capsys.readouterr().err


def test_it_prints_json(capsys):
    assert cli.main(["replay", str(GUIDELLM), *SERVER, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tool"] == "GuideLLM" and found["requests"] == 12 and found["fit"] is None
    first = found["numbers"][0]
    assert first.keys() == {"what", "statistic", "measured", "simulated"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none.json", *SERVER], "result none.json cannot be read: No such file"),
        ([str(GUIDELLM), "--model", "llama-3.1-8b"], "missing option '--gpu'"),
        ([str(GUIDELLM), *SERVER, "--log", "none.log"], "log 'none.log': cannot be read"),
        ([str(GUIDELLM), *SERVER, "--what-if", "max_num_seqs=0"], "max_num_seqs must be"),
        ([str(GUIDELLM), *SERVER, "--run", "2"], "run must be from 1 to 1"),
    ],
)
def test_a_mistake_is_one_line(arguments, words, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["replay", *arguments]) == 2
    told = capsys.readouterr().err
    assert words in told and told.count("\n") == 1
    assert not list(tmp_path.iterdir())
