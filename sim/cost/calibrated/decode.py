"""Decode attention of a calibrated profile: its duration over contexts of any sum, maximum and rounding.

The form, and a ratio by sequences x KV heads and by the mean context:

    bytes   2 * sum * kv_heads * head_dim * element_bytes
    work    tiles in sequence in the longest program. All tiles are divided among as many programs as the GPU
            holds at once (constant `shares`, by head size); a second kernel, which takes `merge_s`, merges
            the pieces:
                n      = min(shares // kv_heads, max(ceil(sum / least_piece_tokens), sequences)), at least 1
                work   = ceil(rounded / tile / n), and for n = 1 nothing is merged
            but if sequences * kv_heads <= shares and longest < 2 * least_piece_tokens
                work   = max(ceil(longest / tile), 1), and nothing is merged
            Profiles with the constant `programs` are of kernels that split each context separately, of which
            `at_once` programs run at the same time:
                work   = max(piece, rounded * kv_heads / at_once) / tile
                most   = max(round(programs / (sequences * kv_heads)), 1)
                piece  = longest / max(min(most, longest // least_piece_tokens), 1)

In steps with prompts, some kernels take everything in one launch (one_launch.py).

Latents (MLA) are one row per token, key and value of all query heads. Query heads are taken in blocks, which
replace KV heads in the form; each row is read once. Their ratio goes by sequences and the mean context.
"""

from typing import NamedTuple

from kvsim.sim.cost.calibrated.parts import Line, Part, Place, by_head_dim
from kvsim.sim.cost.step_cost import Spread
from kvsim.sim.workload import PS_PER_S


class Kernel(NamedTuple):
    """How a model's decode attention is computed."""

    kv_heads: int
    """or blocks of query heads that read the same latents: programs that run in parallel"""
    token_bytes: int
    """per context token in one layer"""
    tile: int
    """tokens"""
    shares: int
    """programs that the GPU holds at once; 0: each context is split separately"""
    by_heads: bool
    """whether the ratio depends on sequences x KV heads, or on sequences alone"""


def over_heads(part: Part, kv_heads: int, head_dim: int, element_bytes: int) -> Kernel:
    """Over keys and values."""
    constants = part.constants
    shares = by_head_dim(constants["shares"], head_dim) if "shares" in constants else 0
    token_bytes = 2 * kv_heads * head_dim * element_bytes
    return Kernel(kv_heads, token_bytes, by_head_dim(constants["tile_tokens"], head_dim), shares, True)


