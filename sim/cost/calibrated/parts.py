"""The parts of a calibrated profile, as functions: picoseconds of a launch from what it moves and computes.

    duration = (t0 + pnorm(bytes / bandwidth, work / rate)) * ratio       ratio: measured / form, interpolated

The formulas are those of kernels/calibration/form.py. Neither module imports the other; a test compares them.
This module is made for many calls: axes that a server never changes are fixed once, which leaves tables with
fewer axes.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from math import ceil, inf, log2, sqrt
from typing import Any

from kvsim.sim.cost.calibrated.layer import Experts
from kvsim.sim.cost.lent_parts import LENT, part_words
from kvsim.sim.workload import PS_PER_S

Axis = Mapping[str, Any]
Ratio = Any
"""Nested lists of numbers, one level per axis; a plain number without axes."""
Place = tuple[str, str, float]
"""(part, axis, value) of a launch outside the measured range; without an axis: never measured."""


class Priced:
    """The time of some launches, and how much of it lies outside what was measured.

    A launch lies outside if it does on any axis of its part; `reasons` has its picoseconds for each such
    axis.
    """

    __slots__ = ("outside_ps", "ps", "reasons")

    def __init__(
        self, ps: float, outside_ps: float = 0.0, reasons: tuple[tuple[Place, float], ...] = ()
    ) -> None:
        self.ps, self.outside_ps, self.reasons = ps, outside_ps, reasons

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Priced) and self._all() == other._all()

    def __hash__(self) -> int:
        return hash(self._all())

    def _all(self) -> tuple[float, float, tuple[tuple[Place, float], ...]]:
        return self.ps, self.outside_ps, self.reasons

    @classmethod
    def of(cls, ps: float, places: Sequence[Place]) -> "Priced":
        """The time of one launch, and where it lies outside."""
        return Priced(ps, ps, tuple([(place, ps) for place in places])) if places else Priced(ps)

    def times(self, count: int) -> "Priced":
        """The same launch `count` times."""
        reasons = tuple((place, count * ps) for place, ps in self.reasons)
        return Priced(count * self.ps, count * self.outside_ps, reasons)


def total(some: Sequence[Priced]) -> Priced:
    """The sum, also per reason."""
    if len(some) == 1:
        return some[0]
    ps, outside_ps = sum([each.ps for each in some]), sum([each.outside_ps for each in some])
    if not outside_ps:
        return Priced(ps)
    reasons: dict[Place, float] = {}
    for each in some:
        for place, under in each.reasons:
            reasons[place] = reasons.get(place, 0.0) + under
    return Priced(ps, outside_ps, tuple(reasons.items()))


class Part:
    """One part of a profile; axes in `fixed` have one value.

    Attributes
    ----------
    t0_ps, byte_ps, work_ps, merge_ps : float
        The form: least time, per byte, per unit of work, for merging pieces (0 if the part has no such
        term).
    """

    def __init__(self, name: str, part: Mapping[str, Any], **fixed: float) -> None:
        form = part["form"]
        self.name = name
        self._p = inf if form["p"] == "max" else float(form["p"])
        self.t0_ps: float = form["t0_s"] * PS_PER_S
        self.byte_ps: float = PS_PER_S / form["bandwidth_bytes_per_s"]
        self.work_ps: float = PS_PER_S / form["work_per_s"] if form["work_per_s"] else 0.0
        self.merge_ps: float = form.get("merge_s", 0.0) * PS_PER_S
        self.constants: Mapping[str, Any] = part.get("constants", {})
        self.limits: dict[str, tuple[float, float]] = {
            axis: (low, high) for axis, (low, high) in part["range"].items()
        }
        self._scale = 1.0
        self.tables: list[tuple[Sequence[Axis], Ratio]] = []
        for table in part["tables"]:
            axes, ratio = table["axes"], table["ratio"]
            for axis, value in fixed.items():
                axes, ratio = fix_axis(axes, ratio, axis, value)
            if axes:
                self.tables.append((axes, ratio))
            else:
                self._scale *= ratio
        self.outside_always = tuple(self.outside(fixed))
        if "scaled_from" in part:  # measured on another GPU (benchmarks/elsewhere/scaled.py)
            whose = f"{name.replace('_', ' ')} of {part['scaled_from']}, scaled"
            self.outside_always += ((whose, "", 0.0),)
        if LENT in part:
            self.outside_always += ((f"{part_words(name)} of {part[LENT]}", "", 0.0),)

    def norm(self, a: float, b: float) -> float:
        """(a^p + b^p)^(1/p) with the p of the form, from 1 to infinity."""
        p = self._p
        if p == inf:
            return a if a >= b else b
        if p == 1:
            return a + b
        if p == 2:
            return sqrt(a * a + b * b)
        if p == 3:
            return float((a * a * a + b * b * b) ** (1 / 3))
        return float((a**p + b**p) ** (1 / p))

    def form_ps(self, moved: float, work: float = 0.0) -> float:
        """The duration by the form alone."""
        moving = moved * self.byte_ps
        return self.t0_ps + (self.norm(moving, work * self.work_ps) if self.work_ps else moving)

    def line(self, axis: str, **place: float) -> "Line":
        """The ratio along one axis, at a place that gives values of all other axes."""
        lines, scale = [], self._scale
        for axes, table in self.tables:
            for name, value in place.items():
                axes, table = fix_axis(axes, table, name, value)  # noqa: PLW2901
            if axes:
                lines.append(Line(axes[0]["values"], axes[0]["offset"], table))
            else:
                scale *= table
        if not lines:
            return Line([1], 0, [scale])
        if len(lines) > 1:
            raise ValueError(f"part {self.name}: {len(lines)} tables along {axis}, one can be read")
        return Line(lines[0].values, lines[0].offset, [scale * ratio for ratio in lines[0].ratio])

    def outside(self, place: Mapping[str, float]) -> list[Place]:
        """(part, axis, value) for each axis on which a place lies outside what was measured.

        In a part that depends on bytes, moving less than the smallest measured launch is no extrapolation: it
        takes the latency of the smallest.
        """
        found = []
        for axis, value in place.items():
            low, high = self.covered(axis)
            if not low <= value <= high:
                found.append((self.name, axis, value))
        return found

    def covered(self, axis: str) -> tuple[float, float]:
        """The range of an axis within which nothing is extrapolated."""
        low, high = self.limits.get(axis, (-inf, inf))
        return -inf if axis == "bytes" else low, high


class Along:
    """A part along its one remaining axis; `place` gives values of all others."""

    def __init__(self, part: Part, axis: str, **place: float) -> None:
        self._part, self._axis = part, axis
        self._line = part.line(axis, **place)
        self._outside = (*part.outside_always, *part.outside(place))
        self._least, self._most = part.covered(axis) if not self._outside else (inf, -inf)

    def ratio(self, value: float) -> float:
        """Measured over form, at a value of the axis."""
        return self._line.at(value)

    def priced(self, moved: float, work: float, value: float) -> Priced:
        """A launch at a value of the axis."""
        ps = self._part.form_ps(moved, work) * self._line.at(value)
        if self._least <= value <= self._most:
            return Priced(ps)
        return Priced.of(ps, (*self._outside, *self._part.outside({self._axis: value})))


class Product:
    """Weights of a known shape times any number of tokens; in 16 bits unless the part says otherwise.

    With the constant `real_data`, the measured weights were all equal or never set, and real ones take that
    many times as long (benchmarks/elsewhere). Interpolated ratios may imply an impossible bandwidth, so a
    product takes at least the time to move its bytes at `most_bytes_per_s`.
    """

    def __init__(self, part: Part, inputs: int, outputs: int, most_bytes_per_s: float = inf) -> None:
        constants = part.constants
        self._least_byte_ps = PS_PER_S / most_bytes_per_s
        self._along = Along(part, "tokens", inputs=inputs, outputs=outputs)
        self._weight_bytes: float = constants.get("weight_bytes", 2) * inputs * outputs
        self._token_bytes: float = constants.get("input_bytes", 2) * inputs + 2 * outputs
        self._rows: float = constants["token_tile"]
        self._columns = ceil(outputs / constants["output_tile"])
        self._tile_work: float = 2 * inputs * constants["token_tile"] * constants["output_tile"]
        self._wave: float = constants.get("multiprocessors", 0)
        self._idle: float = constants.get("whole_waves", 0)
        self._least: float = constants.get("least_wave", 0) * self._wave
        self._real_work: float = 2 * inputs * outputs * (constants.get("real_data", 1.0) - 1)  # per token

    def ratio(self, tokens: int) -> float:
        """Measured over form, for `tokens` tokens."""
        return self._along.ratio(tokens)

    def priced(self, tokens: int) -> Priced:
        """The product for `tokens` tokens."""
        tiles = -(-tokens // self._rows) * self._columns
        if tiles > self._wave > 0:  # the idle part of the last of several waves
            tiles += self._idle * (-tiles % self._wave)
        elif tiles < self._least:
            tiles = self._least
        moved = self._weight_bytes + tokens * self._token_bytes
        work = tiles * self._tile_work + tokens * self._real_work
        found, least_ps = self._along.priced(moved, work, tokens), moved * self._least_byte_ps
        return found if found.ps >= least_ps else Priced.of(least_ps, [place for place, _ in found.reasons])


class ExpertsPart:
    """The routed experts of a layer on one GPU, for any number of tokens.

    Parameters
    ----------
    skew : float
        Unevenness of the routing, on the part's axis: 0 is even, 1.2 a power law.
    weight_bytes : float
        Bytes per weight, if different from the part's own.
    """

    def __init__(self, part: Part, layer: Experts, skew: float, weight_bytes: float | None = None) -> None:
        constants = self._constants = part.constants
        self._layer = layer
        own: float = constants["weight_bytes"]
        place = {"skew": skew, "shared": layer.shared, "local": layer.local}
        self._along = Along(part, "rows", **place, matrix=layer.hidden * layer.inner)
        self._matrices: float = constants["matrices"] * layer.hidden * layer.inner
        self._weight_bytes = weight_bytes or own
        self._all_rows: int = constants.get("all_rows", 0)
        other = weight_bytes not in (None, own)
        self._never = ((f"weights of {8 * (weight_bytes or 0):g} bits", "", 0.0),) if other else ()

    def priced(self, tokens: int) -> Priced:
        """Both products of the chosen experts, and moving rows in and out; `tokens` are those of one rank."""
        layer = self._layer
        tokens *= layer.ranks
        active, rows = chosen_experts(layer, tokens), tokens * layer.top_k * layer.local / layer.experts
        moved = self._weight_bytes * active * self._matrices
        handled = tokens * layer.top_k if self._all_rows else rows
        moved += 2 * handled * (2 * layer.hidden + 3 * layer.inner)
        tile = expert_tile(self._constants, rows / layer.local)
        work = 2 * self._matrices * active * tile * ceil(rows / active / tile)
        found = self._along.priced(moved, work, tokens * layer.top_k / layer.experts)
        return Priced.of(found.ps, self._never) if self._never else found


def expert_tile(constants: Mapping[str, Any], rows: float) -> float:
    """Rows of a tile, if each of the experts has `rows` on average."""
    if "token_tile" in constants:
        return float(constants["token_tile"])
    rounded = 1 << (ceil(rows) - 1).bit_length()
    return float(min(max(rounded, constants["least_tile"]), constants["most_tile"]))


def chosen_experts(layer: Experts, tokens: int) -> float:
    """Mean number of a GPU's experts that `tokens` tokens choose, each independently and evenly."""
    rows = tokens * layer.top_k * layer.local / layer.experts
    expected: float = layer.local * (1 - (1 - layer.top_k / layer.experts) ** tokens)
    return max(expected, min(1.0, rows))


