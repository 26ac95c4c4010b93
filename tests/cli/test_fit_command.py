"""`sim fit`: tables for one model, a row each for several, JSON, a picture; mistakes are one line."""

import json

import pytest

from kvsim import cli


def answer(capsys, *arguments):
    assert cli.main(["fit", *arguments]) == 0
    return capsys.readouterr().out


def test_one_model_in_full(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    told = answer(capsys, "gpt-oss-20b", "--gpu", "h100", "--lengths", "1000+200")
    for part in (
        *("weights", "KV cache", "not used", "1 x window of 128", "1 x full attention", "the log says"),
        *("default of vLLM 0.33.0", "token budget 8,192", "1,000 + 200", "fp8 cache", "windows keep every"),
        "note: gpt-oss-20b: mxfp4: 91.4 % of its parameters",
    ):
        assert part in told


def test_several_models_and_gpus_are_a_row_each(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    told = answer(capsys, "llama-3.1-8b", "qwen3-32b", "--gpu", "h100,l4")
    rows = [line for line in told.splitlines() if line.startswith(("llama-3.1-8b ", "qwen3-32b "))]
    assert len(rows) == 4
    assert "does not start" in rows[1]


def test_json_has_what_scripts_need(capsys):
    told = json.loads(answer(capsys, "qwen3-next-80b-a3b", "--kv-memory", "40", "--json"))
    assert {"groups", "num_blocks", "kv_tokens", "max_concurrency", "weights_bytes"} <= told.keys()
    assert [(group["kind"], group["count"], group["block_size"]) for group in told["groups"]] == [
        *[("mamba", 12, 576)] * 3,
        ("full_attention", 12, 576),
    ]
    assert told["groups"][3]["page_bytes"] == 576 * 2048
    assert (told["num_blocks"], told["kv_tokens"]) == (3034, 1_710_419)
    several = json.loads(answer(capsys, "opt-13b", "llama-2-7b", "--json"))
    assert [each["model"] for each in several] == ["opt-13b", "llama-2-7b"]


def test_a_traces_quantiles_are_lengths(capsys):
    told = json.loads(answer(capsys, "llama-3.1-8b", "--lengths", "trace:sharegpt", "--json"))
    prompts = [each["prompt"] for each in told["lengths"]]
    assert len(prompts) == 3
    assert prompts == sorted(prompts)


def test_a_picture_of_the_memory(capsys, tmp_path):
    told = answer(capsys, "llama-3.1-8b", "llama-3.1-70b", "--gpu", "h100", "--out", str(tmp_path))
    assert [path.name for path in tmp_path.glob("[!.]*")] == ["memory.png"]
    assert str(tmp_path / "memory.png") in told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nosuch"], "error: model 'nosuch' is unknown"),
        (["opt-13b", "--gpu", "h1000"], "error: gpu 'h1000' is unknown"),
        (["opt-13b", "--lengths", "5"], "error: lengths must be PROMPT+OUTPUT"),
        (["opt-13b", "--kv-memory", "-1"], "error: kv_memory must be above 0, got -1"),
        (["opt-13b", "--tensor-parallel-size", "3"], "error: tensor_parallel_size must divide the 40 heads"),
        (["opt-13b", "llama-2-7b", "--log", "x"], "error: log 'x': cannot be read"),
    ],
)
def test_mistakes_are_one_line(capsys, arguments, message):
    assert cli.main(["fit", *arguments]) == 2
    told = capsys.readouterr().err
    assert told.startswith(message)
    assert told.count("\n") == 1
