"""Recordings of vLLM's scheduler with a tier below, a record a step, and kvsim's records of the workload.

The form is that of `../shared/goldens/offload_loop/README.md`. What each job takes is drawn as there: a link
of the tests' own says when it ends, in steps of one second.
"""

import json
from heapq import heapify
from operator import itemgetter
from random import Random

from kvsim.allocators.tiers.chunks import WRITTEN
from kvsim.allocators.tiers.pieces import by_depth, keys_of
from kvsim.allocators.tiers.vllm import VllmTier
from kvsim.sim.content import ascending
from kvsim.sim.serving.lower_tier import LowerTier
from kvsim.sim.serving.offload import Offload, OffloadRules, whole_text
from kvsim.sim.serving.request import State
from kvsim.sim.serving.transfers import Transfers
from kvsim.sim.workload import PS_PER_S
from support import by_command
from support.by_command import by_arrival
from support.scheduled import FIRST_BLOCK, flags, who_was_scheduled

FACTS = (
    *("match", "sched", "adm", "pre", "run", "hold", "wait", "remote", "blocks", "new_blocks", "free"),
    *("free_queue", "loads", "prepare_store", "stores", "flush", "finished_seen"),
)
UNORDERED = ("adm", "blocks", "new_blocks", "flush")
DONE = ("loads_done", "stores_done")


def evicted_keys(stored):
    """The keys evicted for a store, in order."""
    return [each for key, count in stored.evicted for each in reversed(range(key, key + count))]


def least_first(order):
    """All keys of vLLM's LRU in the order in which they would leave."""
    found = []
    for group in order.groups.values():
        pieces = [(run.at, run.key, run.count) for run in group.runs]
        ordered = by_depth(pieces, larger_first=True) if group.unsorted else pieces
        found += reversed([*keys_of(ordered)])
    return found


class Drawn(Transfers):
    """Jobs that take as many steps as the recording drew; who is waited for ends in that step."""

    def __init__(self, config):
        super().__init__()
        self.seed = config["latency_seed"]
        self.steps = {True: config["load_latency"], False: config["store_latency"]}

    def end_of(self, job, now_ps):
        kind = "load" if job.loads else "store"
        return now_ps + Random(f"{self.seed}/{kind}/{job.number}").choice(self.steps[job.loads]) * PS_PER_S

    def wait_for(self, jobs, now_ps):
        for job in jobs:
            job.ends_ps = min(job.ends_ps, now_ps + PS_PER_S)
        self.under_way = [(job.ends_ps, job.number, job) for _, _, job in self.under_way]
        heapify(self.under_way)
        return 0

    def next_ps(self, loads_only):
        return 0 if self.under_way else None  # look at every step


FIRST_ANSWER_ID, PER_REQUEST = 10_000_000, 4_096


def trace_lines(case):
    """The workload as kvsim's own JSONL; prompts may repeat what was answered, so they are segments."""
    for request in by_arrival(case):
        row = {"arrival_s": request["arrival"], "output_tokens": request["output_len"]}
        ids = request.get("prompt_ids") or [
            request["id"] * PER_REQUEST + at for at in range(request["prompt_len"])
        ]
        segments = []
        for first, tokens in ascending(ids):
            author, start = divmod(first - FIRST_ANSWER_ID, PER_REQUEST)
            segments.append([f"{author}/0" if author >= 0 and not start else f"at {first}", tokens])
        row |= {"segments": segments, "session": f"{request['id']}", "turn": 0}
        yield json.dumps(row) + "\n"


def bare_engine(case):
    """kvsim's engine for a recording, without a lower tier."""
    config = {"policy": "fcfs", "long_prefill_token_threshold": 0, **case["config"]}
    config["policy"] = "fcfs"
    return by_command.engine_of(trace_lines(case), flags(config), check=True)


