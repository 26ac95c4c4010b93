"""GuideLLM's `benchmarks.json`: several benchmarks (a sweep's points), each with its requests and numbers.

    {"metadata": {...}, "args": {...}, "benchmarks": [
      {"config": {"strategy": {"type_": "concurrent", "streams": 8}}, "start_time": ..., "duration": ...,
       "requests": {"successful": [{"request_start_time": s, "request_latency": s, "prompt_tokens": ...,
                                    "output_tokens": ..., "time_to_first_token_ms": ms, ...}], ...},
       "metrics": {"time_to_first_token_ms": {"successful": {"mean": ..., "percentiles": {"p99": ...}}}}}]}

Per request, `inter_token_latency_ms` is the TPOT of this package, and `time_per_output_token_ms` is E2E /
output tokens. The statistics of both weight each request by its tokens: a mean over tokens, not over
requests. Gaps between tokens are not kept. Older files have `args` instead of `config`. `incomplete` requests
were in flight when time was up: they put load on the server and do not count as failed. A file may hold only
some of them.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np

from kvsim.sim.bench.fields import inside, number, rows, shown, starts, times, tokens
from kvsim.sim.bench.measured import PER_S, STATISTICS, Key, MeasuredRun, Requests
from kvsim.sim.errors import KvsimError

TOOL = "GuideLLM"
_LATENCIES = {
    "time_to_first_token_ms": ("TTFT", 1e-3),
    "inter_token_latency_ms": ("TPOT", 1e-3),
    "request_latency": ("E2E", 1.0),
}
_RATES = {
    "requests_per_second": "requests",
    "output_tokens_per_second": "output tokens",
    "tokens_per_second": "all tokens",
}
_AT_ONCE = ("throughput", "concurrent", "synchronous")
"""Strategies that send without a clock."""


def is_guidellm(record: Mapping[str, Any]) -> bool:
    """Whether an object is a GuideLLM report."""
    found = record.get("benchmarks")
    return isinstance(found, list) and all(
        isinstance(each, dict) and {"requests", "metrics"} & each.keys() for each in found
    )


def guidellm_run(path: Path, record: Mapping[str, Any], which: int | None, notes: list[str]) -> MeasuredRun:
    """The benchmark with this number, counted from 1; by default the last."""
    where = f"result {path}"
    found = rows(where, record, "benchmarks")
    chosen = len(found) if which is None else which
    if not 1 <= chosen <= len(found):
        raise KvsimError(
            f"{where}: run must be from 1 to {len(found)}, the benchmarks there are, got {which}"
        )
    if len(found) > 1 and which is None:
        notes.append(f"The last of {len(found)} benchmarks; another: --run N.")
    where = f"{where}, benchmark {chosen}"
    one = found[chosen - 1]
    if not isinstance(one, dict):
        raise KvsimError(f"{where}: must be an object, got {shown(one)}")
    by_status, metrics = inside(where, one, "requests"), inside(where, one, "metrics")
    listed = {status: rows(where, by_status, status) for status in ("successful", "errored", "incomplete")}
    began = None
    requests = _requests(f"{where}, request", listed["successful"])
    cut = _requests(f"{where}, incomplete request", listed["incomplete"], least=0)
    if requests is not None and requests.start_s is not None:
        began = float(requests.start_s.min(initial=inf))
        requests, cut = (_counting_from(began, each) for each in (requests, cut))
    told = _told(where, metrics)
    strategy = inside(where, inside(where, one, "config") or inside(where, one, "args"), "strategy")
    kind = str(strategy.get("type_", ""))
    clients = next(
        (value for name in ("streams", "max_concurrency") if (value := number(where, strategy, name))),
        1.0 if kind == "synchronous" else None,
    )
    totals = inside(where, metrics, "request_totals")
    counts = {
        status: max(len(known), int(number(where, totals, status) or 0)) for status, known in listed.items()
    }
    count = len(requests) if requests is not None else int(number(where, totals, "successful") or 0)
    lengths = [
        _statistic(where, metrics, name, "mean") or 0.0
        for name in ("prompt_token_count", "output_token_count")
    ]
    return MeasuredRun(
        path.stem,
        TOOL,
        requests,
        told,
        count=count,
        failed=counts["errored"],
        cut=cut,
        cut_count=counts["incomplete"],
        input_tokens=lengths[0],
        output_tokens=lengths[1],
        duration_s=number(where, one, "duration"),
        began_s=began,
        clients=int(clients) if clients else None,
        request_rate=inf if kind in _AT_ONCE else number(where, strategy, "rate"),
        notes=tuple(notes),
    )


def _requests(where: str, found: list[Any], least: int = 1) -> Requests | None:
    """Requests with one status; None if the report has none.

    Parameters
    ----------
    least : int
        Answer tokens that a request must have: incomplete ones may have none yet.
    """
    if not found:
        return None
    names = ("start", "input", "output", "ttft", "e2e", "cached")
    columns: dict[str, list[float]] = {name: [] for name in names}
    session: list[str] = []
    for place, each in enumerate(found):
        here = f"{where} {place}"
        if not isinstance(each, dict):
            raise KvsimError(f"{here}: must be an object, got {shown(each)}")
        latency, ttft = number(here, each, "request_latency"), number(here, each, "time_to_first_token_ms")
        prompt, answer, cached = (
            number(here, each, name) or 0 for name in ("prompt_tokens", "output_tokens", "cached_tokens")
        )
        if not prompt or answer < least:
            continue
        each_token = number(here, each, "time_per_output_token_ms")
        last = _or_nan(latency) if each_token is None else each_token / 1e3 * answer
        begun = _or_nan(number(here, each, "request_start_time"))
        row = (begun, prompt, answer, last if ttft is None else ttft / 1e3, last, cached)
        for name, value in zip(names, row, strict=True):
            columns[name].append(value)
        session.append(str(inside(here, each, "info").get("conversation_id", place)))
    return Requests(
        starts(columns["start"]),
        tokens(where, "prompt_tokens", columns["input"]),
        tokens(where, "output_tokens", columns["output"]),
        times(where, "time_to_first_token_ms", columns["ttft"]),
        times(where, "request_latency", columns["e2e"]),
        session=tuple(session),
        cached_tokens=tokens(where, "cached_tokens", columns["cached"]) if any(columns["cached"]) else None,
    )


def _counting_from(begun: float, requests: Requests | None) -> Requests | None:
    """The requests in order of start time, which counts from the first answered one."""
    if requests is None or requests.start_s is None:
        return None
    order = np.argsort(requests.start_s, kind="stable").astype(np.int64)
    return replace(requests, start_s=requests.start_s - begun).rows(order)


def _or_nan(value: float | None) -> float:
    return nan if value is None else value


def _told(where: str, metrics: Mapping[str, Any]) -> dict[Key, float]:
    told: dict[Key, float] = {}
    for name, (ours, scale) in _LATENCIES.items():
        for statistic in STATISTICS:
            value = _statistic(where, metrics, name, statistic)
            if value is not None:
                told[ours, statistic] = scale * value
    for name, what in _RATES.items():
        value = _statistic(where, metrics, name, "mean")
        if value is not None:
            told[what, PER_S] = value
    return told


def _statistic(where: str, metrics: Mapping[str, Any], name: str, statistic: str) -> float | None:
    """A statistic over the answered requests."""
    here = f"{where}, {name}"
    found = inside(here, inside(where, metrics, name), "successful")
    if statistic == "mean":
        return number(here, found, "mean")
    return number(here, inside(here, found, "percentiles"), statistic)
