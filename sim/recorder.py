"""What is written down during a run: columns, sums and samples, never one object per token.

Sums are integrals over time in slot-picoseconds (or requests x picoseconds): exact integers. They are
kept apart for steps at whose start somebody waited (saturated) and for those at which nobody did.
The timeline holds instants: every step at first; whenever `timeline_rows` are full, every other one
is dropped and the spacing doubles. So a run of any length has between half that number and all of it.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import add, mul, sub

import numpy as np

from kvsim.sim.histogram import Histogram
from kvsim.sim.load import LIMITS
from kvsim.sim.request import Request
from kvsim.sim.server import Server
from kvsim.sim.workload import Int64Column, Workload

TIMELINE_ROWS = 1024
SPANS_AT_ONCE = 1024

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
"""Columns of a request that its earliest sample decides."""

TIMELINE_COLUMNS = (
    "time_ps",
    "token",
    "reserved",
    "internal",
    "cached",
    "external",
    "free",
    "running",
    "waiting",
    "largest_free_extent",
    "preemptions",
)
STEP_COLUMNS = (
    "step",
    "start_ps",
    "duration_ps",
    "running",
    "waiting",
    "swapped",
    "preemptions_cum",
    "swapouts_cum",
    "blocks_in_use",
    "logical_blocks",
    "shared_blocks",
    "cow_copies",
    "swap_in_blocks",
    "swap_out_blocks",
    "cpu_blocks_in_use",
    "prefill_tokens",
    "decode_tokens",
    "hit_tokens",
    "recomputed_tokens",
    "kv_tokens",
    "finished",
    "running_end",
    "waiting_end",
    "blocks_in_use_end",
)


Span = tuple[Sequence[int], int, int, int, int, int]
"""(ends, decoding, running, held, used, internal): steps without a decision, and what the memory held.

