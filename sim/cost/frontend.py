"""What a request spends outside of the engine: in TTFT and E2E, not in TPOT.

    front end = latency + per token x prompt tokens + per stream x requests in flight

That is HTTP, tokenizer and detokenizer. The prompt is tokenized before the engine hears of the request. One
process serves all requests that are in flight, and a new one waits for them at each of its turns: reading,
tokenizing, the first token, writing. The constants are fitted to measured servers (docs/truth.md says to
which, and what they miss). They go with GPU times that were measured; the roofline and published figures have
them only where they are asked for.
"""

from dataclasses import dataclass, replace
from math import isfinite

import numpy as np
import numpy.typing as npt

from kvsim.sim.cost.host import AUTO, MEASURED, MOST_S, NONE, engine_of
from kvsim.sim.errors import KvsimError
from kvsim.sim.scenario.deployment import Deployment
from kvsim.sim.workload import PS_PER_S, Clients, Int64Column, Workload

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Frontend:
    """Seconds of a request: once, for each prompt token, for each request in flight, itself too."""

    latency_s: float = 0.0
    per_token_s: float = 0.0
    per_stream_s: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.latency_s or self.per_token_s or self.per_stream_s)

    def seconds(self, prompt_tokens: Int64Column, streams: float | Int64Column) -> Floats:
        """Of each of these requests."""
        found: Floats = self.latency_s + self.per_token_s * prompt_tokens + self.per_stream_s * streams
        return found


NOTHING = Frontend()
FRONTENDS = {"vllm-v1": Frontend(9.5e-3, 8e-6, 0.7e-3)}
"""Engine -> its front end behind HTTP; of the engine alone it is nothing."""


def frontend_of(scenario: Deployment) -> Frontend:
    """The front end of a scenario; a process for each rank with data-parallel attention, as vLLM starts."""
    latency_s, load = scenario.frontend_latency, scenario.frontend_load
    usual = FRONTENDS.get(engine_of(scenario), NOTHING) if scenario.cost in MEASURED else NOTHING
    found = usual if latency_s is None else Frontend(latency_s)
    if load != AUTO:
        found = Frontend(found.latency_s, *_load(load))
    return replace(found, per_stream_s=found.per_stream_s / scenario.data_parallel_size)


def _load(text: str) -> tuple[float, float]:
    """Seconds for a token, and for a request in flight."""
    token, _, stream = ("0+0" if text == NONE else text).partition("+")
    try:
        numbers = float(token), float(stream or 0)
    except ValueError:
        numbers = (-1.0, -1.0)
    if not all(isfinite(number) and 0 <= number <= MOST_S * 1e6 for number in numbers):
        raise KvsimError(
            f"frontend_load must be auto, none, or us a prompt token + us a request as in 8+700, got {text!r}"
        )
    return numbers[0] / 1e6, numbers[1] / 1e6


def behind_frontend(workload: Workload, frontend: Frontend, servers: int = 1) -> Workload:
    """The workload as the engine sees it: who waits for an answer gets it so much later.

    Who asks in a closed loop has all other clients beside it. A turn of a chat waits for the front end of the
    turn before; how many others are then in flight is not known, and left out.
    """
    waits, prompts = workload.waits, workload.prompt_tokens
    if not frontend or waits is None:
        return workload
    if isinstance(waits, Clients):
        seconds = frontend.seconds(prompts, waits.clients / servers)
    else:
        seconds = frontend.seconds(prompts[waits.after], 0)
    later = np.round(seconds * PS_PER_S).astype(np.int64)
    return replace(workload, waits=replace(waits, think_ps=waits.think_ps + later))


def frontend_words(scenario: Deployment) -> str:
    """The front end in a phrase; empty where there is none."""
    front = frontend_of(scenario)
    words = [f"{1e3 * front.latency_s:g} ms"] if front.latency_s else []
    words += [f"{1e6 * front.per_token_s:g} us a prompt token"] if front.per_token_s else []
    words += [f"{1e3 * front.per_stream_s:g} ms a request in flight"] if front.per_stream_s else []
    return f"front end {' + '.join(words)}" if words else ""
