"""AIPerf: `profile_export.jsonl`, a request a line, and `profile_export_aiperf.json`, the numbers of a run.

    {"metadata": {"conversation_id": "7", "request_start_ns": 17..., "benchmark_phase": "profiling"},
     "metrics": {"time_to_first_token": {"value": 41.2, "unit": "ms"}, "request_latency": ..., ...},
     "error": null}

Early versions call them `ttft`, `timestamp_ns` and `credit_phase`, and put the summary's metrics under
`records`. Requests of the warm-up are left out. `inter_chunk_latency` lists the gaps of a request;
`inter_token_latency` is (E2E - TTFT) / (output - 1), one number a request, which others call TPOT.
"""

from collections.abc import Iterable, Mapping
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np

from kvsim.sim.bench.fields import inside, number, numbers, rows, shown, times, tokens
from kvsim.sim.bench.measured import PER_S, STATISTICS, Gaps, Key, MeasuredRun, Requests
from kvsim.sim.errors import KvsimError

TOOL = "AIPerf"
_UNITS_S = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0, "milliseconds": 1e-3}
_NAMES = {
    "TTFT": ("time_to_first_token", "ttft"),
    "TPOT": ("inter_token_latency",),
    "ITL": ("inter_chunk_latency",),
    "E2E": ("request_latency",),
}
_RATES: dict[str, tuple[str, ...]] = {
    "requests": ("request_throughput",),
    "output tokens": ("output_token_throughput",),
    "all tokens": ("total_token_throughput",),
}
_INPUT, _OUTPUT = ("input_sequence_length", "isl"), ("output_sequence_length", "osl")


def is_record(record: Mapping[str, Any]) -> bool:
    """Whether an object is a line of profile_export.jsonl."""
    return {"metadata", "metrics"} <= record.keys() and isinstance(record["metadata"], dict)


def is_summary(record: Mapping[str, Any]) -> bool:
    """Whether an object is a profile_export_aiperf.json."""
    metrics = record.get("records", record)
    return isinstance(metrics, dict) and "request_count" in metrics and "request_latency" in metrics


def aiperf_run(path: Path, records: Iterable[tuple[int, Mapping[str, Any]]], notes: list[str]) -> MeasuredRun:
    """The run whose requests are these lines."""
    columns: dict[str, list[float]] = {name: [] for name in ("start", "input", "output", "ttft", "e2e")}
    gaps: list[list[float]] = []
    sessions: list[str] = []
    failed = warm = 0
    for line, record in records:
        where = f"result {path}, line {line}"
        about, metrics = inside(where, record, "metadata"), inside(where, record, "metrics")
        if about.get("benchmark_phase", about.get("credit_phase")) == "warmup":
            warm += 1
            continue
        if record.get("error") or about.get("was_cancelled"):
            failed += 1
            continue
        for name, names in (("input", _INPUT), ("output", _OUTPUT)):
            tokens_of = _value(where, metrics, names)
            if tokens_of is None:
                raise KvsimError(f"{where}: metrics must have {names[0]}, got {shown(list(metrics))}")
            columns[name].append(max(tokens_of, 1))
        begun = number(where, about, "request_start_ns") or number(where, about, "timestamp_ns")
        ttft, e2e = (_value(where, metrics, _NAMES[what]) for what in ("TTFT", "E2E"))
        columns["start"].append(nan if begun is None else begun * 1e-9)
        columns["e2e"].append(nan if e2e is None else e2e)
        columns["ttft"].append(columns["e2e"][-1] if ttft is None else ttft)
        gaps.append(_gaps(where, metrics))
        sessions.append(str(about.get("conversation_id")))
    if warm:
        notes.append(f"{warm:,} requests of the warm-up are left out.")
    where = f"result {path}"
    starts = np.array(columns["start"])
    requests = Requests(
        None if np.isnan(starts).any() else starts,
        tokens(where, "input_sequence_length", columns["input"]),
        tokens(where, "output_sequence_length", columns["output"]),
        times(where, "time_to_first_token", columns["ttft"]),
        times(where, "request_latency", columns["e2e"]),
        Gaps.of(gaps) if any(gaps) else None,
        tuple(sessions) if len(set(sessions)) < len(sessions) else None,
    ).sorted()
    return MeasuredRun(path.stem, TOOL, requests, count=len(requests), failed=failed, notes=tuple(notes))


def aiperf_summary(path: Path, record: Mapping[str, Any], notes: list[str]) -> MeasuredRun:
    """The run that a summary tells of."""
    where = f"result {path}"
    metrics = inside(where, record, "records") or record
    told: dict[Key, float] = {}
    for ours, names in _NAMES.items():
        for statistic in STATISTICS:
            value = _value(where, metrics, names, "avg" if statistic == "mean" else statistic)
            if value is not None:
                told[ours, statistic] = value
    for ours, names in _RATES.items():
        value = _value(where, metrics, names, "avg")
        if value is not None:
            told[ours, PER_S] = value
    config = inside(where, record, "input_config")
    load, models = _load(where, config)
    clients = number(where, load, "concurrency")
    count, failed = (
        _value(where, metrics, (name,), "avg") for name in ("request_count", "error_request_count")
    )
    lengths = [_value(where, metrics, names, "avg") or 0.0 for names in (_INPUT, _OUTPUT)]
    rate = number(where, load, "request_rate") or number(where, load, "rate")
    return MeasuredRun(
        path.stem,
        TOOL,
        None,
        told,
        count=int(count or 0),
        failed=int(failed or 0),
        input_tokens=lengths[0],
        output_tokens=lengths[1],
        duration_s=_value(where, metrics, ("benchmark_duration",), "avg"),
        clients=int(clients) if clients else None,
        request_rate=inf if rate is None and clients else rate,
        model=models[0] if models else None,
        notes=tuple(notes),
    )


def _load(where: str, config: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[str]]:
    """The settings of the load, and the models' names: newer versions have a list of phases."""
    endpoint = inside(where, config, "endpoint")
    names = rows(where, endpoint, "model_names")
    items = rows(where, inside(where, config, "models"), "items")
    names = names or [each.get("name") for each in items if isinstance(each, dict)]
    phases = [each for each in rows(where, config, "phases") if isinstance(each, dict)]
    load = next((each for each in reversed(phases) if each.get("kind") != "warmup"), None)
    return load or inside(where, config, "loadgen"), [str(each) for each in names]


def with_summary(run: MeasuredRun, summary: MeasuredRun) -> MeasuredRun:
    """The requests of a run with what its summary says of the load."""
    return MeasuredRun(
        run.name,
        TOOL,
        run.requests,
        summary.told,
        count=run.count,
        failed=run.failed,
        duration_s=summary.duration_s,
        clients=summary.clients,
        request_rate=summary.request_rate,
        model=summary.model,
        notes=run.notes,
    )


def _value(where: str, metrics: Mapping[str, Any], names: Iterable[str], key: str = "value") -> float | None:
    """A metric in seconds, or in its own unit where that is no time."""
    for name in names:
        if metrics.get(name) is not None:
            found = inside(where, metrics, name)
            value = number(f"{where}, {name}", found, key)
            unit = str(found.get("unit", "")).lower()
            return None if value is None else value * _UNITS_S.get(unit, 1.0)
    return None


def _gaps(where: str, metrics: Mapping[str, Any]) -> list[float]:
    found = inside(where, metrics, "inter_chunk_latency")
    if not isinstance(found.get("value"), list):
        return []
    scale = _UNITS_S.get(str(found.get("unit", "ms")).lower(), 1e-3)
    return [scale * value for value in numbers(f"{where}, inter_chunk_latency", found, "value")]
