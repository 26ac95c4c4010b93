"""A simulated run as a benchmark tool would have measured it: the input of the result writers.

Times start at 1970, so that the same run gives the same bytes and no file looks as if it was measured today.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from kvsim.sim.bench.measured import Floats, Gaps, Requests
from kvsim.sim.bench.token_times import token_gaps
from kvsim.sim.record.slo import Slo
from kvsim.sim.run import Outcome, goals_of

EPOCH = "1970-01-01T00:00:00"


@dataclass(frozen=True)
class Served:
    """The data to write.

    Attributes
    ----------
    model, label : str
    requests : Requests
        Served requests, in order of start time.
    gaps : Gaps
        Gaps between all tokens of each request.
    failed : int
        Rejected requests.
    request_rate : float
        Infinity: all at once, or a closed loop.
    burstiness : float
    clients : int or None
    sessions : tuple of str
        Name of each request's conversation.
    turns : tuple of int
        Each request's place in its conversation.
    slo : Slo or None
        The limits on its latencies.
    """

    model: str
    label: str
    requests: Requests
    gaps: Gaps
    failed: int
    request_rate: float
    burstiness: float
    clients: int | None
    sessions: tuple[str, ...]
    turns: tuple[int, ...]
    slo: Slo | None = None

    @property
    def ends_s(self) -> Floats:
        """The time of each request's last token."""
        assert self.requests.start_s is not None
        return self.requests.start_s + self.requests.e2e_s

    @property
    def duration_s(self) -> float:
        """From the first request sent to the last token."""
        assert self.requests.start_s is not None
        return float(self.ends_s.max() - self.requests.start_s.min()) if len(self.requests) else 0.0

    def gaps_of(self, row: int) -> Floats:
        """The gaps of one request."""
        found: Floats = self.gaps.seconds[self.gaps.offsets[row] : self.gaps.offsets[row + 1]]
        return found


def served(outcome: Outcome) -> Served:
    """The run with its token times; KvsimError if they are unknown."""
    table = outcome.requests
    there = np.flatnonzero(table["status"] != "rejected")
    order = np.argsort(np.asarray(table["arrival_s"], dtype=np.float64)[there], kind="stable")
    rows = there[order].astype(np.int64)

    def column(name: str) -> Floats:
        values: Floats = np.asarray(table[name], dtype=np.float64)[rows]
        return values

    gaps = token_gaps(outcome, rows)
    requests = Requests(
        column("arrival_s"),
        column("prompt_tokens").astype(np.int64),
        column("output_tokens").astype(np.int64),
        column("ttft_s"),
        column("e2e_s"),
        gaps,
    )
    config, traffic = outcome.config, _object(outcome.config["workload"])
    model = _object(_object(config["scenario"])["model"])
    names = [str(each) for each in table["session"][rows]] if "session" in table else list(map(str, rows))
    seen: dict[str, int] = {}
    turns = []
    for name in names:
        turns.append(seen.get(name, 0))
        seen[name] = turns[-1] + 1
    clients, rate = traffic.get("clients"), traffic.get("request_rate")
    return Served(
        str(model["name"]),
        str(outcome.summary["label"]),
        requests,
        gaps,
        len(table["status"]) - len(rows),
        inf if clients or rate in (None, "inf") else float(rate),
        float(traffic.get("burstiness") or 1.0),
        int(clients) if clients else None,
        tuple(names),
        tuple(turns),
        goals_of(config).limits,
    )


def _object(value: object) -> Mapping[str, Any]:
    assert isinstance(value, dict)
    return value
