"""Measure points: each is captured and timed in its own steady state (timing.py).

On the CPU the same code runs each launch twice in the interpreter: a rehearsal. A point that does not fit in
memory, or whose kernel does not fit the device, gets a reason instead of seconds. After any other failure the
GPU is tested; if it is dead the calibration ends, since all later points would fail too.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from subprocess import SubprocessError
from typing import Protocol, TypeVar

import torch
from triton.errors import TritonError

from kvsim.kernels.calibration import launches, steps
from kvsim.kernels.calibration.all_reduce import all_reduce_seconds
from kvsim.kernels.calibration.errors import CalibrationError, DeviceLostError
from kvsim.kernels.calibration.points import SENTINEL, Point, Sample
from kvsim.kernels.calibration.room import Room
from kvsim.kernels.calibration.timing import (
    WARM_UP_S,
    captured,
    expect_alive,
    graph_of,
    interleaved,
    on_gpu_clock,
    on_host_clock,
    too_large,
    words_of,
)

REPEATS = 9
ENOUGH_S = 0.05
"""After this time in total, a launch is repeated fewer times."""
REST_S = 0.05
"""Pause before each repeat of a sentinel. At its power limit an H200's clocks vary: the same product took 6 %
longer at one time than at another. After a pause it was within 1.2 % before 11 of 14 parts, and slower only
right after the largest products."""
REPLAYS = 32
"""Replays of a graph in a row, few enough for the driver to queue without blocking the host."""
LOAD_SIDE, LOADS = 4096, 64
"""Size of the square products that keep a GPU busy, and how many are queued together: more than 10 ms."""
FAILURES = (RuntimeError, MemoryError, TritonError, OSError, SubprocessError)
"""Exceptions that a point may fail with. torch raises RuntimeError for memory and device errors; the last two
come from compilers that Triton starts."""


Read = TypeVar("Read")


class Stopwatch(Protocol):
    """What a calibration needs to measure on a device."""

    def seconds(self, points: Sequence[Point]) -> list[Sample]:
        """Measure each point."""

    def under_load(self, read: Callable[[], Read]) -> Read:
        """Call `read` while the device is busy, and return its result."""


class Bench:
    """A Stopwatch on the GPU; on the CPU in a rehearsal."""

    def __init__(self, rehearsal: bool, repeats: int = REPEATS) -> None:
        self.rehearsal, self.repeats = rehearsal, repeats
        self._room: Room | None = None

    def seconds(self, points: Sequence[Point]) -> list[Sample]:
        """The times of all repeats, from which the caller takes median and spread.

        Raises DeviceLostError if the GPU has died, CalibrationError if there is no memory at all.
        """
        if points[0].part == "all_reduce":
            return all_reduce_seconds(points, self.repeats, self.rehearsal)
        room = self._room = self._room or self._new_room()
        found = [self._sample(point, room) for point in points]
        self._clean_up()
        return found

    def _sample(self, point: Point, room: Room) -> Sample:
        try:
            replay, launches = self._replay(point, room)
            if self.rehearsal:
                times = interleaved({"": (replay, launches)}, 2, warm_ups=1)
            elif point.role == SENTINEL:
                times = interleaved({"": (replay, launches)}, self.repeats, rest_s=REST_S)
            else:
                times = interleaved(
                    {"": (replay, launches)}, self.repeats, warm_up_s=WARM_UP_S, enough_s=ENOUGH_S
                )
        except FAILURES as error:
            expect_alive(error, room.device)
            return Sample((), 0, words_of(error), fits=not too_large(error))
        return Sample(tuple(times[""]), launches)

    def under_load(self, read: Callable[[], Read]) -> Read:
        """Run large products until `read` returns; without load if they do not fit in memory."""
        room = self._room = self._room or self._new_room()
        side, count = (64, 1) if self.rehearsal else (LOAD_SIDE, LOADS)
        with ThreadPoolExecutor(1) as other:
            try:
                a, b, out = room.cut(side, side), room.cut(side, side), room.new(side, side)
                asked = None
                while asked is None or not asked.done():
                    for _ in range(count):
                        torch.mm(a, b, out=out)
                    asked = asked or other.submit(read)
                    out[0, 0].item()  # waits
            except FAILURES as error:
                expect_alive(error, room.device)
                return read()
            return asked.result()

    def _new_room(self) -> Room:
        try:
            return Room(self.rehearsal)
        except RuntimeError as error:
            raise CalibrationError(f"there is no memory to measure in: {words_of(error)}") from error

    def _clean_up(self) -> None:
        if not self.rehearsal:
            try:
                torch.cuda.empty_cache()
            except RuntimeError as error:
                raise DeviceLostError(f"the GPU answers no more: {words_of(error)}") from error

    def _replay(self, point: Point, room: Room) -> tuple[Callable[[], float], int]:
        """A call that runs all launches of a point, and their number."""
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
        """The cost of starting kernels from the host or a graph, and of cutting contexts."""
        empty, wait = launches.empty(room), None if self.rehearsal else torch.cuda.synchronize
        if what == "cut":
            calls = launches.cutting(room)
            return (on_host_clock if self.rehearsal else captured)(calls), len(calls)
        if what == "eager":
            calls = launches.eager(room)
            return on_host_clock(calls, wait), len(calls)
        if self.rehearsal:
            return on_host_clock([empty]), 1
        if what == "graph":
            return captured([empty] * launches.EMPTY_LAUNCHES), launches.EMPTY_LAUNCHES
        return on_host_clock([graph_of([empty]).replay] * REPLAYS, wait), REPLAYS
