"""What is recorded during a run: columns, sums and samples, never one object per token.

Sums are integrals over time in slot-picoseconds (or requests x picoseconds): exact integers. They are
kept separately for steps at whose start a request waited (saturated) and for all other steps.
The timeline holds instants: at first every step; whenever `timeline_rows` are full, every other one is
dropped and the spacing doubles. So a run of any length keeps between half that number and all of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from mypy_extensions import mypyc_attr

from kvsim.allocators.base import Allocator
from kvsim.sim.record.by_kind import HeldOverTime
from kvsim.sim.record.counting import COMPILED, Counting
from kvsim.sim.record.histogram import Histogram
from kvsim.sim.record.limits import LIMITS
from kvsim.sim.record.request_log import RequestLog
from kvsim.sim.record.span import HELD_BY, Columns, Integrals, Rest, Span, Start, unlike_tokens
from kvsim.sim.serving.memory import Level
from kvsim.sim.serving.request import Request
from kvsim.sim.serving.totals import DraftTotals, TierTotals, Totals, UpkeepTotals
from kvsim.sim.workload import Int64Column, Workload

TIMELINE_ROWS = 1024
SPANS_AT_ONCE: Final = 1024

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


class Instant(NamedTuple):
    """A row of the timeline: what the memory holds, and what runs and waits."""

    time_ps: int
    token: int
    reserved: int
    internal: int
    cached: int
    external: int
    free: int
    running: int
    waiting: int
    largest_free_extent: int
    preemptions: int
    idle: int = 0
    held: int = 0
    tier_held_bytes: int = 0
    tier_loaded_bytes: int = 0
    tier_stored_bytes: int = 0


TIMELINE_COLUMNS = Instant._fields


@mypyc_attr(native_class=False)
@dataclass(frozen=True)
class Result:
    """The results of a run: integers, as numpy columns, and sums.

    `requests` has a row per request of the workload, valid if `finished` is True. `timeline` and `steps`
    are tables of the columns named in this file; `samples` has a row per answer, if requests have several.
    `held_ps` is the time for which each limit (sim/record/limits.py) held the queue back; these times sum to
    the saturated time. The column `idle` exists if the allocator may have idle slots, `held` if the server
    holds prompts for another one; a stack of tiers adds one for each behind the first.
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
    thrown_tokens: int = 0
    swap_outs: int = 0
    swapped_in_blocks: int = 0
    swapped_out_blocks: int = 0
    samples: dict[str, Int64Column] | None = None
    slots_per_token: int = 1
    replica: Int64Column | None = None
    """the replica each request went to, if there are several"""
    resent: Int64Column | None = None
    """how often each request was resent, if replicas died"""
    stages: dict[str, Int64Column] | None = None
    """when each stage of a hand-over ended, if prefill and decode are disaggregated"""
    upkeep: UpkeepTotals | None = None
    """the allocator's other work, if it has any"""
    tier: TierTotals | None = None
    """traffic to the tier below the memory, if there is one"""
    drafts: DraftTotals | None = None
    """what became of drafts, if the engine speculates"""
    by_kind: HeldOverTime | None = None
    """what each kind of layers held, if unlike layers are kept in groups"""
    memory_stats: dict[str, int] | None = None
    """what a deep-learning framework would report about its memory, if it manages it"""


