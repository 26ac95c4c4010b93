"""A server has a few parts, and each part has few enough attributes to be understood at a glance."""

import pytest

from kvsim import workloads
from kvsim.sim.build import build_engine, engine_defaults
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.models.catalog import gpu_named, model_named
from kvsim.sim.schedulers import SCHEDULERS


def served(scheduler, options=None, **traffic):
    engine = EngineConfig(scheduler=scheduler, options=options or {}, **engine_defaults(scheduler, 2048))
    where = Deployment(model=model_named("opt-13b"), gpu=gpu_named("a100-40gb"), engine=engine)
    usual = {"num_prompts": 3, "request_rate": 1.0, "burstiness": 1.0, "seed": 0}
    engine = build_engine(where, workloads.build("sharegpt", **usual, **traffic))
    engine.run()
    return engine.replica


@pytest.mark.parametrize(
    ("scheduler", "traffic", "batch"),
    [
        ("vllm-v1", {}, "Batch"),
        ("vllm-v0", {"n": 2}, "GroupBatch"),
        ("vllm-v0", {"beam_width": 2}, "BeamBatch"),
        ("sglang", {}, "SglangBatch"),
    ],
)
def test_parts_differ_and_the_server_does_not(scheduler, traffic, batch):
    server = served(scheduler, **traffic).server
    assert type(server).__name__ == "Server"
    assert type(server.batch).__name__ == batch


@pytest.mark.parametrize("scheduler", sorted(SCHEDULERS))
def test_no_part_has_more_than_15_attributes(scheduler):
    replica = served(scheduler)
    server = replica.server
    parts = [server, server.batch, server.memory, server.progress, server.batch.growth, replica]
    parts += [replica._planner, replica.commit, replica._idle, replica._alarm, replica.input_queue]
    assert {type(part).__name__: len(vars(part)) for part in parts if len(vars(part)) > 15} == {}


def test_deciding_with_drafts_takes_no_more_than_15_attributes():
    drafts = {"speculative_method": "ngram", "num_speculative_tokens": 2, "acceptance_length": 2.0}
    steps = served("vllm-v1", drafts).scheduler.steps
    assert type(steps).__name__ == "Drafts"
    assert max(len(vars(steps)), len(vars(steps.regular))) <= 15
