"""The engine's steps as slices of a timeline, from a step log on disk or from a repeated run."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kvsim.reports.rundir.formats import check_range, check_type
from kvsim.reports.timeline.text import complete
from kvsim.sim.files.tables import as_numpy, opened_table

Steps = Path | Mapping[str, Any]
"""A steps.parquet, or its columns."""

_TIMES = ("start_s", "duration_s")
_ALWAYS = ("step", "running", "waiting")
_IF_ANY = (
    *("prefill_tokens", "decode_tokens", "kv_tokens", "blocks_in_use", "hit_tokens", "recomputed_tokens"),
    *("swapped", "cow_copies", "swap_in_blocks", "swap_out_blocks", "finished"),
)
_AT_ONCE = 8192


def step_slices(
    pid: int, steps: Steps, window_ps: tuple[int, int] | None, replica: int | None = None
) -> Iterator[tuple[int, str]]:
    """(nanoseconds, event) of each step; only of steps that touch the window, if there is one.

    For a fleet, of one `replica`.
    """
    last_ns = 0
    for columns in _portions(steps, () if replica is None else ("replica",)):
        start_ps = np.rint(columns["start_s"] * 1e12).astype(np.int64)
        end_ps = start_ps + np.rint(columns["duration_s"] * 1e12).astype(np.int64)
        chosen = np.ones(len(start_ps), np.bool_)
        if window_ps is not None:
            chosen = (end_ps >= window_ps[0]) & (start_ps <= window_ps[1])
        if replica is not None:
            chosen &= columns["replica"] == replica
        names = (*_ALWAYS, *_IF_ANY)
        rows = zip(*(columns[name][chosen].tolist() for name in names), strict=True)
        starts, ends = (((ps[chosen] + 500) // 1000).tolist() for ps in (start_ps, end_ps))
        for start_ns, end_ns, row in zip(starts, ends, rows, strict=True):
            known = dict(zip(names, row, strict=True))
            args = {name: value for name, value in known.items() if value or name in _ALWAYS}
            begin_ns = max(start_ns, last_ns)  # after hours, a float of seconds is coarser than a nanosecond
            last_ns = max(end_ns, begin_ns)
            yield begin_ns, complete(pid, pid, begin_ns, last_ns, _kind(known), "engine", args)


def _kind(step: Mapping[str, int]) -> str:
    if step["prefill_tokens"] and step["decode_tokens"]:
        return "prefill and decode"
    if step["prefill_tokens"]:
        return "prefill"
    return "decode" if step["decode_tokens"] else "swap"


def _portions(steps: Steps, more: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """The columns of a portion of the steps at a time, including the columns `more`."""
    if not isinstance(steps, Path):
        rows = len(steps["start_s"])
        for start in range(0, rows, _AT_ONCE):
            yield {name: np.asarray(column[start : start + _AT_ONCE]) for name, column in steps.items()}
        return
    names = [*_TIMES, *_ALWAYS, *_IF_ANY, *more]
    with opened_table(steps, str(steps), names) as file:
        for name in names:
            check_type(steps, name, file.schema_arrow.field(name).type, "numbers")
        batches = file.iter_batches(_AT_ONCE, columns=names, use_threads=False)
        while batch := next(batches, None):
            columns = {name: as_numpy(batch[name]) for name in names}
            for name, column in columns.items():
                check_range(steps, name, column)
            yield columns