class Recorder:
    """Collects what one replica does during a run; it is given facts and reads no server.

    Parameters
    ----------
    log : RequestLog
        The log of requests, shared with other replicas.
    step_log : bool
        Whether to keep a row per step.
    timeline_rows : int
        At most this many instants are kept.
    slots_per_token : int
        Slots per token.
    stack : sequence of Level
        Tiers whose contents are in the timeline.
    """

    def __init__(
        self,
        log: RequestLog,
        step_log: bool = False,
        timeline_rows: int = TIMELINE_ROWS,
        slots_per_token: int = 1,
        stack: Sequence[Level] = (),
    ) -> None:
        self.log = log
        self.stack = stack
        self.step_log = step_log
        self.timeline_rows = timeline_rows
        self.slots_per_token = slots_per_token
        self.saturated = Integrals()
        self.unsaturated = Integrals()
        self.held_ps = dict.fromkeys(LIMITS, 0)
        self.token_gaps = Histogram()
        self.next_sample_ps = 0
        self.end_ps = 0
        self.peak_used_slots = 0
        self.max_running = 0
        self.rejected: dict[str, int] = {}
        self.truncated = 0
        self.finished_count = 0
        self.first_tokens = 0  # tokens without a previous token
        self._spans: list[Span] = []  # not counted yet
        self._counting = Counting(slots_per_token) if COMPILED else None
        self._late_gaps: list[tuple[int, int]] = []
        self._together = 0  # tokens that came together with another of their sequence
        self._uncounted = self._spans, self._late_gaps, 0  # and the tokens counted before them
        self._timeline: list[Instant] = []
        self._held_below: list[list[int]] = []  # a row per instant, if there is a stack
        self._spacing_ps = 0
        self._steps: list[tuple[int, ...]] = []

    # -- requests -----------------------------------------------------------------------------

    def reject(self, reason: str) -> None:
        """Count a request that can never be served."""
        self.rejected[reason] = self.rejected.get(reason, 0) + 1

    def truncate(self, index: int, output_tokens: int) -> None:
        """Note that an answer ends early, at the model's maximum length."""
        self.truncated += 1
        self.log.truncate(index, output_tokens)

    def finish(self, request: Request, now_ps: int, step: int) -> bool:
        """Record a finished request, or one of its samples: True if it was the last of them."""
        if not self.log.finish(request, now_ps, step):
            return False
        self.end_ps = now_ps
        self.finished_count += 1
        return True

    # -- time ---------------------------------------------------------------------------------

    def idle(
        self,
        duration_ps: int,
        held_by: str,
        rest: Rest,
        kept: tuple[int, int, int] = (0, 0, 0),
    ) -> None:
        """Add time in which nothing was computed; `held_by` and `rest` as in `Start`.

        `kept` are slots that hold a token, are used, or are used in vain, of requests that do not run: their
        KV is in transit, or they were set aside.
        """
        sums = self.saturated if held_by else self.unsaturated
        if held_by:
            self.held_ps[held_by] += duration_ps
        token, used, internal = kept
        sums.time_ps += duration_ps
        sums.token += token * duration_ps
        sums.used += used * duration_ps
        sums.internal += internal * duration_ps
        sums.add_rest(duration_ps, rest)

    def add(self, span: Span) -> None:
        """Keep steps that were carried out, to be counted with others."""
        if self._counting is not None and self._counting.add(span):
            if self._counting.spans == SPANS_AT_ONCE:
                self.flush()
            return
        spans = self._spans
        spans.append(span)
        if len(spans) == SPANS_AT_ONCE:
            self.flush()

    def add_unlike(self, ends: list[int], start: Start, contexts: list[int]) -> None:
        """Count what a span with `contexts` tokens per step, unevenly added, holds beyond `add`."""
        sums = self.saturated if start[HELD_BY] else self.unsaturated
        sums.token += unlike_tokens(ends, start, contexts)
        held = start[2] + contexts[-1] - contexts[0]
        if held > self.peak_used_slots:
            self.peak_used_slots = held

    def late(self, gap_ps: int, count: int) -> None:
        """Add gaps between two tokens that are not the duration of one step."""
        if self._counting is not None and self._counting.late(gap_ps, count):
            return
        self._late_gaps.append((gap_ps, count))

    def together(self, count: int) -> None:
        """Add tokens that came at the same time as another one of their sequence."""
        self._together += count

    def flush(self) -> None:
        """Count the spans and late tokens collected so far; a few late tokens wait for the last spans."""
        spans = self._spans[:]
        self._uncounted = spans, *self._uncounted[1:]
        self._spans.clear()
        counts_late = len(spans) < SPANS_AT_ONCE or len(self._late_gaps) >= SPANS_AT_ONCE
        if self._counting is not None:
            self._take_counted(self._counting)
        waited = [span for span in spans if span[1][HELD_BY]]
        others = spans if not waited else [span for span in spans if not span[1][HELD_BY]]
        self._count(waited, self.saturated)
        self._count(others, self.unsaturated)
        if self._late_gaps and counts_late:
            gaps, counts = zip(*self._late_gaps, strict=True)
            self.token_gaps.add_spans([[gap] for gap in gaps], counts)
            self._late_gaps = []
        counted = self.token_gaps.count - (0 if self._counting is None else int(self._counting.tokens))
        self._uncounted = self._spans, self._late_gaps, counted

    def tokens(self) -> int:
        """Tokens generated so far, including the last step carried out; may be called from another thread."""
        spans, late, tokens = self._uncounted
        tokens += sum([len(ends) * start[0] for ends, start, _ in spans[:]])
        tokens += sum([count for _, count in late[:]]) + self._together
        return self.first_tokens + tokens + (0 if self._counting is None else int(self._counting.tokens))

    def _count(self, spans: list[Span], sums: Integrals) -> None:
        """Count spans that all go into the same sums."""
        if not spans:
            return
        columns = Columns(spans, self.slots_per_token)
        if columns.held_by[0]:
            for held_by, duration_ps in zip(columns.held_by, columns.totals_ps.tolist(), strict=True):
                self.held_ps[held_by] += duration_ps
        self.token_gaps.add_ends(columns.ends_ps, columns.steps, columns.starts[0])
        self.max_running = max(self.max_running, int(columns.starts[1].max()))
        self.peak_used_slots = columns.peak_slots(self.peak_used_slots)
        sums.add_spans(columns)

    def _take_counted(self, counting: Counting) -> None:
        """The same for spans that were counted one by one, compiled."""
        counting.give(self.saturated, self.unsaturated, self.held_ps, self.token_gaps)
        self.max_running = max(self.max_running, int(counting.max_running))
        self.peak_used_slots = max(self.peak_used_slots, int(counting.peak_slots))

    def sample(self, row: Instant) -> None:
        """Add a row to the timeline; thin it if it is full."""
        now_ps = row.time_ps
        again = bool(self._timeline) and self._timeline[-1].time_ps == now_ps
        if self.stack:
            if again:
                self._held_below.pop()
            self._held_below.append([each.held_bytes for each in self.stack])
        if again:
            self._timeline[-1] = row
            return
        self._timeline.append(row)
        if len(self._spans) >= SPANS_AT_ONCE:
            self.flush()
        if len(self._timeline) >= self.timeline_rows:
            del self._timeline[1::2]
            del self._held_below[1::2]
            self._spacing_ps = max(2 * self._spacing_ps, 2 * now_ps // self.timeline_rows)
        self.next_sample_ps = now_ps + self._spacing_ps

    def log_start(self, row: tuple[int, ...], waiting: int) -> None:
        """Begin a row of the step log, up to `kv_tokens`; `waiting` keeps its value from the start."""
        self._row, self._waiting, self._finished_before = row, waiting, self.finished_count

    def log_end(self, running: int, blocks_in_use: int) -> None:
        """Complete the row with the state after the step."""
        finished = self.finished_count - self._finished_before
        self._steps.append((*self._row, finished, running, self._waiting, blocks_in_use))

    def rows(self) -> list[Instant]:
        """The timeline so far, with whole rows; may be called from another thread."""
        return self._timeline[:]

    # -- the end ------------------------------------------------------------------------------

    def result(
        self,
        totals: Totals,
        allocator: Allocator,
        steps: int,
        upkeep: UpkeepTotals | None = None,
        holds: bool = False,
    ) -> Result:
        """Freeze what was collected; `holds`: the server holds prompts for another one."""
        if self._together:
            self.late(0, self._together)
            self._together = 0
        self.flush()
        timeline = np.array(self._timeline, dtype=np.int64).reshape(-1, len(Instant._fields))
        below = np.array(self._held_below, dtype=np.int64).reshape(len(self._held_below), len(self.stack))
        rows = np.array(self._steps, dtype=np.int64).reshape(-1, len(STEP_COLUMNS))
        return Result(
            workload=self.log.workload,
            arrival_ps=self.log.arrival_ps,
            output_tokens=self.log.output_tokens,
            finished=self.log.finished,
            truncated=self.truncated,
            rejected=self.rejected,
            requests=self.log.columns(),
            samples=self.log.sample_columns(),
            timeline={
                name: column
                for name, column in zip(Instant._fields, timeline.T, strict=True)
                if (name != "idle" or allocator.idles)
                and (name != "held" or holds)
                and (totals.tier is not None or not name.startswith("tier_"))
            }
            | {each.column: below[:, place] for place, each in enumerate(self.stack)},
            steps=dict(zip(STEP_COLUMNS, rows.T, strict=True)) if self.step_log else None,
            saturated=self.saturated,
            unsaturated=self.unsaturated,
            held_ps=self.held_ps,
            token_gaps=self.token_gaps,
            capacity_slots=allocator.capacity_slots,
            end_ps=self.end_ps,
            step_count=steps,
            max_running=self.max_running,
            peak_used_tokens=self.peak_used_slots // self.slots_per_token,
            preemptions=totals.preemptions,
            swap_outs=totals.swap_outs,
            swapped_in_blocks=totals.swapped_in_blocks,
            swapped_out_blocks=totals.swapped_out_blocks,
            fragmented_refusals=totals.fragmented_refusals,
            copied_slots=allocator.copied_slots,
            cow_copies=allocator.cow_copies,
            hit_tokens=totals.hit_tokens,
            thrown_tokens=totals.thrown_tokens,
            slots_per_token=self.slots_per_token,
            replica=self.log.replicas(),
            resent=self.log.times_resent(),
            upkeep=upkeep,
            tier=totals.tier,
            drafts=totals.drafts,
            memory_stats=dict(allocator.memory_stats()),
        )
