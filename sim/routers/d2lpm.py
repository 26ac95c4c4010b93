"""D2LPM: the replica with the longest cached prefix, within each client's deficit at each replica.

    deficit of a client at a replica   -= tokens of prompts that it must compute there
    next        of the replicas at which the client has any left: the longest cached prefix, then the fewest
                requests
    none left   it gets `--d2lpm-quantum` more at every replica, until one has some

So a client's prefixes stay where they are cached until the client has used its share there; then it moves on.
Replicas use `--policy dlpm`.

Source: Cao et al., Locality-aware fair scheduling in LLM serving (arXiv 2501.14312), algorithm 2. In the
paper answers are also charged as they are generated; routers here do not see them.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kvsim.allocators.option import option
from kvsim.sim.routers.base import Router, Seen
from kvsim.sim.serving.request import Request
from kvsim.sim.workload import Workload


@dataclass(frozen=True, kw_only=True)
class QuantumOptions:
    """How far a client may be ahead at a replica."""

    d2lpm_quantum: int = option(
        "Prompt tokens that a client may have computed at a replica before it moves on.",
        default=8192,
        value="N",
        least=1,
    )


class D2lpm(Router):
    """Deficit longest prefix match over replicas."""

    declares: ClassVar[type] = QuantumOptions

    def __init__(self, argument: str, rng: np.random.Generator, options: Mapping[str, object]) -> None:
        super().__init__(argument, rng, options)
        self._quantum = self.own(QuantumOptions).d2lpm_quantum
        self._deficits: defaultdict[tuple[str, int], int] = defaultdict(lambda: self._quantum)
        self._clients: list[object] = []

    def begin(self, workload: Workload) -> None:
        """Take the client of each request."""
        if "client" in workload.labels:
            self._clients = workload.labels["client"].tolist()

    def choose(self, request: Request, replicas: Sequence[Seen]) -> int:
        """The replica with the longest prefix, within the deficits."""
        client = str(self._clients[request.index]) if self._clients else ""
        keys = [(client, replica.place) for replica in replicas]
        most = max(self._deficits[key] for key in keys)
        if most <= 0:
            for key in keys:
                self._deficits[key] += (-most // self._quantum + 1) * self._quantum
        cached = [replica.cached_tokens(request) for replica in replicas]
        having = [place for place, key in enumerate(keys) if self._deficits[key] > 0]
        chosen = min(having, key=lambda place: (-cached[place], replicas[place].requests))
        self._deficits[keys[chosen]] -= request.prompt_tokens - cached[chosen]
        return chosen
