"""A fleet under a closed loop of clients whose prompts share prefixes in groups, as in cache benchmarks.

    group 1   [ system prompt 1        | question ] -> answer          each of `prompts` questions once,
    group 2   [ system prompt 2        | question ] -> answer          in an order drawn by the seed,
                                                                      again from the first if more are asked

The arguments are those of a figure's cell; the measures are those that such benchmarks print.
"""

from collections.abc import Mapping

import numpy as np

from kvsim.sim.build import build_engine
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.models.catalog import gpu_named, model_named
from kvsim.sim.record.instants import FEWEST_ROWS
from kvsim.sim.serving.fleet import FleetConfig
from kvsim.sim.workload import PS_PER_S, Clients, Workload

Values = dict[str, float | None]


def grouped(  # noqa: PLR0917 - the benchmark's own settings
    groups: int,
    prompts: int,
    system: int,
    question: int,
    answer: int,
    clients: int,
    requests: int | None = None,
    seed: int = 0,
) -> Workload:
    """The requests of all groups, each of which arrives when its client has its last answer."""
    count = groups * prompts if requests is None else requests
    group = np.random.default_rng(seed).permutation(np.repeat(np.arange(groups), prompts))
    group = np.resize(group, count)  # a prompt asked again is new behind its system prompt
    return Workload(
        "groups",
        np.zeros(count, dtype=np.int64),
        np.full(count, system + question, dtype=np.int64),
        np.full(count, answer, dtype=np.int64),
        content=[((each, 0, system),) for each in group.tolist()],
        waits=Clients(clients, np.zeros(count, dtype=np.int64)),
    )


def tiered_fleet(
    *, server: Mapping[str, object], engine: Mapping[str, object], fleet: Mapping[str, object], **loop: int
) -> Values:
    """Seconds to the first token and to the end, the fleet's tokens per second, prompts included, and prompts
    computed: the tokens found nowhere, as a number of whole prompts.
    """
    work = grouped(**loop)
    model, gpu = model_named(server["model"]), gpu_named(server["gpu"])
    own = {name: server[name] for name in ("tensor_parallel_size", "num_gpu_blocks", "cost")}
    deployment = Deployment(
        model=model, gpu=gpu, fleet=FleetConfig(**fleet), engine=EngineConfig.of(engine), **own
    )
    result = build_engine(deployment, work, timeline_rows=FEWEST_ROWS).run()
    first_s = (result.requests["first_token_ps"] - result.arrival_ps) / PS_PER_S
    end_s = (result.requests["finish_ps"] - result.arrival_ps) / PS_PER_S
    prompts = int(work.prompt_tokens.sum())
    tokens = prompts + int(work.output_tokens.sum())
    found = result.hit_tokens + (result.tier.hit_tokens if result.tier is not None else 0)
    return {
        "ttft": float(first_s.mean()),
        "ttft_p90": float(np.quantile(first_s, 0.9)),
        "e2e": float(end_s.mean()),
        "e2e_p90": float(np.quantile(end_s, 0.9)),
        "rate": tokens / (result.end_ps / PS_PER_S),
        "computed": len(work) * (1 - found / prompts),
    }
