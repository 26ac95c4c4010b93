"""Errors of clocks against real servers: the rows written by `sim validate --table FILE`.

Errors   precision, servers, and the median absolute and median signed error of TTFT, TPOT and throughput
Trust    the same for a clock, a model and a GPU
"""

import csv
from collections.abc import Callable
from dataclasses import dataclass, fields
from importlib.resources.abc import Traversable
from pathlib import Path

from kvsim.sim.files.reading import text_of, understood


@dataclass(frozen=True)
class Errors:
    """Errors over servers of one precision.

    Attributes
    ----------
    precision : str
        `bf16` or the quantization of the weights.
    servers : int
        Number of measured servers.
    ttft_error, tpot_error, throughput_error : float
        Median absolute error, as a share of what was measured.
    ttft_bias, tpot_bias, throughput_bias : float
        Median signed error. Positive: simulated latency too long, or throughput too high.
    """

    precision: str
    servers: int
    ttft_error: float
    ttft_bias: float
    tpot_error: float
    tpot_bias: float
    throughput_error: float
    throughput_bias: float


@dataclass(frozen=True)
class Clocked:
    """The clock as in `--cost`, and the model and the GPU by kvsim's names."""

    cost: str
    model: str
    gpu: str


@dataclass(frozen=True)
class Trust(Errors, Clocked):
    """Errors of a clock for a model on a GPU: a row of the table, `Clocked` first."""

    @property
    def errors(self) -> str:
        """`TPOT 4.0 % off, TTFT 15.0 %`."""
        return f"TPOT {100 * self.tpot_error:.1f} % off, TTFT {100 * self.ttft_error:.1f} %"

    @property
    def words(self) -> str:
        """The errors, and the number of servers."""
        if self.servers == 1:
            return f"{self.errors}, against a real vLLM server"
        return f"{self.errors} (medians of {self.servers:,} real vLLM servers)"


def read_errors(path: Traversable | Path) -> list[Trust]:
    """The rows of a table that `sim validate --table` wrote."""
    kinds: dict[str, Callable[[str], object]] = {each.name: each.type for each in fields(Trust)}  # type: ignore[misc]
    with understood(f"table {path}", "is none of sim validate --table"):
        text = text_of(path, f"table {path}") if isinstance(path, Path) else path.read_text("utf-8")
        rows = list(csv.DictReader(text.splitlines()))
        return [Trust(**{name: kind(row[name]) for name, kind in kinds.items()}) for row in rows]  # type: ignore[arg-type]
