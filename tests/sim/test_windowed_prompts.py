"""Prompts in windowed layers of a measured profile: no token sees more than the window."""

from dataclasses import replace

from kvsim.sim.cost.named import cost_named
from kvsim.sim.cost.profile_files import gpu_and_cost
from kvsim.sim.cost.step_cost import StepShape
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.models.catalog import model_named

WINDOWS = ({"window": 512, "window_layers": 16}, {"window": 512, "window_layers": 32})
PROMPT = StepShape(8192, 8192 * 8193 // 2, 1)


def step_ps(**facts):
    gpu, cost, profile = gpu_and_cost("h100", "measured-elsewhere")
    model = replace(model_named("llama-3.1-8b"), **facts)
    scenario = Deployment(model=model, gpu=gpu, engine=EngineConfig(), cost=cost, profile=profile)
    return cost_named(cost, scenario).step_ps(PROMPT)


def test_a_window_shortens_a_long_prompt_in_the_layers_that_have_one():
    full, some, every = (
        step_ps(),
        step_ps(window=512, window_layers=16),
        step_ps(window=512, window_layers=32),
    )
    assert full > some > every
    assert abs((full - some) - (some - every)) < 1e-6 * full


def test_a_window_that_nothing_reaches_beyond_changes_nothing():
    assert abs(step_ps(window=8192, window_layers=32) - step_ps()) <= 2
