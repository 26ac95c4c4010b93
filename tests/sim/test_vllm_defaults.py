"""vLLM's own defaults: token budget and seats by GPU and use, features switched on; each overridable."""

import gzip
import json
from dataclasses import replace

import pytest
from support.bench_files import GUIDELLM
from support.shared_data import goldens

import kvsim
from kvsim.sim.bench.read import read_result
from kvsim.sim.bench.server import server_of
from kvsim.sim.build import resolve
from kvsim.sim.cost.older_experts import release_of
from kvsim.sim.deployment.vllm_defaults import Asked, defaults_note, release_settings, vllm_defaults
from kvsim.sim.errors import KvsimError
from kvsim.sim.fit.answer import fit
from kvsim.sim.fit.log import read_log
from kvsim.sim.models.catalog import gpu_named, model_named
from kvsim.sim.options.scenario import Scenario
from kvsim.sim.run import side_by_side

USE = {"LLM_CLASS": "llm", "OPENAI_API_SERVER": "server"}
FIELDS = (
    *("max_num_batched_tokens", "max_num_seqs", "gpu_memory_utilization", "enable_chunked_prefill"),
    *("enable_prefix_caching", "async_scheduling", "prefix_cache_retention_interval"),
)


def model_of_row(row):
    """A stand-in with the recorded longest sequence; recurrent and encoder models have their own layers."""
    from kvsim.sim.models.huggingface import model_of

    if row["model"] == "mamba2-2.7b":
        config = {"model_type": "mamba2", "hidden_size": 2560, "num_hidden_layers": 64, "num_heads": 80}
        config |= {"head_dim": 64, "state_size": 128, "n_groups": 1, "conv_kernel": 4, "vocab_size": 50288}
        return model_of(config, "mamba2")
    if row["model"] == "whisper-large-v3":
        config = {"model_type": "whisper", "d_model": 1280, "num_hidden_layers": 32, "vocab_size": 51866}
        config |= {"decoder_attention_heads": 20, "max_target_positions": 448, "decoder_ffn_dim": 5120}
        return model_of(config, "whisper")
    return model_named("llama-3.1-8b")


@pytest.mark.golden
def test_every_gpu_use_and_switch_starts_as_the_genuine_0_33_0_does():
    with gzip.open(goldens("fit/defaults.json.gz"), "rt", encoding="utf-8") as file:
        gpus = json.load(file)["gpus"]
    wrong, rows = [], 0
    for gpu in gpus:
        spec = replace(gpu_named("h100"), name=gpu["device_name"], memory_bytes=gpu["total_memory_bytes"])
        for row in gpu["rows"]:
            rows += 1
            args = dict(row["args"])
            mode = args.pop("performance_mode", "balanced")
            stages = args.pop("pipeline_parallel_size", 1)
            args.pop("tensor_parallel_size", None)
            if "max_model_len" in row:
                args["max_model_len"] = row["max_model_len"]
            use = USE.get(row["usage_context"], "other")
            try:
                ours = vllm_defaults(
                    "0.33.0", spec, model_of_row(row), use=use, mode=mode, asked=Asked(**args)
                )
            except KvsimError as refused:
                if "error" not in row:
                    wrong.append((gpu["gpu"], row, str(refused)))
                continue
            if "error" in row:
                wrong.append((gpu["gpu"], row, "not refused"))
                continue
            if ours.in_flight_of(stages) != row["max_in_flight_tokens"]:
                wrong.append((gpu["gpu"], row, ours.in_flight_of(stages)))
            wrong += [
                (gpu["gpu"], row["model"], row["variant"], row["usage_context"], field, getattr(ours, field))
                for field in FIELDS
                if getattr(ours, field) != row[field]
            ]
    assert rows == 14 * 54
    assert wrong == []


@pytest.mark.parametrize(
    ("gpu", "use", "release", "expected"),
    [
        ("h100", "server", "0.33.0", (8192, 1024, 0.92, True)),
        ("h100", "llm", "0.33.0", (16384, 1024, 0.92, True)),
        ("b200", "server", "0.33.0", (16384, 1024, 0.92, True)),
        ("b200", "server", "0.11.0", (8192, 1024, 0.90, False)),
        ("b200", "server", "0.19.0", (8192, 1024, 0.90, True)),
        ("b200", "server", "0.22.1", (8192, 1024, 0.92, True)),
        ("a100-80gb", "server", "0.33.0", (2048, 256, 0.92, True)),
        ("l4", "other", "0.33.0", (2048, 128, 0.92, True)),
    ],
)
def test_the_gpus_memory_and_the_use_decide(gpu, use, release, expected):
    found = vllm_defaults(release, gpu_named(gpu), model_named("llama-3.1-8b"), use=use)
    assert expected == (
        found.max_num_batched_tokens,
        found.max_num_seqs,
        found.gpu_memory_utilization,
        found.async_scheduling,
    )