def engine_of(case):
    """kvsim's engine for a recording, and its lower tier."""
    engine, config = bare_engine(case), case["config"]
    server, scheduler = engine.replica.server, engine.replica.scheduler
    tier = VllmTier(config["cpu_chunks"], config["policy"], config["store_threshold"])
    rules = OffloadRules(
        config["tokens_per_chunk"], config["offload_prompt_only"], config["async_scheduling"]
    )
    at_once = config["sync_load_budget_bytes"], config["kv_bytes_per_token"]
    lower = LowerTier(Offload(server, tier, Drawn(config), rules), scheduler.limits, *at_once)
    scheduler.use(lower)
    return engine, lower


def blocks_of(job):
    return [block + FIRST_BLOCK for block in job.blocks]


class Noted:
    """An engine with a lower tier whose decisions are written down in the recording's words."""

    def __init__(self, case):
        self.case = case
        self.engine, self.lower = engine_of(case)
        self.ids = [request["id"] for request in by_arrival(case)]
        self.told = {step["step"]: step for step in case["steps"]}
        self.key_names = {}
        self.texts = {}
        self.server = self.engine.replica.server
        self.step, self.steps, self.seen, self.tables = None, {}, set(), {}
        self.decided, self.requests = False, {}
        self._wrap(self.server, "preempt", self._preempting)
        self._wrap(self.lower.offload, "look_up", self._looking_up)
        self._wrap(self.lower.offload, "begin", self._beginning)
        self._wrap(self.server, "admit_head", self._admitting)
        self._wrap(self.server, "compute", self._computing)
        self._wrap(self.lower.offload, "_offer", self._offering)
        self._wrap(self.lower.offload, "hurry", self._hurrying)
        self._wrap(self.lower.offload, "_flush", self._flushing)
        self._wrap(self.lower.offload.tier, "store", self._storing)
        self._wrap(self.lower.offload.transfers, "ended", self._ending)
        self._wrap(self.lower.offload, "settle", self._settling)
        self._wrap(self.server, "release_departed", self._releasing)
        self._wrap(self.engine.replica, "decide", self._deciding)
        self._wrap(self.lower, "rest", self._resting)
        self._wrap(self.lower, "_free", self._freeing)

    def run(self):
        self.engine.run()
        return self.steps

    def _wrap(self, owner, name, around):
        inner = getattr(owner, name)
        setattr(owner, name, lambda *rest, **more: around(inner, *rest, **more))

    def _keys(self, keys):
        return [self._key(key) for key in keys]

    def _named(self, pieces):
        return self._keys(keys_of(pieces))

    def _key(self, key):
        """The recording's number of a chunk: `keys[n] = [request, chunk]`."""
        if key not in self.key_names:
            for number, (request, index) in enumerate(self.case["keys"]):
                keys = self._keys_of(request)
                if index < len(keys):
                    self.key_names.setdefault(keys[index], number)
        return self.key_names.get(key, ("?", key))

    def _keys_of(self, name):
        request, offload = self.requests.get(name), self.lower.offload
        if request is None:
            return []
        text = whole_text(request, request.prompt_tokens + request.output_tokens)
        return [key for first, count in offload._texts.keys(text) for key in range(first, first + count)]

    def _add(self, name, value):
        self.step.setdefault(name, []).append(value)

    def _preempting(self, inner, request, *rest, **more):
        self._add("pre", self.ids[request.index])
        inner(request, *rest, **more)

    def _looking_up(self, inner, user, here):
        self.texts[self.ids[user.request.index]] = user
        found = inner(user, here)
        self.looked = [self.ids[user.request.index], here, found]
        request, loading = user.request, self.lower.loading
        at_once = (
            found
            and found < request.known_tokens - here
            and (found * loading.token_bytes <= loading._at_once_left)
        )
        self._add("match", [*self.looked, int(bool(found) and not at_once)])
        return found

    def _beginning(self, inner, user, request, here, below, at_once=False):
        if not at_once:
            self.step["admitted"].add(self.ids[request.index])
            self._add("adm", [self.ids[request.index], here, below])
        inner(user, request, here, below, at_once)
        job = max(self.lower.offload.transfers.under_way, key=itemgetter(1))[2]  # the latest
        self._add("loads", [*self._told(job, user, job.chunks, blocks_of(job)), int(at_once)])

    def _computing(self, inner, request, tokens):
        self.computing.append((request, tokens))
        inner(request, tokens)

    def _admitting(self, inner, tokens, match=None, *rest, **more):
        request = self.server.waiting[0]
        if not inner(tokens, match, *rest, **more):
            return False
        self.step["admitted"].add(self.ids[request.index])
        self._add("adm", [self.ids[request.index], self.looked[1], self.looked[2]])
        return True

    def _offering(self, inner, user, tokens, table):
        planned = len(self.lower.offload.planned)
        kept = inner(user, tokens, table)
        for job in self.lower.offload.planned[planned:]:
            if not user.finished:
                held = self.lower.offload.allocator.block_table(user.request.seq)
                source = self.lower.offload._blocks_of(job.pieces, held)
                assert len(source) == len(job.blocks)
            else:
                source = job.blocks
            self._add("stores", self._told(job, user, [block + FIRST_BLOCK for block in source], job.chunks))
        return kept

    def _storing(self, inner, number, pieces):
        stored = inner(number, pieces)
        user = next((u for u in self.texts.values() if u.number == number), None)
        names = self._named(pieces)
        told = (
            [None, None, None]
            if stored is None
            else [
                self._named(stored.pieces),
                list(stored.chunks),
                self._keys(evicted_keys(stored)),
            ]
        )
        self._add("prepare_store", [self.ids[user.request.index], names, *told])
        return stored

    def _told(self, job, user, source, destination):
        return [
            job.number,
            self.ids[user.request.index],
            self._named(job.pieces),
            list(source),
            list(destination),
        ]

    def _flushing(self, inner):
        inner()
        self.decided = "run" not in self.step

    def _hurrying(self, inner, jobs):
        jobs = list(jobs)
        for job in jobs:
            if not job.loads:
                self._add("flush", job.number)
        inner(jobs)

    def _ending(self, inner, by_ps):
        ended = inner(by_ps)
        target = self.step if self.lower.late else self.before
        for job in ended:
            target.setdefault("loads_done" if job.loads else "stores_done", []).append(job.number)
        return ended

    def _settling(self, inner, by_ps):
        settled = inner(by_ps)
        (self.step if self.lower.late else self.before)["cpu"] = self._tier()
        return settled

    def _tier(self):
        tier = self.lower.offload.tier
        chunks, order = tier.chunks, tier.order
        number, references = chunks.number, chunks.references

        def told(keys):
            return [[self._key(key), number(key), references(key)] for key in keys]

        pending = chunks.state.count(WRITTEN)
        found = {"free": chunks.free, "evictable": chunks.idle, "write_pending": pending}
        if self.case["config"]["policy"] == "lru":
            return found | {"chunks": told(least_first(order))}
        found |= {"target": order.target, "T1": told(order.once), "T2": told(order.again)}
        return found | {"B1": self._keys(order.left_once), "B2": self._keys(order.left_again)}

    def _freeing(self, inner, *rest):
        if self.decided:  # who is aborted in a step under way is there until the next is decided
            self._look()
            self.decided = False
        inner(*rest)

    def _releasing(self, inner):
        if "run" not in self.step or self.decided:
            self._look()
        self.decided = False
        inner()

    def _look(self):
        allocator, ids = self.server.allocator, self.ids
        running = self.server.running
        tables = {ids[r.index]: allocator.block_table(seq) for seq, r in running.items()}
        loading = {ids[r.index]: allocator.block_table(seq) for seq, r in self.server.batch.loading.items()}
        held = {
            ids[r.index]: allocator.block_table(seq)
            for seq, r in self.server.batch.loading.items()
            if r.state == State.LOADING or r in self.lower._cut
        }
        everyone = tables | loading
        new = {
            name: table if name in self.step["admitted"] else table[len(self.tables.get(name, ())) :]
            for name, table in everyone.items()
        }
        self.tables = everyone
        self.step |= {
            "run": list(tables),
            "blocks": sorted([name, len(table)] for name, table in (tables | held).items()),
            "new_blocks": [
                [n, [block + FIRST_BLOCK for block in blocks]] for n, blocks in new.items() if blocks
            ],
            "free": allocator.free_slots // allocator.block_slots,
        }
        if self.case["config"]["block_size"] == 4:
            self.step["free_queue"] = [block + FIRST_BLOCK for block in allocator.free_queue()]

    def _deciding(self, inner, server):
        self.before = self.step if self.step is not None else {}
        at = server.now_ps // PS_PER_S
        self.requests |= {self.ids[request.index]: request for request in server.waiting}
        self.step, self.computing = {"admitted": set()}, []
        self.decided = False
        for name in self.told.get(at, {}).get("abort", ()):
            self._abort(name)
        self._note_finished()
        before = set(server.running)
        step = inner(server)
        if "run" not in self.step:
            self._look()
        ids = self.ids

        def tokens(request):
            return next(tokens for each, tokens in self.computing if each is request)

        self.step["sched"] = who_was_scheduled(server.running, server, ids, before, self.seen, tokens)
        hold = self.lower.loading.hold
        self.step["hold"] = [ids[request.index] for request in hold]
        self.step["wait"] = [ids[request.index] for request in server.waiting]
        self.step["remote"] = [ids[r.index] for r in hold if not self.lower.offload.user(r).promoted]
        self.steps[at] = self.step
        return step

    def _resting(self, inner):
        self.before, self.step = self.step or {}, {"admitted": set()}
        self._note_finished()
        inner()
        self._look()
        at = self.server.now_ps // PS_PER_S
        self.steps[at + (at in self.steps)] = self.step

    def _note_finished(self):
        left = sorted(self.lower.offload._left, key=lambda one: one[0])
        if left:
            self.step["finished_seen"] = [self.ids[user.request.index] for _, user, _, _ in left]

    def _abort(self, name):
        server = self.server
        living = [*server.running.values(), *server.batch.loading.values(), *server.waiting]
        request = next(
            each
            for each in living
            if self.ids[each.index] == name
            and (each.state != State.FINISHED or each.seq in server.batch.departed)
        )
        self.lower.abort(request)