def over_latents(part: Part, heads: int, width: int, element_bytes: int) -> Kernel:
    """Over latents of `width` numbers, including those of the position."""
    size = str(element_bytes)
    rows, tile, shares = (int(part.constants[name][size]) for name in ("rows", "tile_tokens", "shares"))
    return Kernel(-(-heads // min(heads, rows)), width * element_bytes, tile, shares, False)


class DecodePart:
    """Decode attention in `layers` layers, on one of the GPUs that share them.

    Parameters
    ----------
    part : Part
        Part of the profile; axes that never change during a run are fixed.
    kernel : Kernel
        `over_heads` or `over_latents`.
    most_bytes_per_s : float
        Memory bandwidth.

    Interpolated and extrapolated ratios may imply an impossible bandwidth. So contexts take at least the time
    to read them at `most_bytes_per_s`, the figure of the datasheet.

    Attributes
    ----------
    tile : int
        Tokens per tile: contexts count as rounded up to whole tiles.
    """

    def __init__(self, part: Part, kernel: Kernel, *, layers: int, most_bytes_per_s: float) -> None:
        self.part, self._layers, constants = part, layers, part.constants
        self._kv_heads, self._by_heads = kernel.kv_heads, kernel.by_heads
        self._shares: int = kernel.shares
        self._programs: float = 0.0 if self._shares else constants["programs"]
        self.tile: int = kernel.tile
        self._least_piece: float = constants["least_piece_tokens"]
        if self._shares and self._least_piece < self.tile:
            self._least_piece = float(self.tile)
        self._token_ps = kernel.token_bytes * part.byte_ps
        self._least_token_ps = layers * kernel.token_bytes * PS_PER_S / most_bytes_per_s
        self._tile_ps = part.work_ps / self.tile
        at_once: float = constants.get("at_once", self._programs)
        self._round_ps = self._tile_ps * kernel.kv_heads / at_once if at_once else 0.0
        self._lines: dict[int, tuple[Line, int]] = {}

    def _counted(self, seqs: int) -> dict[str, float]:
        """The batch, on the axis of the profile."""
        return {"sequence_heads": seqs * self._kv_heads} if self._by_heads else {"sequences": seqs}

    def outside(self, seqs: int) -> list[Place]:
        """The axes that lie outside what was measured, apart from contexts."""
        return [*self.part.outside_always, *self.part.outside(self._counted(seqs))]

    def _line(self, seqs: int) -> tuple[Line, int]:
        """For `seqs` sequences: the ratio by mean context, times layers, and the most pieces per context."""
        found = self.part.line("context_tokens", **self._counted(seqs))
        line = Line(found.values, found.offset, [self._layers * ratio for ratio in found.ratio])
        known = self._lines[seqs] = line, max(round(self._programs / (seqs * self._kv_heads)), 1)
        return known

    def ends_ps(self, seqs: int, total: int, spread: Spread | None, steps: int) -> tuple[float, float]:
        """Picoseconds of a step, and of the step `steps` later.

        Equal contexts end, on average, half a tile after a whole tile; they have at least one tile.

        Piece and tile counts are those of the steps in between: a piece or tile that begins exactly at either
        end does not count. The first step may precede all contexts but the longest: `total` is then 0.
        """
        line, most = self._lines.get(seqs) or self._line(seqs)
        part, mean, further = self.part, total / seqs, steps * seqs
        start = end = part.t0_ps
        if spread is not None:
            longest, rounded = float(spread.longest), float(spread.rounded)
            later = rounded + further
        else:
            longest, half, tiles = mean, total + seqs * self.tile / 2, float(seqs * self.tile)
            rounded, later = max(half, tiles), max(half + further, tiles)
        length = longest + steps
        if most > 1:
            longest, length = longest / self._pieces(most, longest), length / self._pieces(most, length)
        if self._shares:
            totals, tiled = (total, total + further), (rounded, later)
            working, ending, merging = self._shared(seqs, totals, (longest, length), tiled)
            start, end = start + merging, end + merging
        else:
            working = max(longest * self._tile_ps, rounded * self._round_ps)
            ending = max(length * self._tile_ps, later * self._round_ps)
        first = part.norm(total * self._token_ps, working)
        last = part.norm((total + further) * self._token_ps, ending)
        before = mean + steps
        if self._shares and longest < 2 * self._least_piece <= length:
            before -= 1.0  # contexts are cut from there on, which has its own ratio
        first, last = (start + first) * line.at(mean), (end + last) * line.at(before)
        least = total * self._least_token_ps
        if first < least:
            first = least
        least += further * self._least_token_ps
        return first, last if last > least else least

    def _shared(
        self,
        seqs: int,
        totals: tuple[int, int],
        lengths: tuple[float, float],
        tiled: tuple[float, float],
    ) -> tuple[float, float, float]:
        """For divided tiles: times of the longest program in a step and in a later one, and time of merging.

        The first step decides whether tiles are divided. Tiles and shares are those just after the first step
        and just before the last one. Equal contexts enter a new tile together.
        """
        (longest, length), tile, tile_ps = lengths, self.tile, self.part.work_ps
        tiles, ending = longest // tile + 1, -(-length // tile)  # tiles of the longest context
        if seqs * self._kv_heads <= self._shares and longest < 2 * self._least_piece:
            return tiles * tile_ps, ending * tile_ps, 0.0
        if longest * seqs == totals[0]:
            tiles, ending = seqs * tiles, seqs * ending
        else:
            tiles, ending = tiled[0] / tile, tiled[1] / tile
        most = self._shares // self._kv_heads
        shares = max(min(most, max(totals[0] // self._least_piece + 1, seqs)), 1)
        later = max(min(most, max(-(-totals[1] // self._least_piece), seqs)), 1)
        merging = self.part.merge_ps if shares > 1 else 0.0
        return -(-tiles // shares) * tile_ps, -(-ending // later) * tile_ps, merging

    def _pieces(self, most: int, longest: float) -> int:
        """Pieces of the longest context, for kernels that split each context separately."""
        return max(min(most, int(longest // self._least_piece)), 1)
