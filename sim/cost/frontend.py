"""Time a request spends outside the engine: part of TTFT and E2E, not of TPOT.

    front end   wait + per token x prompt tokens + latency
    wait        one process tokenizes prompts one by one: a prompt waits for those before it
    clients     in a closed loop, in addition: per client x clients of a server

This is HTTP, tokenizer and detokenizer. A request reaches the engine after tokenization; each data-parallel
rank and each replica has its own process. A closed loop is a benchmark: one process sends all clients'
requests and reads all their streams, and each turn of a request (sending, reading, its first token) waits for
those of the others. No such effect was measured for requests with arrival times of their own.

The constants are vLLM V1's, fitted to measured servers (docs/truth.md lists them with their errors). They
stand in for those of other engines, as the host's do (sim/cost/host.py). They apply to measured GPU times;
the roofline and published figures use them only on request.
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
    """Seconds per request: once, per prompt token, per client of a closed loop.

    Attributes
    ----------
    processes : int
        Processes per server, each with its own prompts and clients.
    """

    latency_s: float = 0.0
    per_token_s: float = 0.0
    per_client_s: float = 0.0
    processes: int = 1

    def __bool__(self) -> bool:
        return bool(self.latency_s or self.per_token_s or self.per_client_s)

    def seconds(self, prompt_tokens: Int64Column, clients: float = 0) -> Floats:
        """Time of each of these requests, without its wait; `clients` are those of one server."""
        once = self.latency_s + self.per_client_s * clients / self.processes
        return np.float64(once) + self.per_token_s * prompt_tokens.astype(np.float64)


NOTHING = Frontend()
USUAL = Frontend(0.0, 10e-6, 0.7e-3)
"""For engines behind HTTP; an engine that is called directly has no front end."""


def frontend_of(deployment: Deployment) -> Frontend:
    """The front end of a deployment; one process per data-parallel rank, as vLLM starts them."""
    latency_s, load = deployment.frontend_latency, deployment.frontend_load
    usual = USUAL if measured(deployment.cost) else NOTHING
    found = usual if latency_s is None else Frontend(latency_s)
    if load != AUTO:
        found = Frontend(found.latency_s, *_load(load))
    return replace(found, processes=deployment.data_parallel_size)


def _load(text: str) -> tuple[float, float]:
    """Seconds per prompt token, and per client of a closed loop."""
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
    """The workload as it reaches the engine: arrivals wait their turn, and follow-up requests come later.

    Each request of a closed loop runs beside all other clients. A turn of a chat waits for the front end of
    the previous turn. The prompts ahead of it at that time are unknown and left out.
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
    """Time that each request waits for a free process; processes serve in order of arrival."""
    if processes == 1:
        done_ps = np.cumsum(service_ps) - service_ps  # total work of earlier requests, without idle time
        found: Int64Column = np.maximum.accumulate(arrival_ps - done_ps) + done_ps - arrival_ps
        return found
    free_ps, begun_ps = [0] * processes, []
    heapify(free_ps)
    for now_ps, takes_ps in zip(arrival_ps.tolist(), service_ps.tolist(), strict=True):
        begun_ps.append(max(now_ps, free_ps[0]))
        heapreplace(free_ps, begun_ps[-1] + takes_ps)
    return np.array(begun_ps, dtype=np.int64) - arrival_ps


def frontend_words(deployment: Deployment) -> str:
    """The front end in words; empty if there is none."""
    front = frontend_of(deployment)
    words = [f"{1e3 * front.latency_s:g} ms"] if front.latency_s else []
    words += [f"{1e6 * front.per_token_s:g} us per prompt token"] if front.per_token_s else []
    words += [f"{1e3 * front.per_client_s:g} ms per client of a closed loop"] if front.per_client_s else []
    usual = deployment.frontend_latency is None and deployment.frontend_load == AUTO
    return f"front end {' + '.join(words)}{stand_in(deployment) if usual else ''}" if words else ""
