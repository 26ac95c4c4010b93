"""Copies between the GPU's memory and a tier below, on the clock.

begin       a job takes its place on its link: when it ends is known from then on
ended       jobs whose ends have come
wait_for    a step begins only when these jobs have ended: how much later that is
"""

from abc import abstractmethod
from collections.abc import Iterable
from heapq import heappop, heappush

from kvsim.sim.serving.tier_jobs import Job


class Transfers:
    """The jobs under way; when each ends, a kind of it says."""

    def __init__(self) -> None:
        self.under_way: list[tuple[int, int, Job]] = []

    @abstractmethod
    def end_of(self, job: Job, now_ps: int) -> int:
        """When a job ends that takes its place now."""

    def busy_ps(self, loads: bool) -> int:
        """How long the link that way has been, or will be, busy with the jobs so far."""
        return 0

    def begin(self, job: Job, now_ps: int) -> None:
        """A job takes its place."""
        job.begun = True
        job.ends_ps = self.end_of(job, now_ps)
        heappush(self.under_way, (job.ends_ps, job.number, job))

    def wait_for(self, jobs: Iterable[Job], now_ps: int) -> int:
        """By how much the step that is decided now begins later, so that these jobs have ended by then."""
        return max([job.ends_ps - now_ps for job in jobs], default=0)

    def ended(self, by_ps: int) -> list[Job]:
        """Take out the jobs that ended by then, in the order in which they did."""
        jobs = self.under_way
        done: list[Job] = []
        while jobs and jobs[0][0] <= by_ps:
            done.append(heappop(jobs)[2])
        return done

    def next_ps(self, loads_only: bool) -> int | None:
        """When the next job ends; None: there is none."""
        ends = [ends for ends, _, job in self.under_way if job.loads or not loads_only]
        return min(ends, default=None)

    def stores(self) -> list[Job]:
        """The stores under way."""
        return [job for _, _, job in self.under_way if not job.loads]