def test_what_is_asked_stays_and_the_rest_follows():
    h100, model = gpu_named("h100"), model_named("llama-3.1-8b")
    asked = Asked(max_num_batched_tokens=512, async_scheduling=False, enable_prefix_caching=False)
    found = vllm_defaults("0.33.0", h100, model, asked=asked)
    assert (found.max_num_batched_tokens, found.max_num_seqs, found.in_flight_tokens) == (512, 512, 512)
    assert not found.enable_prefix_caching
    assert vllm_defaults("0.33.0", h100, model, mode="throughput").max_num_seqs == 2048
    short = replace(model, max_model_len=4)
    assert vllm_defaults("0.33.0", h100, short).max_num_batched_tokens == 4 * 1024


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"release": "0.6"}, "vLLM release must be 0.7.0 to 0.33.0, got '0.6'"),
        ({"release": "new"}, "vLLM release must be 0.7.0 to 0.33.0, got 'new'"),
        ({"use": "batch"}, "use must be one of server, llm, other, got 'batch'"),
        ({"mode": "fast"}, "performance_mode must be one of"),
        ({"asked": Asked(max_num_seqs=9000)}, "at least max_num_seqs .9000., got 8192"),
    ],
)
def test_what_cannot_be_is_refused(arguments, message):
    settings = {
        "release": "0.33.0",
        "gpu": gpu_named("h100"),
        "model": model_named("llama-3.1-8b"),
    } | arguments
    with pytest.raises(KvsimError, match=message):
        vllm_defaults(settings.pop("release"), settings.pop("gpu"), settings.pop("model"), **settings)


def test_a_release_on_a_gpu_of_today_brings_its_own_settings_and_the_papers_scenario_none():
    h100, llama = gpu_named("h100"), model_named("llama-3.1-8b")
    found = release_settings("vllm-v1@0.33.0", h100, llama)
    assert found == {
        "max_num_batched_tokens": 8192,
        "max_num_seqs": 1024,
        "gpu_memory_utilization": 0.92,
        "enable_chunked_prefill": True,
        "enable_prefix_caching": True,
        "async_scheduling": True,
    }
    assert not release_settings("vllm-v1@0.11.0", h100, llama)["async_scheduling"]
    gemma = model_named("gemma-3-27b")
    assert release_settings("vllm-v1@0.33.0", h100, gemma)["enable_prefix_caching"]
    assert not release_settings("vllm-v1@0.11.0", h100, gemma)["enable_prefix_caching"]
    assert release_settings(None, h100, llama) == release_settings("vllm-v1", h100, llama) == found
    assert release_settings("orca", h100, llama) == {}
    for model, gpu in (("opt-13b", "a100-40gb"), ("opt-66b", "a100-40gb"), ("opt-175b", "a100-80gb")):
        for scheduler in (None, "vllm-v1@0.33.0"):
            assert release_settings(scheduler, gpu_named(gpu), model_named(model)) == {}
    assert release_settings(None, gpu_named("a100-40gb"), llama)["max_num_batched_tokens"] == 2048


def test_a_report_says_which_settings_are_a_releases_own():
    settings = {"max_num_seqs": [1024], "async_scheduling": [True]}
    told = "vLLM 0.11.0 defaults for h100: max_num_seqs 1,024, async_scheduling True."
    assert defaults_note("0.11.0", ["h100"], settings) == told
    several = {"enable_prefix_caching": [True, False]}
    assert defaults_note("0.11.0", ["h100"], several).endswith(": enable_prefix_caching True or False.")
    assert defaults_note("0.11.0", ["h100"], {}) == ""


def test_a_run_starts_from_the_releases_settings_and_every_one_can_be_overridden():
    server = Scenario(model="llama-3.1-8b", gpu="h100", scheduler="vllm-v1@0.33.0", max_num_seqs=64)
    found = server.deployed()
    engine = found.engine
    assert (engine.max_num_batched_tokens, engine.max_num_seqs) == (8192, 64)
    assert (engine.enable_prefix_caching, resolve(found).deployment.engine.async_scheduling) == (True, True)
    assert found.gpu_memory_utilization == 0.92
    given = replace(server, gpu_memory_utilization=0.8, enable_prefix_caching=False).deployed()
    assert (given.gpu_memory_utilization, given.engine.enable_prefix_caching) == (0.8, False)
    assert not replace(server, allocator="contiguous").deployed().engine.enable_prefix_caching
    plain = replace(server, scheduler=None).deployed()
    assert replace(plain, engine=replace(plain.engine, scheduler="vllm-v1@0.33.0")) == found


