"""Results of benchmark tools: the paths of recorded ones, and one written from known requests."""

import json
from pathlib import Path

from kvsim.sim.validate import runs

RECORDED = Path(__file__).resolve().parents[1] / "data" / "bench"
"""Written by the tools themselves, against GuideLLM's mock server."""
AIPERF = RECORDED / "aiperf-0.13.0"
GUIDELLM = RECORDED / "guidellm-0.8.1.json"
VLLM = RECORDED / "vllm-0.33.0-detailed.json"
INFERENCE_PERF = RECORDED / "inference-perf-summary.json"


def bench_serve(path, requests, **facts):
    """A result of `vllm bench serve --save-detailed`: requests as (start, input, output, TTFT, gaps)."""
    content = {
        "model_id": "meta-llama/Llama-3.1-8B",
        "num_prompts": len(requests),
        "request_rate": "inf",
        "burstiness": 1.0,
        "max_concurrency": None,
        "duration": 1.0,
        "completed": len(requests),
        "failed": 0,
        "request_throughput": 1.0,
        "start_times": [each[0] for each in requests],
        "input_lens": [each[1] for each in requests],
        "output_lens": [each[2] for each in requests],
        "ttfts": [each[3] for each in requests],
        "itls": [each[4] for each in requests],
        "errors": [""] * len(requests),
    }
    path.write_text(json.dumps(content | facts))
    return path


def of_simulation(table, scale=1.0):
    """Requests for `bench_serve` from a simulated table, with every time after the arrival scaled."""
    found = []
    columns = ("arrival_s", "prompt_tokens", "output_tokens", "ttft_s", "tpot_s")
    for start, prompt, output, ttft, tpot in zip(*(table[name].tolist() for name in columns), strict=True):
        found.append((start, prompt, output, scale * ttft, [scale * tpot] * (output - 1)))
    return found


SAID = {"rtx-4090": ("256", "INFO GPU KV cache size: 41,408 tokens\n"), "rtx-pro-6000": ("128", "")}
"""GPU -> its server's log output about seats and KV cache."""


def measured_on(gpu, directory):
    """A result and a start-up log of a server that really ran, vLLM 0.19 on one of two GPUs, and the run."""
    (run,) = (each for each in runs() if each.name.startswith(gpu))
    work, requests = run.workload, []
    for row in range(len(work)):
        gaps, ttft = int(work.output_tokens[row]) - 1, float(run.ttft_s[row])
        each = [(float(run.e2e_s[row]) - ttft) / gaps] * gaps if gaps else []
        lengths = int(work.prompt_tokens[row]), int(work.output_tokens[row])
        requests.append((work.arrival_ps[row] / 1e12, *lengths, ttft, each))
    seats, size = SAID[gpu]
    log = directory / "server.log"
    log.write_text(
        f"INFO 01-01 non-default args: {{'model': 'm', 'max_num_seqs': {seats}}}\n"
        "INFO core.py:99] Initializing a V1 LLM engine (v0.19.0) with config: model='m', "
        "tensor_parallel_size=1, enable_prefix_caching=True\n"
        "INFO Chunked prefill is enabled with max_num_batched_tokens=2048.\n"
        "INFO Asynchronous scheduling is enabled.\n"
        f"INFO Model loading took 14.99 GiB memory and 3.1 seconds\n{size}"
    )
    return bench_serve(directory / "result.json", requests), log, run


def step_lines(n=200):
    """A server's log of its steps: 10 ms, plus 0.5 ms per sequence and 0.1 ms per prompt token."""
    lines, now = [], 0.0
    for step in range(n):
        prompts, decode = int(step % 10 == 0), 1 + step % 7
        tokens = 40 * prompts * (1 + step % 3)
        ms = 10 + 0.5 * (prompts + decode) + 0.1 * tokens
        now += ms / 1e3
        asked = f"{prompts} context requests, {tokens} context tokens, {decode} generation requests"
        what = f"Iteration({step}): {asked}, {decode} generation tokens, iteration elapsed time: {ms:.2f} ms"
        lines.append(
            f"INFO 11-23 15:41:{int(now):02d} [loggers.py:199] Engine 000: {what}, GPU KV cache usage: 1.0%"
        )
    return "\n".join(lines) + "\n"
