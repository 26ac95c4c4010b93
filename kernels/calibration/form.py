"""The fitted forms: seconds of a part from its bytes and work. Plain arithmetic, without torch.

    seconds = (t0 + merged * merge + pnorm(bytes / bandwidth, work / rate)) * tables
    pnorm(a, b) = (a^p + b^p)^(1/p)

p is 1 (the two add up), 1.5, 2 or 3; in earlier profiles also 4 or "max" (the longer one hides the other).
`merged` is 1 if a second kernel, which takes `merge`, merges the pieces of decode attention; else 0.

    decode   bytes  2 * sum of contexts * kv_heads * head_dim * element_bytes
             work   sequential tiles in the longest program. Constant `shares`, by head size: the number of
                    programs that the GPU holds concurrently, over which the kernel distributes all tiles
                        n      = min(shares / kv_heads, max(sum / least_piece_tokens, sequences))
                    at least 1, rounded down and up to whole numbers
                        work   = rounded / tile / n, rounded up;  merged = 1 if n > 1
                    But if sequences * kv_heads <= shares and longest < 2 * least_piece_tokens
                        work   = longest / tile, rounded up;  merged = 0
                    (least_piece_tokens is a tile if that is more.)
                    Other kernels aim at `programs` programs, a constant instead of `shares`, and cut each
                    context alone:
                        work   = max(piece, rounded * kv_heads / at_once) / tile
                        most   = max(round(programs / (sequences * kv_heads)), 1)
                        piece  = longest / max(min(most, floor(longest / least_piece_tokens)), 1)
                    `at_once` programs run concurrently; a constant, `programs` if it is absent.
                    `rounded` is the sum of the contexts, each rounded up to whole tiles: if only their sum
                    is known, sum + sequences * tile / 2, at least a tile each
    latent   bytes  sum of contexts * width * element_bytes: a row of `width` numbers per token, which is
                    key and value of all query heads
             work   as in decode, with blocks of query heads in place of KV heads. The constants `rows`
                    (maximum query heads per block), `shares` and `tile_tokens` depend on element_bytes
                        blocks = heads / min(heads, rows), rounded up
    prefill  bytes  queries and outputs, and each key and value once:
                    2 * head_dim * (2 * tokens * kv_heads * group + kv_heads * context * element_bytes)
                    context = sequences * (pairs / tokens + (chunk - 1) / 2): prefixes and chunks
             work   padded flops, of both products, stretched if programs leave multiprocessors idle; of the
                    last of several waves the share `whole_waves` of what is idle counts (0 if absent)
                        chunk   = tokens / sequences; query_tile = rows / group, at least 1
                        tiles   = sequences * ceil(chunk / query_tile); programs = tiles * kv_heads
                        pairs'  = pairs * tiles * query_tile / tokens + tokens * (query_tile + key_tile) / 2
                        work    = 4 * kv_heads * group * head_dim * pairs' * stretch
                        stretch = multiprocessors / programs, if that is above 1
                        stretch = 1 + whole_waves * (-programs mod multiprocessors) / programs, else
    product  bytes  weight_bytes * inputs * outputs + input_bytes * tokens * inputs + 2 * tokens * outputs
                    (both constants are 2 if absent)
             work   2 * inputs * token_tile * output_tile * tiles', of whole tiles in waves of one per
                    multiprocessor. The share `whole_waves` of the last wave's idle tiles counts as work,
                    but not in a first wave: libraries then split the inputs too, down to `least_wave` of
                    one wave (both constants are 0 if absent)
                        tiles  = ceil(tokens / token_tile) * ceil(outputs / output_tile)
                        tiles' = tiles + whole_waves * (-tiles mod multiprocessors), if over one wave
                        tiles' = max(tiles, least_wave * multiprocessors), else
    experts  bytes  of the experts that n tokens are expected to choose, k each out of E, and rows in and out
                        active = local * (1 - (1 - k / E)^n)        local: of this GPU
                        rows   = n * k * local / E
                        bytes  = weight_bytes * active * matrices * hidden * inner
                                 + 2 * rows * (2 * hidden + 3 * inner)      for all n * k rows if the
                                                                            constant `all_rows` is 1
             work   flops of whole tiles of rows in each chosen expert
                        2 * matrices * hidden * inner * active * token_tile * ceil(rows / active / token_tile)
                    Without a constant token_tile, rows / local up to a power of two, from `least_tile` to
                    `most_tile`
    all_reduce      a ring, whose start and share of the links depend on the number of GPUs: over PCIe all
                    pairs may share a bridge
             bytes  2 * (gpus - 1) / gpus * bytes of one GPU's input * share; the axis is that of the input
             work   start (constants `shares` and `starts` by number of GPUs, those of the next smaller number
                    if it is missing; 1 and 0 without them)
    others   bytes  see profile.py; no work

`pairs` are the (query, key) pairs that attention covers: chunk * prefix + chunk * (chunk + 1) / 2 per
sequence; the mean prefix is pairs / tokens - (chunk + 1) / 2. Tile sizes depend on the (padded) head size:
constants `tile_tokens`, `rows` and `key_tile` map "32", "64", "128", "256" to a number.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from math import ceil, log2, sqrt
from typing import Any

Part = Mapping[str, Any]
"""A part of a profile, as in the JSON."""

NORMS = (1, 1.5, 2, 3)
"""The p that a fit tries. 4 and "max" do not reduce errors (benchmarks/elsewhere/simpler.py)."""

MERGED = "merged"
"""Key of a place: 1 if pieces are merged. It is not a table axis."""

LEAST_HEADS = 16
"""Query heads per program that reads latents; fewer take as long, as a matrix instruction has 16 rows."""


def pnorm(p: object, a: float, b: float) -> float:
    """(a^p + b^p)^(1/p) for p from 1 to "max"."""
    if p == 1:
        return a + b
    if p == 2:
        return sqrt(a * a + b * b)
    if p == "max":
        return max(a, b)
    if isinstance(p, int | float) and p > 1:
        most, least = max(a, b), min(a, b)
        return most * (1 + (least / most) ** p) ** (1 / p) if most else 0.0
    raise ValueError(f"p must be a number from 1 on or 'max', got {p!r}")


def form_s(form: Mapping[str, Any], moved: float, work: float, merged: float = 0) -> float:
    """Seconds predicted by the form alone."""
    rate = form["work_per_s"]
    moving = moved / form["bandwidth_bytes_per_s"]
    started = form["t0_s"] + merged * form.get("merge_s", 0.0)
    return started + (moving if rate is None else pnorm(form["p"], moving, work / rate))


def interpolate(table: Mapping[str, Any], place: Mapping[str, float]) -> float:
    """The table's ratio at a place, which maps axis names to values."""
    return _nested(table["axes"], table["ratio"], place)


