"""The interface of a scaling policy; it sees of a replica what a router sees."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from kvsim.sim.routers.base import Seen


class ScalePolicy(ABC):
    """Decides how many replicas there are, and when.

    Attributes
    ----------
    every_s : float
        Seconds between decisions; 0: only at `times_s`.
    """

    every_s: float

    @property
    def times_s(self) -> Sequence[float]:
        """Further times of decisions."""
        return ()

    @property
    @abstractmethod
    def first(self) -> int:
        """Replicas at the start."""

    @abstractmethod
    def target(self, now_s: float, loads: Sequence[Seen], alive: int) -> int:
        """How many replicas there should be from now on.

        `loads` are those to which requests are sent; `alive` also counts those that are starting.
        """
