"""Recordings of vLLM's scheduler in its loop, one record per step, and kvsim's for the same workload.

    recording --rows, flags--> trace.jsonl, command line --sim run--> config.json --engine, noted--> records

The form is that of `../shared/goldens/spec/README.md`: scheduled, admitted and preempted requests, both
queues, block tables and free blocks after each decision. A step takes one second.
"""

import gzip
import json
from collections import deque

import pytest

from kvsim.sim.serving.request import State
from kvsim.sim.workload import PS_PER_S
from support.by_command import by_arrival, engine_of
from support.shared_data import goldens

FACTS = ("sched", "adm", "pre", "run", "wait", "blocks", "new_blocks", "free")
FIRST_BLOCK = 1
"""vLLM's first block; block 0 is its null block."""


def names_in(folder):
    """The recordings of a folder, without file extensions; none if there are no goldens."""
    try:
        found = goldens(folder)
    except (pytest.skip.Exception, pytest.fail.Exception):
        return []
    return [path.name.removesuffix(".json.gz") for path in sorted(found.glob("*.json.gz"))]


def recording(folder, name):
    """The content of a file."""
    return json.loads(gzip.decompress(goldens(f"{folder}/{name}.json.gz").read_bytes()))


def trace_lines(case):
    """The workload as kvsim's own JSONL, in order of arrival."""
    for request in by_arrival(case):
        row = {"arrival_s": request["arrival"], "prompt_tokens": request["prompt_len"]}
        row |= {"output_tokens": request["output_len"], "priority": request.get("priority", 0)}
        if "prompt_ids" in request:
            row["prompt_token_ids"] = request["prompt_ids"]
        yield json.dumps(row) + "\n"


def flags(config):
    """The engine's configuration as command-line flags."""
    yield from ("--allocator", "paged", "--scheduler", "vllm-v1@0.33.0", "--cost", "constant:1")
    yield from ("--model", "llama-2-7b")  # any that allows the longest max_model_len
    yield from ("--num-gpu-blocks", str(config["usable_blocks"]), "--policy", config["policy"])
    for name in ("block_size", "max_num_seqs", "max_num_batched_tokens", "max_model_len", "watermark"):
        yield from (f"--{name.replace('_', '-')}", str(config[name]))
    if config["long_prefill_token_threshold"]:
        yield from ("--long-prefill-token-threshold", str(config["long_prefill_token_threshold"]))
    yield "--enable-prefix-caching" if config["enable_prefix_caching"] else "--no-enable-prefix-caching"
    yield "--async-scheduling" if config["async_scheduling"] else "--no-async-scheduling"
    if not config["scheduler_reserve_full_isl"]:
        yield "--no-reserve-full-prompt"


def records(case, more_flags=()):
    """step -> record of kvsim's engine."""
    engine = engine_of(trace_lines(case), (*flags(case["config"]), *more_flags))
    return Noted(engine, case).run()


def who_was_scheduled(running, server, ids, before, seen, tokens_of):
    """[name, tokens, first of them, 0 or entered: 1, again: 2] of the step, in the order of admission.

    `before`: sequences that ran; `seen`: requests entered so far, updated; `tokens_of`: a prompt's tokens.
    """
    step = server.step
    chunks = {request.seq for request in step.chunks}
    ran, entered = [], []
    for seq, request in running.items():
        name = ids[request.index]
        if seq in chunks:
            tokens = tokens_of(request)
            entry = [name, tokens, request.computed - tokens]
        elif request.state == State.DECODE and not step.paused:
            entry = [name, 1, server.progress.stored(request)]
        else:
            continue
        if seq in before:
            ran.append([*entry, 0])
        else:
            entered.append([*entry, 1 + (name in seen)])
    seen |= {entry[0] for entry in entered}
    return ran + entered


class Noted:
    """An engine whose decisions are recorded."""

    def __init__(self, engine, case):
        self.ids = [request["id"] for request in by_arrival(case)]
        self.places = {
            each["id"]: (each.get("priority", 0), each["arrival"], str(each["id"]))
            for each in case["workload"]
        }
        self.engine, self.server = engine, engine.replica.server
        self.decide, engine.replica.decide = engine.replica.decide, self.noting
        self.preempt, self.server.preempt = self.server.preempt, self.preempting
        self.admit, self.server.admit_head = self.server.admit_head, self.admitting
        self.release_departed, self.server.release_departed = self.server.release_departed, self.releasing
        self.steps, self.seen, self.tables = {}, set(), {}
        self.preempted, self.admitted = [], {}

    def run(self):
        self.engine.run()
        return self.steps

    def preempting(self, request, *rest, **more):
        self.preempted.append(self.ids[request.index])
        self.preempt(request, *rest, **more)

    def admitting(self, tokens, match=None, *rest, **more):
        request = self.server.waiting[0]
        if not self.admit(tokens, match, *rest, **more):
            return False
        self.admitted[self.ids[request.index]] = match.tokens if match else 0
        return True

    def releasing(self):
        """Requests that finished without the scheduler's knowledge stay until the step is decided."""
        self.look()
        self.release_departed()

    def look(self):
        allocator = self.server.allocator
        tables = {self.ids[r.index]: allocator.block_table(seq) for seq, r in self.server.running.items()}
        new = {
            name: table if name in self.admitted else table[len(self.tables.get(name, ())) :]
            for name, table in tables.items()
        }
        self.tables = tables
        self.held = {
            "run": list(tables),
            "blocks": sorted([name, len(table)] for name, table in tables.items()),
            "new_blocks": [
                [n, [block + FIRST_BLOCK for block in blocks]] for n, blocks in new.items() if blocks
            ],
            "free": allocator.free_slots // allocator.block_slots,
        }

    def noting(self, server):
        self.preempted, self.admitted, self.held = [], {}, None
        before = {seq: self.computed(request) for seq, request in server.running.items()}
        step = self.decide(server)
        if self.held is None:
            self.look()

        def tokens(request):
            return request.computed - before.get(request.seq, self.admitted.get(self.ids[request.index], 0))

        scheduled = who_was_scheduled(server.running, server, self.ids, before, self.seen, tokens)
        self.seen |= set(self.admitted)
        self.steps[server.now_ps // PS_PER_S] = {
            "sched": scheduled,
            "adm": [list(each) for each in self.admitted.items()],
            "pre": self.preempted,
            "wait": self.waiting(),
            **self.held,
        }
        return step

    def waiting(self):
        """The queue as the engine sees it: a preempted request is in it, even if it has just finished."""
        waiting, ids = self.server.waiting, self.ids
        names = [ids[request.index] for request in waiting]
        refused = self.server.step.refused
        if refused is None or not refused.preempted_finished:
            return names
        others = [name for name in names if name not in self.preempted]
        if isinstance(waiting, deque):
            return self.preempted[::-1] + others
        return sorted(others + self.preempted, key=self.places.__getitem__)

    def computed(self, request):
        return self.server.progress.stored(request) if request.state == State.DECODE else request.computed


def differences(case, found):
    """(step, fact, kvsim's, the recording's) of each difference; steps that schedule nothing are left out."""
    told = {step["step"]: step for step in case["steps"] if step.get("sched")}
    for at, step in told.items():
        if at not in found:
            yield at, "step", None, step["sched"]
            continue
        for fact in FACTS:
            expected = step.get(fact, [])
            if fact == "sched":
                expected = [[*entry[:3], entry[-1]] for entry in expected]
            if fact in ("new_blocks", "blocks"):
                expected = sorted(expected)
            got = sorted(found[at][fact]) if fact == "new_blocks" else found[at][fact]
            if got != expected:
                yield at, fact, got, expected
