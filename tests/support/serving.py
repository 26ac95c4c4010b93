"""Small servers for tests: a few requests, steps of one second, and a diary of every step."""

from dataclasses import fields

import numpy as np

from kvsim.allocators.base import Allocator
from kvsim.sim.cost.constant import Constant
from kvsim.sim.cost.step_cost import CostModel
from kvsim.sim.record.request_log import RequestLog
from kvsim.sim.schedulers.base import Scheduler
from kvsim.sim.schedulers.orca import Orca
from kvsim.sim.schedulers.static import Static
from kvsim.sim.schedulers.vllm_v1 import VllmV1
from kvsim.sim.serving.batch import Batch
from kvsim.sim.serving.engine import Engine
from kvsim.sim.serving.memory import KvMemory
from kvsim.sim.serving.replica import Replica
from kvsim.sim.serving.request import State
from kvsim.sim.serving.reservation import reservation
from kvsim.sim.serving.server import Rules, Server
from kvsim.sim.workload import PS_PER_S, Workload
from support.settings import engine_config

SCHEDULERS: dict[str, type[Scheduler]] = {"vllm-v1": VllmV1, "orca": Orca, "static": Static}


def workload(rows) -> Workload:
    """Requests from (arrival in seconds, prompt, output) rows."""
    arrival_s, prompts, outputs = (np.array(column) for column in zip(*rows, strict=True))
    ps = np.rint(arrival_s * PS_PER_S).astype(np.int64)
    return Workload("test", ps, prompts.astype(np.int64), outputs.astype(np.int64))


def server_of(allocator, bound, progress=None, **rules):
    """A server made of plain parts."""
    return Server(Batch(KvMemory(allocator), progress), Rules(bound, **rules))


def engine_of(work: Workload, server: Server, scheduler: Scheduler, cost: CostModel, longest: int, **options):
    """One replica under this work."""
    log = RequestLog(work)
    return Engine(work, log, [Replica(server, scheduler, cost, log, **options)], [longest])


def serve(
    work: Workload,
    allocator: Allocator,
    scheduler: str | type[Scheduler],
    *,
    reserve: str = "max",
    max_model_len: int = 64,
    seats: int = 16,
    budget: int = 2048,
    chunked: bool = True,
    cost: CostModel | None = None,
    config: dict | None = None,
    **options,
):
    """The result of one run."""
    cls = SCHEDULERS[scheduler] if isinstance(scheduler, str) else scheduler
    choices = {"max_num_seqs": seats, "max_num_batched_tokens": budget, "enable_chunked_prefill": chunked}
    config = engine_config(**{"async_scheduling": False, **choices, **(config or {})})
    scheduler = cls(config, max_model_len)
    server = scheduler.new_server(allocator, reservation(reserve, max_model_len))
    return engine_of(work, server, scheduler, cost or Constant(1), max_model_len, **options).run()


def keeping_diary(scheduler: str, names: str, diary: list[str]) -> type[Scheduler]:
    """The scheduler, which writes a line into the diary after each decision.

    "3: A5 B12 (C) | DE | 24" says: at 3 s A computes up to its token 5 and B up to its token 12; C is
    finished and keeps its seat; D and then E wait; 24 slots are allocated.
    """
    held: dict[int, int] = {}

    class Diary(SCHEDULERS[scheduler]):
        def schedule(self, server):
            super().schedule(server)
            told = []
            for request in server.running.values():
                name = names[request.index]
                if request.state == State.FINISHED:
                    told.append(f"({name})")
                    continue
                if request in server.step.chunks:
                    held[request.index] = request.computed
                elif request.state == State.DECODE:
                    held[request.index] += 1
                told.append(f"{name}{held[request.index]}")
            waiting = "".join(names[request.index] for request in server.waiting)
            cells = (" ".join(told), waiting, str(server.allocator.used_slots))
            diary.append(f"{server.now_ps / PS_PER_S:g}: " + " | ".join(cell or "-" for cell in cells))

    return Diary


def everything(result) -> dict[str, object]:
    """All results of a run as plain values, except the step log."""
    found = {}
    for field in fields(result):
        value = getattr(result, field.name)
        if isinstance(value, dict) and all(isinstance(column, np.ndarray) for column in value.values()):
            value = {name: column.tolist() for name, column in value.items()}
        elif field.name == "token_gaps":
            value = (value.bins(), value.count, value.total, value.maximum)
        elif isinstance(value, np.ndarray):
            value = value.tolist()
        if field.name not in ("workload", "steps"):
            found[field.name] = value
    return found
