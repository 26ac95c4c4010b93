"""Recordings of two vLLM schedulers with the NIXL connector, and kvsim's decisions on the same workload.

The form is that of `../shared/goldens/pd/README.md`. Both servers decide at whole seconds, in alternation;
reads and their times are given as by the recording's driver.
"""

from types import SimpleNamespace

from kvsim.sim.serving.batch import Batch
from kvsim.sim.serving.decision import NEVER_PS
from kvsim.sim.serving.held import HoldingServer, Leases
from kvsim.sim.serving.lower_tier import LowerTier
from kvsim.sim.serving.memory import KvMemory
from kvsim.sim.serving.reading import Reads
from kvsim.sim.serving.replica import Replica
from kvsim.sim.serving.request import Request
from kvsim.sim.serving.server import Rules
from kvsim.sim.serving.transfers import Transfers
from kvsim.sim.workload import PS_PER_S
from support import by_command
from support.by_command import by_arrival
from support.offloaded import trace_lines
from support.scheduled import FIRST_BLOCK, flags, who_was_scheduled

FACTS = ("sched", "match", "adm", "pre", "run", "hold", "wait", "remote", "blocks", "new_blocks", "free")
OF_P = ("to_send", "handed", "held", "sent", "expired")
OF_D = ("recv_start", "heartbeat")
UNORDERED = ("adm", "blocks", "new_blocks")


class Read(Transfers):
    """Reads that take as many steps as the recording says."""

    def __init__(self, steps):
        super().__init__()
        self.steps = steps

    def end_of(self, job, now_ps):
        return now_ps + self.steps[job.owner.number] * PS_PER_S


def engine_of(case, side):
    """kvsim's engine for one side."""
    config = {"watermark": 0, "policy": "fcfs", **case["config"], **case["config"][side]}
    return by_command.engine_of(trace_lines(case), flags(config), check=True)


class Side:
    """One of the two servers, whose decisions are recorded."""

    def __init__(self, case, side):
        self.config = case["config"][side]
        self.late = case["config"]["async_scheduling"]
        self.engine = engine_of(case, side)
        self.ids = [request["id"] for request in by_arrival(case)]
        self.rows = {name: row for row, name in enumerate(self.ids)}
        old = self.engine.replica
        self.scheduler = old.scheduler
        self.server = self.new_server(old.server)
        self.replica = Replica(
            self.server, self.scheduler, old.pricing.cost, self.engine.log, max_span=1, check=True
        )
        nobody = SimpleNamespace(next_ps=NEVER_PS, now_ps=0, wait_for_answers=False)
        self.replica.begin(self.engine.env, nobody, alone=False)
        self.seen, self.tables, self.steps = set(), {}, {}
        self.record = {}
        self._wrap(self.server, "preempt", self._preempting)
        self._wrap(self.server, "release_departed", self._releasing)
        self._wrap(self.server, "admit_head", self._admitting)
        self._wrap(self.server, "compute", self._computing)

    def _wrap(self, owner, name, around):
        inner = getattr(owner, name)
        setattr(owner, name, lambda *rest, **more: around(inner, *rest, **more))

    def request(self, name, output_tokens=None):
        """A request of the workload."""
        row, work = self.rows[name], self.engine.workload
        found = Request(row, int(work.prompt_tokens[row]), output_tokens or int(work.output_tokens[row]))
        found.arrival_ps = self.server.now_ps
        if work.content is not None:
            found.write(work.content[row])
        return found

    def deferred(self):
        """Aborted requests that hold their blocks until the step in flight has ended."""
        return ()

    def living(self, name):
        """A request that has not finished."""
        server = self.server
        everyone = (*server.running.values(), *server.batch.loading.values(), *server.waiting)
        return next(r for r in everyone if self.name(r) == name)

    def note(self, fact, value):
        self.record.setdefault(fact, []).append(value)

    def name(self, request):
        return self.ids[request.index]

    # -- a step -------------------------------------------------------------------------------

    def decide(self, at):
        """Decide the step, and carry it out."""
        server, replica = self.server, self.replica
        server.now_ps = at * PS_PER_S
        self.record, self.computing, self.admitted, self.looked = {}, {}, {}, False
        before = set(server.running)
        step = replica.decide(server)
        if not self.looked:
            self._look()

        def tokens(request):
            return self.computing[request.seq]

        self.record["sched"] = who_was_scheduled(self.ran, server, self.ids, before, self.seen, tokens)
        self.record["wait"] = [self.name(request) for request in server.waiting]
        plan = replica._planner.plan(step)
        if plan is None:
            server.wait((at + 1) * PS_PER_S)
        else:
            replica.commit.carry_out(plan)
        self.steps[at] = self.record

    def _look(self):
        """Record what is held when the step is decided."""
        server, allocator, name = self.server, self.server.allocator, self.name
        self.looked = True
        self.ran = dict(server.running)
        running = {name(r): allocator.block_table(seq) for seq, r in server.running.items()}
        gone = self.deferred()
        beside = {
            name(r): allocator.block_table(seq) for seq, r in server.batch.loading.items() if r not in gone
        }
        everyone = running | beside
        new = {
            each: table if each in self.admitted else table[len(self.tables.get(each, ())) :]
            for each, table in everyone.items()
        }
        self.tables = everyone
        self.record |= {
            "run": list(running),
            "blocks": [[each, len(table)] for each, table in everyone.items()],
            "new_blocks": [
                [each, [b + FIRST_BLOCK for b in blocks]] for each, blocks in new.items() if blocks
            ],
            "free": allocator.free_slots // allocator.block_slots,
        }

    def _preempting(self, inner, request, *rest, **more):
        self.note("pre", self.name(request))
        inner(request, *rest, **more)

    def _computing(self, inner, request, tokens):
        inner(request, tokens)
        self.computing[request.seq] = tokens

    def _admitting(self, inner, tokens, match=None, *rest, **more):
        request = self.server.waiting[0]
        if not inner(tokens, match, *rest, **more):
            return False
        self.admit(request, match.tokens if match else 0, 0)
        return True

    def admit(self, request, here, elsewhere):
        self.admitted[self.name(request)] = here
        self.note("adm", [self.name(request), here, elsewhere])

    def _releasing(self, inner):
        if not self.looked:
            self._look()
        inner()


