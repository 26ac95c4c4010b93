"""Copies between the GPU's memory and a lower tier, on the clock.

begin       a job is queued on its link; its end is known from then on
ended       jobs that have ended
wait_for    how much later a step begins because it waits for these jobs
"""

from abc import abstractmethod
from collections.abc import Iterable
from heapq import heappop, heappush

from mypy_extensions import mypyc_attr

from kvsim.sim.serving.tier_jobs import Job
from kvsim.sim.serving.totals import TierTotals


@mypyc_attr(allow_interpreted_subclasses=True)
class Transfers:
    """The jobs under way. Subclasses say when each one ends."""

    def __init__(self) -> None:
        self.under_way: list[tuple[int, int, Job]] = []

    @abstractmethod
    def end_of(self, job: Job, now_ps: int) -> int:
        """When a job that is queued now ends."""

    def tell(self, totals: TierTotals) -> None:
        """Say how long the jobs so far occupy each direction of the link, and until when."""

    def begin(self, job: Job, now_ps: int) -> None:
        """Queue a job."""
        job.begun = True
        job.ends_ps = self.end_of(job, now_ps)
        entry = job.ends_ps, job.number, job
        if self.under_way:
            heappush(self.under_way, entry)
        else:  # usually
            self.under_way.append(entry)

    def wait_for(self, jobs: Iterable[Job], now_ps: int) -> int:
        """How much later the step decided now begins, so that these jobs have ended by then."""
        return max([job.ends_ps - now_ps for job in jobs], default=0)

    def ended(self, by_ps: int) -> list[Job]:
        """Remove and return the jobs that have ended by then, in order of their ends."""
        jobs = self.under_way
        done: list[Job] = []
        while jobs and jobs[0][0] <= by_ps:
            done.append((heappop(jobs) if len(jobs) > 1 else jobs.pop())[2])
        return done

    def next_ps(self, loads_only: bool) -> int | None:
        """When the next job ends; None if there is none."""
        jobs = self.under_way
        if not loads_only:
            return jobs[0][0] if jobs else None
        return min([ends for ends, _, job in jobs if job.loads], default=None)

    def stores(self) -> list[Job]:
        """The stores under way."""
        return [job for _, _, job in self.under_way if not job.loads]
