"""Points in, seconds out: the points of a group are captured first, and then take turns.

On the CPU the same code runs each launch twice, interpreted: a rehearsal. A point that does not fit the
memory, or whose kernel does not fit the device, has no seconds but a reason; the others go on.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from triton.errors import TritonError

from kvsim.kernels.calibration import launches, steps
from kvsim.kernels.calibration.all_reduce import all_reduce_seconds
from kvsim.kernels.calibration.points import Point, Sample
from kvsim.kernels.calibration.room import Room
from kvsim.kernels.calibration.timing import captured, graph_of, interleaved, on_gpu_clock, on_host_clock

REPEATS = 9
FAILURES = (RuntimeError, MemoryError, TritonError)
"""What a point may fail by; RuntimeError is what torch raises of the memory and of the device."""


class Stopwatch(Protocol):
    """What a calibration needs of a device."""

    def seconds(self, points: Sequence[Point]) -> list[Sample]:
        """What was measured at each point; the points take turns."""


class Bench:
    """A Stopwatch on the GPU; on the CPU in a rehearsal."""

    def __init__(self, rehearsal: bool, repeats: int = REPEATS) -> None:
        self.rehearsal, self.repeats = rehearsal, repeats
        self._room: Room | None = None

    def seconds(self, points: Sequence[Point]) -> list[Sample]:
        """Median and spread are left to whoever asks."""
        if points[0].part == "all_reduce":
            return all_reduce_seconds(points, self.repeats, self.rehearsal)
        if self._room is None:
            self._room = Room(self.rehearsal)
        failures, replays = {}, {}
        for point in points:
            try:
                replays[point.key] = self._replay(point, self._room)
            except FAILURES as error:
                failures[point.key] = _words(error)
        turns = {"repeats": 2, "warm_ups": 1} if self.rehearsal else {"repeats": self.repeats}
        try:
            times = interleaved(replays, **turns)
        except FAILURES as error:  # nobody knows whose: they took turns
            times, failures = {}, dict.fromkeys(replays, f"one of {len(replays)}: {_words(error)}") | failures
        found = [
            Sample(tuple(times[point.key]), replays[point.key][1])
            if point.key in times
            else Sample((), 0, failures[point.key])
            for point in points
        ]
        if not self.rehearsal:
            replays.clear()  # the graphs' memory
            torch.cuda.empty_cache()
        return found

    def _replay(self, point: Point, room: Room) -> tuple[Callable[[], float], int]:
        """A call that runs all launches of a point, and how many they are."""
        if point.part == "launch":
            return self._launch(point.x["what"], room)
        calls = (
            steps.composed(room, point.x)
            if point.part == "composed"
            else launches.PARTS[point.part](room, point.x)
        )
        if self.rehearsal:
            return on_host_clock(calls), len(calls)
        if point.part in {"to_host", "to_gpu"}:  # engines do not capture them
            for call in calls[:2]:
                call()
            return on_gpu_clock(calls), len(calls)
        return captured(calls), len(calls)

    def _launch(self, what: str, room: Room) -> tuple[Callable[[], float], int]:
        """What starting kernels costs the host, or a graph."""
        empty, wait = launches.empty(room), None if self.rehearsal else torch.cuda.synchronize
        if what == "eager":
            calls = launches.eager(room)
            return on_host_clock(calls, wait), len(calls)
        count = launches.EMPTY_LAUNCHES if what == "graph" else 1
        if self.rehearsal:
            return on_host_clock([empty]), 1
        if what == "graph":
            return captured([empty] * count), count
        return on_host_clock([graph_of([empty]).replay], wait), 1


def _words(error: Exception) -> str:
    """A failure in a line."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
