"""`sim speculation` says where drafts gain, in a table, as JSON and as a picture."""

import json

import pytest

from kvsim import cli

THREE = '{"method": "eagle3", "num_speculative_tokens": 3, "synthetic_acceptance_length": 2.4}'
MTP = '{"method": "mtp", "num_speculative_tokens": 1}'


def told(capsys, *words):
    """The command's output."""
    assert cli.main(["speculation", *words]) == 0
    return capsys.readouterr().out


def test_the_crossover_rises_with_the_batch_and_the_speed_up_follows(capsys):
    found = json.loads(told(capsys, "qwen3-32b", "--gpu", "h200", "--speculative-config", THREE, "--json"))
    least = found["crossover"]
    assert 1 < least[0] < 1.3 and least[-1] > 2.4
    assert found["speed_up"] == pytest.approx([2.4 / each for each in least])
    assert found["fits"][0] > found["fits"][1]  # a draft takes memory


def test_where_nothing_is_said_of_acceptance_there_is_no_speed_up(capsys):
    found = json.loads(told(capsys, "deepseek-v3", "--gpu", "h200", "--tensor-parallel-size", "8",
                            "--cost", "roofline", "--speculative-config", MTP, "--json"))  # fmt: skip
    assert found["speed_up"] is None
    assert found["draft"] == "deepseek-v3-mtp"
    assert min(found["crossover"]) > 1


def test_several_models_are_a_table_each_and_a_picture_together(capsys, tmp_path):
    out = told(
        capsys, "llama-3.1-8b", "qwen3-8b", "--speculative-config", THREE, "--out", str(tmp_path / "x")
    )
    assert "llama-3.1-8b: 2." in out and "qwen3-8b: 2." in out
    assert (tmp_path / "x" / "speculation.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["llama-3.1-8b", "--context", "0"], "context must be at least 1"),
        (["llama-3.1-8b", "--speculative-config", MTP], "needs a model with MTP modules"),
        (["llama-3.1-8b", "--speculative-config", "eagle"], "must be JSON"),
    ],
)
def test_a_mistake_is_told_in_a_line(capsys, words, why):
    assert cli.main(["speculation", *words]) == 2
    assert why in capsys.readouterr().err


def test_the_life_of_a_request_tells_of_its_drafts_in_a_phrase(capsys, tmp_path):
    out = str(tmp_path / "run")
    words = ["run", "--model", "llama-3.1-8b", "--gpu", "h100", "--num-prompts", "3", "--request-rate", "1"]
    drafts = ["--speculative-method", "eagle3", "--num-speculative-tokens", "3", "--acceptance-length", "4"]
    assert cli.main([*words, *drafts, "--cost", "roofline", "--out", out]) == 0
    capsys.readouterr()
    assert cli.main(["explain", out, "0"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "drafts right, 4.00 tokens a verification" in told
    assert "acceptance_length" not in told
