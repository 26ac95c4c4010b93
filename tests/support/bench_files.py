"""Results of benchmark tools: where recorded ones are, and one written from known requests."""

import json
from pathlib import Path

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
    """Requests for `bench_serve` of a simulated table, every time after the arrival multiplied."""
    found = []
    columns = ("arrival_s", "prompt_tokens", "output_tokens", "ttft_s", "tpot_s")
    for start, prompt, output, ttft, tpot in zip(*(table[name].tolist() for name in columns), strict=True):
        found.append((start, prompt, output, scale * ttft, [scale * tpot] * (output - 1)))
    return found
