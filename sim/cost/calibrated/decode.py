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

In steps with prompts, FlashAttention 2 has one launch for everything, made for prompts: in every query head a
decoding sequence is a tile of ROWS queries, only one of them real, and no context is split. A program runs as
fast as a prompt's, one per multiprocessor. The heads of a group read the same keys in turn: again from
memory, to the extent that one head's keys of all sequences do not stay in the L2 cache (constant `l2_bytes`;
without it, launches are separate).

    flops   4 * ROWS * head_dim * max(sum * heads, longest * multiprocessors), at prefill attention's rate
    reads   group * sequences / multiprocessors, from 1 to group, for keys that the cache lost; else 1
            lost = min(2 * (1 - l2_bytes / keys), 1), keys = sum * 2 * head_dim * element_bytes
    time    sqrt((reads * alone)^2 + (flops / rate)^2)

Against what LLMServingSim measured on two GPUs (batches of 1 to 128 beside a chunk of 256 tokens, medians)
the sum of two launches is 38 to 61 % short; this is 10 to 12 % off, and nothing in it was fitted to them.

Latents (MLA) are one row per token, key and value of all query heads. Query heads are taken in blocks, which
replace KV heads in the form; each row is read once. Their ratio goes by sequences and the mean context.
"""

from math import sqrt
from typing import NamedTuple

from kvsim.sim.cost.calibrated.parts import Line, Part, Place, by_head_dim
from kvsim.sim.cost.step_cost import Spread
from kvsim.sim.workload import PS_PER_S

ROWS = 64
"""Queries per tile of FlashAttention 2 with a paged cache."""


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
    group, head_dim, element_bytes : int
        Query heads per KV head, and the shape of a key: needed if the same kernel also takes prompts.
    most_bytes_per_s : float
        Memory bandwidth.

    Interpolated and extrapolated ratios may imply an impossible bandwidth. So contexts take at least the time
    to read them at `most_bytes_per_s`, the figure of the datasheet.

    Attributes
    ----------
    tile : int
        Tokens per tile: contexts count as rounded up to whole tiles.
    one_launch : bool
        Whether one launch of the kernel takes both prompts and decoding sequences.
    limits : mapping
        The measured range: axis -> least and most.
    """

    def __init__(
        self,
        part: Part,
        kernel: Kernel,
        *,
        layers: int,
        most_bytes_per_s: float,
        group: int = 1,
        head_dim: int = 0,
        element_bytes: int = 0,
    ) -> None:
        self._part, constants, kv_heads = part, part.constants, kernel.kv_heads
        self._layers, self._kv_heads, self._group = layers, kv_heads, group
        self._axis, self._counted = ("sequence_heads", kv_heads) if kernel.by_heads else ("sequences", 1)
        self._l2_bytes: float = constants.get("l2_bytes", 0)
        self.one_launch = bool(self._l2_bytes)
        self._multiprocessors: float = constants.get("multiprocessors", 1)
        self._tile_flops, self._key_bytes = 4 * ROWS * head_dim, 2 * head_dim * element_bytes
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
        self._round_ps = self._tile_ps * kv_heads / at_once if at_once else 0.0
        self._lines: dict[int, tuple[Line, int]] = {}
        self.limits = part.limits

    def outside(self, seqs: int) -> list[Place]:
        """The axes that lie outside what was measured, apart from contexts."""
        counted = {self._axis: seqs * self._counted}
        return [*self._part.outside_always, *self._part.outside(counted)]

    def _line(self, seqs: int) -> tuple[Line, int]:
        """For `seqs` sequences: the ratio by mean context, times layers, and the most pieces per context."""
        found = self._part.line("context_tokens", **{self._axis: float(seqs * self._counted)})
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
        part, mean, further = self._part, total / seqs, steps * seqs
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
        (longest, length), tile, tile_ps = lengths, self.tile, self._part.work_ps
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
        merging = self._part.merge_ps if shares > 1 else 0.0
        return -(-tiles // shares) * tile_ps, -(-ending // later) * tile_ps, merging

    def beside_prompts_ps(
        self, alone_ps: float, seqs: int, total: int, spread: Spread | None, flop_ps: float
    ) -> float:
        """Sequences that take `alone_ps` without prompts; `flop_ps`: one operation of prefill attention."""
        if not self._l2_bytes:
            return alone_ps
        reads, keys = 1.0, total * self._key_bytes
        if keys > self._l2_bytes:
            again = min(max(self._group * seqs / self._multiprocessors, 1.0), self._group) - 1
            reads += again * min(2 * (1 - self._l2_bytes / keys), 1.0)
        tokens = total * self._kv_heads * self._group
        serial = (total / seqs if spread is None else spread.longest) * self._multiprocessors
        computing = self._layers * self._tile_flops * max(tokens, serial) * flop_ps
        return sqrt((reads * alone_ps) ** 2 + computing**2)

    def _pieces(self, most: int, longest: float) -> int:
        """Pieces of the longest context, for kernels that split each context separately."""
        return max(min(most, int(longest // self._least_piece)), 1)
