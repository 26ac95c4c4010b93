"""Decode attention of a calibrated profile: its duration over contexts of any sum, maximum and rounding.

    bytes   2 * sum * kv_heads * head_dim * element_bytes
    work    tiles one after the other in the longest program: a context is cut into `most` pieces, as give
            each of the `programs` something to do, but into none shorter than `least_piece_tokens`
                most = max(round(programs / (sequences * kv_heads)), 1)
                work = max(min(longest, least_piece_tokens), longest / most, rounded * kv_heads / programs)
                       / tile * tile_weight
    ratio   by sequences x KV heads, and by the mean context

From one step to the next the sum grows by the number of sequences, the maximum by one, and the rounded sum by
a tile for each context that begins one. `durations` walks through a span with everything else hoisted; `at`
is one step of it, by the same operations in the same order, so that both give the same bits.
"""

from collections.abc import Iterator, Mapping
from itertools import accumulate, cycle, islice
from math import log2, sqrt
from typing import Any

from sim.cost import Spread
from sim.profile_parts import Line, Part, Place, by_head_dim, padded_head, pnorm


class DecodePart:
    """Decode attention in `layers` layers, on one of the GPUs that share them.

    Attributes
    ----------
    tile : int
        Tokens of a tile: contexts count as rounded up to whole ones.
    """

    def __init__(
        self,
        part: Mapping[str, Any],
        *,
        layers: int,
        kv_heads: int,
        group: int,
        head_dim: int,
        element_bytes: int,
        block_size: int,
    ) -> None:
        self._part = Part(
            "decode",
            part,
            block_size=block_size,
            group=group,
            head_dim=head_dim,
            element_bytes=element_bytes,
        )
        constants = self._part.constants
        self._layers, self._kv_heads, self._programs = layers, kv_heads, constants["programs"]
        self._least = constants["least_piece_tokens"]
        self.tile: int = by_head_dim(constants["tile_tokens"], head_dim)
        self._token_ps = 2 * kv_heads * head_dim * element_bytes * self._part.byte_ps
        weight: float = constants.get("tile_weight", {}).get(padded_head(head_dim), 1.0)
        self._tile_ps = self._part.work_ps / self.tile * weight
        self._round_ps = self._tile_ps * kv_heads / self._programs
        self._lines: dict[int, tuple[Line, float]] = {}
        self.limits = self._part.limits

    def outside(self, seqs: int) -> list[Place]:
        """What lies outside of what was measured, the contexts left out."""
        heads = seqs * self._kv_heads
        return [*self._part.outside_always, *self._part.outside({"sequence_heads": heads})]

    def _line(self, seqs: int) -> tuple[Line, float]:
        """Of so many sequences: the ratio by mean context, times layers; ps of a token of the longest one."""
        known = self._lines.get(seqs)
        if known is None:
            heads = seqs * self._kv_heads
            found = self._part.line("context_tokens", sequence_heads=heads)
            line = Line(found.values, found.offset, [self._layers * ratio for ratio in found.ratio])
            known = self._lines[seqs] = line, self._tile_ps / max(round(self._programs / heads), 1)
        return known

    def at(self, seqs: int, total: int, longest: float, rounded: float) -> float:
        """Picoseconds of one step; a `longest` or `rounded` of 0 is not known."""
        mean = total / seqs
        longest = longest or mean
        rounded = rounded or total + seqs * self.tile / 2
        line, piece_ps = self._line(seqs)
        working = max(min(longest, self._least) * self._tile_ps, longest * piece_ps, rounded * self._round_ps)
        return (self._part.t0_ps + pnorm(self._part.p, total * self._token_ps, working)) * line.at(mean)

    def least_ps(self, seqs: int, total: int) -> float:
        """What no step takes less than from this sum of contexts on."""
        line, _ = self._line(seqs)
        return (self._part.t0_ps + total * self._token_ps) * line.least * (1 - 1e-12)

    def durations(self, constant_ps: float, seqs: int, total: int, steps: int, spread: Spread) -> list[int]:
        """Of each step of a span: `at`, and a constant, cut to whole picoseconds.

        The contexts sum to `total` in the first step.
        """
        line, _ = self._line(seqs)
        places = line.places(total / seqs, (total + (steps - 1) * seqs) / seqs)
        if places is None:  # the ratio has a corner in this span
            apart = ((spread.longest + i, rounded) for i, rounded in enumerate(_rounded(spread, steps)))
            sums = range(total, total + steps * seqs, seqs)
            return [int(constant_ps + self.at(seqs, t, *each)) for t, each in zip(sums, apart, strict=True)]
        (ratio, slope, log), offset = places, line.offset
        t0_ps, token_ps, p = self._part.t0_ps, self._token_ps, self._part.p
        sums = range(total, total + steps * seqs, seqs)
        works = self._works(seqs, steps, spread)
        if p == 4:
            both = [
                sqrt(sqrt((a := (m := t * token_ps) * m) * a + (b := w * w) * b))
                for t, w in zip(sums, works, strict=True)
            ]
        else:
            both = [pnorm(p, t * token_ps, w) for t, w in zip(sums, works, strict=True)]
        if not slope:
            return [int(constant_ps + (t0_ps + each) * ratio) for each in both]
        return [
            int(constant_ps + (t0_ps + each) * (ratio + slope * (log2(t / seqs + offset) - log)))
            for t, each in zip(sums, both, strict=True)
        ]

    def _works(self, seqs: int, steps: int, spread: Spread) -> list[float]:
        """Picoseconds of the work in each step. All three terms only grow, so one is often the largest."""
        longest, rounded, _ = spread
        tile_ps, piece_ps, round_ps, least = self._tile_ps, self._line(seqs)[1], self._round_ps, self._least
        last = longest + steps - 1
        if longest * piece_ps >= max(least * tile_ps, (rounded + seqs * (steps + self.tile)) * round_ps):
            return [length * piece_ps for length in range(longest, last + 1)]
        if rounded * round_ps >= max(min(last, least) * tile_ps, last * piece_ps):
            return [r * round_ps for r in _rounded(spread, steps)]
        return [
            max(min(length, least) * tile_ps, length * piece_ps, r * round_ps)
            for length, r in zip(range(longest, last + 1), _rounded(spread, steps), strict=True)
        ]


def _rounded(spread: Spread, steps: int) -> Iterator[int]:
    """The sum of the rounded contexts in each step."""
    growth = spread.growth
    more = growth[: steps - 1] if steps <= len(growth) else islice(cycle(growth), steps - 1)
    return accumulate(more, initial=spread.rounded)
