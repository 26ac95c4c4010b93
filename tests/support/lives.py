"""A served run as the reports see it, and the lives of its requests."""

from pathlib import Path

from kvsim.reports.lives.event_log import event_log
from kvsim.reports.lives.spans import lives
from kvsim.reports.rundir.run import Run, Tables
from kvsim.sim.build import build_engine
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.models.catalog import gpu_named, model_named
from kvsim.sim.record.metrics import event_table, request_table, timeline_table
from kvsim.sim.record.summary import Summary
from support.settings import engine_config


def run_of(engine, scenario, label="test"):
    """The run of an engine as reports see it, and the lives of its requests."""
    result = engine.run()
    table = request_table(result)
    config = {"scenario": {"engine": {"policy": "fcfs", **vars(scenario.engine)}}}
    summary = {"label": label, "engine": {"steps": result.step_count}}
    run = Run(Path(label), label, config, Summary(summary), Tables(table, timeline_table(result)))
    return run, lives(event_log(event_table(engine.replica.events)), table), result


def served(scheduler, blocks, work, label="test", **settings):
    """A run on `blocks` blocks of 4 tokens, one second per step."""
    usual = {"scheduler": scheduler, "block_size": 4, "max_model_len": 16, "async_scheduling": False}
    config = engine_config(**usual | settings)
    scenario = Deployment(
        model=model_named("opt-13b"),
        gpu=gpu_named("h100"),
        engine=config,
        num_gpu_blocks=blocks,
        cost="constant:1",
    )
    run, told, _ = run_of(build_engine(scenario, work, events=True), scenario, label)
    return run, told
