"""A second simulator, as naive as can be: one step at a time, every request looked at in every step.

It shares no code with the engine: no calendars, no sums kept up to date, no spans, no SimPy. The memory
is recounted from scratch at every step. Tests hold the engine's two modes against it.
"""

from collections import Counter
from dataclasses import dataclass, field

from kvsim.allocators.base import Allocator
from kvsim.sim.cost.step_cost import CostModel, StepShape


@dataclass(eq=False)
class Job:
    """A request and all that happened to it."""

    index: int
    arrival: int
    prompt: int
    output: int
    seq: int = -1
    computed: int = 0
    generated: int = 0
    decoding: bool = False
    done: bool = False
    first_token: int = -1
    finish: int = -1
    first_step: int = -1
    token_times: list[int] = field(default_factory=list)
    preemptions: int = 0
    draws: object = None

    @property
    def known(self):
        return self.prompt + self.generated


class Reference:
    """`run()` serves the jobs; the attributes then hold what happened."""

    def __init__(
        self,
        jobs: list[Job],
        allocator: Allocator,
        scheduler: str,
        bound,
        cost: CostModel,
        seats: int,
        budget: int,
        counts=None,
    ):
        self.jobs, self.memory, self.scheduler, self.bound, self.cost = (
            jobs,
            allocator,
            scheduler,
            bound,
            cost,
        )
        self.seats, self.budget = seats, budget
        self.counts = counts  # job -> tokens of its decode steps, as an iterator; None: one each
        self.waiting: list[Job] = []
        self.running: list[Job] = []
        self.admitted, self.admitted_slots = 0, 0
        self.kinds = {True: Counter(), False: Counter()}
        self.steps = self.peak = self.max_running = 0
        self.gaps: Counter[int] = Counter()

    def run(self):
        now, coming = 0, list(self.jobs)
        while coming or self.waiting or self.running:
            while coming and coming[0].arrival <= now:
                self.waiting.append(coming.pop(0))
            if not self.waiting and not self.running:
                self.count(coming[0].arrival - now)
                now = coming[0].arrival
                continue
            copied = self.memory.copied_slots
            work = self.schedule()
            duration = self.cost.step_ps(self.shape(work, self.memory.copied_slots - copied))
            for job, tokens in work.items():
                job.computed += tokens
            self.count(duration)
            now += duration
            if work:
                for job in list(work):
                    self.finish_step(job, now)
                self.steps += 1
            if self.scheduler == "static" and all(job.done for job in self.running):
                for job in self.running:
                    self.memory.release(job.seq)
                self.running.clear()
        return self

    def schedule(self) -> dict[Job, int]:
        work: dict[Job, int] = {}
        evicted = False
        budget = self.budget if self.scheduler == "vllm-v1" else 10**9
        for job in list(self.running):
            tokens = spent = min(job.known - job.computed, budget)
            if job not in self.running or job.done or not tokens:
                continue
            if job.decoding and self.counts:
                tokens = min(next(job.draws), job.output - job.generated)
            while job in self.running and not self.memory.grow(job.seq, job.computed + tokens):
                victim = [other for other in self.running if not other.done][-1]
                self.evict(victim)
                evicted = True
            if job in self.running:
                work[job] = tokens
                budget -= spent
        if self.scheduler == "static" and all(job.done for job in self.running):
            for job in self.running:
                self.memory.release(job.seq)
            self.running.clear()
        closed = self.scheduler == "static" and bool(self.running)
        while self.waiting and not closed and len(self.running) < self.seats and budget:
            if evicted and self.scheduler != "static":
                break
            job = self.waiting[0]
            tokens = min(job.known, budget)
            if not self.memory.can_admit(job.known, self.bound(job)):
                break
            if not self.memory.admit(self.admitted, tokens, self.bound(job)):
                break
            job.seq = self.admitted
            self.admitted += 1
            self.admitted_slots += self.memory.slots_needed(tokens, self.bound(job))
            self.running.append(self.waiting.pop(0))
            job.first_step = self.steps if job.first_step < 0 else job.first_step
            work[job] = tokens
            budget -= tokens
        self.max_running = max(self.max_running, len(self.running))
        return work

    def evict(self, job: Job):
        self.memory.release(job.seq)
        self.running.remove(job)
        self.waiting.insert(0, job)
        job.computed, job.decoding = 0, False
        job.preemptions += 1

    def shape(self, work: dict[Job, int], copied: int) -> StepShape:
        prefill = {job: tokens for job, tokens in work.items() if not job.decoding}
        pairs = sum(sum(job.computed + i + 1 for i in range(tokens)) for job, tokens in prefill.items())
        seats = [job for job in self.running if job.decoding]
        for job in seats:
            job.computed += job.done  # a finished seat of a static batch computes padding
        contexts = sum(job.computed + work.get(job, 0) for job in seats)
        return StepShape(sum(prefill.values()), pairs, len(prefill), len(seats), contexts, copied)

    def count(self, duration: int):
        """Sort every slot into its kind, for as long as the step lasts."""
        living = {job.seq: job for job in self.running if not job.done}
        if self.waiting:
            need = self.memory.slots_needed(self.waiting[0].known, self.bound(self.waiting[0]))
        else:
            need = self.admitted_slots // self.admitted if self.admitted else 0
        ledger = self.memory.ledger(
            {seq: job.computed for seq, job in living.items()},
            {seq: job.prompt + job.output - 1 for seq, job in living.items()},
            need,
        )
        assert ledger.total == self.memory.capacity_slots
        self.peak = max(self.peak, ledger.token)
        for kind, slots in ledger._asdict().items():
            self.kinds[bool(self.waiting)][kind] += slots * duration

    def finish_step(self, job: Job, now: int):
        if job.computed < job.known:
            return
        tokens = job.computed - job.known + 1 if job.decoding else 1
        if job.token_times:
            self.gaps[now - job.token_times[-1]] += 1
        if tokens > 1:
            self.gaps[0] += tokens - 1
        job.generated += tokens
        if not job.decoding:
            job.decoding = True
            job.draws = self.counts(job) if self.counts else None
        job.token_times.append(now)
        if job.generated == job.output:
            job.finish, job.done = now, True
            if self.scheduler != "static":
                self.memory.release(job.seq)
                self.running.remove(job)
