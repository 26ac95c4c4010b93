"""Consistent hash: a session stays on one replica, and few sessions move when a replica comes or goes.

    ring    hashes of replica 0 node 0, replica 0 node 1, ..., replica 1 node 0, ... in order
    choose  the replica of the first node at or after the hash of the session

As in vLLM's router (`--policy consistent_hash`): 160 nodes per replica on the ring. A request without a
session uses its own number. The hashes are kvsim's own (BLAKE2), so places differ from vLLM's.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import ClassVar

import numpy as np

from kvsim.allocators.option import option
from kvsim.sim.errors import KvsimError
from kvsim.sim.routers.base import Router, Seen
from kvsim.sim.serving.request import Request
from kvsim.sim.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Ring:
    """Options of consistent-hash."""

    virtual_nodes: int = option(
        "Nodes per replica on the ring.", default=160, value="N", least=1, most=10_000
    )


class ConsistentHash(Router):
    """Chooses the next replica on a ring of hashes."""

    declares: ClassVar[type] = Ring

    def __init__(self, argument: str, rng: np.random.Generator, options: Mapping[str, object]) -> None:
        super().__init__(argument, rng, options)
        self._nodes = self.own(Ring).virtual_nodes
        self._sessions: Sequence[object] | None = None
        self._ring: list[tuple[int, int]] = []  # (hash, place of the replica)
        self._of: tuple[int, ...] = ()  # replicas on the ring

    def begin(self, workload: Workload) -> None:
        """Take the sessions of the trace."""
        for name in ("session", "client"):
            if name in workload.labels:
                self._sessions = workload.labels[name].tolist()
                return
        known = ", ".join(workload.labels) or "no labels"
        raise KvsimError(f"router consistent-hash needs a trace with sessions, got one with {known}")

    def choose(self, request: Request, replicas: Sequence[Seen]) -> int:
        """The replica of its session."""
        places = tuple(replica.place for replica in replicas)
        if places != self._of:
            nodes = [
                (_hash(f"replica {place} node {node}"), place)
                for place in places
                for node in range(self._nodes)
            ]
            self._ring, self._of = sorted(nodes), places
        session = self._sessions[request.index] if self._sessions is not None else ""
        key = _hash(f"session {session}" if session != "" else f"request {request.index}")
        node = bisect_left(self._ring, (key, -1)) % len(self._ring)
        return places.index(self._ring[node][1])


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")
