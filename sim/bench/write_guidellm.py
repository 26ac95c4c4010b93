"""A simulated run as GuideLLM would have reported it: benchmarks.json with one benchmark.

By GuideLLM's definitions: `time_per_output_token_ms` is E2E / output tokens and includes the first token,
`inter_token_latency_ms` is (E2E - TTFT) / (output - 1); the statistics of both weight a request by its
tokens. Throughputs are rates over time (sim/bench/weighted.py). Fields that a simulation does not have are
zero or left out: texts, pictures, the client's own delays. GuideLLM 0.8.1 loads the file (`guidellm export`).
"""

from math import isfinite
from typing import Any

import numpy as np

from kvsim.sim import __version__
from kvsim.sim.bench.goodput import good, limits_of
from kvsim.sim.bench.served import Served
from kvsim.sim.bench.weighted import by_status, rates, under_way, weighted

_DELAYS = (
    "queued_time_avg",
    "resolve_start_delay_avg",
    "resolve_targeted_start_delay_avg",
    "request_start_delay_avg",
    "request_targeted_start_delay_avg",
    "request_time_avg",
    "resolve_end_delay_avg",
    "resolve_time_avg",
    "finalized_delay_avg",
    "processed_delay_avg",
)
_ROUND_TRIPS = ("time_to_last_round_trip_ms", "avg_round_trip_time_ms")
_SLO = {"ttft": "ttft", "tpot": "tpot", "e2e": "e2el"}
_MODALITIES: dict[str, tuple[str, ...]] = {
    "text": ("tokens", "words", "characters"),
    "image": ("tokens", "images", "pixels", "bytes"),
    "video": ("tokens", "frames", "seconds", "bytes"),
    "audio": ("tokens", "samples", "seconds", "bytes"),
    "tool_call": ("tokens", "mixed_tokens", "count"),
}
"""Further GuideLLM counts, all null here."""


def guidellm_report(run: Served) -> dict[str, Any]:
    """The object in the file."""
    metadata = {
        "version": 2,
        "guidellm_version": f"kvsim {__version__}",
        "python_version": "",
        "platform": "",
    }
    return {
        "metadata": metadata,
        "config": {
            "metadata": {"labels": {}},
            "spec": {
                "backend": _backend(run),
                "profile": _profile(run),
                "data": [{"kind": "json_file", "path": run.label}],
            },
        },
        "benchmarks": [_benchmark(run)],
        "conclusions": [],
    }


def _benchmark(run: Served) -> dict[str, Any]:
    requests = run.requests
    assert requests.start_s is not None
    n = len(requests)
    start = float(requests.start_s.min()) if n else 0.0
    return {
        "type_": "generative_benchmark",
        "config": {
            "id_": run.label,
            "run_id": run.label,
            "run_index": 0,
            "strategy": _strategy(run),
            "constraints": {},
            "profile": _profile(run),
            "requests": {},
            "backend": _backend(run),
            "environment": {},
            "slo": {f"{_SLO[name]}_ms": 1e3 * limit_s for name, limit_s in limits_of(run).items()} or None,
        },
        "scheduler_state": {
            "node_id": 0,
            "start_time": start,
            "end_time": start + run.duration_s,
            "created_requests": n + run.failed,
            "processed_requests": n + run.failed,
            "successful_requests": n,
            "errored_requests": run.failed,
            "cancelled_requests": 0,
        },
        "scheduler_metrics": {
            "start_time": start,
            "request_start_time": start,
            "measure_start_time": start,
            "measure_end_time": start + run.duration_s,
            "request_end_time": start + run.duration_s,
            "end_time": start + run.duration_s,
            "requests_made": _totals(run),
            **{name: 0.0 for name in _DELAYS},
        },
        "metrics": _metrics(run, start),
        "requests": {
            "successful": [_request(run, row) for row in range(n)],
            "errored": [],
            "incomplete": [],
            "total": None,
        },
        "warnings": [],
        "start_time": start,
        "end_time": start + run.duration_s,
        "duration": run.duration_s,
        "warmup_duration": 0.0,
        "cooldown_duration": 0.0,
    }


def _totals(run: Served) -> dict[str, int]:
    n = len(run.requests)
    return {"successful": n, "errored": run.failed, "incomplete": 0, "total": n + run.failed}


def _backend(run: Served) -> dict[str, Any]:
    return {"kind": "openai_http", "target": "http://kvsim", "model": run.model}


def _profile(run: Served) -> dict[str, Any]:
    if run.clients is not None:
        return {"kind": "concurrent", "streams": [run.clients]}
    if isfinite(run.request_rate):
        return {"kind": "poisson", "rate": [run.request_rate]}
    return {"kind": "throughput"}


def _strategy(run: Served) -> dict[str, Any]:
    if run.clients is not None:
        return {"type_": "concurrent", "streams": run.clients, "max_concurrency": run.clients}
    if isfinite(run.request_rate):
        return {"type_": "poisson", "rate": run.request_rate}
    return {"type_": "throughput", "max_concurrency": None}


