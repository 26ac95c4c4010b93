"""Recordings of vLLM's scheduler with a second pool of blocks below, and kvsim's for the same workload.

The form is that of `../shared/goldens/simple_offload/README.md`; the harness is that of support/offloaded.py.
"""

from random import Random

from kvsim.allocators.tiers.second_pool import SecondPool
from kvsim.sim.serving.lower_tier import LowerTier
from kvsim.sim.serving.simple_offload import SimpleOffload, blocks_in
from kvsim.sim.workload import PS_PER_S
from support.by_command import by_arrival
from support.offloaded import Drawn, Noted, bare_engine
from support.scheduled import FIRST_BLOCK

FACTS = (
    *("match", "sched", "adm", "pre", "run", "hold", "wait", "remote", "blocks", "new_blocks", "free"),
    *("load", "store", "flush", "finish_stores", "finish_stores_abort", "pins", "pinned", "cursor"),
    *("loads_done", "stores_done", "recv", "free_end", "free_queue", "free_queue_end"),
)
UNORDERED = ("recv", "adm", "blocks", "new_blocks", "pins", "pinned")
ENDS = ("free_end", "free_queue_end")  # not observed after the last step
SMALL = ("free_queue", "free_queue_end")


class InOrder(Drawn):
    """Jobs that end behind all earlier ones of their kind."""

    def __init__(self, config):
        super().__init__(config)
        self.last_ps = {True: 0, False: 0}

    def end_of(self, job, now_ps):
        kind = "load" if job.loads else "store"
        steps = Random(f"{self.seed}/{kind}/{job.event}").choice(self.steps[job.loads])
        before = [ends for ends, _, one in self.under_way if one.loads == job.loads]
        return max([now_ps + steps * PS_PER_S, *before])


def numbers(blocks):
    return [block + FIRST_BLOCK for block in blocks]