class Prefill(Side):
    """The side that computes prompts."""

    def __init__(self, case, route):
        self.case, self.route, self.fresh, self.hits = case, route, [], {}
        super().__init__(case, "P")

    def new_server(self, old):
        config = self.case["config"]
        first_s = config["kv_lease_duration"] - (not self.late)  # kvsim's step has ended by then
        leases = Leases(first_s * PS_PER_S, config["lease_extension"] * PS_PER_S)
        rules = Rules(old.rules.bound, "fcfs", known_late=self.late)
        server = HoldingServer(Batch(KvMemory(old.allocator)), rules, leases, self.handing_over)
        self.scheduler.use(self.scheduler.steps_of(server))
        return server

    def handing_over(self, request, blocks):
        named = [block + FIRST_BLOCK for block in blocks]
        name = self.name(request)
        self.note("handed", [name, request.computed, named, self.hits[name]])
        self.route(name, named)
        self.fresh.append(name)

    def admit(self, request, here, elsewhere):
        self.hits.setdefault(self.name(request), here)
        super().admit(request, here, elsewhere)

    def step(self, at, arrivals, aborted):
        for name in arrivals:
            self.server.waiting.append(self.request(name, 1))
        for name in aborted:
            self.server.abort(self.living(name))
        told, self.fresh = self.fresh, []
        self.decide(at)
        if told:
            self.record["to_send"] = [
                [name, self.server.leases.ends_ps[self.rows[name]] / PS_PER_S] for name in told
            ]
        read, expired = self.server.settle((at - self.late) * PS_PER_S)
        for fact, names in (("sent", read), ("expired", expired)):
            if names:
                self.record[fact] = [self.ids[row] for row in names]
        self.server.free_settled()
        self.record["held"] = [
            [self.name(r), len(self.server.allocator.block_table(r.seq))] for r in self.server.held.values()
        ]


