"""One number of a server: what was measured, and what is simulated."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Compared:
    """Of one quantity of one server: what was measured, and what is simulated."""

    what: str
    statistic: str
    measured: float
    simulated: float

    @property
    def off(self) -> float:
        """Simulated over measured, less 1."""
        return self.simulated / self.measured - 1
