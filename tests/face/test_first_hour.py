"""What a new user meets in the first hour: names that are kept, mistakes in the user's words."""

import json
import re

import pytest
from support.summaries import plain

import kvsim
from kvsim.cli import main
from kvsim.reports.fit.tables import fit_report
from kvsim.reports.headline import headline
from kvsim.reports.terminal import run_table
from kvsim.sim.counted import several, signed_percent
from kvsim.sim.models.catalog import model_named

QWEN = {
    "model_type": "qwen3",
    "num_hidden_layers": 4,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
}


def test_two_arrivals_apart_did_not_come_all_at_once(tmp_path):
    trace = tmp_path / "own.csv"
    trace.write_text("timestamp,input_tokens,output_tokens\n0,100,200\n0.4,100,200\n")
    apart = kvsim.simulate(trace=str(trace), cost="constant:0.03")
    assert apart.summary.load.arrivals == "open"
    assert "all at once" not in headline([apart.summary])
    together = kvsim.simulate(num_prompts=20, request_rate=float("inf"), cost="constant:0.03")
    assert "which all arrived at once" in headline([together.summary])


def test_a_models_file_gives_it_its_name_and_a_folder_of_a_config_json_its_own(tmp_path):
    (tmp_path / "mine").mkdir()
    for name in ("qwen.json", "config.json"):
        (tmp_path / "mine" / name).write_text(json.dumps(QWEN))
    assert model_named(str(tmp_path / "mine" / "qwen.json")).name == "qwen"
    assert model_named(str(tmp_path / "mine" / "config.json")).name == "mine"
    assert model_named(str(tmp_path / "mine")).name == "mine"


def test_a_replay_of_what_is_no_path_is_refused():
    for result in ({}, 3, None):
        with pytest.raises(
            kvsim.KvsimError, match=f"result must be str or Path, got {type(result).__name__}"
        ):
            kvsim.replay(result, model="llama-3.1-8b", gpu="h100")


def test_compared_schedulers_keep_their_names():
    runs = kvsim.compare([{"scheduler": "vllm-v1"}, {"scheduler": "orca"}], num_prompts=30, request_rate=9.0)
    assert repr(runs) == "<kvsim.Comparison of 2 runs: paged, vllm-v1; paged, orca>"
    assert list(runs.table.label) == ["paged, vllm-v1", "paged, orca"]
    assert runs["paged, orca"].summary.engine.scheduler == "orca"
    assert "paged, vllm-v1" in runs.plot("waste").get_label()
    with pytest.raises(KeyError, match="labels: paged, vllm-v1, paged, orca"):
        runs["paged"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"allocator": "buddy:foo"},
            "reserve of allocator buddy must be one of max, pow2, oracle, predicted",
        ),
        ({"allocator": "paged:foo"}, "allocator paged takes no reservation, got 'foo'"),
        ({"model": "llama3"}, "model 'llama3' is unknown; did you mean 'llama-3.1-8b'"),
        ({"model": "qwen3-4b"}, r"model 'qwen3-4b' is unknown \(known: "),
        ({"gpu": "A100"}, "gpu 'A100' is unknown; did you mean 'a100-40gb'"),
    ],
)
def test_mistakes_are_told_in_the_users_words(options, words):
    with pytest.raises(kvsim.KvsimError, match=words):
        kvsim.simulate(**options)


def test_the_memory_of_a_fleet_is_said_to_be_that_of_a_replica():
    fleet = kvsim.simulate(num_prompts=80, request_rate=float("inf"), replicas=2)
    assert "; KV memory of each replica " in headline([fleet.summary])
    table = " ".join(plain(run_table([fleet.summary])).split())
    assert "KV memory of each of 2 replicas, whole" in table and "15,744 tokens" in table
    alone = kvsim.simulate(num_prompts=10)
    assert "; KV memory " in headline([alone.summary]) and "replica" not in plain(run_table([alone.summary]))


def test_a_fit_that_does_not_is_told_in_its_headline_and_no_share_is_above_all():
    fit = kvsim.fit("llama-3.1-70b", gpu="h100")
    said = plain(fit_report([fit]), width=200)
    first = said.splitlines()[0]
    assert first.startswith(
        "llama-3.1-70b on h100: vLLM 0.33.0 would not start: no memory is left for the cache"
    )
    assert first.endswith("it would with --tensor-parallel-size 4")
    assert said.count("would not start") == 1
    assert "165.0 %" not in said and "1.65 GPUs" in said and "missing" in said
    assert "134.4 GiB, before any cache, for the 79.6 of one GPU" in said
    assert "the log says" not in said and re.search(r"blocks +none", said)  # vLLM prints no size
    assert "the log says" in plain(fit_report([kvsim.fit("llama-3.1-8b", gpu="h100")]), width=200)


def test_one_is_no_plural_and_nothing_has_no_sign():
    assert [several(count, "server") for count in (0, 1, 2, 1000)] == [
        "0 servers",
        "1 server",
        "2 servers",
        "1,000 servers",
    ]
    shares = (-0.0004, 0.0, 0.0004, -0.012)
    assert [signed_percent(share) for share in shares] == ["+0.0 %", "+0.0 %", "+0.0 %", "-1.2 %"]


def test_several_gpus_for_a_command_of_one_are_sent_to_those_of_several(capsys):
    assert main(["compare", "--allocator", "paged", "--gpu", "a100-40gb,a100-80gb"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "gpu must be one, got 'a100-40gb,a100-80gb'" in said and "sim sweep" in said