class Decode(Side):
    """The side that decodes."""

    def __init__(self, case, prefill):
        self.case, self.prefill, self.blocks = case, prefill, {}
        super().__init__(case, "D")

    def new_server(self, old):
        server = old
        plan = {self.rows[int(name)]: each["recv_steps"] for name, each in self.case["plan"].items()}
        beat_ps = self.config["heartbeat_interval"] * PS_PER_S
        self.reads = Reads(server, Read(plan), self.telling, self.wanting, beat_ps, self.late)
        self.side = LowerTier(self.reads, self.scheduler.limits)
        self.scheduler.use(self.side)
        self._wrap(self.reads, "look_up", self._looking_up)
        self._wrap(self.reads, "begin", self._beginning)
        self._wrap(self.reads, "end_step", self._ending)
        return server

    def deferred(self):
        return [request for request, _ in self.side._aborted]

    def telling(self, row, at_ps, read):
        if not read:
            self.note("recv_start", [self.ids[row], [], self.blocks[row], [], 0])
            at_ps += PS_PER_S
        self.prefill.server.leases.let_go(row, at_ps, read)

    def wanting(self, rows, now_ps):
        self.record["heartbeat"] = sorted(self.ids[row] for row in rows)
        self.prefill.server.leases.heartbeat(rows, now_ps + PS_PER_S)

    def _looking_up(self, inner, user, here):
        found = inner(user, here)
        self.found = here, found
        self.note("match", [self.name(user.request), here, found, int(found > 0)])
        return found

    def _beginning(self, inner, user, request, here, below, at_once=False):
        self.admit(request, here, below)
        inner(user, request, here, below, at_once)
        local = [block + FIRST_BLOCK for block in self.reads.allocator.block_table(request.seq)]
        hits = here // self.reads.size
        self.note("recv_start", [self.name(request), local[hits:], self.blocks[request.own], [hits], 1])

    def _ending(self, inner):
        inner()
        self._look()

    def step(self, at, local, routed, aborted):
        for name in local:
            self.server.waiting.append(self.request(name))
        for name, blocks in routed:
            request = self.request(name)
            self.server.waiting.append(request)
            self.reads.hand_over(request, tuple(blocks))
            self.blocks[request.own] = blocks
        for name in aborted:
            self.side.abort(self.living(name))
        self.decide(at)
        self.record["hold"] = self.held_now
        if not self.late:  # reads that ended in the step are seen before the next client leaves
            self.reads.settle(self.server.now_ps)
            self.side._free_loaded()

    def _look(self):
        super()._look()
        hold = self.side.loading.hold
        self.held_now = [self.name(request) for request in hold]
        self.record["remote"] = [self.name(r) for r in hold if not self.reads.user(r).promoted]


def run(case):
    """step -> {P, D}: kvsim's records."""
    plan = {int(name): each for name, each in case["plan"].items()}
    routed, at = [], 0

    def route(name, blocks):
        if plan[name]["mode"] != "lost":
            routed.append((at + plan[name]["route_steps"], name, blocks))

    prefill = Prefill(case, route)
    decode = Decode(case, prefill)
    coming = sorted((request["arrival"], request["id"]) for request in case["workload"])
    for step in case["steps"]:
        at = step["step"]
        now = [name for arrival, name in coming if arrival == at]
        remote = [name for name in now if plan[name]["mode"] != "local"]
        prefill.step(at, remote, step["P"].get("abort", ()))
        due = sorted(each[:2] for each in routed if each[0] == at)
        blocks = {name: held for _, name, held in routed}
        decode.step(
            at,
            [name for name in now if plan[name]["mode"] == "local"],
            [(name, blocks[name]) for _, name in due],
            step["D"].get("abort", ()),
        )
    return prefill.steps, decode.steps


def differences(case, found):
    """(step, side, fact, kvsim's, the recording's) of each difference."""
    for step in case["steps"]:
        for side, ours in zip("PD", found, strict=True):
            told, got = step[side], ours[step["step"]]
            if told.get("idle"):
                continue
            for fact in FACTS:
                if side == "P" and fact in ("match", "hold", "remote"):
                    continue
                expected, mine = told.get(fact, []), got.get(fact, [])
                if fact in UNORDERED:
                    expected, mine = sorted(expected), sorted(mine)
                if mine != expected:
                    yield step["step"], side, fact, mine, expected
            facts = OF_P if side == "P" else OF_D
            for fact in facts:
                if sorted(got.get(fact, [])) != sorted(told.get(fact, [])):
                    yield step["step"], side, fact, got.get(fact, []), told.get(fact, [])
