"""What the replicas of a fleet share below their hosts: named tiers, and the keys of texts.

Replicas that share a tier must agree on its chunks: the same model, tokens and bytes.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from kvsim.allocators.texts import Texts
from kvsim.sim.errors import KvsimError
from kvsim.sim.serving.secondary import Secondary, Sharer, Sharers

R = TypeVar("R", bound=Sharer)


class ChunkSize(NamedTuple):
    """A chunk of a server: its model, its tokens, and its bytes on all GPUs together."""

    model: str
    tokens: int
    total_bytes: int


class SharedTiers:
    """The shared tiers of one run.

    Attributes
    ----------
    sharers : Sharers
        The replicas.
    """

    def __init__(self) -> None:
        self.sharers = Sharers()
        self._tiers: dict[str, tuple[Secondary, str, ChunkSize]] = {}
        self._texts: dict[int, Texts] = {}

    def join(self, place: int, replica: R) -> R:
        """A replica is, or will be, in this place of the fleet; its tiers are known."""
        if self._tiers:
            self.sharers.join(place, replica)
        return replica

    def texts(self, chunk_tokens: int) -> Texts:
        """The keys of chunks of `chunk_tokens` tokens: equal for equal texts, on all replicas."""
        return self._texts.setdefault(chunk_tokens, Texts(chunk_tokens))

    def tier(self, name: str, said: str, chunk: ChunkSize, make: Callable[[], Secondary]) -> Secondary:
        """The tier of that name; KvsimError if another replica describes it differently."""
        if name not in self._tiers:
            self._tiers[name] = make(), said, chunk
        found, first, size = self._tiers[name]
        if first != said:
            raise KvsimError(f"secondary_tiers must agree on a shared tier, got {first!r} and {said!r}")
        if size != chunk:
            raise KvsimError(
                f"secondary_tiers: replicas that share {name!r} must have chunks of one model and size, got "
                f"{size.tokens:,} tokens of {size.model} ({size.total_bytes / 2**20:,.2f} MiB) and "
                f"{chunk.tokens:,} of {chunk.model} ({chunk.total_bytes / 2**20:,.2f} MiB)"
            )
        return found
