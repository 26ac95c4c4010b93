"""A simulated run as `vllm bench serve --save-result --save-detailed` would have saved it.

By vLLM's definitions: ITL over all gaps together, TPOT without one-token answers, population standard
deviations, linear percentiles. As with --percentile-metrics ttft,tpot,itl,e2el and --metric-percentiles
50,90,95,99.
"""

from math import ceil, isfinite
from typing import Any

import numpy as np

from kvsim.sim.bench.goodput import good, limits_of
from kvsim.sim.bench.measured import Floats
from kvsim.sim.bench.served import Served

PERCENTILES = (50, 90, 95, 99)


def vllm_result(run: Served) -> dict[str, Any]:
    """The object in the file."""
    requests, duration = run.requests, run.duration_s
    assert requests.start_s is not None
    prompt, output = int(requests.input_tokens.sum()), int(requests.output_tokens.sum())
    found: dict[str, Any] = {
        "date": "19700101-000000",
        "endpoint_type": "kvsim",
        "backend": "kvsim",
        "label": run.label,
        "model_id": run.model,
        "tokenizer_id": run.model,
        "num_prompts": len(requests) + run.failed,
        "request_rate": run.request_rate if isfinite(run.request_rate) else "inf",
        "burstiness": run.burstiness,
        "max_concurrency": run.clients,
        "duration": duration,
        "completed": len(requests),
        "failed": run.failed,
        "total_input_tokens": prompt,
        "total_output_tokens": output,
        "request_throughput": _per(len(requests), duration),
        "request_goodput": _per(int(good(run, True).sum()), duration) if limits_of(run) else None,
        "output_throughput": _per(output, duration),
        "total_token_throughput": _per(prompt + output, duration),
        "input_lens": requests.input_tokens.tolist(),
        "output_lens": requests.output_tokens.tolist(),
        "ttfts": requests.ttft_s.tolist(),
        "itls": [run.gaps_of(row).tolist() for row in range(len(requests))],
        "latencies": requests.e2e_s.tolist(),
        "start_times": requests.start_s.tolist(),
        "queue_times": [0.0] * len(requests),
        "generated_texts": [""] * len(requests),
        "errors": [""] * len(requests),
        "max_output_tokens_per_s": _busiest_second(run),
        "max_concurrent_requests": requests.most_at_once or 0,
        "rtfx": 0.0,
    }
    tpot = requests.tpot_s
    for name, values in (
        ("ttft", requests.ttft_s),
        ("tpot", tpot[~np.isnan(tpot)]),
        ("itl", run.gaps.seconds),
        ("e2el", requests.e2e_s),
    ):
        found |= _statistics(name, values)
    return found


def _per(count: int, duration_s: float) -> float:
    return count / duration_s if duration_s else 0.0


def _statistics(name: str, values: Floats) -> dict[str, float]:
    known = 1e3 * values if len(values) else np.zeros(1)
    found = {
        f"mean_{name}_ms": float(known.mean()),
        f"median_{name}_ms": float(np.median(known)),
        f"std_{name}_ms": float(known.std()),
    }
    return found | {f"p{each}_{name}_ms": float(np.percentile(known, each)) for each in PERCENTILES}


def _busiest_second(run: Served) -> float:
    """Most tokens in one second, counted from the first request sent."""
    assert run.requests.start_s is not None
    if not len(run.requests):
        return 0.0
    first = run.requests.start_s.min()
    seconds = ceil(run.ends_s.max() - first) + 1
    counts = np.zeros(seconds)
    for row in range(len(run.requests)):
        begun = run.requests.start_s[row] + run.requests.ttft_s[row] - first
        times = begun + np.concatenate([[0.0], np.cumsum(run.gaps_of(row))])
        counts += np.bincount(times.astype(np.int64), minlength=seconds)[:seconds]
    return float(counts.max())
