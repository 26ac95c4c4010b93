"""When a prompt was computed, for papers that count the first token from there."""

from kvsim import workloads
from kvsim.reports.papers.prompts import computed_ps
from kvsim.sim.build import build_engine, resolve
from kvsim.sim.options.scenario import Scenario


def test_what_is_not_handed_over_is_computed_with_its_first_token():
    scenario = Scenario(model="llama-3.1-8b", gpu="h100", pool="prefill:1 decode:1", direct_decode=100)
    work = workloads.build("sharegpt", num_prompts=60, request_rate=30.0, burstiness=1.0, seed=3)
    result = build_engine(resolve(scenario.deployed()), work).run()
    apart_ps, first_ps = result.stages["prompt_computed_ps"], result.requests["first_token_ps"]
    here = apart_ps == 0
    assert 10 < here.sum() < 50
    assert (computed_ps(result) == [*map(max, apart_ps, first_ps * here)]).all()
