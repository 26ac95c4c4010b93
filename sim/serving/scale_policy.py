"""What a policy of scaling must say; of a replica it sees what a router sees."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from kvsim.sim.routers.base import Seen


class ScalePolicy(ABC):
    """How many replicas there are, and when that is decided.

    Attributes
    ----------
    every_s : float
        It decides every so many seconds; 0: at `times_s` alone.
    """

    every_s: float

    @property
    def times_s(self) -> Sequence[float]:
        """When else it decides."""
        return ()

    @property
    @abstractmethod
    def first(self) -> int:
        """Replicas in the beginning."""

    @abstractmethod
    def target(self, now_s: float, loads: Sequence[Seen], alive: int) -> int:
        """How many there should be from now on.

        `loads` are those to which requests are sent, `alive` also counts those that start.
        """
