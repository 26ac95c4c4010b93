"""Summaries of three allocators, and terminal output as plain text."""

from io import StringIO

from rich.console import Console


def plain(renderable, width=80, **how):
    """The output as in a file, without trailing blanks."""
    console = Console(width=width, file=StringIO(), **how)
    console.print(renderable)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def spread(mean):
    return {"mean": mean, **{f"p{p}": mean * p / 50 for p in (50, 90, 95, 99)}, "max": mean * 3}


def summary(label, rate, at_once, ledger, per_token_s):
    kinds = dict(zip(("token", "reserved", "internal", "external", "cached", "free"), ledger, strict=True))
    latency = {name: spread(per_token_s) for name in ("tpot_s", "itl_s", "normalized_s_per_token")}
    latency |= {name: spread(100 * per_token_s) for name in ("ttft_s", "e2e_s", "queueing_s")}
    return {
        "label": label,
        "notes": [],
        "duration_s": 1000 / rate,
        "requests": {"submitted": 1000, "finished": 1000, "rejected": 0},
        "throughput": {"requests_per_s": rate, "output_tokens_per_s": 333 * rate, "total_tokens_per_s": 1},
        "latency": latency,
        "memory": {
            "capacity_tokens": 15744,
            "average": {**kinds, "token": kinds["token"] - 1, "free": kinds["free"] + 1},
            "saturated": kinds,
            "saturated_share": 0.93,
            "saved_by_sharing": 0.0,
            "peak_used_tokens": 15740,
            "external_fragmentation_refusals": 0,
        },
        "engine": {
            "allocator": label,
            "scheduler": "vllm_v0",
            "steps": 12345,
            "mean_running": at_once,
            "max_running": round(at_once) + 2,
            "preemptions_recompute": 4,
            "preemptions_swap": 0,
        },
        "cost": {"source": "calibrated: NVIDIA A100, 2026-01-05", "extrapolated_share": 0.034},
        "simulation": {"cpu_s": 0.05, "wall_s": 0.06, "requests_per_cpu_s": 20000.0},
    }


CONTIGUOUS = summary("contiguous", 0.525, 7.0, (20.6, 13.3, 57.2, 8.9, 0, 0), 1.5)


BUDDY = summary("buddy", 0.774, 9.81, (26.8, 17.9, 13.7, 41.6, 0, 0), 0.7)


PAGED = summary("paged", 1.95, 30.4, (96.1, 0, 2.3, 1.6, 0, 0), 0.05)
