"""Measure and fit: `calibrate(plan(), journal)` gives a profile, `write_profile` (profile.py) writes it.

Nothing is printed here: the caller passes a function that receives progress. Measurements go to the journal,
so that Ctrl-C loses at most one group of points. `begin` and `finish` are its halves, for callers that report
the journal's contents before anything is measured.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.kernels.calibration.assemble import most_tflops, profile_of, refused
from kvsim.kernels.calibration.card import clocks
from kvsim.kernels.calibration.drift import reading
from kvsim.kernels.calibration.errors import DeviceLostError
from kvsim.kernels.calibration.journal import Journal
from kvsim.kernels.calibration.plan import Plan

if TYPE_CHECKING:
    from kvsim.kernels.calibration.bench import Stopwatch


@dataclass(frozen=True)
class Progress:
    """Progress of a calibration.

    Attributes
    ----------
    done, points : int
        Points measured, and in total.
    part : str
        The part that is measured next; empty at the end.
    left_s : float
        Estimate of the remaining time.
    """

    done: int
    points: int
    part: str
    left_s: float


def calibrate(
    planned: Plan,
    journal: Path | None = None,
    *,
    name: str | None = None,
    fresh: bool = False,
    progress: Callable[[Progress], object] = lambda _: None,
    stopwatch: "Stopwatch | None" = None,
    read_clocks: Callable[[], Mapping[str, str]] | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> dict[str, Any]:
    """Measure the points that the journal lacks, fit everything, and return the profile.

    Parameters
    ----------
    planned : Plan
        From `plan`.
    journal : Path
        A file, resumed if it exists; without it nothing is saved.
    name : str
        The profile's name; by default the GPU's.
    fresh : bool
        Start the journal anew.
    progress : callable
        Called before every group of points is measured, and at the end.
    stopwatch : Stopwatch
        Replaces the device.
    read_clocks, now : callable
        Return nvidia-smi's report (by default nvidia-smi is run), and the start time.

    Raises
    ------
    JournalError
        The journal belongs to another device, other versions or another plan.
    DeviceLostError, IncompleteError
        The GPU died, or too much failed for a profile; the journal has the measurements.
    """
    begun = begin(planned, journal, fresh=fresh, read_clocks=read_clocks, now=now)
    return finish(planned, begun, name=name, progress=progress, stopwatch=stopwatch, read_clocks=read_clocks)


def begin(
    planned: Plan,
    journal: Path | None = None,
    *,
    fresh: bool = False,
    read_clocks: Callable[[], Mapping[str, str]] | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Journal:
    """Open the journal, with its earlier plausible measurements; raises JournalError as `calibrate` does."""
    said = read_clocks() if read_clocks else clocks(planned.device.uuid)
    head = {
        "device": {**planned.device.facts(), "driver": said.get("driver_version")},
        "plan": planned.digest,
        "date": now().isoformat(timespec="seconds"),
    }
    found = Journal(journal, head, fresh)
    most = most_tflops(planned, found)
    for point in planned.points:
        if point.key in found.samples and refused(planned, point, found.samples[point.key], most):
            del found.samples[point.key]
    return found


def finish(
    planned: Plan,
    journal: Journal,
    *,
    name: str | None = None,
    progress: Callable[[Progress], object] = lambda _: None,
    stopwatch: "Stopwatch | None" = None,
    read_clocks: Callable[[], Mapping[str, str]] | None = None,
) -> dict[str, Any]:
    """Measure the points missing from the journal, and fit."""
    if stopwatch is None:
        from kvsim.kernels.calibration.bench import Bench

        stopwatch = Bench(planned.device.rehearsal)
    measure(planned, journal, stopwatch, progress, read_clocks or partial(clocks, planned.device.uuid))
    return profile_of(planned, journal, name)


def measure(
    planned: Plan,
    journal: Journal,
    stopwatch: "Stopwatch",
    progress: Callable[[Progress], object],
    read_clocks: Callable[[], Mapping[str, str]],
) -> None:
    """Measure the points missing from the journal, group by group."""
    groups = [[point for point in group if point.key not in journal.samples] for group in planned.groups]
    groups = [group for group in groups if group]
    left = [planned.estimated_s(group) for group in groups]
    estimated, started, last = 0.0, time.perf_counter(), None

    def read(when: str) -> None:
        journal.add_reading(when, *reading(stopwatch, planned.device.rehearsal, read_clocks))

    for i, group in enumerate(groups):
        part, took_s = group[0].part, time.perf_counter() - started
        pace = (took_s + 5) / (estimated + 5) if estimated else 1.0  # nothing to compare with yet
        progress(Progress(len(journal.samples), len(planned.points), part, pace * sum(left[i:])))
        try:
            if part != last:
                read(f"before {part}")
            begun, last = time.perf_counter(), part
            samples = stopwatch.seconds(group)
        except DeviceLostError as error:
            kept = f"{len(journal.samples)} of {len(planned.points)} points are kept"
            raise DeviceLostError(f"{error}; {kept}: the same command continues") from error
        journal.add(group, samples, time.perf_counter() - begun)
        estimated += left[i]
    if journal.last_reading != "after":
        read("after")
    progress(Progress(len(planned.points), len(planned.points), "", 0.0))
