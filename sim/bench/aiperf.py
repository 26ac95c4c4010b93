"""AIPerf: `profile_export.jsonl`, one request per line, and `profile_export_aiperf.json`, a run's numbers.

    {"metadata": {"conversation_id": "7", "request_start_ns": 17..., "benchmark_phase": "profiling"},
     "metrics": {"time_to_first_token": {"value": 41.2, "unit": "ms"}, "request_latency": ..., ...},
     "error": null}

Early versions call them `ttft`, `timestamp_ns` and `credit_phase`, and put the summary's metrics under
`records`. Warm-up requests are left out. `inter_chunk_latency` lists the gaps of a request;
`inter_token_latency` is (E2E - TTFT) / (output - 1), one number per request, which others call TPOT.

Lengths are the server's counts (`usage_prompt_tokens`, `usage_completion_tokens`) if there are any: a client
that counts the tokens of the text gets other numbers. `usage_prompt_cache_read_tokens` are the prefix cache
hits. `conversation_id` names a conversation of the data set, which may be sent several times; each actual
conversation has its own `x_correlation_id`. Cancelled requests put load on the server and do not count as
failed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any

from kvsim.sim.bench.fields import inside, number, numbers, rows, shown, starts, times, tokens
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
_INPUT = ("usage_prompt_tokens", "input_sequence_length", "isl")
_OUTPUT = ("usage_completion_tokens", "output_sequence_length", "osl")
_CACHED = ("usage_prompt_cache_read_tokens",)


def is_record(record: Mapping[str, Any]) -> bool:
    """Whether an object is a line of profile_export.jsonl."""
    return {"metadata", "metrics"} <= record.keys() and isinstance(record["metadata"], dict)


def is_summary(record: Mapping[str, Any]) -> bool:
    """Whether an object is a profile_export_aiperf.json."""
    metrics = record.get("records", record)
    return isinstance(metrics, dict) and "request_count" in metrics and "request_latency" in metrics


def aiperf_run(path: Path, records: Iterable[tuple[int, Mapping[str, Any]]], notes: list[str]) -> MeasuredRun:
    """The run whose requests are on these lines."""
    answered, cut = _Columns(), _Columns()
    failed = warm = 0
    for line, record in records:
        where = f"result {path}, line {line}"
        about, metrics = inside(where, record, "metadata"), inside(where, record, "metrics")
        if about.get("benchmark_phase", about.get("credit_phase")) == "warmup":
            warm += 1
            continue
        if about.get("was_cancelled"):
            if _value(where, metrics, _INPUT) and _begun(where, about) is not None:
                cut.add(where, about, metrics)
            else:
                failed += 1
        elif record.get("error"):
            failed += 1
        else:
            for names in (_INPUT, _OUTPUT):
                if _value(where, metrics, names) is None:
                    raise KvsimError(f"{where}: metrics must have {names[1]}, got {shown(list(metrics))}")
            answered.add(where, about, metrics)
    if warm:
        notes.append(f"{warm:,} requests of the warm-up are left out.")
    where = f"result {path}"
    requests, others = answered.requests(where), cut.requests(where)
    if requests.start_s is not None and others.start_s is not None and len(requests):
        others = replace(others, start_s=others.start_s - requests.start_s.min())
    began = None if requests.start_s is None else float(requests.start_s.min(initial=inf))
    requests = requests.sorted()
    return MeasuredRun(
        path.stem,
        TOOL,
        requests,
        count=len(requests),
        failed=failed,
        cut=others if len(others) else None,
        cut_count=len(others),
        began_s=began,
        notes=tuple(notes),
    )


class _Columns:
    """Requests, line by line."""

    def __init__(self) -> None:
        names = ("start", "input", "output", "ttft", "e2e", "cached")
        self._columns: dict[str, list[float]] = {name: [] for name in names}
        self._gaps: list[list[float]] = []
        self._sessions: list[str] = []

    def add(self, where: str, about: Mapping[str, Any], metrics: Mapping[str, Any]) -> None:
        """Add one line."""
        begun = _begun(where, about)
        ttft, e2e = (_value(where, metrics, _NAMES[what]) for what in ("TTFT", "E2E"))
        last = nan if e2e is None else e2e
        row = (
            nan if begun is None else begun * 1e-9,
            max(_value(where, metrics, _INPUT) or 0, 1),
            max(_value(where, metrics, _OUTPUT) or 0, 1),
            last if ttft is None else ttft,
            last,
            _value(where, metrics, _CACHED) or 0,
        )
        for column, value in zip(self._columns.values(), row, strict=True):
            column.append(value)
        self._gaps.append(_gaps(where, metrics))
        self._sessions.append(str(about.get("x_correlation_id") or about.get("conversation_id")))

    def requests(self, where: str) -> Requests:
        columns, sessions = self._columns, self._sessions
        cached = tokens(where, _CACHED[0], columns["cached"])
        return Requests(
            starts(columns["start"]),
            tokens(where, "input_sequence_length", columns["input"]),
            tokens(where, "output_sequence_length", columns["output"]),
            times(where, "time_to_first_token", columns["ttft"]),
            times(where, "request_latency", columns["e2e"]),
            Gaps.of(self._gaps) if any(self._gaps) else None,
            tuple(sessions) if len(set(sessions)) < len(sessions) else None,
            cached if cached.any() else None,
        )


def _begun(where: str, about: Mapping[str, Any]) -> float | None:
    """When a request was sent, in nanoseconds since 1970."""
    return number(where, about, "request_start_ns") or number(where, about, "timestamp_ns")


def aiperf_summary(path: Path, record: Mapping[str, Any], notes: list[str]) -> MeasuredRun:
    """The run described by a summary."""
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
    """The load settings and the names of the models; newer versions have a list of phases."""
    endpoint = inside(where, config, "endpoint")
    names = rows(where, endpoint, "model_names")
    items = rows(where, inside(where, config, "models"), "items")
    names = names or [each.get("name") for each in items if isinstance(each, dict)]
    phases = [each for each in rows(where, config, "phases") if isinstance(each, dict)]
    load = next((each for each in reversed(phases) if each.get("kind") != "warmup"), None)
    return load or inside(where, config, "loadgen"), [str(each) for each in names]


def with_summary(run: MeasuredRun, summary: MeasuredRun) -> MeasuredRun:
    """A run's requests, with the load settings of its summary."""
    return replace(
        run,
        told=summary.told,
        duration_s=summary.duration_s,
        clients=summary.clients,
        request_rate=summary.request_rate,
        model=summary.model,
    )


def _value(where: str, metrics: Mapping[str, Any], names: Iterable[str], key: str = "value") -> float | None:
    """A metric in seconds, or in its own unit if it is not a time."""
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
