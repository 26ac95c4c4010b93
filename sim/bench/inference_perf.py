"""inference-perf: `per_request_lifecycle_metrics.json`, and the numbers of one stage or of all.

    [{"start_time": s, "end_time": s, "info": {"input_tokens": 591, "output_tokens": 140,
      "output_token_times": [s, ...]}, "error": null}, ...]

    {"load_summary": {...}, "successes": {"count": 6720, "latency": {
      "time_to_first_token": {"mean": s, "median": s, "p90": s, ...}, "time_per_output_token": ...,
      "inter_token_latency": ...}, "throughput": {...}}, "failures": ...}

Its `time_per_output_token` is TPOT as here, its `normalized_time_per_output_token` is E2E / output tokens.
Newer files have a request's numbers under `request_metrics` and `response_metrics`.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import nan
from pathlib import Path
from typing import Any

from kvsim.sim.bench.fields import inside, number, numbers, shown, times, tokens
from kvsim.sim.bench.measured import PER_S, STATISTICS, Gaps, Key, MeasuredRun, Requests
from kvsim.sim.errors import KvsimError

TOOL = "inference-perf"
_LATENCIES = {
    "time_to_first_token": "TTFT",
    "time_per_output_token": "TPOT",
    "inter_token_latency": "ITL",
    "request_latency": "E2E",
}
_RATES = {
    "requests_per_sec": "requests",
    "output_tokens_per_sec": "output tokens",
    "total_tokens_per_sec": "all tokens",
}


def is_summary(record: Mapping[str, Any]) -> bool:
    """Whether an object is a summary or a stage."""
    return {"load_summary", "successes"} <= record.keys()


def is_requests(value: object) -> bool:
    """Whether a list holds requests as written by inference-perf."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(
            isinstance(each, dict) and {"start_time", "end_time", "info"} <= each.keys() for each in value
        )
    )


def inference_perf_summary(path: Path, record: Mapping[str, Any], notes: list[str]) -> MeasuredRun:
    """The run described by a summary."""
    where = f"result {path}"
    good = inside(where, record, "successes")
    latency, rates = inside(where, good, "latency"), inside(where, good, "throughput")
    told: dict[Key, float] = {}
    for name, ours in _LATENCIES.items():
        found = inside(where, latency, name)
        for statistic in STATISTICS:
            value = number(f"{where}, {name}", found, "median" if statistic == "p50" else statistic)
            if value is not None:
                told[ours, statistic] = value
    for name, ours in _RATES.items():
        rate = number(where, rates, name)
        if rate is not None:
            told[ours, PER_S] = rate
    lengths = [
        number(where, inside(where, good, name), "mean") or 0.0 for name in ("prompt_len", "output_len")
    ]
    count = int(number(where, good, "count") or 0)
    per_s = told.get(("requests", PER_S))
    return MeasuredRun(
        path.stem,
        TOOL,
        None,
        told,
        count=count,
        failed=int(number(where, inside(where, record, "failures"), "count") or 0),
        input_tokens=lengths[0],
        output_tokens=lengths[1],
        duration_s=count / per_s if per_s else None,
        request_rate=number(where, inside(where, record, "load_summary"), "requested_rate"),
        notes=tuple(notes),
    )


def inference_perf_run(path: Path, found: Sequence[Mapping[str, Any]], notes: list[str]) -> MeasuredRun:
    """The run of these requests."""
    columns: dict[str, list[float]] = {name: [] for name in ("start", "input", "output", "ttft", "e2e")}
    gaps: list[list[float]] = []
    failed = 0
    for place, each in enumerate(found):
        where = f"result {path}, request {place}"
        if each.get("error") is not None:
            failed += 1
            continue
        info = inside(where, each, "info")
        asked, answered = (inside(where, info, name) for name in ("request_metrics", "response_metrics"))
        prompt = _first(where, "input_tokens", info, asked, inside(where, asked, "text"))
        output = _first(where, "output_tokens", info, answered)
        begun, ended = number(where, each, "start_time"), number(where, each, "end_time")
        if prompt is None or begun is None or ended is None:
            lacking = "input_tokens" if prompt is None else "start_time and end_time"
            raise KvsimError(f"{where}: must have {lacking}, got {shown(list(each))}")
        at = numbers(where, info, "output_token_times") or numbers(where, answered, "output_token_times")
        if not output:
            failed += 1
            continue
        last = at[-1] if at else ended
        columns["start"].append(begun)
        columns["input"].append(max(prompt, 1))
        columns["output"].append(output)
        columns["ttft"].append(at[0] - begun if at else nan)
        columns["e2e"].append(last - begun)
        gaps.append([later - before for before, later in pairwise(at)])
    where = f"result {path}"
    requests = Requests(
        times(where, "start_time", columns["start"]),
        tokens(where, "input_tokens", columns["input"]),
        tokens(where, "output_tokens", columns["output"]),
        times(where, "output_token_times", columns["ttft"]),
        times(where, "end_time", columns["e2e"]),
        Gaps.of(gaps) if any(gaps) else None,
    ).sorted()
    return MeasuredRun(path.stem, TOOL, requests, count=len(requests), failed=failed, notes=tuple(notes))


def _first(where: str, name: str, *places: Mapping[str, Any]) -> float | None:
    """A number from the first object that contains it."""
    return next((value for place in places if (value := number(where, place, name)) is not None), None)