def _nested(axes: Sequence[Mapping[str, Any]], ratio: Any, place: Mapping[str, float]) -> float:  # noqa: ANN401
    if not axes:
        return ratio
    axis, *rest = axes
    values, offset, wanted = axis["values"], axis["offset"], place[axis["name"]]
    if wanted <= values[0]:
        return _nested(rest, ratio[0], place)
    if wanted >= values[-1]:
        return _nested(rest, ratio[-1], place)
    after = bisect_right(values, wanted)
    low, high = (log2(values[i] + offset) for i in (after - 1, after))
    share = (log2(wanted + offset) - low) / (high - low)
    below = _nested(rest, ratio[after - 1], place)
    return below if share == 0 else below + share * (_nested(rest, ratio[after], place) - below)


def predict_s(part: Part, moved: float, work: float, place: Mapping[str, float]) -> float:
    """Seconds of one launch of a part: the form times its tables."""
    seconds = form_s(part["form"], moved, work, place.get(MERGED, 0))
    for table in part["tables"]:
        seconds *= interpolate(table, place)
    return seconds


def inside(part: Part, place: Mapping[str, float]) -> bool:
    """Whether a place lies within the measured range on every axis."""
    return all(low <= place[name] <= high for name, (low, high) in part["range"].items())


def padded_head(head_dim: int) -> str:
    """The key of a head size among the constants: the next power of two."""
    return str(min(max(1 << (head_dim - 1).bit_length(), 32), 256))


def by_head_dim(sizes: Mapping[str, Any], head_dim: int) -> Any:  # noqa: ANN401
    """A constant by head size."""
    return sizes[padded_head(head_dim)]


