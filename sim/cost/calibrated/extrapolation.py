"""How much of the simulated time lies outside what was measured, and why.

The cost model reports which parts of a step lie outside. This module adds up their durations as steps are
carried out, in whole picoseconds, so the result does not depend on how steps were grouped or planned.
"""

from collections.abc import Mapping

from kvsim.sim.cost.calibrated.parts import Place, Priced


class Extrapolation:
    """Time outside, and its reasons."""

    def __init__(self) -> None:
        self.time_ps = 0  # of all steps
        self.outside_ps = 0  # of the parts of steps that lie outside
        self._reasons: dict[tuple[str, str], _Reason] = {}

    @property
    def share(self) -> float:
        """Share of step time spent in parts that lie outside."""
        return self.outside_ps / self.time_ps if self.time_ps else 0.0

    def note(self, priced: Priced, steps: int = 1) -> None:
        """Count what lies outside, for each of `steps` steps."""
        self.outside_ps += steps * int(priced.outside_ps)
        for place, ps in priced.reasons:
            self.add(place, steps * int(ps))

    def add(self, place: Place, duration_ps: int) -> None:
        """Add time under one reason."""
        part, axis, value = place
        reason = self._reasons.get((part, axis))
        if reason is None:
            reason = self._reasons[part, axis] = _Reason(value)
        reason.add(value, duration_ps)

    def words(self, limits: Mapping[tuple[str, str], tuple[float, float]]) -> list[str]:
        """A phrase per reason, longest time first: the values that occurred, and the measured range."""
        ordered = sorted(self._reasons.items(), key=lambda item: (-item[1].time_ps, item[0]))
        return [_phrase(part, axis, reason, limits.get((part, axis))) for (part, axis), reason in ordered]

    @property
    def axes(self) -> list[tuple[str, str]]:
        """(part, axis) of all reasons that have an axis."""
        return [(part, axis) for part, axis in self._reasons if axis]


class _Reason:
    """The time of one reason, and the range of values that occurred."""

    def __init__(self, value: float) -> None:
        self.time_ps = 0
        self.least = self.most = value

    def add(self, value: float, duration_ps: int) -> None:
        self.time_ps += duration_ps
        self.least, self.most = min(self.least, value), max(self.most, value)


def _phrase(part: str, axis: str, reason: _Reason, limits: tuple[float, float] | None) -> str:
    name = part.replace("_", " ")
    if not axis or limits is None:
        return name
    occurred = _number(reason.least)
    if _number(reason.most) != occurred:
        occurred += f" to {_number(reason.most)}"
    low, high = map(_number, limits)
    measured = f"{low} to {high}" if low != high else f"only {low}"
    return f"{name}: {axis.replace('_', ' ')} {occurred} (measured: {measured})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"
