"""Disaggregated prefill: one replica computes a prompt, another gets its KV and computes the answer.

    pulled    as vLLM does: the decode replica is chosen when the prompt is computed, and reads it: pulling.py
    pushed    as SGLang does: both are chosen on arrival, and the prompt is sent piece by piece: pushing.py

Either way there is a second router for the decode replicas, and the prefill replica holds the computed prompt
until it has been copied.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from kvsim.sim.serving.dispatcher import Dispatcher
from kvsim.sim.serving.held import HoldingServer
from kvsim.sim.serving.intake import Door
from kvsim.sim.serving.link import Link
from kvsim.sim.serving.lives import Run
from kvsim.sim.serving.mixed_pool import MixedPool
from kvsim.sim.serving.replica import Replica
from kvsim.sim.serving.request import Request, prefix_of
from kvsim.sim.serving.server import Server
from kvsim.sim.workload import Int64Column

STAGES: Final = ("prompt_computed_ps", "read_begin_ps", "read_end_ps", "held_until_ps")
"""Recorded times of each request; the last is when its blocks were free again."""

Read = tuple[int, int, int]
"""A prompt that was copied: the row of its request, begin and end."""


class Totals(NamedTuple):
    """Totals of a run; bytes are those of all GPUs of a replica."""

    requests: int
    read_bytes: int
    transfer_ps: int
    held_ps: int
    peak_held_share: float


class HandOver:
    """Takes computed prompts from prefill to decode replicas.

    Attributes
    ----------
    whole : dict of Request
        By name, requests whose prompts are waiting, computed or on their way.
    mixed : MixedPool or None
        Replicas that serve requests alone.
    """

    def __init__(self) -> None:
        self.whole: dict[int, Request] = {}
        self.mixed: MixedPool | None = None
        self._prefill: list[HoldingServer] = []
        self._ways_out: dict[int, Link] = {}  # by the identity of a prefill server
        self._over_ps: dict[int, int] = {}  # by row, when it started over

    # -- putting it together ------------------------------------------------------------------

    def prefills(self, server: HoldingServer) -> None:
        """Register a prefill server."""
        self._prefill.append(server)

    def sends(self, server: Server, link: Link) -> None:
        """Prompts leave this prefill server over this link."""
        self._ways_out[id(server)] = link

    def begin(self, run: Run, replicas: Sequence[Replica], dispatcher: Dispatcher) -> None:
        """The run begins; the dispatcher knows the decode replicas."""
        self._run, self._replicas, self._dispatcher = run, replicas, dispatcher
        self._of = {id(replica.server): replica for replica in replicas}

    def doors(self, replicas: Sequence[Replica]) -> Sequence[Door]:
        """Where requests enter that are sent to these replicas."""
        return replicas

    def follow(self, replica: Replica) -> None:
        """This replica replaces one that died, or was switched off."""
        self._of[id(replica.server)] = replica

    # -- one request --------------------------------------------------------------------------

    @abstractmethod
    def place(self, request: Request, first: Dispatcher) -> int:
        """The replica for an arrival; `first` knows the prefill replicas."""

    @abstractmethod
    def refusal(self, request: Request) -> str:
        """Why the smallest decode memory can never hold a request, or ""."""

    @abstractmethod
    def computed(self, server: HoldingServer, prompt: Request, blocks: tuple[int, ...]) -> None:
        """A prompt is computed, in these blocks."""

    def _computed(self, prompt: Request) -> Request:
        """The request whose prompt is computed; it was scheduled when its prompt was."""
        whole = self.whole[prompt.own]
        whole.first_scheduled_ps = prompt.first_scheduled_ps
        whole.first_scheduled_step = prompt.first_scheduled_step
        whole.preemptions = prompt.preemptions
        return whole

    # -- servers that die and come back -------------------------------------------------------

    @abstractmethod
    def lose(self, dead: Replica, now_ps: int) -> list[int]:
        """A server is gone: returns the rows that start over, in their order."""

    @abstractmethod
    def opened(self, now_ps: int) -> None:
        """A decode server is alive again."""

    # -- the end ------------------------------------------------------------------------------

    def freed_ps(self, server: Server) -> int:
        """When a server last freed a prompt that it held; 0: never."""
        return next((each.freed[-1][2] for each in self._prefill if each is server and each.freed), 0)

    @abstractmethod
    def reads(self) -> list[Read]:
        """The prompts that were copied."""

    @abstractmethod
    def copied_bytes(self) -> int:
        """Bytes that decode servers got, on all of their GPUs."""

    def stages(self, rows: int) -> dict[str, Int64Column]:
        """Per request, when each stage was over, the last time that it started over; 0: there was none."""
        found = {name: np.zeros(rows, np.int64) for name in STAGES}
        for row, begun_ps, ended_ps in self.reads():
            if begun_ps >= self._over_ps.get(row, 0):
                found["read_begin_ps"][row], found["read_end_ps"][row] = begun_ps, ended_ps
        for row, computed_ps, freed_ps in self._all_freed():
            if computed_ps >= self._over_ps.get(row, 0):
                found["prompt_computed_ps"][row], found["held_until_ps"][row] = computed_ps, freed_ps
        return found

    def totals(self) -> Totals:
        """Totals of the run."""
        reads = self.reads()
        return Totals(
            requests=len(reads),
            read_bytes=self.copied_bytes(),
            transfer_ps=sum(ended_ps - begun_ps for _, begun_ps, ended_ps in reads),
            held_ps=sum(freed_ps - computed_ps for _, computed_ps, freed_ps in self._all_freed()),
            peak_held_share=max(each.peak_held / each.allocator.capacity_slots for each in self._prefill),
        )

    def _all_freed(self) -> list[tuple[int, int, int]]:
        return [freed for server in self._prefill for freed in server.freed]


def prompt_of(request: Request) -> Request:
    """A request for the prompt of another alone."""
    prompt = Request(request.index, request.prompt_tokens, 1)
    prompt.own, prompt.arrival_ps, prompt.priority = request.own, request.arrival_ps, request.priority
    prompt.facts, prompt.content = request.facts, prefix_of(request.content, request.prompt_tokens)
    return prompt
