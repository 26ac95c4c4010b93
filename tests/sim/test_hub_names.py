"""Names on the Hugging Face hub find the built-in model of the same geometry, and results say which."""

import json
from pathlib import Path

import pytest

from kvsim import cli
from kvsim.sim.errors import KvsimError
from kvsim.sim.models.catalog import hub_names, model_named, model_names

pytestmark = pytest.mark.slow


def test_a_name_of_the_hub_finds_the_built_in_model():
    found = model_named("meta-llama/Llama-3.1-70B-Instruct")
    assert found == model_named("llama-3.1-70b")
    assert (found.name, found.hub_name) == ("llama-3.1-70b", "meta-llama/Llama-3.1-70B-Instruct")
    assert model_named("llama-3.1-70b").hub_name is None


@pytest.mark.parametrize("name", ["META-LLAMA/llama-3.1-8b-instruct", "Llama-3.1-8B-Instruct", "deepseek-r1"])
def test_neither_case_nor_owner_matters(name):
    assert model_named(name).hub_name.lower().endswith(name.lower())


def test_every_name_of_the_hub_is_one_models_alone_and_every_built_in_one_has_some():
    names = hub_names()
    assert len({name.lower() for name in names}) == len(names)
    assert {model_named(name).name for name in names} == set(model_names()) - {"opt-175b"}


def test_a_variant_with_another_longest_sequence_keeps_it():
    """Qwen2.5's instruct models state 32,768 tokens, their base models 131,072."""
    assert model_named("Qwen/Qwen2.5-7B").max_model_len == 131_072
    assert model_named("Qwen/Qwen2.5-7B-Instruct").max_model_len == 32_768


def test_a_quantised_checkpoint_is_its_model_with_such_weights():
    for name, method in (
        ("Qwen/Qwen3-30B-A3B-FP8", "fp8"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", "fp8"),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-dynamic", "fp8"),
        ("hugging-quants/Meta-Llama-3.1-70B-Instruct-GPTQ-INT4", "gptq"),
        ("Qwen/Qwen3-32B-AWQ", "awq"),
        ("nvidia/Llama-3.3-70B-Instruct-FP4", "nvfp4"),
    ):
        found = model_named(name)
        assert (found.quantization, found.hub_name) == (method, name)
        assert found.weight_bytes < 0.65 * model_named(found.name).weight_bytes
    assert model_named("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8").max_model_len == 262_144
    with pytest.raises(KvsimError, match="neither built in nor a file"):
        model_named("Qwen/Qwen3-4B-FP8")


def test_releases_that_share_a_geometry_are_known():
    assert model_named("Qwen/Qwen3-235B-A22B-Instruct-2507").name == "qwen3-235b-a22b"
    assert model_named("Qwen/Qwen3-30B-A3B-Base").max_model_len == 32_768
    assert model_named("Mistral-Small-3.2-24B-Instruct-2506").name == "mistral-small-3.2-24b"
    assert model_named("Mistral-Small-3.1-24B-Instruct-2503-FP8").quantization == "fp8"


def test_an_unknown_one_suggests_near_ones_and_the_config_file():
    with pytest.raises(KvsimError) as error:
        model_named("meta-llama/Llama-3.1-405B")
    assert "did you mean 'meta-llama/Llama-3.1-70B'" in str(error.value)
    assert "download its config.json from the hub and give that file" in str(error.value)
    with pytest.raises(KvsimError, match=r"^model 'foo/bar' is neither built in nor a file \(see"):
        model_named("foo/bar")


def test_a_folder_of_that_name_goes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = Path("facebook/opt-13b")
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    with pytest.raises(KvsimError, match="hidden_size is missing"):
        model_named("facebook/opt-13b")


def test_the_result_says_which_model_was_taken_and_keeps_the_papers_memory(tmp_path, capsys):
    out = tmp_path / "run"
    words = ["run", "--model", "facebook/opt-13b", "--num-prompts", "10", "--no-plots", "-q"]
    assert cli.main([*words, "--out", str(out)]) == 0
    notes = json.loads((out / "summary.json").read_text())["notes"]
    assert "Model facebook/opt-13b: the built-in opt-13b, of the same geometry." in notes
    assert any("reported by the PagedAttention paper" in note for note in notes)
    assert cli.main(["run", "--config", str(out / "config.json"), "--out", str(tmp_path / "two"), "-q"]) == 0
    assert json.loads((tmp_path / "two" / "summary.json").read_text())["notes"] == notes