def differences(case, found):
    """(step, fact, kvsim's, the recording's) where they differ.

    kvsim takes no step where nothing is left but stores under way: what has ended by then, and the state
    of the tier, are compared where the next step follows at once.
    """
    tier, ours, theirs = None, {fact: [] for fact in DONE}, {fact: [] for fact in DONE}
    for step in case["steps"]:
        at = step["step"]
        got = found.get(at, {})
        tier = step.get("cpu", tier)
        for fact in DONE:
            ours[fact] += got.get(fact, [])
            theirs[fact] += step.get(fact, [])
        if not got:
            if step.get("sched") or step.get("match"):
                yield at, "step", None, step
            continue
        for fact in FACTS:
            if fact.startswith("free") and "idle" in step:
                continue  # the engine is not asked
            expected, told = step.get(fact, []), got.get(fact, [])
            if fact in UNORDERED:
                expected, told = sorted(expected), sorted(told)
            if told != expected and (fact != "free_queue" or fact in step):
                yield at, fact, told, expected
        if at + 1 in found:
            for fact in DONE:
                if sorted(ours[fact]) != sorted(theirs[fact]):
                    yield at, fact, ours[fact], theirs[fact]
            if "cpu" in got and got["cpu"] != tier:
                yield at, "cpu", got["cpu"], tier
