"""A replay on disk: its numbers, and each request measured and simulated; for drawing and reports.

replay.json       the numbers, the difference in terms, notes: the output of `sim replay --json`
replay.parquet    a row per request, in seconds; absent if the result holds only numbers
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from kvsim.reports import clocks
from kvsim.reports.arrays import Floats
from kvsim.reports.rundir.formats import plain, read_columns, read_json, write_columns, write_json
from kvsim.sim.bench.measured import MeasuredRun
from kvsim.sim.bench.replay import Simulated, pairs
from kvsim.sim.errors import KvsimError
from kvsim.sim.files.reading import understood

SAID, REQUESTS = "replay.json", "replay.parquet"
LATENCIES = ("TTFT", "TPOT", "E2E")
WAYS = ("measured", "simulated")


@dataclass(frozen=True)
class Replayed:
    """The data of a replay to draw.

    Attributes
    ----------
    name : str
        The name of the measured result.
    clock : str
        The simulated server's clock, with its errors.
    start_s : float64 array or None
        When each request was sent, relative to the first; None: unknown.
    latencies : mapping
        TTFT, TPOT and E2E -> measured and simulated, in seconds; empty: the result holds no requests.
    """

    name: str
    clock: str
    start_s: Floats | None
    latencies: Mapping[str, tuple[Floats, Floats]]

    @classmethod
    def of(cls, run: MeasuredRun, found: Simulated) -> Self:
        """The data of a replay that has just run."""
        start = None if run.requests is None else run.requests.start_s
        cost: Any = found.summary["cost"]
        sent = None if start is None else np.asarray(start, np.float64)[found.rows]
        return cls(run.name, clocks.told([cost]), sent, pairs(run, found))

    def write(self, directory: Path, said: Mapping[str, Any]) -> None:
        """Write both files."""
        write_json(plain({**said, "clock": self.clock}), directory / SAID)
        if self.latencies:
            columns = {} if self.start_s is None else {"start_s": self.start_s}
            for what, pair in self.latencies.items():
                columns |= {_column(way, what): values for way, values in zip(WAYS, pair, strict=True)}
            write_columns(columns, directory / REQUESTS)


def is_replay(directory: Path) -> bool:
    """Whether `sim replay --out` wrote this directory."""
    return (directory / SAID).is_file()


def read_replay(directory: Path) -> tuple[dict[str, Any], Replayed]:
    """The numbers, and the data to draw; KvsimError if they are damaged."""
    what = str(directory / SAID)
    with understood(what):
        said = read_json(directory / SAID)
        name, clock = said["result"], said["clock"]
        texts = [name, clock, said["tool"], *said["notes"]]
        for each in said["numbers"]:
            texts += [each["what"], each["statistic"]]
            _check([each["measured"], each["simulated"]], (int, float), what)
        for term in said["difference"]:
            texts += [term["name"], term["says"]]
            _check([term["seconds"]], (int, float, type(None)), what)
        _check(texts, (str,), what)
    if not (directory / REQUESTS).is_file():
        return said, Replayed(name, clock, None, {})
    needed = tuple(_column(way, each) for each in LATENCIES for way in WAYS)
    columns = read_columns(directory / REQUESTS, needed, numbers=("start_s",))
    latencies = {each: tuple(columns[_column(way, each)] for way in WAYS) for each in LATENCIES}
    return said, Replayed(name, clock, columns.get("start_s"), {k: (a, b) for k, (a, b) in latencies.items()})


def _column(way: str, latency: str) -> str:
    return f"{way}_{latency.lower()}_s"


def _check(values: list[Any], kinds: tuple[type, ...], what: str) -> None:
    for value in values:
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise KvsimError(f"{what} is damaged: {str(value)[:40]!r} is no {kinds[0].__name__}")
