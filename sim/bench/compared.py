"""One number of a server, measured and simulated."""

from dataclasses import dataclass
from math import nan


@dataclass(frozen=True)
class Compared:
    """One quantity of one server, measured and simulated."""

    what: str
    statistic: str
    measured: float
    simulated: float

    @property
    def off(self) -> float:
        """Simulated over measured, minus 1; NaN if it took no time, as TPOT of single tokens."""
        return self.simulated / self.measured - 1 if self.measured else nan
