"""A tier below the hosts' memory: private to one server, or shared by the servers of a fleet.

    has      the pieces that are stored completely by a time; one that is still being written is not stored
    take     begin to write what is not there; what the policy evicts for it is gone immediately
    copy     a job takes its place on the link: one job at a time in each direction, whichever server's it is

Each sharer asks at its own decisions, which are in the order of time, and of places at equal times. What one
changes may be what another's next step finds: so the others, if requests wait there, first decide what they
would have decided by now, and then look again at their next step (`Sharers`).
A tier evicts by any policy of allocators/eviction.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Protocol

from kvsim.allocators.eviction.base import Eviction
from kvsim.allocators.tiers.pieces import Piece, before, joined, keys_of, one_by_one, size
from kvsim.sim.serving.link import Link
from kvsim.sim.serving.server import Server
from kvsim.sim.serving.tier_jobs import Job
from kvsim.sim.serving.uplink import shared_by


class Sharer(Protocol):
    """A replica that shares a tier."""

    server: Server
    place: int

    def look_again(self, first: bool) -> None:
        """The shared tier changes now; `first`: after this replica's decision of this instant."""


class Sharers:
    """Replicas that share tiers, by place: all of a fleet (`size` 0), or those of one machine."""

    def __init__(self, size: int = 0) -> None:
        self.size = size
        self._replicas: dict[int, Sharer] = {}

    def __len__(self) -> int:
        return len(self._replicas)

    def join(self, place: int, replica: Sharer) -> None:
        """A replica is, or will be, in this place."""
        replica.place = place
        self._replicas[place] = replica

    def changes(self, server: Server) -> None:
        """A decision of this server is about to change the shared tiers."""
        first = True
        for replica in self._replicas.values():
            if replica.server is server:
                first = False
            else:
                replica.look_again(first)


class Secondary:
    """A tier below a host's memory.

    Parameters
    ----------
    name : str
    policy : Eviction
        Its contents.
    link : Link
        Its blocks are what the policy counts, on all GPUs together.
    sharers : Sharers or None
        The replicas that share it; None: it belongs to one server.

    Attributes
    ----------
    whole_ps : dict of int
        Stored key -> when it is complete.
    """

    def __init__(self, name: str, policy: Eviction, link: Link, sharers: Sharers | None = None) -> None:
        self.name, self.policy, self.link, self.sharers = name, policy, link, sharers
        self.whole_ps: dict[int, int] = {}
        self._asked_ps = 0  # when the last job came
        self._ends: list[int] = []  # ends of all writes: they never decrease

    @property
    def is_shared(self) -> bool:
        """Whether several replicas share it."""
        return self.sharers is not None and len(self.sharers) > 1

    @property
    def column(self) -> str:
        """The column of the timeline that tells what it holds."""
        of = "" if self.sharers is None else f"_of_{self.sharers.size or 'all'}"
        return f"tier_{self.name}{of}_held_bytes"

    def called(self, place: int) -> str:
        """What the replica in this place of a fleet calls it."""
        return self.name if self.sharers is None else f"{self.name} of {shared_by(self.sharers.size, place)}"

    def busy_by(self, loads: bool, end_ps: int) -> tuple[int, int]:
        """For how long its link was in use until `end_ps`, or until the last job came; and until when."""
        until_ps, link = max(end_ps, self._asked_ps), self.link
        return link.busy_ps(loads) - max(0, link.lanes[loads].free_ps - until_ps), until_ps

    @property
    def held_bytes(self) -> int:
        """What it holds, including what is still being written."""
        return len(self.policy.held) * self.link.block_bytes

    def has(self, pieces: list[Piece], by_ps: int) -> list[Piece]:
        """The leading pieces that are complete by `by_ps`, up to the first chunk that is not."""
        whole_ps, count = self.whole_ps, 0
        for key in keys_of(pieces):
            if key not in whole_ps or whole_ps[key] > by_ps:
                break
            count += 1
        return before(pieces, count)

    def use(self, server: Server, pieces: list[Piece]) -> None:
        """A server reads these pieces."""
        self._tell(server)
        for key in keys_of(pieces):
            self._gone(self.policy.touch(key))

    def take(self, server: Server, pieces: list[Piece]) -> list[Piece]:
        """A server offers these: make room for those that are missing and that the policy accepts."""
        self._tell(server)
        policy, new = self.policy, []
        for piece in one_by_one(pieces):
            key = piece[1]
            if key in policy.held:
                self._gone(policy.touch(key))
                continue
            self._gone(policy.insert(key))
            if key in policy.held:
                new.append(piece)
        return joined(new)

    def _tell(self, server: Server) -> None:
        if self.sharers is not None:
            self.sharers.changes(server)

    def _gone(self, keys: Sequence[int]) -> None:
        for key in keys:
            self.whole_ps.pop(key, None)

    def copy(self, job: Job, now_ps: int) -> int:
        """A job takes its place; returns when it ends."""
        self._asked_ps, job.ends_ps = max(self._asked_ps, now_ps), self.link.end_of(job, now_ps)
        if not job.loads:
            self._written(job.pieces, job.ends_ps)
        return job.ends_ps

    def write(self, pieces: list[Piece], now_ps: int) -> int:
        """Write what was taken, queued after all earlier writes; returns when it is complete."""
        ends_ps = self.link.copied_ps(False, size(pieces), now_ps)
        self._asked_ps = max(self._asked_ps, now_ps)
        self._written(pieces, ends_ps)
        return ends_ps

    def _written(self, pieces: list[Piece], ends_ps: int) -> None:
        self._ends.append(ends_ps)
        held = self.policy.held
        self.whole_ps.update((key, ends_ps) for key in keys_of(pieces) if key in held)

    def next_ps(self, after_ps: int) -> int | None:
        """When the next write is complete, as far as is known; None: never."""
        at = bisect_right(self._ends, after_ps)
        return self._ends[at] if at < len(self._ends) else None
