"""What replicas of a fleet share below their GPUs: named tiers, uplinks of a machine, keys of texts.

    shared      one for the whole fleet
    shared=4    one for each 4 replicas, in order: those of one machine

Replicas that share a tier must agree on its chunks: the same model, tokens and bytes.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from kvsim.allocators.texts import Texts
from kvsim.sim.errors import KvsimError
from kvsim.sim.serving.secondary import Secondary, Sharer, Sharers
from kvsim.sim.serving.uplink import Uplinks

R = TypeVar("R", bound=Sharer)


class ChunkSize(NamedTuple):
    """A chunk of a server: its model, its tokens, and its bytes on all GPUs together."""

    model: str
    tokens: int
    total_bytes: int


class SharedTiers:
    """The shared tiers and links of a run.

    Attributes
    ----------
    place : int
        Place in the fleet of the replica being built.
    """

    def __init__(self) -> None:
        self.place = 0
        self._tiers: dict[tuple[str, int], tuple[Secondary, str, ChunkSize]] = {}
        self._sharers: dict[tuple[int, int], Sharers] = {}
        self._uplinks: dict[int, tuple[Uplinks, str]] = {}
        self._texts: dict[int, Texts] = {}

    def join(self, place: int, replica: R) -> R:
        """A replica joins, or will join, at this place of the fleet; remember what it shares."""
        if self._tiers or self._uplinks:
            replica.place = place
        for (replicas, group), sharers in self._sharers.items():
            if _group(replicas, place) == group:
                sharers.join(place, replica)
        return replica

    def texts(self, chunk_tokens: int) -> Texts:
        """Keys of chunks of `chunk_tokens` tokens: equal for equal texts, on all replicas."""
        return self._texts.setdefault(chunk_tokens, Texts(chunk_tokens))

    def tier(
        self, name: str, replicas: int, said: str, chunk: ChunkSize, make: Callable[[Sharers], Secondary]
    ) -> Secondary:
        """The tier of this name for the replica being built, shared by so many replicas (0: all).

        KvsimError if another replica describes it differently.
        """
        group = _group(replicas, self.place)
        if (name, group) not in self._tiers:
            sharers = self._sharers.setdefault((replicas, group), Sharers(replicas))
            self._tiers[name, group] = make(sharers), said, chunk
        found, first, size = self._tiers[name, group]
        if first != said:
            raise KvsimError(f"secondary_tiers must agree on a shared tier, got {first!r} and {said!r}")
        if size != chunk:
            raise KvsimError(
                f"secondary_tiers: replicas that share {name!r} must have chunks of one model and size, got "
                f"{size.tokens:,} tokens of {size.model} ({size.total_bytes / 2**20:,.2f} MiB) and "
                f"{chunk.tokens:,} of {chunk.model} ({chunk.total_bytes / 2**20:,.2f} MiB)"
            )
        return found

    def uplinks(self, replicas: int, said: str, make: Callable[[], Uplinks]) -> Uplinks:
        """The uplink of the machine of the replica being built.

        KvsimError if another replica of it describes it differently.
        """
        group = _group(replicas, self.place)
        if group not in self._uplinks:
            self._uplinks[group] = make(), said
        found, first = self._uplinks[group]
        if first != said:
            raise KvsimError(f"tier must agree on the uplink of a machine, got {first!r} and {said!r}")
        return found


def _group(replicas: int, place: int) -> int:
    """The number of the machine, if machines have so many replicas; 0 if all replicas are together."""
    return place // replicas if replicas else 0
