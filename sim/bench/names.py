"""File names of benchmark tools, and the first keys in their files: to recognize one without reading it."""

from collections.abc import Set
from pathlib import Path

AIPERF_SUMMARY = "profile_export_aiperf.json"
IN_FOLDERS = (
    "profile_export.jsonl",
    AIPERF_SUMMARY,
    "benchmarks.json",
    "per_request_lifecycle_metrics.json",
    "summary_lifecycle_metrics.json",
)
"""Names of files in folders that tools write, those with every request first."""
BEGINNINGS = (
    {"completed", "request_throughput"},
    {"metadata", "metrics"},
    {"request_count", "request_latency"},
    {"benchmarks"},
    {"start_time", "end_time", "info"},
    {"load_summary", "successes"},
)
"""Keys of the first object: vllm bench serve; AIPerf, each request and the numbers; GuideLLM; inference-perf,
each request and the numbers."""


def begins_a_result(keys: Set[str]) -> bool:
    """Whether an object that starts with these keys is from a benchmark tool."""
    return any(names <= keys for names in BEGINNINGS)


def in_folder(path: Path) -> Path | None:
    """The most informative file in a tool's folder; None if there is none."""
    names = (f"{name}{packed}" for name in IN_FOLDERS for packed in ("", ".gz"))
    return next((path / name for name in names if (path / name).is_file()), None)