class Surface:
    """The ratio of a part over its two remaining axes."""

    def __init__(self, part: Part, first: str, second: str) -> None:
        axes = [axis for table in part.tables for axis in table[0] if axis["name"] == first]
        self._values = axes[0]["values"] if axes else [1]
        self._offset = axes[0]["offset"] if axes else 0
        self._logs = [log2(value + self._offset) for value in self._values]
        self._lines = [part.line(second, **{first: value}) for value in self._values]

    def at(self, x: float, y: float) -> float:
        """The ratio at a place: linear between two lines, each itself linear."""
        after, lines = bisect_right(self._values, x), self._lines
        if after in (0, len(lines)):
            return lines[max(after - 1, 0)].at(y)
        low, high = self._logs[after - 1], self._logs[after]
        below = lines[after - 1].at(y)
        return below + (log2(x + self._offset) - low) / (high - low) * (lines[after].at(y) - below)


def fix_axis(axes: Sequence[Axis], ratio: Ratio, name: str, value: float) -> tuple[Sequence[Axis], Ratio]:
    """The table at one value of an axis: linear in log2(value + offset), constant beyond the edges."""
    for depth, axis in enumerate(axes):
        if axis["name"] == name:
            values, offset = axis["values"], axis["offset"]
            after = bisect_right(values, value)
            if after == 0:
                found = _picked(ratio, depth, 0)
            elif after == len(values):
                found = _picked(ratio, depth, -1)
            else:
                low, high = log2(values[after - 1] + offset), log2(values[after] + offset)
                share = (log2(value + offset) - low) / (high - low)
                found = _blended(ratio, depth, after, share)
            return [*axes[:depth], *axes[depth + 1 :]], found
    return axes, ratio


