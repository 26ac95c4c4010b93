"""llm-d's scheduler: the replica with the largest weighted sum of scores, each from 0 to 1.

    queue     (longest queue - its queue) / (longest - shortest queue); 1 if all are equal
    kv        1 - share of its KV memory that is allocated
    prefix    blocks of the prompt that it has / blocks of the prompt
    active    (most requests - its requests) / most requests; 1 for an idle replica
    session   1 for the replica that had the session's last request, else 0

Ties are broken at random. Queue and KV memory are read every `signal_interval` seconds, so they are stale;
what the scheduler knows itself (prefixes, requests that it sent, sessions) is not. The weights are those of
Red Hat's default: queue 2, prefix 3, no others.

Sources: llm-d-inference-scheduler at 520af47, pkg/epp/framework/plugins/scheduling/{scorer,picker}, and
pkg/epp/datalayer/runtime.go for 50 ms; Red Hat OpenShift AI 3.4, "Configuring scheduler settings".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from kvsim.allocators.option import option
from kvsim.sim.routers.base import Router, Seen
from kvsim.sim.serving.request import Request
from kvsim.sim.workload import PS_PER_S, Workload


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Options of llm-d: weights of the scorers, and the delay of signals."""

    queue_weight: float = option("Weight of a short queue.", default=2.0, value="X", least=0)
    prefix_weight: float = option("Weight of a cached prefix.", default=3.0, value="X", least=0)
    kv_weight: float = option("Weight of free KV memory.", default=0.0, value="X", least=0)
    active_weight: float = option("Weight of few requests.", default=0.0, value="X", least=0)
    session_weight: float = option("Weight of the session's last replica.", default=0.0, value="X", least=0)
    signal_interval: float = option(
        "Seconds between two readings of queue and KV memory; 0: always current.",
        default=0.05,
        value="S",
        least=0,
        most=3600,
    )


class Signals(NamedTuple):
    """The last values read from a replica."""

    waiting: int
    used_share: float


class LlmD(Router):
    """Chooses the largest weighted sum of scores."""

    declares: ClassVar[type] = Scores

    def __init__(self, argument: str, rng: np.random.Generator, options: Mapping[str, object]) -> None:
        super().__init__(argument, rng, options)
        self._weights = self.own(Scores)
        self.interval_ps = round(self._weights.signal_interval * PS_PER_S)
        self._signals: dict[int, Signals] = {}  # by place of the replica
        self._sessions: Sequence[object] | None = None
        self._last: dict[object, int] = {}  # session -> place of the replica

    def begin(self, workload: Workload) -> None:
        """Take the sessions of the trace, if it has any."""
        found = [workload.labels[name] for name in ("session", "client") if name in workload.labels]
        self._sessions = found[0].tolist() if found else None

    def look(self, replicas: Sequence[Seen]) -> None:
        """Read queues and KV memories."""
        for replica in replicas:
            share = replica.used_share if self._weights.kv_weight else 0.0
            self._signals[replica.place] = Signals(replica.waiting, share)

    def choose(self, request: Request, replicas: Sequence[Seen]) -> int:
        """The replica with the largest sum; ties are broken by the seed."""
        if not self.interval_ps:
            self.look(replicas)
        scores = self.scores(request, replicas)
        best = [place for place, score in enumerate(scores) if score == max(scores)]
        chosen = best[int(self.rng.integers(len(best)))] if len(best) > 1 else best[0]
        session = self._session(request)
        if session is not None:
            self._last[session] = replicas[chosen].place
        return chosen

    def scores(self, request: Request, replicas: Sequence[Seen]) -> list[float]:
        """Weighted sum of scores of each replica."""
        weights, session = self._weights, self._session(request)
        signals = [self._signals.get(replica.place, Signals(0, 0.0)) for replica in replicas]
        queues = [signal.waiting for signal in signals]
        shortest, longest = min(queues), max(queues)
        requests = (
            [replica.requests for replica in replicas] if weights.active_weight else [0] * len(replicas)
        )
        home = -1 if session is None else self._last.get(session, -1)
        found = []
        for replica, signal, active in zip(replicas, signals, requests, strict=True):
            queue = (longest - signal.waiting) / (longest - shortest) if longest > shortest else 1.0
            blocks = request.prompt_tokens // replica.block_size
            had = (
                replica.cached_tokens(request) // replica.block_size
                if weights.prefix_weight and blocks
                else 0
            )
            found.append(
                weights.queue_weight * queue
                + weights.prefix_weight * (had / blocks if blocks else 0.0)
                + weights.kv_weight * (1 - signal.used_share)
                + weights.active_weight * (1 - active / max(*requests, 1))
                + weights.session_weight * (replica.place == home)
            )
        return found

    def _session(self, request: Request) -> object:
        """The session of a request; None if it has none."""
        session = None if self._sessions is None else self._sessions[request.index]
        return None if session == "" else session
