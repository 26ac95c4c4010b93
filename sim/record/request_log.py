"""The log of requests, shared by all replicas: columns, never an object per token.

A row belongs to one replica, so a fleet needs no more memory than one server.
"""

from array import array
from operator import truediv
from typing import Any

import numpy as np

from kvsim.allocators.base import InvariantError
from kvsim.sim.errors import KvsimError
from kvsim.sim.serving.request import Request
from kvsim.sim.workload import LATEST_PS, PS_PER_S, Int64Column, Workload

REQUEST_COLUMNS = (
    "first_scheduled_ps",
    "first_token_ps",
    "finish_ps",
    "num_preemptions",
    "first_scheduled_step",
    "first_token_step",
    "finish_step",
)
FIRSTS = ("first_scheduled_ps", "first_token_ps", "first_scheduled_step", "first_token_step")
"""Columns of a request that depend only on its earliest sample."""


class RequestLog:
    """The request columns of a run.

    Attributes
    ----------
    arrival_ps, output_tokens : int64 arrays, shape (n,)
        As in the workload, except for arrivals that waited for an answer, and truncated answers.
    replica : array or None
        The replica of each request, if there are several; the last one if it was resent.
    resent : array or None
        How often each request was resent, if replicas die.
    rejected : set of int
        Requests that were rejected.
    """

    def __init__(self, workload: Workload, replicas: int = 1) -> None:
        rows = len(workload)
        self.workload = workload
        self.finished_count = 0
        self.arrival_ps = workload.arrival_ps
        if workload.waits is not None:
            self.arrival_ps = self.arrival_ps.copy()
        self.output_tokens = workload.output_tokens.copy()
        self.replica: array[int] | None = array("i", bytes(4 * rows)) if replicas > 1 else None
        self.resent: array[int] | None = None
        self.rejected: set[int] = set()
        self._finished = bytearray(rows)
        self._columns = {name: array("q", bytes(8 * rows)) for name in REQUEST_COLUMNS}
        self._views = [memoryview(column) for column in self._columns.values()]  # faster to write to
        self._answers: dict[str, array[int]] | None = None
        self._unfinished: array[int] | None = None  # samples per request, if there are several
        self._begun: set[int] = set()  # requests of which some but not all samples are finished
        samples, beam = workload.samples, workload.beam
        if samples is not None or beam is not None:
            counts = np.ones(rows) if samples is None else np.diff(samples.offsets)
            counts *= 1 if beam is None else beam.width
            self._unfinished = array("q", counts.astype(np.int64).tobytes())
        if samples is not None:
            self._answers = {
                "finish_ps": array("q", bytes(8 * len(samples.tokens))),
                "finish_step": array("q", bytes(8 * len(samples.tokens))),
            }

    def on_the_clock(self, now_ps: int, steps: int) -> int:
        """The same time after `steps` steps; KvsimError if it exceeds the limit of the clock."""
        if now_ps > LATEST_PS:
            goes_s, ends_s = truediv(now_ps, PS_PER_S), truediv(LATEST_PS, PS_PER_S)
            raise KvsimError(
                f"the simulation takes too long: with {self.finished_count:,} of {len(self.workload):,} "
                f"requests served and {steps:,} steps done it goes to {goes_s:,.0f} s, the clock only to "
                f"{ends_s:,.0f} s (106 days); take fewer requests, or another gpu or cost"
            )
        return now_ps

    def truncate(self, index: int, output_tokens: int) -> None:
        """Record that an answer ends early, at the model's maximum length."""
        self.output_tokens[index] = output_tokens

    def send(self, index: int, replica: int) -> None:
        """Record the replica to which a request is sent."""
        if self.replica is not None:
            self.replica[index] = replica

    def place_of(self, index: int) -> int:
        """The last replica to which a request was sent; 0 for the only one, or if it was not sent yet."""
        return 0 if self.replica is None else self.replica[index]

    def send_again(self, index: int) -> None:
        """Its replica died: discard the records of the request."""
        self.output_tokens[index] = self.workload.output_tokens[index]
        if self.resent is None:
            self.resent = array("q", bytes(8 * len(self.workload)))
        self.resent[index] += 1
        self._begun.discard(index)
        self._columns["num_preemptions"][index] = 0
        samples, beam = self.workload.samples, self.workload.beam
        if self._unfinished is not None:
            count = 1 if samples is None else int(samples.offsets[index + 1] - samples.offsets[index])
            self._unfinished[index] = count * (1 if beam is None else beam.width)

    def sent_again(self, index: int) -> int:
        """How often a request was sent again so far."""
        return 0 if self.resent is None else self.resent[index]

    def is_over(self, index: int) -> bool:
        """Whether a request has all its answers, or was rejected."""
        return bool(self._finished[index]) or index in self.rejected

    def finished_between(self, from_ps: int, to_ps: int) -> Int64Column:
        """The rows that finished in [from_ps, to_ps)."""
        finish_ps = np.frombuffer(self._columns["finish_ps"], dtype=np.int64)
        rows = np.flatnonzero(np.frombuffer(self._finished, dtype=np.bool_))
        return rows[(from_ps <= finish_ps[rows]) & (finish_ps[rows] < to_ps)]

    def times_resent(self) -> Int64Column | None:
        """How often each request was resent; None if none was."""
        return None if self.resent is None else np.frombuffer(self.resent, dtype=np.int64)

    def preempted(self, index: int, times: int = 1) -> None:
        """Count preemptions of a request that finishes or is rejected."""
        self._columns["num_preemptions"][index] += times

    def arrive(self, index: int, now_ps: int) -> None:
        """Record the arrival of a request that waited for the answer to another."""
        self.arrival_ps[index] = now_ps

    def finish(self, request: Request, now_ps: int, step: int) -> bool:
        """Record a finished request or sample; True if it was the last of its request."""
        index: Any = request.index  # an integer, which saves the compiler a check
        scheduled_ps, token_ps, finish_ps, preemptions, scheduled_step, token_step, finish_step = self._views
        if self._unfinished is None:
            scheduled_ps[index] = request.first_scheduled_ps or 0
            token_ps[index] = request.first_token_ps or 0
            preemptions[index] = request.preemptions
            scheduled_step[index] = request.first_scheduled_step
            token_step[index] = request.first_token_step
        elif not self._finish_sample(request, now_ps, step):
            return False
        finish_ps[index] = now_ps
        finish_step[index] = step
        self._finished[index] = 1
        self.finished_count += 1
        return True

    def _finish_sample(self, request: Request, now_ps: int, step: int) -> bool:
        """Whether this was the last sample of its request."""
        index, columns, unfinished = request.index, self._columns, self._unfinished
        assert unfinished is not None
        samples = self.workload.samples
        if samples is not None and self._answers is not None:
            row = int(samples.offsets[index]) + request.sample
            self._answers["finish_ps"][row] = now_ps
            self._answers["finish_step"][row] = step
        if index not in self._begun:
            self._begun.add(index)
            for name in FIRSTS:
                columns[name][index] = getattr(request, name)
        else:
            for name in FIRSTS:
                columns[name][index] = min(columns[name][index], getattr(request, name))
        columns["num_preemptions"][index] += request.preemptions
        unfinished[index] -= 1
        if unfinished[index]:
            return False
        self._begun.discard(index)
        return True

    # -- observers, from another thread -------------------------------------------------------

    def latest_ttft_ps(self, most: int) -> Int64Column:
        """TTFT of the finished requests among the last `most` rows before the latest finished one."""
        last = self._finished.rfind(1) + 1
        rows = slice(max(0, last - most), last)
        done = np.frombuffer(self._finished[rows], dtype=np.bool_)
        first_token_ps = np.frombuffer(self._columns["first_token_ps"][rows], dtype=np.int64)
        return (first_token_ps - self.arrival_ps[rows])[done]

    # -- the end ------------------------------------------------------------------------------

    @property
    def finished(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Which requests have all their answers."""
        return np.frombuffer(self._finished, dtype=np.bool_)

    def columns(self) -> dict[str, Int64Column]:
        """The columns of `REQUEST_COLUMNS`, valid for finished requests."""
        found = {name: np.frombuffer(column, dtype=np.int64) for name, column in self._columns.items()}
        begun_ps = found["first_scheduled_ps"]
        for row in np.flatnonzero(self.finished & (begun_ps < self.arrival_ps))[:1].tolist():
            raise InvariantError(
                f"request {row} came at {self.arrival_ps[row]} ps and was computed from {begun_ps[row]} ps on"
            )
        return found

    def replicas(self) -> Int64Column | None:
        """The replica each request went to, if there are several."""
        return None if self.replica is None else np.frombuffer(self.replica, dtype=np.int32).astype(np.int64)

    def sample_columns(self) -> dict[str, Int64Column] | None:
        """Columns with a row per answer, if requests have several."""
        if self._answers is None:
            return None
        return {name: np.frombuffer(column, dtype=np.int64) for name, column in self._answers.items()}
