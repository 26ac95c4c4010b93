"""`sarathi@96f99117` decides, step by step, what the genuine Sarathi-Serve decides; a step is a second."""

import json

import pytest
from support.by_command import by_arrival, engine_of
from support.scheduled import names_in, recording

from kvsim.sim.serving.request import State
from kvsim.sim.workload import PS_PER_S

pytestmark = pytest.mark.golden
FOLDER = "vtc/sarathi"


def trace_lines(case):
    for request in by_arrival(case):
        row = {"arrival_s": request["arrival"], "prompt_tokens": request["prompt_len"]}
        yield json.dumps(row | {"output_tokens": request["output_len"]}) + "\n"


def flags(config):
    yield from ("--scheduler", "sarathi@96f99117", "--allocator", "paged", "--cost", "constant:1")
    yield from ("--model", "llama-2-7b", "--num-gpu-blocks", str(config["num_blocks"]))
    yield from ("--block-size", str(config["block_size"]), "--max-num-seqs", str(config["max_num_seqs"]))
    yield from ("--max-model-len", str(config["max_model_len"]))
    yield from ("--max-num-batched-tokens", str(max(config["chunk_size"], config["max_num_seqs"])))
    sizes = config["chunk_sizes"] or [config["chunk_size"]]
    yield from ("--chunk-sizes", ",".join(map(str, sizes)))
    if config["tokens_per_stage"]:
        yield from ("--tokens-per-stage", str(config["tokens_per_stage"]))


class Noted:
    """An engine whose decisions are logged as in the recording."""

    def __init__(self, engine, case):
        self.ids = [request["id"] for request in by_arrival(case)]
        self.engine, self.server = engine, engine.replica.server
        self.decide, engine.replica.decide = engine.replica.decide, self.noting
        self.preempt, self.server.preempt = self.server.preempt, self.preempting
        self.steps, self.preempted = {}, []

    def run(self):
        self.engine.run()
        return self.steps

    def preempting(self, request, *rest, **more):
        self.preempted.append(self.ids[request.index])
        self.preempt(request, *rest, **more)

    def noting(self, server):
        self.preempted = []
        before = {request: request.computed for request in server.running.values()}
        step = self.decide(server)
        ids, allocator = self.ids, server.allocator
        gone = set(self.preempted)
        chunks = [
            [ids[r.index], r.computed - (0 if ids[r.index] in gone else before.get(r, 0))]
            for r in step.chunks
        ]
        decodes = [[ids[r.index], 0] for r in server.running.values() if r.state is State.DECODE]
        self.steps[server.now_ps // PS_PER_S] = {
            "sched": sorted(chunks + decodes),
            "pre": self.preempted,
            "run": sorted(ids[r.index] for r in server.running.values()),
            "wait": [ids[r.index] for r in server.waiting],
            "free": allocator.free_slots // allocator.block_slots,
            "blocks": sorted(
                [ids[r.index], len(allocator.block_table(r.seq))] for r in server.running.values()
            ),
        }
        return step


@pytest.mark.parametrize("name", names_in(FOLDER))
def test_every_decision_is_as_in_the_engine(name):
    case = recording(FOLDER, name)
    found = Noted(engine_of(trace_lines(case), flags(case["config"])), case).run()
    told = {step["step"]: step for step in case["steps"] if step.get("sched")}
    for at, step in told.items():
        assert at in found, at
        expected = {
            "sched": sorted(step["sched"]),
            "pre": step.get("pre", []),
            "run": sorted(step["run"]),
            "wait": step["wait"],
            "free": step["free"],
            "blocks": sorted(step["blocks"]),
        }
        assert found[at] == expected, at
    assert found.keys() == told.keys()
