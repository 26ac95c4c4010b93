"""A link to a lower tier: one way there and one way back, each serving one job at a time in order.

job          |latency|blocks x overhead|bytes / bandwidth|
next job                                                 |latency|...
"""

from dataclasses import dataclass

from kvsim.sim.serving.tier_jobs import Job
from kvsim.sim.serving.transfers import Transfers

PS_PER_S = 10**12


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
        return self.latency_ps + blocks * self.block_ps - (-total_bytes * PS_PER_S // self.bytes_per_s)


class Link(Transfers):
    """Both directions of a link.

    Parameters
    ----------
    load, store : Way
        From the tier to the GPU; from the GPU to the tier.
    block_bytes : int
        Bytes of a block on each GPU; every GPU has its own link.
    """

    def __init__(self, load: Way, store: Way, block_bytes: int) -> None:
        super().__init__()
        self.ways = {True: load, False: store}
        self.block_bytes = block_bytes
        self.free_ps = {True: 0, False: 0}
        self._busy_ps = {True: 0, False: 0}

    def end_of(self, job: Job, now_ps: int) -> int:
        """When a job that is queued now ends."""
        return self.copied_ps(job.loads, len(job.blocks), now_ps)

    def copied_ps(self, loads: bool, blocks: int, now_ps: int) -> int:
        """When a copy of `blocks` blocks ends, queued behind earlier copies in the same direction."""
        duration = self.ways[loads].duration_ps(blocks, blocks * self.block_bytes)
        self._busy_ps[loads] += duration
        free_ps = self.free_ps[loads]
        self.free_ps[loads] = ends_ps = (now_ps if now_ps > free_ps else free_ps) + duration
        return ends_ps

    def busy_ps(self, loads: bool) -> int:
        """Total duration of the jobs in that direction."""
        return self._busy_ps[loads]
