"""Autoscaled replicas in words: how many on average, also per pool, and their GPU-hours."""

from collections.abc import Sequence

from kvsim.reports.palette import Shown, Summary, count, figures, number
from kvsim.reports.seeds.intervals import interval
from kvsim.reports.seeds.words import with_spread
from kvsim.reports.shown import told


def scaled_words(seeds: Sequence[Summary]) -> str:
    """How many replicas there were on average, and their GPU-hours; empty if all were always on."""
    if not seeds[0].get("scaling"):
        return ""
    by_pool = []
    for place, pool in enumerate(seeds[0]["scaling"].get("pools") or []):
        means = interval([number(seed["scaling"]["pools"][place]["mean_replicas"]) for seed in seeds])
        by_pool.append(f"{with_spread(figures, means)} {pool['name']}")
    pools = f" ({', '.join(by_pool)})" if by_pool else ""
    return (
        f"{_told(seeds, figures, 'mean_replicas')} replicas on average{pools}, "
        f"{_told(seeds, count, 'starts')} started, {_told(seeds, count, 'drains')} drained: "
        f"{_told(seeds, figures, 'gpu_hours')} GPU-hours of {_told(seeds, figures, 'gpu_hours_of_all')}"
    )


def _told(seeds: Sequence[Summary], text: Shown, name: str) -> str:
    return told(seeds, text, "scaling", name)