class NotedSecond(Noted):
    """An engine with a second pool whose decisions are recorded in the recording's terms."""

    def __init__(self, case):
        self.case, config = case, case["config"]
        self.engine = bare_engine(case)
        self.server, scheduler = self.engine.replica.server, self.engine.replica.scheduler
        second = SecondPool(config["usable_cpu_blocks"])
        late = config["async_scheduling"]
        simple = SimpleOffload(self.server, second, InOrder(config), config["lazy_target"], late)
        self.lower = LowerTier(simple, scheduler.limits)
        scheduler.use(self.lower)
        self.simple = simple
        self.ids = [request["id"] for request in by_arrival(case)]
        self.told = {step["step"]: step for step in case["steps"]}
        self.key_names, self.texts, self.requests = {}, {}, {}
        self.step, self.steps, self.seen, self.tables = None, {}, set(), {}
        self.decided, self.leaving = False, "finish_stores"
        for owner, name, around in (
            (self.server, "preempt", self._preempting),
            (self.server, "admit_head", self._admitting),
            (self.server, "compute", self._computing),
            (self.server, "release_departed", self._releasing),
            (self.engine.replica, "decide", self._deciding),
            (self.lower, "_free", self._freeing),
            (simple, "look_up", self._looking_up),
            (simple, "begin", self._beginning),
            (simple, "_begin", self._beginning_job),
            (simple, "_leave", self._leaving),
            (simple, "settle", self._settling),
            (simple, "end_step", self._ending_step),
            (simple.transfers, "ended", self._ending_jobs),
        ):
            self._wrap(owner, name, around)

    def _keys_of(self, name):
        request = self.requests.get(name)
        if request is None:
            return []
        return [key for first, count in self.simple.ranges(request) for key in range(first, first + count)]

    def _beginning(self, inner, user, request, here, below, at_once=False):
        name = self.ids[request.index]
        self.step["admitted"].add(name)
        self._add("adm", [name, here, below])
        inner(user, request, here, below, at_once)

    def _beginning_job(self, inner, job):
        here, there = numbers(job.blocks), numbers(job.chunks)
        if job.loads:
            names = [self.ids[user.request.index] for user in job.users]
            self.step["load"] = [job.event, names, there, here]
        else:
            self.step["store"] = [job.event, here, there]
        inner(job)

    def _leaving(self, inner, user, tokens, table):
        before = len(self.simple.left)
        inner(user, tokens, table)
        if self.simple.left[before:]:
            left = self.simple.left[before:]
            blocks, there = ([block for row in left for block in row[side]] for side in (1, 2))
            entry = [self.ids[user.request.index], numbers(blocks), numbers(there)]
            self._add(self.leaving, entry)

    def _abort(self, name):
        self.leaving = "finish_stores_abort"
        super()._abort(name)
        self.leaving = "finish_stores"

    def _ending_step(self, inner):
        inner()
        pins = self.simple.pins.items()
        users = {user.number: user for user in self.simple.users.values()}
        self.step["pins"] = [[self.ids[users[own].request.index], blocks_in(found)] for own, found in pins]
        cursor = self.simple.cursor.at[0] if self.simple.cursor else -1
        self.step["cursor"] = cursor + FIRST_BLOCK if cursor >= 0 else None
        self.step["flush"] = int(bool(self.server.step.preemptions))
        self.decided = "run" not in self.step
        self.jobs = [job for _, _, job in self.simple.transfers.under_way]

    def _settling(self, inner, by_ps):
        if self.decided and self.lower.late:
            self._look()
            self.decided = False
        settled = inner(by_ps)
        if self.lower._cut:
            self.lower._free_loaded()
        if not self.lower.late and "cpu" not in self.before:
            self.before |= self._end_state()
        return settled

    def _ending_jobs(self, inner, by_ps):
        ended = inner(by_ps)
        step = self.step if self.lower.late else self.before
        for job in sorted(ended, key=lambda job: job.event):
            step.setdefault("loads_done" if job.loads else "stores_done", []).append(job.event)
            step.setdefault("recv", []).extend(self.ids[user.request.index] for user in job.users)
        return ended

    def _look(self):
        super()._look()
        allocator = self.server.allocator
        in_tables = {block for table in allocator._tables.values() for block in table}
        held = {block for job in self.jobs for block in job.blocks}
        held |= {block for _, blocks, _ in self.simple.left for block in blocks}
        self.step["pinned"] = numbers(held - in_tables)

    def _end_state(self):
        allocator = self.server.allocator
        queue = numbers(allocator.free_queue())
        return {"free_end": len(queue), "free_queue_end": queue, "cpu": self._second()}

    def _second(self):
        pool = self.simple.second
        queue = list(pool.pool.queue())
        held = sorted(set(range(pool.blocks)).difference(queue))
        hashed = sorted([block + FIRST_BLOCK, self._key(key)] for block, key in pool.pool.known_blocks())
        return {
            "queue": numbers(queue),
            "hashed": hashed,
            "ref": [[block + FIRST_BLOCK, 1 + pool.extra.get(block, 0)] for block in held],
        }

    def _deciding(self, inner, server):
        self.decided = False
        step = super()._deciding(inner, server)
        if self.lower.late:
            self.step |= self._end_state()
        return step

    def _note_finished(self):
        """Transfers that end before a decision belong to the previous step, unless steps overlap."""


def differences(case, found):
    """(step, fact, kvsim's, the recording's) of each difference."""
    cpu = None
    for step in case["steps"]:
        at = step["step"]
        cpu = step.get("cpu", cpu)
        if step.get("idle"):
            continue
        if at not in found:
            yield at, "step", None, step
            continue
        for fact in FACTS:
            if fact in ENDS and fact not in found[at]:
                continue
            if fact in SMALL and fact not in step:
                continue
            empty = 0 if fact == "flush" else None if fact == "cursor" else []
            expected, got = step.get(fact, empty), found[at].get(fact, empty)
            if fact in UNORDERED:
                expected, got = sorted(expected), sorted(got)
            if got != expected:
                yield at, fact, got, expected
        if found[at].get("cpu", cpu) != cpu:
            yield at, "cpu", found[at]["cpu"], cpu
