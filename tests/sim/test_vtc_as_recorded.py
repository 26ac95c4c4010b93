"""`vtc-artifact` selects, charges and lifts, step by step, as VTC's artefact does.

A step takes one second. Predictions are taken from the recordings: the artefact draws them from numpy's
global generator.
"""

import json

import pytest
from support.by_command import by_arrival, engine_of
from support.scheduled import names_in, recording

from kvsim.sim.workload import PS_PER_S

pytestmark = pytest.mark.golden
FOLDER = "vtc/vtc"
LENGTHS = {"vtc": "none", "vtc_oracle": "oracle", "vtc_len_predict": "predict"}


def trace_lines(case):
    for request in by_arrival(case):
        stop = min(request.get("stop") or request["max_new"], request["max_new"])
        row = {"arrival_s": request["arrival"], "client": request["client"], "max_tokens": request["max_new"]}
        yield json.dumps(row | {"prompt_tokens": request["prompt_len"], "output_tokens": stop}) + "\n"


def flags(config):
    yield from ("--scheduler", "vtc-artifact", "--allocator", "paged", "--block-size", "1")
    yield from ("--cost", "constant:1")
    yield from ("--model", "llama-2-7b", "--kv-tokens", str(config["max_total_token_num"]))
    yield from ("--max-num-seqs", str(config["running_max_req_size"]))
    yield from ("--max-num-batched-tokens", str(config["batch_max_tokens"]))
    yield from ("--vtc-lengths", LENGTHS[config["scheduler"]], "--vtc-range", str(config["predict_range"]))
    yield from ("--vtc-input-price", str(config["input_price"]))
    yield from ("--vtc-output-price", str(config["output_price"]))
    yield from ("--vtc-cost", config["cost_func"], "--vtc-wait", str(config["max_wait_tokens"]))
    yield from ("--adapter-rank", str(config["adapter_rank"]))
    if config["fair_weights"]:
        pairs = zip(config["clients"], config["fair_weights"], strict=False)
        yield from ("--vtc-weights", ",".join(f"{client}={weight}" for client, weight in pairs))


class Noted:
    """An engine whose steps are logged as in the recording: what was charged when the next step begins."""

    def __init__(self, engine, case):
        self.engine, self.server, self.scheduler = (
            engine,
            engine.replica.server,
            engine.replica.scheduler,
        )
        self.ids = [request["id"] for request in by_arrival(case)]
        self.aborts = {each["id"]: each["abort_at"] for each in case["workload"] if "abort_at" in each}
        self.steps, self.at = {}, None
        self.decide, engine.replica.decide = engine.replica.decide, self.noting
        said = {number: length for step in case["steps"] for number, length in step.get("predicted", ())}
        if case["config"]["scheduler"] == "vtc_oracle":
            self.scheduler.predicted = lambda request: said[self.ids[request.index]]

    def run(self):
        self.engine.run()
        return self.steps

    def abort(self, server):
        """Abort requests that give up by now; later arrivals abort when they arrive."""
        now = server.now_ps // PS_PER_S
        for request in [*server.running.values(), *server.waiting]:
            if self.aborts.get(self.ids[request.index], now + 1) <= now:
                self.scheduler.abort(request)

    def noting(self, server):
        self.abort(server)
        step = self.decide(server)
        chosen = [self.ids[request.index] for request in step.chunks]
        self.steps[server.now_ps // PS_PER_S] = {
            "kind": "prefill" if chosen else "decode",
            "selected": chosen,
            "run": [self.ids[request.index] for request in self.scheduler._batch],
            "served": dict(self.scheduler.counters),
        }
        return step


@pytest.mark.parametrize("name", names_in(FOLDER))
def test_every_step_is_as_in_the_artefact(name):
    case = recording(FOLDER, name)
    found = Noted(engine_of(trace_lines(case), flags(case["config"])), case).run()
    busy = {step["step"]: step for step in case["steps"] if step["kind"] != "idle"}
    assert found.keys() == busy.keys()
    for at, step in busy.items():
        assert found[at]["kind"] == step["kind"], at
        assert found[at]["selected"] == step.get("selected", []), at
    lasting = [(at, at + 1) for at in busy if at + 1 in busy]
    for at, after in lasting:  # the next step begins with what this one was charged, before it lifts
        lifted = {client for client, _ in busy[after].get("lift", ())}
        charged = set(busy[after].get("selected", ()))
        told = dict(busy[at]["served"])
        if charged or lifted:
            continue
        assert {client: found[after]["served"][client] for client in told} == pytest.approx(told, rel=1e-6), (
            at
        )