def decode_features(
    constants: Mapping[str, Any],
    *,
    sequences: int,
    total: float,
    longest: float,
    rounded: float | None,
    kv_heads: int,
    head_dim: int,
    element_bytes: int,
) -> tuple[float, float, int]:
    """(bytes, work, merged) of decode attention over contexts with a sum of `total`."""
    tile = by_head_dim(constants["tile_tokens"], head_dim)
    if rounded is None:
        rounded = max(total + sequences * tile / 2, sequences * tile)
    moved = 2 * total * kv_heads * head_dim * element_bytes
    if "shares" in constants:
        programs, least = by_head_dim(constants["shares"], head_dim), constants["least_piece_tokens"]
        spread = sequences, total, longest, rounded
        return moved, *in_shares(spread, programs=programs, kv_heads=kv_heads, tile=tile, least=least)
    most = max(round(constants["programs"] / (sequences * kv_heads)), 1)
    piece = longest / max(min(most, longest // constants["least_piece_tokens"]), 1)
    at_once = constants["at_once"] if "at_once" in constants else constants["programs"]
    return moved, max(piece, rounded * kv_heads / at_once) / tile, 0


def in_shares(
    spread: tuple[int, float, float, float], *, programs: int, kv_heads: int, tile: int, least: int
) -> tuple[int, int]:
    """(tiles of the longest program, whether parts are merged) if tiles are distributed evenly.

    `spread`: number of sequences; sum of their contexts; longest context; sum rounded up to whole tiles.
    """
    sequences, total, longest, rounded = spread
    if sequences * kv_heads <= programs and longest < 2 * least:
        return max(ceil(longest / tile), 1), 0
    shares = max(min(programs // kv_heads, max(ceil(total / max(least, tile)), sequences)), 1)
    return ceil(rounded / tile / shares), int(shares > 1)


def latent_features(
    constants: Mapping[str, Any],
    *,
    spread: tuple[int, float, float, float],
    heads: int,
    width: int,
    element_bytes: int,
) -> tuple[float, int, int]:
    """(bytes, work, merged) of decode attention over latents; `spread` as in `in_shares`."""
    size = str(element_bytes)
    rows, programs, tile = (constants[name][size] for name in ("rows", "shares", "tile_tokens"))
    blocks, least = ceil(heads / min(heads, rows)), constants["least_piece_tokens"]
    found = in_shares(spread, programs=programs, kv_heads=blocks, tile=tile, least=least)
    return spread[1] * width * element_bytes, *found


def prefill_features(
    constants: Mapping[str, Any],
    *,
    sequences: int,
    tokens: int,
    pairs: float,
    kv_heads: int,
    group: int,
    head_dim: int,
    element_bytes: int,
) -> tuple[float, float]:
    """(bytes, work) of prefill attention over `tokens`, the sum of all chunks."""
    chunk = tokens / sequences
    query_tile = max(by_head_dim(constants["rows"], head_dim) // group, 1)
    key_tile = by_head_dim(constants["key_tile"], head_dim)
    tiles = sequences * ceil(chunk / query_tile)
    padded = pairs * tiles * query_tile / tokens + tokens * (query_tile + key_tile) / 2
    programs, most = tiles * kv_heads, constants["multiprocessors"]
    stretch = most / programs
    if stretch <= 1:
        stretch = 1 + constants.get("whole_waves", 0) * (-programs % most) / programs
    context = sequences * (pairs / tokens + (chunk - 1) / 2)
    moved = 2 * head_dim * (2 * tokens * kv_heads * group + kv_heads * context * element_bytes)
    return moved, 4 * kv_heads * group * head_dim * padded * stretch


def product_features(
    constants: Mapping[str, Any], *, tokens: int, inputs: int, outputs: int
) -> tuple[float, float]:
    """(bytes, work) of [tokens, inputs] times [inputs, outputs], in 16 bits unless constants differ."""
    rows, columns = constants["token_tile"], constants["output_tile"]
    weight, given = constants.get("weight_bytes", 2), constants.get("input_bytes", 2)
    moved = weight * inputs * outputs + given * tokens * inputs + 2 * tokens * outputs
    tiles: float = ceil(tokens / rows) * ceil(outputs / columns)
    wave = constants.get("multiprocessors", 0)
    if tiles > wave > 0:
        tiles += constants.get("whole_waves", 0) * (-tiles % wave)
    else:
        tiles = max(tiles, constants.get("least_wave", 0) * wave)
    return moved, 2 * inputs * rows * columns * tiles


def by_count(values: Mapping[str, float] | None, count: int, default: float) -> float:
    """A constant by number of GPUs: for this number, else the next smaller one, else the smallest."""
    if not values:
        return default
    known = sorted(map(int, values))
    return values[str(known[max(bisect_right(known, count) - 1, 0)])]


def all_reduce_features(constants: Mapping[str, Any], *, gpus: int, size: float) -> tuple[float, float]:
    """(bytes, work) of an all-reduce of `size` bytes per GPU over `gpus` GPUs."""
    share = by_count(constants.get("shares"), gpus, 1.0)
    return 2 * (gpus - 1) / gpus * size * share, by_count(constants.get("starts"), gpus, 0.0)


def expert_tile(constants: Mapping[str, Any], rows: float) -> int:
    """Rows of a tile, if each of the experts has `rows` on average."""
    if "token_tile" in constants:
        return constants["token_tile"]
    return min(max(1 << (ceil(rows) - 1).bit_length(), constants["least_tile"]), constants["most_tile"])


def expert_features(
    constants: Mapping[str, Any],
    *,
    tokens: int,
    hidden: int,
    inner: int,
    top_k: int,
    experts: int,
    local: int,
    **_: float,
) -> tuple[float, float]:
    """(bytes, work) of a layer's experts on one GPU, which holds `local` of them."""
    matrices, rows = constants["matrices"], tokens * top_k * local / experts
    active = max(local * (1 - (1 - top_k / experts) ** tokens), min(1, rows))
    moved = constants["weight_bytes"] * active * matrices * hidden * inner
    handled = tokens * top_k if constants.get("all_rows") else rows
    moved += 2 * handled * (2 * hidden + 3 * inner)
    tile = expert_tile(constants, rows / local)
    return moved, 2 * matrices * hidden * inner * active * tile * ceil(rows / active / tile)
