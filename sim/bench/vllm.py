"""`vllm bench serve --save-result`: one JSON object per run; `--save-detailed` adds every request.

    {"date": ..., "model_id": ..., "request_rate": 8.0, "burstiness": 1.0, "max_concurrency": null,
     "duration": 61.2, "completed": 500, "mean_ttft_ms": ..., "p99_itl_ms": ...,
     "input_lens": [...], "output_lens": [...], "ttfts": [s], "itls": [[s]], "start_times": [s],
     "errors": [...]}

With `--append-result` a file holds one run per line. Failed requests have an output of 0 tokens.
Written from vllm/benchmarks/serve.py as of 009e6d4.
"""

import calendar
import time
from collections.abc import Mapping
from math import inf
from typing import Any

import numpy as np

from kvsim.sim.bench.fields import lists, number, numbers, rows, shown, starts, times, tokens, told_of
from kvsim.sim.bench.measured import PER_S, STATISTICS, Floats, Gaps, Key, MeasuredRun, Requests
from kvsim.sim.errors import KvsimError

TOOL = "vllm bench serve"
_LATENCIES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2E"}
_RATES: dict[str, Key] = {
    "request_throughput": ("requests", PER_S),
    "output_throughput": ("output tokens", PER_S),
    "total_token_throughput": ("all tokens", PER_S),
}


def is_vllm(record: Mapping[str, Any]) -> bool:
    """Whether an object is such a run."""
    return {"completed", "request_throughput"} <= record.keys() or {"ttfts", "itls"} <= record.keys()


def vllm_run(name: str, where: str, record: Mapping[str, Any], notes: list[str]) -> MeasuredRun:
    """The run in an object; `where` starts every complaint."""
    told = told_of(_RATES, lambda key: number(where, record, key))
    for theirs, ours in _LATENCIES.items():
        words = {("median" if each == "p50" else each): each for each in STATISTICS}
        keys = {f"{word}_{theirs}_ms": (ours, each) for word, each in words.items()}
        told |= told_of(keys, lambda key: number(where, record, key), 1e-3)
    requests, failed = _requests(where, record, notes)
    count = len(requests) if requests is not None else int(number(where, record, "completed") or 0)
    sums = [number(where, record, f"total_{kind}_tokens") or 0.0 for kind in ("input", "output")]
    clients, seconds = number(where, record, "max_concurrency"), number(where, record, "duration")
    return MeasuredRun(
        name,
        TOOL,
        requests,
        told,
        count=count,
        failed=failed if requests is not None else int(number(where, record, "failed") or 0),
        input_tokens=sums[0] / count if count else 0.0,
        output_tokens=sums[1] / count if count else 0.0,
        duration_s=seconds,
        began_s=_began(record, seconds),
        clients=int(clients) if clients else None,
        request_rate=_rate(where, record),
        burstiness=number(where, record, "burstiness") or 1.0,
        model=str(record["model_id"]) if record.get("model_id") else None,
        notes=tuple(notes),
    )


def _began(record: Mapping[str, Any], seconds: float | None) -> float | None:
    """`date` is the end of the run, in the client's own time zone: 20261123-154216."""
    try:
        ended = calendar.timegm(time.strptime(str(record.get("date")), "%Y%m%d-%H%M%S"))
    except ValueError:
        return None
    return None if seconds is None else ended - seconds


def _rate(where: str, record: Mapping[str, Any]) -> float | None:
    value = record.get("request_rate")
    if value in ("inf", inf):
        return inf
    return number(where, record, "request_rate")


def _requests(where: str, record: Mapping[str, Any], notes: list[str]) -> tuple[Requests | None, int]:
    """The answered requests, and the number of unanswered ones."""
    if not {"input_lens", "output_lens", "ttfts"} <= record.keys():
        return None, 0
    found = {each: numbers(where, record, each) for each in ("input_lens", "output_lens", "ttfts")}
    gaps, begun = lists(where, record, "itls"), numbers(where, record, "start_times")
    errors = rows(where, record, "errors")
    columns: list[list[Any]] = [*found.values(), gaps, begun, errors]
    lengths = {len(values) for values in columns if values}
    n = min(lengths, default=0)
    if len(lengths) > 1:
        if not notes:
            raise KvsimError(
                f"{where}: input_lens, output_lens, ttfts, itls and start_times must be equally long, "
                f"got {', '.join(map(str, sorted(lengths)))}"
            )
        notes.append(f"Of {max(lengths):,} requests {n:,} are whole.")
    inputs, outputs = (tokens(where, each, found[each][:n]) for each in ("input_lens", "output_lens"))
    ttft = times(where, "ttfts", found["ttfts"][:n])
    latencies = numbers(where, record, "latencies")[:n]
    e2e: Floats = np.full(n, np.nan)
    if gaps:
        e2e = ttft + Gaps.of(gaps[:n]).sums()
    if len(latencies) == n:
        e2e = times(where, "latencies", latencies)
    done = (outputs > 0) & (inputs > 0) & (ttft > 0)
    for place, error in enumerate(errors[:n]):
        if not isinstance(error, str | None):
            raise KvsimError(f"{where}: errors[{place}] must be text, got {shown(error)}")
        done[place] &= not error
    chosen = np.flatnonzero(done).astype(np.int64)
    begins = starts([begun[place] for place in chosen]) if begun else None
    kept = Gaps.of(gaps[:n]).rows(chosen) if gaps else None
    requests = Requests(begins, inputs[chosen], outputs[chosen], ttft[chosen], e2e[chosen], kept)
    return requests.sorted(), n - len(chosen)
