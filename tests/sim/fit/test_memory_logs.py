"""What genuine servers found of their memory when they started, and what the formula says of it.

Facts with their sources, all public: [E] the validation records of ashishkamra/vllm-memory-estimator (flags
in the log), [L] llm-d-benchmark, config_explorer/empirical-vllm-memory-results.md (H100 of 79.18 GiB), [I]
issues of vLLM, [B] a book, [D] devforth.io, [M] myoceane.fr. Where a log does not say its flags, the row says
what is assumed.
"""

from statistics import median
from typing import NamedTuple

import pytest

from kvsim.sim.fit.answer import GIB, fit


class Row(NamedTuple):
    """A start: what was asked, GiB of weights and cache on each GPU."""

    model: str
    weights: str | None
    gpu: str
    tp: int
    release: str
    utilization: float
    weights_gib: float | None
    cache_gib: float
    asked: dict
    source: str


def row(line, **asked):
    model, gpu, tp, release, utilization, weights_gib, cache_gib, source = line.split()
    name, _, weights = model.partition(":")
    gib = None if weights_gib == "-" else float(weights_gib)
    return Row(
        name, weights or None, gpu, int(tp), release, float(utilization), gib, float(cache_gib), asked, source
    )


LOGS = [
    row("llama-3.1-70b:fp8 h200 4 0.11.2 .92 16.96 106.17 E", max_model_len=8192),
    row("llama-3.1-70b:fp8 h200 4 0.14.1 .92 16.96 106.22 E", max_model_len=8192),
    row("llama-3.1-70b:fp8 h200 4 0.18.0 .92 16.96 107.52 E", max_model_len=8192),
    row("llama-3.1-70b:fp8 h200 4 0.20.0 .92 16.96 106.62 E"),
    row("llama-3.1-70b:fp8 b200 4 0.18.0 .92 16.96 142.94 E", max_model_len=8192),
    row("llama-3.1-70b h200 4 0.13.0 .92 32.89 90.23 E", max_model_len=8192),
    row("llama-3.1-70b h200 4 0.19.0 .92 32.89 91.57 E", max_model_len=8192),
    row("llama-3.1-70b b200 4 0.18.0 .92 32.89 127.02 E", max_model_len=8192),
    row("deepseek-v3 h200 8 0.11.2 .92 79.74 41.60 E", max_model_len=8192),
    row("deepseek-v3 h200 8 0.13.0 .92 79.74 43.11 E", max_model_len=8192),
    row("deepseek-v3 h200 8 0.14.1 .92 79.74 41.43 E", max_model_len=8192),
    row("deepseek-v3 h200 8 0.16.0 .92 79.74 43.07 E", max_model_len=8192),
    row("deepseek-v3 h200 8 0.19.0 .92 79.74 42.79 E", max_model_len=8192),
    row("deepseek-v3 h200 8 0.20.0 .92 79.74 41.24 E"),
    row("deepseek-v3 b200 8 0.18.0 .92 79.88 79.81 E", max_model_len=8192),
    row("qwen3-235b-a22b h200 4 0.11.2 .92 109.61 12.73 E", max_model_len=8192),
    row("qwen3-235b-a22b:fp8 h200 4 0.11.2 .92 55.20 66.13 E", max_model_len=8192),
    row("qwen3-235b-a22b:fp8 h200 4 0.20.2 .92 55.87 65.48 E", max_model_len=8192),  # with a vision tower
    row("qwen3-30b-a3b h200 1 0.16.0 .92 58.23 63.73 E", max_model_len=8192),  # with a vision tower
    row("qwen3-30b-a3b h200 1 0.20.0 .92 58.23 66.76 E"),  # with a vision tower
    row("qwen3-next-80b-a3b:fp8 h200 1 0.18.0 .92 76.27 49.29 E", max_model_len=8192),
    row("llama-4-maverick h200 8 0.11.2 .92 93.79 26.13 E", max_model_len=8192),  # with a vision tower
    row("gpt-oss-20b h100 1 0.11.2 .9 13.47 50.28 L", max_model_len=16_000),
    row("llama-3.1-70b:fp8 h100 2 0.11.2 .9 33.88 32.0 L", max_model_len=16_000),
    row("llama-3.1-8b h100 1 0.11.2 .9 14.99 51.38 L", max_model_len=16_000),
    row("qwen3-32b h100 1 0.11.2 .9 61.03 4.45 L", max_model_len=16_000),
    row("gpt-oss-20b a100-80gb 1 0.19.0 .65 13.72 36.56 M"),  # 80 GB assumed
    row("qwen3-14b l40s 1 0.9.2 .9 27.52 11.00 B"),  # release assumed
    row("qwen3-235b-a22b:fp8 h100 4 0.10.0 .9 - 8.11 I"),  # vllm#21348
    row("llama-3.1-70b:fp8 h100 1 0.7.0 .98 67.72 6.74 I", max_model_len=2048),  # vllm#12569, GPU assumed
]
REFUSED = [
    row("gpt-oss-120b h100 1 0.10.1 .9 65.97 -2.14 I"),  # vllm#23278
    row("gpt-oss-120b h100 1 0.14.1 .9 64.38 0 I"),  # vllm#33155, weights only
    row("llama-3.1-70b:fp8 h100 1 0.11.2 .9 67.72 -1.44 L", max_model_len=16_000),
    row("qwen3-32b h100 1 0.11.2 .9 61.03 4.45 L", max_model_len=32_000),
]


def answer(log):
    return fit(
        log.model,
        log.gpu,
        engine=f"vllm-v1@{log.release}",
        tensor_parallel_size=log.tp,
        gpu_memory_utilization=log.utilization,
        quantization=log.weights,
        **log.asked,
    )


def off(log):
    return answer(log).kv_memory_bytes / GIB / log.cache_gib - 1


@pytest.mark.parametrize("log", LOGS, ids=lambda log: f"{log.model}-{log.gpu}-{log.release}")
def test_the_cache_of_a_genuine_server_is_met(log):
    assert abs(off(log)) < 0.10
    if log.weights_gib is not None:
        assert answer(log).weights_bytes / GIB == pytest.approx(log.weights_gib, rel=0.025)


def test_half_of_the_servers_are_met_within_three_percent():
    assert median(abs(off(log)) for log in LOGS) < 0.03


@pytest.mark.parametrize("log", REFUSED, ids=lambda log: f"{log.model}-{log.release}-{log.asked}")
def test_a_start_that_was_refused_is_refused_here(log):
    found = answer(log)
    assert found.capacity.refusal is not None
    assert found.weights_bytes / GIB == pytest.approx(log.weights_gib, rel=0.025)
    if log.cache_gib < 0:
        assert found.kv_memory_bytes / GIB == pytest.approx(log.cache_gib, abs=0.2)


def test_a_printed_concurrency_is_met():
    found = fit("gpt-oss-20b", "l4", kv_cache_dtype="fp8", max_model_len=131_072, engine="vllm-v1@0.10.2")
    assert found.capacity.max_concurrency == pytest.approx(2.78, rel=0.03)  # [D]


def test_the_sampler_of_the_profile_run_grows_with_the_seats_and_is_small_since_0_17():
    def activations(release, seats):
        found = fit("qwen3-8b", "h100", max_num_seqs=seats, engine=f"vllm-v1@{release}")
        return next(line.bytes for line in found.lines if line.name == "activations")

    words = 151_936
    assert activations("0.11.0", 1024) - activations("0.11.0", 512) == pytest.approx(38 * 512 * words, abs=2)
    assert activations("0.33.0", 1024) - activations("0.33.0", 512) == pytest.approx(14 * 512 * words, abs=2)