@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3-30b-a3b", "gemma-3-27b", "qwen3-next-80b-a3b"])
@pytest.mark.parametrize("gpu", ["h100", "a100-40gb", "a100-80gb", "l40s", "b200"])
def test_run_replay_and_fit_ask_for_one_server(model, gpu, tmp_path):
    asked = Scenario(model=model, gpu=gpu, tensor_parallel_size=4)
    run, replay = asked.deployed(), server_of(asked, read_result(GUIDELLM)).scenario.deployed()
    engine = fit(model, gpu, tensor_parallel_size=4).engine
    for each in (run, replay):
        found = resolve(each).deployment
        assert found.gpu_memory_utilization == engine.gpu_memory_utilization
        for name in ("max_num_batched_tokens", "max_num_seqs", "enable_prefix_caching", "async_scheduling"):
            assert getattr(found.engine, name) == getattr(engine, name), name
    assert (
        resolve(run).deployment.engine
        == resolve(replace(each, engine=replace(each.engine, scheduler=None))).deployment.engine
    )


START = """\
Initializing a V1 LLM engine (v{release}) with config: model='m', device_config=cuda
Model loading took 55.0 GiB and 1.0 seconds
Available KV cache memory: 60.00 GiB
"""


@pytest.mark.parametrize(
    ("release", "recorded", "whole_prompts"),
    [
        ("0.9.2", "0.11.0", False),
        ("0.12.0", "0.11.0", False),
        ("0.15.1", "0.33.0", False),
        ("0.19.0", "0.33.0", True),
    ],
)
def test_any_release_is_one_server_for_run_fit_and_replay(release, recorded, whole_prompts, tmp_path):
    """0.12 was refused by run, and had the newest release's experts, while fit and replay knew it."""
    asked = Scenario(model="qwen3-235b-a22b-fp8", gpu="h200", tensor_parallel_size=4)
    run = replace(asked, scheduler=f"vllm-v1@{release}").deployed()
    log = tmp_path / "start.log"
    log.write_text(START.format(release=release))
    replay = server_of(asked, read_result(GUIDELLM), read_log(log)).scenario.deployed()
    known = fit(asked.model, asked.gpu, tensor_parallel_size=4, engine=f"vllm-v1@{release}")
    assert resolve(replay).deployment == resolve(run).deployment
    found = resolve(run)
    assert (found.scheduler.version, found.scheduler.limits.whole_prompt) == (recorded, whole_prompts)
    for name in ("max_num_batched_tokens", "max_num_seqs", "enable_prefix_caching", "async_scheduling"):
        assert getattr(found.deployment.engine, name) == getattr(known.engine, name), name
    assert found.kept.capacity.tokens == pytest.approx(known.capacity.kv_tokens, rel=1e-3)
    assert release_of(found.deployment.profile) == (release if release in ("0.12.0", "0.15.1") else "")


def test_a_run_of_an_older_release_says_whose_rules_and_whose_experts_it_has(tmp_path):
    older = {"model": "qwen3-235b-a22b-fp8", "gpu": "h200", "tensor_parallel_size": 4, "num_prompts": 5}
    runs = [kvsim.simulate(**older, scheduler=f"vllm-v1@{each}") for each in ("0.12.0", "0.33.0")]
    old, new = (each.summary for each in runs)
    assert "kernels of vLLM 0.24.0, experts as in 0.12.0, as tabled by" in old["cost"]["source"]
    assert "vLLM 0.12.0 decides its steps as 0.11.0, which was recorded." in old["notes"]
    assert old["latency"]["tpot_s"]["p50"] > 1.5 * new["latency"]["tpot_s"]["p50"]
    assert "experts as" not in new["cost"]["source"] and "decides" not in " ".join(new["notes"])
    with pytest.raises(KvsimError, match=r"vLLM release must be 0.7.0 to 0.33.0, got '0.12.0/../x'"):
        kvsim.simulate(**older, scheduler="vllm-v1@0.12.0/../x")


def test_other_engines_are_compared_on_the_same_server():
    server = Scenario(model="llama-3.1-8b", gpu="h100").deployed()
    names = ("contiguous", "buddy:pow2", "paged", "radix", "sglang")
    for each in side_by_side(server, names):
        assert (each.engine.max_num_batched_tokens, each.engine.max_num_seqs) == (8192, 1024)
        assert each.gpu_memory_utilization == 0.92
    for scheduler in ("orca", "static"):
        found = Scenario(model="llama-3.1-8b", gpu="h100", scheduler=scheduler).deployed()
        assert (found.engine.max_num_seqs, found.engine.enable_prefix_caching) == (1024, False)
    own = Scenario(model="llama-3.1-8b", gpu="h100", scheduler="tensorrt-llm").deployed()
    assert (own.engine.max_num_seqs, own.gpu_memory_utilization) == (2048, 0.9)  # an engine's own go first


def test_a_runs_name_and_notes_tell_what_was_chosen_and_what_is_usual():
    run = kvsim.simulate(model="llama-3.1-8b", gpu="h100", num_prompts=5, max_num_seqs=64)
    note = next(note for note in run.summary["notes"] if "defaults" in note)
    assert note.startswith("vLLM 0.33.0 defaults for h100: max_num_batched_tokens 8,192, gpu_memory_util")
    assert "max_num_seqs" not in note
    papers = kvsim.simulate(num_prompts=5)
    assert not any("defaults" in note for note in papers.summary["notes"])