def _metrics(run: Served, start: float) -> dict[str, Any]:
    requests, end = run.requests, start + run.duration_s
    assert requests.start_s is not None
    n, output = len(requests), requests.output_tokens.astype(np.float64)
    prompt, ends, later = requests.input_tokens.astype(np.float64), run.ends_s, requests.output_tokens > 1
    tokens = [_token_times(run, row) for row in range(n)]
    each = np.concatenate(tokens) if tokens else np.zeros(0)
    firsts = np.array([times[0] for times in tokens])
    every, amounts = np.concatenate([each, firsts]), np.concatenate([np.ones(len(each)), prompt])
    found = {
        "requests_per_second": rates(ends, np.ones(n), start, end),
        "request_concurrency": under_way(requests.start_s, ends, start, end),
        "request_latency": weighted(requests.e2e_s),
        "request_streaming_iterations_count": weighted(output),
        "prompt_token_count": weighted(prompt),
        "output_token_count": weighted(output),
        "total_token_count": weighted(prompt + output),
        "time_to_first_token_ms": weighted(1e3 * requests.ttft_s),
        "time_per_output_token_ms": weighted(1e3 * requests.e2e_s / output, output),
        "inter_token_latency_ms": weighted(1e3 * requests.tpot_s[later], output[later] - 1),
        "prompt_tokens_per_second": rates(firsts, prompt, start, end),
        "output_tokens_per_second": rates(each, np.ones(len(each)), start, end),
        "tokens_per_second": rates(every, amounts, start, end),
        "output_tokens_per_iteration": weighted(np.ones(n)),
        "iter_tokens_per_iteration": weighted(np.ones(int(later.sum()))),
    }
    found["time_to_first_output_token_ms"] = found["time_to_first_token_ms"]
    nothing = weighted(np.zeros(0))
    rest: dict[str, Any] = {name: by_status(nothing) for name in _ROUND_TRIPS}
    rest |= {name: dict.fromkeys(parts) for name, parts in _MODALITIES.items()}
    statistics = {name: by_status(each) for name, each in found.items()}
    return {"request_totals": _totals(run), **statistics, **rest, **_goodput(run, start)}


def _goodput(run: Served, start: float) -> dict[str, Any]:
    """Share and rate of the good requests among those judged; an error is not good."""
    limits = limits_of(run)
    judged = run.requests.output_tokens > (1 if "tpot" in limits else 0)
    many = int(judged.sum()) + run.failed
    if not limits or not many:
        return {"slo_attainment": None, "slo_determined_requests": 0, "request_goodput": None}
    fine = good(run, False)
    rate = rates(run.ends_s[fine], np.ones(int(fine.sum())), start, start + run.duration_s)
    return {
        "slo_attainment": float(fine.sum()) / many,
        "slo_determined_requests": many,
        "request_goodput": by_status(rate),
    }


def _token_times(run: Served, row: int) -> np.ndarray:
    requests = run.requests
    assert requests.start_s is not None
    first = requests.start_s[row] + requests.ttft_s[row]
    return np.asarray(first + np.concatenate([[0.0], np.cumsum(run.gaps_of(row))]))


def _request(run: Served, row: int) -> dict[str, Any]:
    requests = run.requests
    assert requests.start_s is not None
    start, ttft, e2e = (float(column[row]) for column in (requests.start_s, requests.ttft_s, requests.e2e_s))
    prompt, output = int(requests.input_tokens[row]), int(requests.output_tokens[row])
    timings = {
        "request_start": start,
        "first_token_iteration": start + ttft,
        "last_token_iteration": start + e2e,
        "token_iterations": output,
        "request_iterations": output,
        "request_end": start + e2e,
        "resolve_end": start + e2e,
    }
    name = f"kvsim-{row}"
    about = {
        "request_id": name,
        "conversation_id": run.sessions[row],
        "turn_index": run.turns[row],
        "status": "completed",
        "timings": timings,
        "error": None,
    }
    return {
        "type_": "generative_request_stats",
        "request_id": name,
        "response_id": None,
        "output": None,
        "info": about,
        "input_metrics": {"text_tokens": prompt, "total_tokens": prompt},
        "output_metrics": {"text_tokens": output, "total_tokens": output},
        "request_start_time": start,
        "request_end_time": start + e2e,
        "request_latency": e2e,
        "prompt_tokens": prompt,
        "output_tokens": output,
        "total_tokens": prompt + output,
        "time_to_first_token_ms": 1e3 * ttft,
        "time_per_output_token_ms": 1e3 * e2e / output,
        "inter_token_latency_ms": 1e3 * (e2e - ttft) / (output - 1) if output > 1 else None,
        "tokens_per_second": (prompt + output) / e2e if e2e else None,
        "output_tokens_per_second": output / e2e if e2e else None,
        "iter_tokens_per_iteration": 1.0 if output > 1 else None,
        "output_tokens_per_iteration": 1.0,
    }
