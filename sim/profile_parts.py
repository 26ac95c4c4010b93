"""The parts of a calibrated profile, as functions: picoseconds of a launch from what it moves and computes.

    duration = (t0 + pnorm(bytes / bandwidth, work / rate)) * ratio       ratio: measured / form, interpolated

The formulas are those of kernels/calibration/form.py, which knows nothing of us nor we of it; a test holds
the two together. Here they are made for many calls: axes that a server never changes are fixed once, which
leaves tables of fewer axes.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from math import ceil, log2, sqrt
from typing import Any, NamedTuple

from sim.workload import PS_PER_S

Axis = Mapping[str, Any]
Ratio = Any
"""Nested lists of numbers, a level per axis; without axes a number."""
Place = tuple[str, str, float]
"""(part, axis, value): where a launch lies outside what was measured."""
Priced = tuple[float, tuple[Place, ...]]
"""Picoseconds, and where they lie outside what was measured."""


class Chunks(NamedTuple):
    """The chunks of prompts that a step computes."""

    sequences: int
    tokens: int
    pairs: int

    @property
    def place(self) -> dict[str, float]:
        """On the axes of prefill attention: all tokens, and what is cached before a chunk in the mean."""
        chunk = self.tokens / self.sequences
        return {"tokens": self.tokens, "prefix_tokens": max(self.pairs / self.tokens - (chunk + 1) / 2, 0.0)}


def pnorm(p: object, a: float, b: float) -> float:
    """(a^p + b^p)^(1/p) for p of 1, 2, 4 and "max"."""
    if p == 4:
        a, b = a * a, b * b
        return sqrt(sqrt(a * a + b * b))
    if p == 2:
        return sqrt(a * a + b * b)
    if p == 1:
        return a + b
    return a if a > b else b


class Part:
    """One part of a profile; axes in `fixed` have one value for good.

    Attributes
    ----------
    t0_ps, byte_ps, work_ps : float
        The form: at least, for each byte, for each unit of work (0 where the part has none).
    """

    def __init__(self, name: str, part: Mapping[str, Any], **fixed: float) -> None:
        form = part["form"]
        self.name = name
        self.p = form["p"]
        self.t0_ps: float = form["t0_s"] * PS_PER_S
        self.byte_ps: float = PS_PER_S / form["bandwidth_bytes_per_s"]
        self.work_ps: float = PS_PER_S / form["work_per_s"] if form["work_per_s"] else 0.0
        self.constants: Mapping[str, Any] = part.get("constants", {})
        self.limits: dict[str, tuple[float, float]] = {
            axis: (low, high) for axis, (low, high) in part["range"].items()
        }
        self._scale = 1.0
        self._tables: list[tuple[Sequence[Axis], Ratio]] = []
        for table in part["tables"]:
            axes, ratio = table["axes"], table["ratio"]
            for axis, value in fixed.items():
                axes, ratio = fix_axis(axes, ratio, axis, value)
            if axes:
                self._tables.append((axes, ratio))
            else:
                self._scale *= ratio
        self.outside_always = tuple(self.outside(fixed))

    def form_ps(self, moved: float, work: float = 0.0) -> float:
        """The duration by the form alone."""
        moving: float = moved * self.byte_ps
        return self.t0_ps + (pnorm(self.p, moving, work * self.work_ps) if self.work_ps else moving)

    def line(self, axis: str, **place: float) -> "Line":
        """The ratio along one axis, at a place that names all others."""
        lines, scale = [], self._scale
        for axes, table in self._tables:
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
        """(part, axis, value) of each axis on which a place lies outside what was measured.

        A launch that moves less than the smallest measured is no extrapolation where no work counts: it takes
        the latency that the smallest took.
        """
        found = []
        for axis, value in place.items():
            low, high = self.limits.get(axis, (value, value))
            if value > high or (value < low and not (axis == "bytes" and not self.work_ps)):
                found.append((self.name, axis, value))
        return found


class Along:
    """A part along the one axis that is left; `place` names all others."""

    def __init__(self, part: Part, axis: str, **place: float) -> None:
        self._part, self._axis = part, axis
        self._line = part.line(axis, **place)
        self._outside = (*part.outside_always, *part.outside(place))

    def priced(self, moved: float, work: float, value: float) -> Priced:
        """A launch at a value of the axis."""
        ps = self._part.form_ps(moved, work) * self._line.at(value)
        return ps, (*self._outside, *self._part.outside({self._axis: value}))


def fix_axis(axes: Sequence[Axis], ratio: Ratio, name: str, value: float) -> tuple[Sequence[Axis], Ratio]:
    """The table with one axis less, at a value of it: linear in log2(value + offset), held at the edges."""
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
        self.values, self.offset, self.ratio = values, offset, ratio
        self.least = min(ratio)
        logs = [log2(value + offset) for value in values]
        flat = [(ratio[0], 0.0, 0.0)]
        rising = [
            (ratio[i], (ratio[i + 1] - ratio[i]) / (logs[i + 1] - logs[i]), logs[i])
            for i in range(len(values) - 1)
        ]
        self.segments = [*flat, *rising, (ratio[-1], 0.0, 0.0)]
        """(ratio, slope, log) below the first value, between each two, and from the last on."""

    def places(self, first: float, last: float) -> tuple[float, float, float] | None:
        """The segment that both lie in, if it is one."""
        index = bisect_right(self.values, first)
        one = index == len(self.values) or last < self.values[index]
        return self.segments[index] if one else None

    def at(self, x: float) -> float:
        """The ratio at x."""
        ratio, slope, log = self.segments[bisect_right(self.values, x)]
        return ratio + slope * (log2(x + self.offset) - log) if slope else ratio


def padded_head(head_dim: int) -> str:
    """The head size by which constants are known: the next power of two."""
    return str(min(max(1 << (head_dim - 1).bit_length(), 32), 256))


def by_head_dim(sizes: Mapping[str, int], head_dim: int) -> int:
    """A tile size from the constants, by head size."""
    return sizes[padded_head(head_dim)]


def product_features(
    constants: Mapping[str, Any], tokens: int, inputs: float, outputs: float
) -> tuple[float, float]:
    """(bytes, work) of [tokens, inputs] times [inputs, outputs] in 16 bits."""
    rows, columns = constants["token_tile"], constants["output_tile"]
    moved = 2 * (inputs * outputs + tokens * inputs + tokens * outputs)
    return moved, 2 * inputs * (ceil(tokens / rows) * rows) * (ceil(outputs / columns) * columns)


def prefill_features(
    constants: Mapping[str, Any],
    chunks: Chunks,
    *,
    kv_heads: int,
    group: int,
    head_dim: int,
    element_bytes: int,
) -> tuple[float, float]:
    """(bytes, work) of prefill attention of all chunks together."""
    sequences, tokens, pairs = chunks
    chunk = tokens / sequences
    query_tile = max(by_head_dim(constants["rows"], head_dim) // group, 1)
    key_tile = by_head_dim(constants["key_tile"], head_dim)
    tiles = sequences * ceil(chunk / query_tile)
    padded = pairs * tiles * query_tile / tokens + tokens * (query_tile + key_tile) / 2
    idle = max(1.0, constants["multiprocessors"] / (tiles * kv_heads))
    context = sequences * (pairs / tokens + (chunk - 1) / 2)
    moved = 2 * head_dim * (2 * tokens * kv_heads * group + kv_heads * context * element_bytes)
    return moved, 4 * kv_heads * group * head_dim * padded * idle
