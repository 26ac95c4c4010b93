"""The finished runs of a sweep, one per line, so that a sweep killed at any time can be resumed.

    runs.jsonl    {"key": "3f2c...", "row": {"status": "finished", ...}, "cpu_s": 0.42}

A key is a digest of everything that determines the result. A line is appended when its run ends, and is on
disk before the next one. A partial line from a killed process is dropped.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvsim.reports.rundir.formats import plain
from kvsim.sim.files.reading import content_of
from kvsim.sim.files.whole_file import explained

NAME = "runs.jsonl"
KEPT = "the runs that are done are kept, and the same command continues"


@dataclass(frozen=True)
class Done:
    """A finished run: its row, and its CPU time."""

    row: Mapping[str, Any]
    cpu_s: float


class Journal:
    """The file of one sweep; `done` holds its contents."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.done: dict[str, Done] = {}
        with explained(path):
            if path.exists():
                self._read()
            else:
                path.touch()

    def add(self, key: str, row: Mapping[str, Any], cpu_s: float | None) -> None:
        """Save a run; one without a CPU time, from a process that died, is kept only in memory."""
        if cpu_s is None:
            self.done[key] = Done(row, 0.0)
            return
        line = json.dumps({"key": key, "row": plain(row), "cpu_s": cpu_s}, ensure_ascii=False) + "\n"
        with explained(self._path, kept=KEPT), self._path.open("ab") as file:
            file.write(line.encode("utf-8", "backslashreplace"))
            file.flush()
            os.fsync(file.fileno())
        self.done[key] = Done(json.loads(line)["row"], cpu_s)

    def _read(self) -> None:
        text = content_of(self._path, str(self._path))
        whole = text[: text.rfind(b"\n") + 1]
        if len(whole) < len(text):
            with self._path.open("r+b") as file:
                file.truncate(len(whole))
        for line in whole.splitlines():
            try:
                found = json.loads(line)
                self.done[str(found["key"])] = Done(dict(found["row"]), float(found["cpu_s"]))
            except (ValueError, KeyError, TypeError):  # a damaged line counts as not done
                continue
