"""Step times of a replay from the server's own log, if it has a line per step (sim/fit/steps.py).

    all steps of the log      how a step grows with sequences and prompt tokens
    steps of this run         how long steps took then: one factor on everything

A clock or a host given by the user takes precedence. Servers with several ranks or stages use other clocks,
since each rank or stage logs its own lines and waits for the others.
"""

from dataclasses import replace

import numpy as np

from kvsim.sim.bench.measured import MeasuredRun
from kvsim.sim.cost.host import AUTO
from kvsim.sim.cost.logged import LOGGED
from kvsim.sim.errors import KvsimError
from kvsim.sim.fit.log import StartupLog
from kvsim.sim.fit.running import RunningLog
from kvsim.sim.fit.steps import FEWEST, fit_steps
from kvsim.sim.options.scenario import Scenario

OTHERS = (
    *("model", "gpu", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "quantization"),
    *("kv_cache_dtype", "enforce_eager", "enable_expert_parallel", "fuse_allreduce_rms", "expert_skew"),
    "host_time",
)
"""Settings that change step times without a trace in the log."""


def clocked(
    run: MeasuredRun, asked: Scenario, log: StartupLog, lines: RunningLog
) -> tuple[Scenario, tuple[str, ...]]:
    """The server with its log's step times, and notes on them; unchanged if there are none."""
    batches = (log.data_parallel_size or 1) * (log.pipeline_parallel_size or 1)
    chosen = asked.cost is not None or asked.part_options().get("host_time", AUTO) != AUTO
    if chosen or batches > 1 or len(lines.steps) < FEWEST:
        return asked, ()
    fit = fit_steps(lines)
    part = part_of(run, lines)
    times, own = fit.times, ""
    if part is not None:
        times, factor = fit.during(part)
        own = f", and x {factor:.3f} to those of this run"
    said = (
        f"Step times are the log's: {fit.times.words}, fitted to {fit.steps:,} steps{own} (--cost roofline: "
        f"the GPU's). Held out, a step is {100 * fit.step_error:.0f} % off, and a fifth of the log "
        f"{100 * fit.part_error:.0f} %."
    )
    return replace(asked, cost=str(times)), (said,)


def part_of(run: MeasuredRun, lines: RunningLog) -> RunningLog | None:
    """The log lines of a run; None if they cannot be told from others."""
    requests, seconds = run.requests, run.span_s
    if requests is None or run.began_s is None or seconds is None or not len(requests):
        return None
    least = float(requests.output_tokens.sum())
    most = least
    if run.cut is not None:  # the log has the tokens of cut requests, or none of them
        least += float(run.cut.output_tokens.sum())
        most += float(np.maximum(run.cut.output_tokens, requests.output_tokens.mean()).sum())
    return lines.of_run(run.began_s, seconds, least, most)


def check_changes(server: Scenario, asked: Scenario, changes: dict[str, object]) -> None:
    """Raise KvsimError for a change that the step times of a log do not cover."""
    if asked.cost is not None or not str(server.cost).startswith(f"{LOGGED}:") or "cost" in changes:
        return
    for name in OTHERS:
        if name in changes:
            raise KvsimError(
                f"what_if: {name} must be left out with step times from the log, which are this server's: "
                "choose a clock that knows others, as in --cost roofline"
            )