def _picked(ratio: Ratio, depth: int, index: int) -> Ratio:
    return ratio[index] if depth == 0 else [_picked(row, depth - 1, index) for row in ratio]


def _blended(ratio: Ratio, depth: int, after: int, share: float) -> Ratio:
    if depth:
        return [_blended(row, depth - 1, after, share) for row in ratio]
    return _between(ratio[after - 1], ratio[after], share)


def _between(below: Ratio, above: Ratio, share: float) -> Ratio:
    if isinstance(below, list):
        return [_between(one, other, share) for one, other in zip(below, above, strict=True)]
    return below + share * (above - below)


class Line:
    """A ratio along one axis, as segments: `ratio[i] + slope[i] * (log2(x + offset) - log[i])`."""

    def __init__(self, values: Sequence[float], offset: float, ratio: Sequence[float]) -> None:
        self.values, self.offset, self.ratio = [float(value) for value in values], offset, ratio
        logs = [log2(value + offset) for value in values]
        flat = [(ratio[0], 0.0, 0.0)]
        rising = [
            (ratio[i], (ratio[i + 1] - ratio[i]) / (logs[i + 1] - logs[i]), logs[i])
            for i in range(len(values) - 1)
        ]
        self.segments = [*flat, *rising, (ratio[-1], 0.0, 0.0)]
        """(ratio, slope, log) below the first value, between neighbours, and beyond the last value."""

    def at(self, x: float) -> float:
        """The ratio at x."""
        ratio, slope, log = self.segments[bisect_right(self.values, x)]
        return ratio + slope * (log2(x + self.offset) - log) if slope else ratio


def padded_head(head_dim: int) -> str:
    """The head size under which constants are stored: rounded up to a power of two."""
    return str(min(max(1 << (head_dim - 1).bit_length(), 32), 256))


def by_head_dim(sizes: Mapping[str, int], head_dim: int) -> int:
    """A tile size from the constants, for a head size."""
    return int(sizes[padded_head(head_dim)])
