"""Find the largest load within an SLO by bracketing, then bisection on a logarithmic scale.

    load      1    1.3    1.69 | 1.48    1.58    1.53          (x 1.3 up until one misses, then halves)
    within?   yes  yes    no   | yes     no      yes           -> 1.53, the next one tried, 1.58, misses

Every load uses the same random numbers: the same requests with the same gaps, compressed or stretched. So
results are nearly monotonic in the load and bisection works. The answer is the largest load tried that is
within the SLO, at most the tolerance below one that is not.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil, floor, log, sqrt
from typing import Any

FACTOR = 1.3
"""Factor between successive loads until the answer is bracketed."""
STEPS, STEEPEST = 3, 4.0
"""After STEPS steps in one direction each step squares the factor, up to STEEPEST."""
MOST_TRIED = 60


@dataclass(frozen=True)
class Tried:
    """A load that was tried.

    Attributes
    ----------
    load : float
    within : bool
        Whether the SLO was met in a steady state.
    excess : float
        The worst known latency as a multiple of its limit; infinity if nothing finished.
    about : dict
        Further facts on the run.
    """

    load: float
    within: bool
    excess: float
    about: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Found:
    """The result of a search: the largest load within the SLO, the smallest above it that is not, all tries.

    `best` is None if even the smallest load is outside, `worst` if even the largest one is within.
    """

    best: Tried | None
    worst: Tried | None
    tried: tuple[Tried, ...]

    @property
    def edge(self) -> float | None:
        """The load at which the worst latency meets its limit, by log-linear interpolation."""
        if self.best is None or self.worst is None or self.best.load == self.worst.load:
            return None if self.best is None else self.best.load
        below, above = -log(max(self.best.excess, 1e-9)), log(min(max(self.worst.excess, 1e-9), 1e9))
        share = below / (below + above) if below >= 0 and above > 0 else 0.5
        return float(self.best.load * (self.worst.load / self.best.load) ** share)

    @property
    def at_least(self) -> bool:
        """Whether the highest load tried is within the SLO, so that the answer may be higher."""
        return self.best is not None and self.worst is None

    @property
    def closest(self) -> Tried:
        """The load whose worst latency exceeds its limit least."""
        return min(self.tried, key=lambda each: (each.excess, -each.load))


def search(
    attempt: Callable[[float], Tried],
    start: float,
    *,
    least: float,
    most: float,
    tolerance: float,
    whole: bool = False,
    factor: float = FACTOR,
) -> Found:
    """Find the largest load within the SLO.

    Parameters
    ----------
    attempt : callable
        Tries a load.
    start : float
        The first load to try, from `least` to `most`.
    tolerance : float
        The answer is less than this share below a load outside the SLO, or one below it if loads are
        integers.
    whole : bool
        Whether loads are integers.
    factor : float
        Factor between loads in the first steps.
    """
    tried: list[Tried] = []
    best: Tried | None = None
    worst: Tried | None = None
    load = min(max(_rounded(start, whole), least), most)
    while len(tried) < MOST_TRIED:
        now = attempt(load)
        if now.within:
            best = now
        else:
            worst = now
        if best and worst:
            near = worst.load <= best.load * (1 + tolerance) or (whole and worst.load - best.load <= 1)
            middle = sqrt(best.load * worst.load)
            further = min(max(round(middle), best.load + 1), worst.load - 1) if whole else _rounded(middle)
        else:
            near = load >= most if now.within else load <= least
            factor = factor if len(tried) < STEPS else min(factor**2, max(STEEPEST, factor))
            further = (
                _rounded(load * factor, whole, ceil) if now.within else _rounded(load / factor, whole, floor)
            )
        tried.append(now)
        if near:
            break
        load = min(max(further, least), most)
    return Found(best, worst, tuple(tried))


def _rounded(load: float, whole: bool = False, how: Callable[[float], float] = round) -> float:
    return max(float(how(load)), 1.0) if whole else float(f"{load:.6g}")
