"""One number of a server: what was measured, and what is simulated."""

from dataclasses import dataclass
from math import nan


@dataclass(frozen=True)
class Compared:
    """Of one quantity of one server: what was measured, and what is simulated."""

    what: str
    statistic: str
    measured: float
    simulated: float

    @property
    def off(self) -> float:
        """Simulated over measured, less 1; NaN of what took no time, as TPOT of single tokens."""
        return self.simulated / self.measured - 1 if self.measured else nan
