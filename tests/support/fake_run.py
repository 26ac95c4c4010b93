"""Made-up runs for tests of the reports: first come, first served on a fixed number of seats."""

import heapq

import numpy as np

CAPACITY = 15_744
SPLITS = {  # of full memory, in per cent: token, reserved, internal, external
    "contiguous": (7, (20.4, 13.3, 57.4, 8.9)),
    "buddy": (13, (26.8, 17.9, 13.7, 41.6)),
    "paged": (30, (96.3, 0.0, 2.1, 1.6)),
}


def fake_run(label="paged", requests=60, seed=0, rejected=0, request_rate=2.0, block_size=16):
    """The keyword arguments of `write_run`, drawn from one seed."""
    rng = np.random.default_rng(seed)
    places, split = SPLITS[label]
    columns = _serve(rng, requests, places, request_rate)
    columns["status"][:rejected] = "rejected"
    for name in ("first_scheduled_s", "first_token_s", "finish_s", *_LATENCIES):
        columns[name][:rejected] = np.nan
    timeline = _timeline(columns, places, split)
    engine = {"allocator": label, "scheduler": "vllm_v0", "block_size": block_size}
    workload = {"trace": "made-up", "seed": seed, "request_rate": request_rate}
    config = {
        "workload": workload,
        "scenario": {"model": {"name": "m"}, "gpu": {"name": "g"}, "engine": engine},
    }
    return {
        "config": config,
        "summary": _summary(label, columns, timeline),
        "requests": columns,
        "timeline": timeline,
    }


_LATENCIES = ("queueing_s", "ttft_s", "tpot_s", "e2e_s", "normalized_s_per_token")


def _serve(rng, n, places, rate):
    arrival = np.cumsum(rng.exponential(1 / rate, n))
    prompt = np.clip(rng.lognormal(4.5, 1.1, n), 4, 1024).astype(np.int64)
    output = np.clip(rng.lognormal(5.3, 1.0, n), 1, 1024).astype(np.int64)
    token_s = (26 + 0.42 * places) / 1e3 * rng.uniform(0.95, 1.05, n)
    start, free = np.empty(n), [0.0] * places
    for i in range(n):
        start[i] = max(arrival[i], heapq.heappop(free))
        heapq.heappush(free, start[i] + token_s[i] * output[i] + prompt[i] * 1e-4)
    first = start + 0.03 + prompt * 1e-4
    finish = first + token_s * (output - 1)
    step = np.arange(n)
    return {
        "request": np.arange(n),
        "arrival_s": arrival,
        "prompt_tokens": prompt,
        "output_tokens": output,
        "status": np.array(["finished"] * n, dtype="U10"),
        "first_scheduled_s": start,
        "first_token_s": first,
        "finish_s": finish,
        "queueing_s": start - arrival,
        "ttft_s": first - arrival,
        "tpot_s": np.where(output > 1, token_s, 0.0),
        "e2e_s": finish - arrival,
        "normalized_s_per_token": (finish - arrival) / output,
        "num_preemptions": np.zeros(n, np.int64),
        "first_scheduled_step": step,
        "first_token_step": step,
        "finish_step": step + output,
    }


def _timeline(columns, places, split):
    done = np.isfinite(columns["finish_s"])
    starts, ends = np.sort(columns["first_scheduled_s"][done]), np.sort(columns["finish_s"][done])
    arrivals = np.sort(columns["arrival_s"][done])
    time = np.unique(np.concatenate([[0.0], arrivals, starts, ends]))
    running = np.searchsorted(starts, time, "right") - np.searchsorted(ends, time, "right")
    waiting = np.searchsorted(arrivals, time, "right") - np.searchsorted(starts, time, "right")
    wobble = 1 + 0.08 * np.sin(np.arange(len(time)) * 0.37)
    slots = np.zeros((4, len(time)), np.int64)
    for row, percent in enumerate(split):
        slots[row] = CAPACITY * percent / 100 * running / places * (wobble if row else 1 / wobble.max())
    slots[3] = np.minimum(slots[3], CAPACITY - slots[:3].sum(axis=0))
    free = CAPACITY - slots.sum(axis=0)
    return {
        "time_s": time,
        "token": slots[0],
        "reserved": slots[1],
        "internal": slots[2],
        "cached": free // 8,
        "external": slots[3],
        "free": free - free // 8,
        "running": running,
        "waiting": waiting,
        "largest_free_extent": free,
    }


def _summary(label, columns, timeline):
    done = np.isfinite(columns["finish_s"])
    duration = float(timeline["time_s"][-1])
    latency = {name: _spread(columns[name][done]) for name in _LATENCIES}
    latency["itl_s"] = dict(latency["tpot_s"])
    tokens = int(columns["output_tokens"][done].sum())
    span = np.diff(timeline["time_s"], append=duration)
    waits = timeline["waiting"] > 0
    return {
        "label": label,
        "notes": [],
        "duration_s": duration,
        "requests": {"submitted": len(done), "finished": int(done.sum()), "rejected": int((~done).sum())},
        "throughput": {
            "requests_per_s": _ratio(done.sum(), duration),
            "output_tokens_per_s": _ratio(tokens, duration),
            "total_tokens_per_s": _ratio(tokens + columns["prompt_tokens"][done].sum(), duration),
        },
        "latency": latency,
        "memory": {
            "capacity_tokens": CAPACITY,
            "average": _ledger(timeline, span),
            "saturated": _ledger(timeline, span * waits) if waits.any() else None,
            "saturated_share": _ratio((span * waits).sum(), duration),
            "saved_by_sharing": 0.0,
            "peak_used_tokens": int((CAPACITY - timeline["free"] - timeline["cached"]).max()),
            "external_fragmentation_refusals": 12,
        },
        "engine": {
            "allocator": label,
            "scheduler": "vllm_v0",
            "steps": int(columns["output_tokens"].sum()) // 4,
            "mean_running": _ratio((span * timeline["running"]).sum(), duration),
            "max_running": int(timeline["running"].max()),
            "preemptions_recompute": 3,
            "preemptions_swap": 0,
            "cow_copies": 0,
            "prefix_hit_tokens": 0,
        },
        "cost": {"source": "calibrated: NVIDIA A100-SXM4-40GB, 2026-01-05", "extrapolated_share": 0.0},
        "simulation": {"cpu_s": 0.05, "wall_s": 0.06, "requests_per_cpu_s": len(done) / 0.05},
    }


def _ledger(timeline, weight):
    kinds = ("token", "reserved", "internal", "cached", "external", "free")
    total = float(weight.sum())
    return {k: 100 * _ratio((timeline[k] * weight).sum() / CAPACITY, total) for k in kinds}


def _spread(values):
    if not len(values):
        return dict.fromkeys(("mean", "p50", "p90", "p95", "p99", "max"))
    points = {f"p{p}": float(np.percentile(values, p)) for p in (50, 90, 95, 99)}
    return {"mean": float(values.mean()), **points, "max": float(values.max())}


def _ratio(above, below):
    return float(above / below) if below else 0.0
