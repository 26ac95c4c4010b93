"""A run says where vLLM would not start its server, as `sim fit` does."""

import pytest

import kvsim
from kvsim.cli import main
from kvsim.sim.build import resolve
from kvsim.sim.fit.answer import fit
from kvsim.sim.options.scenario import Scenario
from kvsim.sim.starts import longest_start

SERVERS = [
    ("llama-3.1-70b", "b200", 1, {}),
    ("llama-3.1-70b", "b200", 2, {}),
    ("llama-3.1-70b", "l4", 8, {}),
    ("llama-3.1-8b", "l4", 1, {}),
    ("qwen3-32b", "h100", 1, {"max_model_len": 32_000}),
    ("gemma-3-27b", "a100-80gb", 1, {}),
    ("gemma-3-27b", "a100-80gb", 1, {"gpu_memory_utilization": 0.75}),
    ("qwen3-next-80b-a3b", "h200", 1, {"quantization": "fp8", "gpu_memory_utilization": 0.59}),
]


@pytest.mark.parametrize(("model", "gpu", "tp", "options"), SERVERS)
def test_what_vllm_would_not_start_is_what_fit_refuses(model, gpu, tp, options):
    found = longest_start(
        resolve(Scenario(model=model, gpu=gpu, tensor_parallel_size=tp, **options).deployed())
    )
    known = fit(model, gpu, tensor_parallel_size=tp, **options).capacity
    assert found == (known.longest if known.refusal else None)


def test_some_of_these_are_refused():
    refused = [fit(model, gpu, tensor_parallel_size=tp, **more).capacity for model, gpu, tp, more in SERVERS]
    assert [bool(each.refusal) for each in refused].count(True) >= 4


def test_run_and_capacity_say_so_and_the_papers_server_does_not(capsys, tmp_path):
    """A capacity of 70B on one B200 was accepted silently: 131,072 tokens do not fit there."""
    server = {"model": "llama-3.1-70b", "gpu": "b200", "num_prompts": 3}
    note = (
        "vLLM would not start: one sequence of 131,072 tokens does not fit the cache. "
        "It would with --max-model-len 91376 for llama-3.1-70b on b200."
    )
    assert note in kvsim.simulate(**server).summary["notes"]
    shorter = kvsim.simulate(**server, max_model_len=91_376).summary["notes"]
    given = kvsim.simulate(**server, num_gpu_blocks=1000).summary["notes"]
    for notes in (shorter, given, kvsim.simulate(num_prompts=3).summary["notes"]):
        assert "would not start" not in " ".join(notes)
    flags = "--model llama-3.1-70b --gpu b200 --slo ttft:p99=1s --num-prompts 40 --seeds 2 --jobs 1"
    assert main(["capacity", *flags.split(), "--tolerance", "0.3", "--out", str(tmp_path / "out")]) == 0
    assert note in " ".join(capsys.readouterr().out.split())