`ends` counts picoseconds from the start of the span. `held` slots hold a token in the first step, those of
`decoding` tokens more in each later one; `used` and `internal` are those before any growth in the span."""


@dataclass
class Integrals:
    """Sums over time of what the memory held: slots (or requests) times picoseconds.

    `shared` counts the tokens that sequences hold beyond the slots that hold them.
    """

    time_ps: int = 0
    token: int = 0
    used: int = 0
    internal: int = 0
    running: int = 0
    external: int = 0
    cached: int = 0
    shared: int = 0

    def add_rest(self, duration_ps: int, external: int, cached: int, shared: int) -> None:
        """Add those that most allocators never have."""
        self.external += external * duration_ps
        self.cached += cached * duration_ps
        self.shared += shared * duration_ps


@dataclass(frozen=True)
class Result:
    """What a run leaves behind: integers, as numpy columns, and sums.

    `requests` has a row per request of the workload, valid where `finished` is True. `timeline` and
    `steps` are tables of the columns named in this file; `samples` has a row per answer, where requests
    have several. `held_ps` is the time for which each limit (sim/load.py) held the queue back; they sum
    to the saturated time.
    """

    workload: Workload
    arrival_ps: Int64Column
    output_tokens: Int64Column
    finished: np.ndarray[tuple[int], np.dtype[np.bool_]]
    truncated: int
    rejected: dict[str, int]
    requests: dict[str, Int64Column]
    timeline: dict[str, Int64Column]
    steps: dict[str, Int64Column] | None
    saturated: Integrals
    unsaturated: Integrals
    held_ps: dict[str, int]
    token_gaps: Histogram
    capacity_slots: int
    end_ps: int
    step_count: int
    max_running: int
    peak_used_tokens: int
    preemptions: int
    fragmented_refusals: int
    copied_slots: int
    cow_copies: int
    hit_tokens: int = 0
    swap_outs: int = 0
    swapped_in_blocks: int = 0
    swapped_out_blocks: int = 0
    samples: dict[str, Int64Column] | None = None
    slots_per_token: int = 1


@dataclass
class Recorder:
    """Collects while the engine runs.

    `saturated_spans`, `unsaturated_spans` and `other_gaps` (time between two tokens that is longer than a
    step, and how often) are for the engine to append to; `flush` adds them up.
    """

    workload: Workload
    step_log: bool = False
    timeline_rows: int = TIMELINE_ROWS
    slots_per_token: int = 1
    saturated_spans: list[Span] = field(default_factory=list)
    unsaturated_spans: list[Span] = field(default_factory=list)
    other_gaps: list[tuple[int, int]] = field(default_factory=list)
    saturated: Integrals = field(default_factory=Integrals)
    unsaturated: Integrals = field(default_factory=Integrals)
    held_ps: dict[str, int] = field(default_factory=lambda: dict.fromkeys(LIMITS, 0))
    token_gaps: Histogram = field(default_factory=Histogram)
    next_sample_ps: int = 0
    peak_used_slots: int = 0
    max_running: int = 0
    end_ps: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    truncated: int = 0
    finished_count: int = 0
    finished_samples: int = 0

    def __post_init__(self) -> None:
        rows = len(self.workload)
        self._finished = bytearray(rows)
        self._columns = {name: array("q", bytes(8 * rows)) for name in REQUEST_COLUMNS}
        self._output_tokens = self.workload.output_tokens.copy()
        self._arrivals = self.workload.arrival_ps
        if self.workload.waits is not None:
            self._arrivals = self._arrivals.copy()
        self._answers: dict[str, array[int]] | None = None
        self._unfinished: array[int] | None = None  # samples of each request, where there are several
        self._begun: set[int] = set()  # requests of which some sample is finished, but not all
        samples, beam = self.workload.samples, self.workload.beam
        if samples is not None or beam is not None:
            counts = np.ones(rows) if samples is None else np.diff(samples.offsets)
            counts *= 1 if beam is None else beam.width
            self._unfinished = array("q", counts.astype(np.int64).tobytes())
        if samples is not None:
            self._answers = {
                "finish_ps": array("q", bytes(8 * len(samples.tokens))),
                "finish_step": array("q", bytes(8 * len(samples.tokens))),
            }
        self._timeline: list[tuple[int, ...]] = []
        self._spacing_ps = 0
        self._steps: list[tuple[int, ...]] = []

    # -- requests -----------------------------------------------------------------------------

    def reject(self, reason: str) -> None:
        """Count a request that can never be served."""
        self.rejected[reason] = self.rejected.get(reason, 0) + 1

    def truncate(self, index: int, output_tokens: int) -> None:
        """Note that an answer ends early, at the model's maximum length."""
        self.truncated += 1
        self._output_tokens[index] = output_tokens

    def arrive(self, index: int, now_ps: int) -> None:
        """Note when a request came that waited for another one's answer."""
        self._arrivals[index] = now_ps

    def finish(self, request: Request, now_ps: int, step: int) -> bool:
        """Write down a finished request, or one of its samples: True when it was the last of them."""
        index, columns = request.index, self._columns
        if self._unfinished is None:
            columns["first_scheduled_ps"][index] = request.first_scheduled_ps or 0
            columns["first_token_ps"][index] = request.first_token_ps or 0
            columns["num_preemptions"][index] = request.preemptions
            columns["first_scheduled_step"][index] = request.first_scheduled_step
            columns["first_token_step"][index] = request.first_token_step
        elif not self._finish_sample(request, now_ps, step):
            return False
        columns["finish_ps"][index] = now_ps
        columns["finish_step"][index] = step
        self._finished[index] = 1
        self.finished_count += 1
        self.end_ps = now_ps
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
        self.finished_samples += 1
        if unfinished[index]:
            return False
        self._begun.discard(index)
        return True

    # -- time ---------------------------------------------------------------------------------

    def flush(self) -> None:
        """Add up the spans collected so far."""
        self._add_up(self.saturated_spans, self.saturated)
        self._add_up(self.unsaturated_spans, self.unsaturated)
        if self.other_gaps:
            gaps, counts = zip(*self.other_gaps, strict=True)
            self.token_gaps.add_spans([[gap] for gap in gaps], counts)
            self.other_gaps.clear()

    def _add_up(self, spans: list[Span], sums: Integrals) -> None:
        if not spans:
            return
        ends, decoding, running, held, used, internal = zip(*spans, strict=True)
        spans.clear()
        totals, steps = [last[-1] for last in ends], list(map(len, ends))
        sums.time_ps += sum(totals)
        sums.token += sum(map(mul, held, totals))
        more = decoding if self.slots_per_token == 1 else [self.slots_per_token * n for n in decoding]
        # step i of a span holds i * more slots, and sum(i * duration) = steps * total - sum(ends)
        sums.token += sum(map(mul, more, map(sub, map(mul, steps, totals), map(sum, ends))))
        sums.used += sum(map(mul, used, totals))
        sums.internal += sum(map(mul, internal, totals))
        sums.running += sum(map(mul, running, totals))
        peak = max(map(add, map(sub, held, more), map(mul, more, steps)))
        self.peak_used_slots = max(self.peak_used_slots, peak)
        self.max_running = max(self.max_running, *running)
        self.token_gaps.add_spans(ends, decoding)

    def sample(self, server: Server, now_ps: int, held: int) -> None:
        """Add a row to the timeline; thin it when it is full."""
        allocator = server.allocator
        used, cached, external = allocator.used_slots, allocator.cached_slots, server.external_slots()
        internal = server.internal_slots()
        row = (
            now_ps,
            held,
            used - held - internal,
            internal,
            cached,
            external,
            allocator.capacity_slots - used - cached - external,
            len(server.running),
            len(server.waiting),
            allocator.largest_free_extent(),
            server.preemptions + server.swap_outs,
        )
        if self._timeline and self._timeline[-1][0] == now_ps:
            self._timeline[-1] = row
            return
        self._timeline.append(row)
        if len(self._timeline) >= self.timeline_rows:
            del self._timeline[1::2]
            self._spacing_ps = max(2 * self._spacing_ps, 2 * now_ps // self.timeline_rows)
        self.next_sample_ps = now_ps + self._spacing_ps

    def log_start(self, server: Server, held: int, duration_ps: int) -> None:
        """Begin a row of the step log: what was scheduled."""
        allocator = server.allocator
        unit = allocator.block_slots
        self._waiting = len(server.waiting) + server.unready  # who arrives during the step is not seen yet
        self._finished_before = self.finished_count
        self._row = (
            server.step,
            server.now_ps,
            duration_ps,
            len(server.running) - server.unready,
            self._waiting,
            server.swapped,
            server.preemptions,
            server.swap_outs,
            allocator.used_slots // unit,
            allocator.logical_slots() // unit,
            allocator.shared_slots() // unit,
            allocator.cow_copies - server.cow_copies_before,
            *server.swapped_blocks(),
            allocator.host_used_slots // unit,
            server.chunk_tokens + server.skipped_tokens,
            0 if server.paused else server.decoding,
            server.hit_tokens,
            server.recomputed_tokens,
            (held + allocator.shared_tokens + allocator.expired_slots) // allocator.slots_per_token,
        )

    def log_end(self, server: Server) -> None:
        """Complete the row: what the step left behind."""
        allocator = server.allocator
        self._steps.append(
            (
                *self._row,
                self.finished_count - self._finished_before,
                len(server.running) - server.unready,
                self._waiting,
                allocator.used_slots // allocator.block_slots,
            )
        )

    # -- looking on, from another thread ------------------------------------------------------

    def rows(self) -> list[tuple[int, ...]]:
        """The timeline so far: rows of `TIMELINE_COLUMNS`, each whole."""
        return self._timeline[:]

    def latest_ttft_ps(self, most: int) -> Int64Column:
        """Times to first token of finished requests among the last `most` up to the latest such arrival."""
        last = self._finished.rfind(1) + 1
        rows = slice(max(0, last - most), last)
        done = np.frombuffer(self._finished[rows], dtype=np.bool_)
        first_token_ps = np.frombuffer(self._columns["first_token_ps"][rows], dtype=np.int64)
        return (first_token_ps - self._arrivals[rows])[done]

    # -- the end ------------------------------------------------------------------------------

    def result(self, server: Server) -> Result:
        """Freeze what was collected."""
        self.flush()
        timeline = np.array(self._timeline, dtype=np.int64).reshape(-1, len(TIMELINE_COLUMNS))
        steps = np.array(self._steps, dtype=np.int64).reshape(-1, len(STEP_COLUMNS))
        return Result(
            workload=self.workload,
            arrival_ps=self._arrivals,
            output_tokens=self._output_tokens,
            finished=np.frombuffer(self._finished, dtype=np.bool_),
            truncated=self.truncated,
            rejected=self.rejected,
            requests={name: np.frombuffer(column, dtype=np.int64) for name, column in self._columns.items()},
            samples=self._sample_columns(),
            timeline=dict(zip(TIMELINE_COLUMNS, timeline.T, strict=True)),
            steps=dict(zip(STEP_COLUMNS, steps.T, strict=True)) if self.step_log else None,
            saturated=self.saturated,
            unsaturated=self.unsaturated,
            held_ps=self.held_ps,
            token_gaps=self.token_gaps,
            capacity_slots=server.allocator.capacity_slots,
            end_ps=self.end_ps,
            step_count=server.step,
            max_running=self.max_running,
            peak_used_tokens=self.peak_used_slots // self.slots_per_token,
            preemptions=server.preemptions,
            swap_outs=server.swap_outs,
            swapped_in_blocks=server.swapped_in_blocks,
            swapped_out_blocks=server.swapped_out_blocks,
            fragmented_refusals=server.fragmented_refusals,
            copied_slots=server.allocator.copied_slots,
            cow_copies=server.allocator.cow_copies,
            hit_tokens=server.hit_tokens_total,
            slots_per_token=self.slots_per_token,
        )

    def _sample_columns(self) -> dict[str, Int64Column] | None:
        if self._answers is None:
            return None
        return {name: np.frombuffer(column, dtype=np.int64) for name, column in self._answers.items()}
