"""Stories: a run on a few blocks of 4 tokens, one second per step, in three modes that must agree."""

import numpy as np

from kvsim.sim.build import build_engine
from kvsim.sim.content import shared_content
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.models.catalog import gpu_named, model_named
from kvsim.sim.workload import PS_PER_S, Samples, Workload
from support.serving import everything
from support.settings import engine_config


def workload(rows, *, texts=None, beam=None, priority=None):
    """Requests from (arrival in seconds, prompt, answer or list of answers) rows."""
    answers = [row[2] if isinstance(row[2], list) else [row[2]] for row in rows]
    prompts = np.array([row[1] for row in rows])
    several = np.array([len(lengths) > 1 or beam is not None for lengths in answers])
    return Workload(
        "test",
        np.array([row[0] * PS_PER_S for row in rows], dtype=np.int64),
        prompts,
        np.array([max(lengths) for lengths in answers]),
        samples=Samples(np.cumsum([0, *map(len, answers)]), np.concatenate(answers))
        if several.any() and not beam
        else None,
        beam=beam,
        content=shared_content(texts, prompts, several),
        priority=None if priority is None else np.array(priority),
    )


def told(result):
    samples = result.samples and {name: column.tolist() for name, column in result.samples.items()}
    return everything(result) | {"samples": samples}


class Story:
    """A run on `blocks` blocks of 4 tokens."""

    def __init__(self, scheduler, blocks, work, prepare=lambda engine: None, **settings):
        usual = {"block_size": 4, "max_num_seqs": 8, "max_model_len": 64, "async_scheduling": False}
        config = engine_config(**{"scheduler": scheduler} | usual | settings)
        scenario = Deployment(
            model=model_named("opt-13b"),
            gpu=gpu_named("h100"),
            engine=config,
            num_gpu_blocks=blocks,
            cost="constant:1",
        )
        runs = []
        for options in ({"step_log": True, "check": True}, {"max_span": 1}, {}):
            engine = build_engine(scenario, work, **options)
            prepare(engine)
            runs.append(engine.run())
        assert told(runs[0]) == told(runs[1]) == told(runs[2])
        self.result = runs[0]

    def steps(self, name):
        return self.result.steps[name].tolist()

    def requests(self, name):
        return self.result.requests[name].tolist()

    @property
    def finish(self):
        """Finish times in seconds, of finished requests."""
        return (self.result.requests["finish_ps"][self.result.finished] // PS_PER_S).tolist()

    @property
    def longest_gap(self):
        return self.result.token_gaps.maximum // PS_PER_S
