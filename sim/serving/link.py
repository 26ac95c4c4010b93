"""A link to a lower tier: one way there and one way back, each serving one job at a time in order.

job          |latency|blocks x overhead|bytes / bandwidth|
next job                                                 |latency|...

Behind the links of several replicas of a machine there may be one that they share (uplink.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mypy_extensions import mypyc_attr

from kvsim.sim.serving.tier_jobs import Job
from kvsim.sim.serving.totals import TierTotals
from kvsim.sim.serving.transfers import Transfers
from kvsim.sim.serving.uplink import Uplink
from kvsim.sim.workload import PS_PER_S


@dataclass(frozen=True)
class Way:
    """One direction of a link.

    Attributes
    ----------
    bytes_per_s : int
        Above 0.
    latency_ps : int
        Per job, before its first byte.
    block_ps : int
        Per block, in addition to its bytes.
    """

    bytes_per_s: int
    latency_ps: int = 0
    block_ps: int = 0

    def duration_ps(self, blocks: int, total_bytes: int) -> int:
        """Duration of a job of this many blocks and bytes, rounded up."""
        return self.before_ps(blocks) - (-total_bytes * PS_PER_S // self.bytes_per_s)

    def before_ps(self, blocks: int) -> int:
        """What a job of this many blocks takes beside its bytes."""
        return self.latency_ps + blocks * self.block_ps


class Lane:
    """One direction in use.

    Attributes
    ----------
    free_ps, busy_ps : int
        When the jobs so far have ended; how long they take in total.
    known_ps : dict of int
        Durations of jobs by their blocks.
    """

    __slots__ = ("busy_ps", "free_ps", "known_ps", "way")

    def __init__(self, way: Way) -> None:
        self.way, self.free_ps, self.busy_ps = way, 0, 0
        self.known_ps: dict[int, int] = {}


@mypyc_attr(allow_interpreted_subclasses=True)
class Link(Transfers):
    """Both directions of a link.

    Parameters
    ----------
    load, store : Way
        From the tier to the GPU; from the GPU to the tier.
    block_bytes : int
        Bytes of a block on each GPU; every GPU has its own link.

    Attributes
    ----------
    shared : dict of Uplink
        What copies share with those of other replicas, by direction; empty: nothing.
    gpus : int
        GPUs whose copies go over it at the same time.
    """

    gpus = 1

    def __init__(self, load: Way, store: Way, block_bytes: int) -> None:
        super().__init__()
        self.lanes = [Lane(store), Lane(load)]  # by whether they load
        self.block_bytes = block_bytes
        self.shared: Mapping[bool, Uplink] = {}

    def end_of(self, job: Job, now_ps: int) -> int:
        """When a job that is queued now ends."""
        return self.copied_ps(job.loads, len(job.blocks), now_ps)

    def copied_ps(self, loads: bool, blocks: int, now_ps: int) -> int:
        """When a copy of `blocks` blocks ends, queued behind earlier copies in the same direction."""
        lane = self.lanes[loads]
        way, begins_ps = lane.way, now_ps if now_ps > lane.free_ps else lane.free_ps
        if self.shared:
            moved, rate = blocks * self.block_bytes * self.gpus, way.bytes_per_s * self.gpus
            ends_ps = self.shared[loads].end_of(begins_ps + way.before_ps(blocks), moved, rate, now_ps)
        else:
            duration_ps = lane.known_ps.get(blocks)
            if duration_ps is None:
                duration_ps = lane.known_ps[blocks] = way.duration_ps(blocks, blocks * self.block_bytes)
            ends_ps = begins_ps + duration_ps
        lane.busy_ps += ends_ps - begins_ps
        lane.free_ps = ends_ps
        return ends_ps

    def copied_from_ps(self, out: "Link", blocks: int, now_ps: int) -> int:
        """When a copy of `blocks` blocks from another server's link `out` to this one ends.

        It begins when both are free, and occupies both for as long as the slower one needs.
        """
        here, there = self.lanes[True], out.lanes[False]
        begin_ps = max(now_ps, here.free_ps, there.free_ps)
        ends_ps = max(self.copied_ps(True, blocks, begin_ps), out.copied_ps(False, blocks, begin_ps))
        here.free_ps = there.free_ps = ends_ps
        return ends_ps

    def tell(self, totals: TierTotals) -> None:
        """Say how long the jobs so far occupy each direction, and until when."""
        store, load = self.lanes
        totals.load_busy_ps, totals.store_busy_ps = load.busy_ps, store.busy_ps
        totals.load_until_ps, totals.store_until_ps = load.free_ps, store.free_ps

    def add_busy(self, loads: bool, duration_ps: int) -> None:
        """Count what somebody else scheduled on it."""
        self.lanes[loads].busy_ps += duration_ps

    def busy_ps(self, loads: bool) -> int:
        """Total duration of the jobs in that direction."""
        return self.lanes[loads].busy_ps
