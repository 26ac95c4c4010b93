"""Settings for figures: the style, an instant, a latency."""

from dataclasses import dataclass
from math import isfinite
from typing import Self

from kvsim.reports.figures.style import SCREEN, Style
from kvsim.reports.quantities import LATENCIES, POINTS
from kvsim.sim.errors import KvsimError, unknown


class CannotDraw(KvsimError):
    """These runs lack the data for the figure; the message says what is needed."""


@dataclass(frozen=True)
class Latency:
    """One statistic of a latency in the summary."""

    name: str = "normalized"
    statistic: str = "mean"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `ttft:p99`; without a statistic it is the mean."""
        name, _, statistic = text.partition(":")
        if name not in LATENCIES:
            raise unknown("latency", name, list(LATENCIES))
        if (statistic or "mean") not in POINTS:
            raise KvsimError(f"latency must be NAME:STATISTIC with one of {', '.join(POINTS)}, got {text!r}")
        return cls(name, statistic or "mean")

    @property
    def key(self) -> str:
        """The latency's section in `summary.json`."""
        return LATENCIES[self.name].column

    @property
    def words(self) -> str:
        """An axis label, with the unit."""
        latency = LATENCIES[self.name]
        return f"{latency.name}, {self.statistic} ({latency.unit})"


@dataclass(frozen=True)
class Choices:
    """How to draw.

    `at_s` is the instant of the memory map (None: the fullest). `latency` is for figures over several runs
    (None: the mean normalised latency).
    """

    style: Style = SCREEN
    at_s: float | None = None
    latency: Latency | None = None

    def __post_init__(self) -> None:
        if self.at_s is not None and not (isfinite(self.at_s) and self.at_s >= 0):
            raise KvsimError(f"at must be at least 0 and finite, in seconds, got {self.at_s}")
