"""What a server holds stays few enough to be read at once."""

import pytest

from kvsim import workloads
from kvsim.sim.build import build_engine, engine_defaults
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.models.catalog import gpu_named, model_named


@pytest.mark.parametrize(
    ("scheduler", "traffic", "name"),
    [
        ("vllm-v1", {}, "Server"),
        ("vllm-v0", {"n": 2}, "GroupServer"),
        ("vllm-v0", {"beam_width": 2}, "BeamServer"),
    ],
)
def test_a_server_has_under_25_attributes(scheduler, traffic, name):
    engine = EngineConfig(scheduler=scheduler, **engine_defaults(scheduler, 2048))
    where = Deployment(model=model_named("opt-13b"), gpu=gpu_named("a100-40gb"), engine=engine)
    usual = {"num_prompts": 3, "request_rate": 1.0, "burstiness": 1.0, "seed": 0}
    served = build_engine(where, workloads.build("sharegpt", **usual, **traffic))
    served.run()
    server = served.replica.server
    assert type(server).__name__ == name
    assert len(vars(server)) < 25
