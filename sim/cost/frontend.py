"""What a request spends outside of the engine: in TTFT and E2E, not in TPOT.

    front end   wait + per token x prompt tokens + latency
    wait        one process tokenizes prompts one after the other: a prompt waits for those before it
    clients     of a closed loop, beside that: per client x clients of a server

That is HTTP, tokenizer and detokenizer. The engine hears of a request when its turn has come; each
data-parallel rank and each replica has a process of its own. A closed loop is a benchmark: one process asks
for all clients and reads all their streams, and each turn of a request (asking, reading, its first token)
waits for those of the others. Of requests that come at times of their own nothing of the kind was measured.

The constants are vLLM V1's, fitted to measured servers (docs/truth.md says to which, and what they miss), and
stand in for other engines', as the host's do (sim/cost/host.py). They go with GPU times that were measured;
the roofline and published figures have them only where they are asked for.
"""

from dataclasses import dataclass, replace
from heapq import heapify, heapreplace
from math import isfinite

import numpy as np
import numpy.typing as npt

from kvsim.sim.cost.host import AUTO, MOST_S, NONE, measured, stand_in
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.errors import KvsimError
from kvsim.sim.workload import PS_PER_S, Clients, Int64Column, Workload

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Frontend:
    """Seconds of a request: once, for each prompt token, for each client of a closed loop.

    Attributes
    ----------
    processes : int
        Of one server, each with prompts and clients of its own.
    """

    latency_s: float = 0.0
    per_token_s: float = 0.0
    per_client_s: float = 0.0
    processes: int = 1

    def __bool__(self) -> bool:
        return bool(self.latency_s or self.per_token_s or self.per_client_s)

    def seconds(self, prompt_tokens: Int64Column, clients: float = 0) -> Floats:
        """Of each of these requests, its wait left out; `clients` are those of a server."""
        once = self.latency_s + self.per_client_s * clients / self.processes
        return np.float64(once) + self.per_token_s * prompt_tokens.astype(np.float64)


NOTHING = Frontend()
USUAL = Frontend(0.0, 10e-6, 0.7e-3)
"""Behind HTTP; of an engine that is called directly it is nothing."""


def frontend_of(deployment: Deployment) -> Frontend:
    """The front end of a deployment; a process for each rank with data-parallel attention, as vLLM starts."""
    latency_s, load = deployment.frontend_latency, deployment.frontend_load
    usual = USUAL if measured(deployment.cost) else NOTHING
    found = usual if latency_s is None else Frontend(latency_s)
    if load != AUTO:
        found = Frontend(found.latency_s, *_load(load))
    return replace(found, processes=deployment.data_parallel_size)


def _load(text: str) -> tuple[float, float]:
    """Seconds for a token, and for a client of a closed loop."""
    token, _, client = ("0+0" if text == NONE else text).partition("+")
    try:
        numbers = float(token), float(client or 0)
    except ValueError:
        numbers = (-1.0, -1.0)
    if not all(isfinite(number) and 0 <= number <= MOST_S * 1e6 for number in numbers):
        raise KvsimError(
            "frontend_load must be auto, none, or us per prompt token + us per client as in 8+700, "
            f"got {text!r}"
        )
    return numbers[0] / 1e6, numbers[1] / 1e6


def behind_frontend(workload: Workload, frontend: Frontend, servers: int = 1) -> Workload:
    """The workload as the engine sees it: who comes waits for its turn, who waits for an answer asks later.

    Who asks in a closed loop has all other clients beside it. A turn of a chat waits for the front end of the
    turn before; whose prompts are then before it is not known, and left out.
    """
    waits, prompts = workload.waits, workload.prompt_tokens
    if not frontend:
        return workload
    if waits is None:
        each_ps = np.round(frontend.per_token_s * PS_PER_S * prompts).astype(np.int64)
        held_ps = waiting_ps(workload.arrival_ps, each_ps, servers * frontend.processes)
        return replace(workload, held_ps=held_ps) if held_ps.any() else workload
    if isinstance(waits, Clients):
        seconds = frontend.seconds(prompts, waits.clients / servers)
    else:
        seconds = frontend.seconds(prompts[waits.after])
    later = np.round(seconds * PS_PER_S).astype(np.int64)
    return replace(workload, waits=replace(waits, think_ps=waits.think_ps + later))


def waiting_ps(arrival_ps: Int64Column, service_ps: Int64Column, processes: int = 1) -> Int64Column:
    """How long each waits until one of the processes is free, which serve in the order of arrival."""
    if processes == 1:
        done_ps = np.cumsum(service_ps) - service_ps  # work before it, were there no pauses
        found: Int64Column = np.maximum.accumulate(arrival_ps - done_ps) + done_ps - arrival_ps
        return found
    free_ps, begun_ps = [0] * processes, []
    heapify(free_ps)
    for now_ps, takes_ps in zip(arrival_ps.tolist(), service_ps.tolist(), strict=True):
        begun_ps.append(max(now_ps, free_ps[0]))
        heapreplace(free_ps, begun_ps[-1] + takes_ps)
    return np.array(begun_ps, dtype=np.int64) - arrival_ps


def frontend_words(deployment: Deployment) -> str:
    """The front end in a phrase; empty where there is none."""
    front = frontend_of(deployment)
    words = [f"{1e3 * front.latency_s:g} ms"] if front.latency_s else []
    words += [f"{1e6 * front.per_token_s:g} us per prompt token"] if front.per_token_s else []
    words += [f"{1e3 * front.per_client_s:g} ms per client of a closed loop"] if front.per_client_s else []
    usual = deployment.frontend_latency is None and deployment.frontend_load == AUTO
    return f"front end {' + '.join(words)}{stand_in(deployment) if usual else ''}" if words else ""
