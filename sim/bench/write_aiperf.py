"""A simulated run as AIPerf would have exported it: profile_export.jsonl and profile_export_aiperf.json.

By AIPerf's definitions: `inter_token_latency` is one number per request, (E2E - TTFT) / (output - 1); the
gaps are `inter_chunk_latency`; percentiles are linear, standard deviations of the population; whole-run
numbers have only `avg`. Early names and units are left out.
"""

import json
from math import isfinite
from typing import Any

import numpy as np

from kvsim.sim.bench.goodput import good, limits_of
from kvsim.sim.bench.measured import Floats
from kvsim.sim.bench.served import EPOCH, Served

SCHEMA = "1.4"
_SLOS = {"ttft": "time_to_first_token", "tpot": "inter_token_latency", "e2e": "request_latency"}
PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)


def aiperf_lines(run: Served) -> str:
    """profile_export.jsonl: one request per line."""
    return "".join(
        json.dumps(_record(run, row), separators=(",", ":")) + "\n" for row in range(len(run.requests))
    )


def aiperf_summary(run: Served) -> dict[str, Any]:
    """profile_export_aiperf.json."""
    requests, duration = run.requests, run.duration_s
    tpot = 1e3 * requests.tpot_s[requests.output_tokens > 1]
    output, prompt = int(requests.output_tokens.sum()), int(requests.input_tokens.sum())
    n, whole = len(requests), duration or 1.0
    second = [1e3 * float(run.gaps_of(row)[0]) for row in range(n) if requests.output_tokens[row] > 1]
    metrics = {
        "request_throughput": _one(n / whole, "requests/sec"),
        "request_latency": _many(1e3 * requests.e2e_s, "ms"),
        "request_count": _one(float(n), "requests"),
        "time_to_first_token": _many(1e3 * requests.ttft_s, "ms"),
        "time_to_second_token": _many(np.array(second), "ms"),
        "inter_token_latency": _many(tpot, "ms"),
        "output_token_throughput": _one(output / whole, "tokens/sec"),
        "output_token_throughput_per_user": _many(1e3 / tpot, "tokens/sec/user"),
        "output_sequence_length": _many(requests.output_tokens.astype(np.float64), "tokens"),
        "input_sequence_length": _many(requests.input_tokens.astype(np.float64), "tokens"),
        "output_token_count": _many(requests.output_tokens.astype(np.float64), "tokens"),
        "inter_chunk_latency": _many(1e3 * run.gaps.seconds, "ms"),
        "total_output_tokens": _one(float(output), "tokens"),
        "benchmark_duration": _one(duration, "sec"),
        "total_isl": _one(float(prompt), "tokens"),
        "total_osl": _one(float(output), "tokens"),
        "total_token_throughput": _one((prompt + output) / whole, "tokens/sec"),
    }
    limits = limits_of(run)
    if limits:
        many = int(good(run, False).sum())
        metrics["good_request_count"] = _one(float(many), "requests")
        metrics["goodput"] = _one(many / whole, "requests/sec")
    if run.failed:
        metrics["error_request_count"] = _one(float(run.failed), "requests")
    phase: dict[str, Any] = {"name": "profiling", "kind": "profiling", "requests": n + run.failed}
    if run.clients is not None:
        phase |= {"type": "concurrency", "concurrency": run.clients}
    elif isfinite(run.request_rate):
        phase |= {"type": "gamma", "rate": run.request_rate, "smoothness": run.burstiness}
    config = {
        "models": {"items": [{"name": run.model}]},
        "endpoint": {"urls": [], "type": "kvsim", "streaming": True},
        "phases": [phase],
        **({"slos": {_SLOS[name]: 1e3 * limit_s for name, limit_s in limits.items()}} if limits else {}),
    }
    return {
        "schema_version": SCHEMA,
        **{name: each for name, each in metrics.items() if each is not None},
        "input_config": config,
        "was_cancelled": False,
        "is_complete": True,
        "error_summary": [],
        "start_time": EPOCH,
        "end_time": _later(duration),
    }


def _record(run: Served, row: int) -> dict[str, Any]:
    requests = run.requests
    assert requests.start_s is not None
    start = round(1e9 * float(requests.start_s[row]))
    ttft, e2e, gaps = 1e3 * requests.ttft_s[row], 1e3 * requests.e2e_s[row], 1e3 * run.gaps_of(row)
    tokens = int(requests.output_tokens[row])
    metrics = {
        "input_sequence_length": _value(int(requests.input_tokens[row]), "tokens"),
        "output_sequence_length": _value(tokens, "tokens"),
        "output_token_count": _value(tokens, "tokens"),
        "time_to_first_token": _value(float(ttft), "ms"),
        "request_latency": _value(float(e2e), "ms"),
    }
    if tokens > 1:
        each = float(e2e - ttft) / (tokens - 1)
        metrics |= {
            "time_to_second_token": _value(float(gaps[0]), "ms"),
            "inter_token_latency": _value(each, "ms"),
            "inter_chunk_latency": _value(gaps.tolist(), "ms"),
            "output_token_throughput_per_user": _value(1e3 / each, "tokens/sec/user"),
        }
    return {
        "metadata": {
            "session_num": row,
            "x_request_id": f"kvsim-{row}",
            "x_correlation_id": f"kvsim-{row}",
            "conversation_id": run.sessions[row],
            "turn_index": run.turns[row],
            "request_start_ns": start,
            "request_ack_ns": start,
            "request_end_ns": start + round(1e6 * float(e2e)),
            "worker_id": "kvsim",
            "record_processor_id": "kvsim",
            "benchmark_phase": "profiling",
            "was_cancelled": False,
        },
        "metrics": metrics,
    }


def _value(value: float | list[float], unit: str) -> dict[str, Any]:
    return {"value": value, "unit": unit}


def _one(value: float, unit: str) -> dict[str, Any]:
    return {"unit": unit, "avg": value}


def _many(values: Floats, unit: str) -> dict[str, Any] | None:
    if not len(values):
        return None
    quantiles = {f"p{each}": float(np.percentile(values, each)) for each in PERCENTILES}
    return {
        "unit": unit,
        "avg": float(values.mean()),
        **quantiles,
        "min": float(values.min()),
        "max": float(values.max()),
        "std": float(values.std()),
        "count": len(values),
        "sum": float(values.sum()),
    }


def _later(seconds: float) -> str:
    from datetime import datetime, timedelta

    return (datetime.fromisoformat(EPOCH) + timedelta(seconds=seconds)).isoformat()
