"""The journal of a calibration: a line of JSON per group of points, written as soon as it is measured.

The first line says which device, versions and plan it belongs to. The same calibration resumes where it
stopped, and gives the same profile as an uninterrupted one, except for the clocks and sentinels, which are
read once more. Any other calibration refuses the journal. Points that failed, or were faster than the device
can be, are retried (calibrate.py); failed readings are dropped. An incomplete last line is ignored.
"""

import json
import os
from collections.abc import Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import Any

from kvsim.kernels.calibration.errors import JournalError
from kvsim.kernels.calibration.foreign import foreign_text
from kvsim.kernels.calibration.points import Point, Sample

SHORTEST_S, LONGEST_S = 1e-9, 1e6
"""The minimum time of one launch, and the maximum of any time in a journal."""
DAMAGED = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""Exceptions that parsing a foreign file may raise."""
NAMES = {"device": "device", "plan": "plan (its points, quick or not)"}


class Journal:
    """The measurements so far, in a file; without a path only in memory.

    Attributes
    ----------
    head : Mapping
        The first line: "device", "plan", "date", "driver".
    samples : dict
        Key of a point -> Sample.
    clocks, sentinels : list
        Readings of the card in order (drift.py), each with its time.
    seconds : float
        Time spent measuring.
    """

    def __init__(self, path: Path | None, head: Mapping[str, Any], fresh: bool = False) -> None:
        self._path = path
        self.head, self.samples = head, dict[str, Sample]()
        self.clocks, self.sentinels = list[Mapping[str, str]](), list[Mapping[str, Any]]()
        self.seconds = 0.0
        if path is None:
            return
        if path.exists() and not fresh:
            self._read(path)
            return
        if os.path.lexists(path) and not _is_journal(path):
            raise JournalError(f"{path} is no journal of a calibration: remove it, or name another file")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(head) + "\n", encoding="utf-8")
        except OSError as error:
            raise JournalError(f"the journal {path} cannot be written: {error.strerror}") from None

    def _read(self, path: Path) -> None:
        try:
            head, *lines, cut_off = foreign_text(path).split("\n")
            found = json.loads(head)
            for name, meaning in NAMES.items():
                if found[name] != self.head[name]:
                    other = meaning + _difference(found[name], self.head[name])
                    raise JournalError(
                        f"the journal {path} of a calibration that was stopped is of another {other}; forget "
                        "it with --fresh, or go on as it was begun"
                    )
        except (OSError, *DAMAGED):
            raise _foreign(path) from None
        try:
            self.head = {**found, "date": str(found["date"])}
            for line in lines:
                self._take(json.loads(line))
        except DAMAGED:
            raise _foreign(path) from None
        self.samples = {key: sample for key, sample in self.samples.items() if sample.failure is None}
        worked = [all(map(any, one.values())) for one in self.sentinels]
        self.clocks = list(compress(self.clocks, worked))
        self.sentinels = list(compress(self.sentinels, worked))
        if cut_off:  # after the last line break
            os.truncate(path, path.stat().st_size - len(cut_off.encode()))

    def _take(self, entry: Mapping[str, Any]) -> None:
        if "clocks" in entry:
            when = str(entry["when"])
            self.clocks.append({"when": when, **{name: str(each) for name, each in entry["clocks"].items()}})
            timed = {part: _seconds(each) for part, each in entry["sentinels"].items()}
            self.sentinels.append({"when": when, **timed})
            return
        self.seconds += sum(_seconds([entry["took_s"]]))
        for key, measured, launches, failure, fits in entry["points"]:
            seconds, told = tuple(_seconds(measured, SHORTEST_S)), None if failure is None else str(failure)
            if told is None and not seconds:
                raise ValueError(f"{key} was measured in no time")
            self.samples[str(key)] = Sample(seconds, int(launches), told, bool(fits))

    @property
    def last_reading(self) -> str | None:
        """The time of the last reading of the clocks."""
        return self.clocks[-1]["when"] if self.clocks else None

    def add(self, points: Sequence[Point], samples: Sequence[Sample], took_s: float) -> None:
        """Append a group of points."""
        rows = [
            [point.key, list(sample.seconds), sample.launches, sample.failure, sample.fits]
            for point, sample in zip(points, samples, strict=True)
        ]
        self._append({"part": points[0].part, "took_s": took_s, "points": rows})

    def add_reading(
        self, when: str, clocks: Mapping[str, str], sentinels: Mapping[str, Sequence[float]]
    ) -> None:
        """Append a reading of the card's clocks and speed."""
        self._append({"when": when, "clocks": clocks, "sentinels": sentinels})

    def _append(self, entry: Mapping[str, Any]) -> None:
        self._take(entry)
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
                file.flush()
                os.fsync(file.fileno())


def _seconds(values: Sequence[float], least: float = 0.0) -> list[float]:
    """Check times from a journal; ValueError or TypeError if one is invalid."""
    found = [float(each) for each in values]
    if not all(each == 0 or least <= each <= LONGEST_S for each in found):
        raise ValueError(f"seconds must be 0, or from {least:g} to {LONGEST_S:g}, got {found}")
    return found


def _foreign(path: Path) -> JournalError:
    return JournalError(f"{path} is no journal of a calibration: remove it, or name another file")


def _is_journal(path: Path) -> bool:
    """Whether a file begins like a journal; links do not count."""
    try:
        head = json.loads(foreign_text(path).partition("\n")[0])
        return not path.is_symlink() and all(name in head for name in ("device", "plan", "date"))
    except (OSError, *DAMAGED):
        return False


def _difference(found: object, wanted: object) -> str:
    """The facts that differ, in words, if both are mappings."""
    if not (isinstance(found, Mapping) and isinstance(wanted, Mapping)):
        return ""
    names = [name for name in wanted if found.get(name) != wanted[name]]
    return ": " + ", ".join(f"{name} {found.get(name)}, here {wanted[name]}" for name in names)
