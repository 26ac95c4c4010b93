"""What is recorded during a run: columns, sums and samples, never one object per token."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from mypy_extensions import mypyc_attr

from kvsim.allocators.base import Allocator
from kvsim.sim.record.by_kind import HeldOverTime
from kvsim.sim.record.histogram import Histogram
from kvsim.sim.record.instants import TIMELINE_ROWS, Timeline
from kvsim.sim.record.memory_map import MemoryMap
from kvsim.sim.record.request_log import RequestLog
from kvsim.sim.record.span import Integrals
from kvsim.sim.record.tally import Tally
from kvsim.sim.serving.kinds import KindsLedger
from kvsim.sim.serving.memory import Level
from kvsim.sim.serving.request import Request
from kvsim.sim.serving.totals import DraftTotals, TierTotals, Totals, UpkeepTotals
from kvsim.sim.workload import Int64Column, Workload

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


@mypyc_attr(native_class=False)
@dataclass(frozen=True)
class Result:
    """The results of a run: integers in numpy columns, and sums.

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
    """other work of the allocator, if it has any"""
    tier: TierTotals | None = None
    """traffic to the tier below the memory, if there is one"""
    drafts: DraftTotals | None = None
    """the fate of drafts, if the engine speculates"""
    by_kind: HeldOverTime | None = None
    """what each kind of layers held, if unlike layers are kept in groups"""
    memory_stats: dict[str, int] | None = None
    """the memory statistics of a deep-learning framework, if it manages the memory"""

    @property
    def recorded_ps(self) -> int:
        """The recorded time, over which means are taken; of a fleet, the sum over its replicas."""
        return self.saturated.time_ps + self.unsaturated.time_ps


class Recorder:
    """Collects what one replica does during a run; it is given facts and reads no server.

    Parameters
    ----------
    log : RequestLog
        The log of requests, shared with other replicas.
    timeline_rows : int
        At most this many instants are kept.
    slots_per_token : int
        Slots per token.
    stack : sequence of Level
        Tiers whose contents are in the timeline.

    Attributes
    ----------
    tally : Tally
        Sums over its steps.
    timeline : Timeline
        Instants.
    steps : list of tuple, or None
        A row per step, of `STEP_COLUMNS`, if a step log writes them.
    memory_map : MemoryMap or None
        Where everything lies in memory, if an observer draws it.
    kinds : KindsLedger or None
        What each kind of layers holds, if they are kept in groups.
    """

    def __init__(
        self,
        log: RequestLog,
        timeline_rows: int = TIMELINE_ROWS,
        slots_per_token: int = 1,
        stack: Sequence[Level] = (),
    ) -> None:
        self.log = log
        self.tally = Tally(slots_per_token)
        self.timeline = Timeline(timeline_rows, stack)
        self.steps: list[tuple[int, ...]] | None = None
        self.memory_map: MemoryMap | None = None
        self.kinds: KindsLedger | None = None
        self.end_ps = 0
        self.rejected: dict[str, int] = {}
        self.truncated = 0
        self.finished_count = 0

    # -- requests -----------------------------------------------------------------------------

    def reject(self, reason: str) -> None:
        """Count a request that can never be served."""
        self.rejected[reason] = self.rejected.get(reason, 0) + 1

    def truncate(self, index: int, output_tokens: int) -> None:
        """Record that an answer ends early, at the model's maximum length."""
        self.truncated += 1
        self.log.truncate(index, output_tokens)

    def finish(self, request: Request, now_ps: int, step: int) -> bool:
        """Record a finished request or sample; True if it was the last of its request."""
        if not self.log.finish(request, now_ps, step):
            return False
        self.end_ps = now_ps
        self.finished_count += 1
        return True

    # -- the end ------------------------------------------------------------------------------

    def result(
        self,
        totals: Totals,
        allocator: Allocator,
        steps: int,
        upkeep: UpkeepTotals | None = None,
        holds: bool = False,
    ) -> Result:
        """The results; `holds`: the server holds prompts for another one."""
        log, tally, rows = self.log, self.tally, self.steps
        tally.close()

        def wanted(column: str) -> bool:
            if column.startswith("tier_"):
                return totals.tier is not None
            return allocator.idles if column == "idle" else holds or column != "held"

        steps_table = np.array(rows or (), dtype=np.int64).reshape(-1, len(STEP_COLUMNS))
        return Result(
            workload=log.workload,
            arrival_ps=log.arrival_ps,
            output_tokens=log.output_tokens,
            finished=log.finished,
            truncated=self.truncated,
            rejected=self.rejected,
            requests=log.columns(),
            samples=log.sample_columns(),
            timeline=self.timeline.columns(wanted),
            steps=None if rows is None else dict(zip(STEP_COLUMNS, steps_table.T, strict=True)),
            saturated=tally.saturated,
            unsaturated=tally.unsaturated,
            held_ps=tally.held_ps,
            token_gaps=tally.token_gaps,
            capacity_slots=allocator.capacity_slots,
            end_ps=self.end_ps,
            step_count=steps,
            max_running=tally.max_running,
            peak_used_tokens=tally.peak_used_slots // tally.slots_per_token,
            preemptions=totals.preemptions,
            swap_outs=totals.swap_outs,
            swapped_in_blocks=totals.swapped_in_blocks,
            swapped_out_blocks=totals.swapped_out_blocks,
            fragmented_refusals=totals.fragmented_refusals,
            copied_slots=allocator.copied_slots,
            cow_copies=allocator.cow_copies,
            hit_tokens=totals.hit_tokens,
            thrown_tokens=totals.thrown_tokens,
            slots_per_token=tally.slots_per_token,
            replica=log.replicas(),
            resent=log.times_resent(),
            upkeep=upkeep,
            tier=totals.tier,
            drafts=totals.drafts,
            by_kind=None if self.kinds is None else self.kinds.counted(tally.saturated, tally.unsaturated),
            memory_stats=dict(allocator.memory_stats()),
        )
