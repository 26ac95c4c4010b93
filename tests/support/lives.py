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
    return run, lives(event_log(event_table(engine.replica.server.events)), table), result


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


def divided(story, e2e_s):
    """The story, whose parts and spans fill its time without a gap, with its lines in order."""
    assert sum(part.time_ps for part in story.parts) == story.e2e_ps == round(e2e_s * 1e12)
    for before, after in zip(story.spans, story.spans[1:], strict=False):
        assert before.end_ps == after.start_ps
    assert [line.time_ps for line in story.lines] == sorted(line.time_ps for line in story.lines)
    return story
