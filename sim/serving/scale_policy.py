"""What a policy of scaling must say; of a replica it sees what a router sees."""

from collections.abc import Sequence
from typing import Protocol

from kvsim.sim.routers.base import Seen


class ScalePolicy(Protocol):
    """How many replicas there are, and when that is decided."""

    @property
    def first(self) -> int:
        """Replicas in the beginning."""

    @property
    def times_s(self) -> list[float]:
        """When it decides."""

    @property
    def every_s(self) -> float:
        """It also decides every so many seconds; 0: no."""

    def target(self, now_s: float, loads: Sequence[Seen], alive: int) -> int:
        """How many there should be from now on.

        `loads` are those to which requests are sent, `alive` also counts those that start.
        """
