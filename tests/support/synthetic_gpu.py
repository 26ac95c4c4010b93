"""A GPU of formulas and noise, for tests: different from the fitted formulas, closer to how kernels run.

Attention runs real programs of real tiles on the slots of its multiprocessors: one begins when another ends,
and all running ones share the memory, so that a last wave of few programs is slow. Products run in whole
waves of whole tiles; norms are of third power. The fit must match it nevertheless.

    PYTHONPATH=tests python -m support.synthetic_gpu  writes the fit into tests/data/calibrated-example.json
"""

import json
from dataclasses import replace
from functools import cache
from heapq import heappop, heappush, heapreplace
from itertools import pairwise
from math import ceil
from pathlib import Path
from random import Random
from statistics import fmean

from kvsim.kernels.calibration.calibrate import calibrate
from kvsim.kernels.calibration.device import Device
from kvsim.kernels.calibration.grid import points
from kvsim.kernels.calibration.plan import Plan
from kvsim.kernels.calibration.points import (
    BYTES,
    MOST_POPULAR,
    SENTINEL,
    Sample,
    components,
    lengths_of,
    useful,
)
from kvsim.kernels.calibration.profile import write_profile
from kvsim.kernels.experts import tile_of
from kvsim.kernels.launch import DECODE, PREFILL, Gpu, latent_tiling, shares_of

EXAMPLE = Path(__file__).parents[1] / "data/calibrated-example.json"

H200 = Device("NVIDIA H200", 150_754_820_096, (9, 0), 132, 1, "13.0", "2.11.0", "3.6.0", "3.12.0", "13.1.0")

BANDWIDTH, PEAK = 4.2e12, 7.6e14
GPU = Gpu((9, 0), 132)


def norm3(a, b):
    return (a**3 + b**3) ** (1 / 3)


def programs_of(lengths, kv_heads, tiling):
    """Tiles per program of decode attention, and whether parts are merged."""
    tiles = [ceil(length / tiling.tile) for length in lengths]
    shares = shares_of(
        GPU, tiling, batch=len(lengths), kv_heads=kv_heads, tokens=sum(lengths), longest=max(lengths)
    )
    if shares is None:
        return tiles * kv_heads, False
    starts = [share * sum(tiles) // shares for share in range(shares + 1)]
    return [end - start for start, end in pairwise(starts)] * kv_heads, shares > 1


def run_s(programs, slots, tile_s, together_s):
    """Time until the last of some programs ends, `slots` at once, in order.

    A tile takes `tile_s` if its program runs alone, and `together_s` per running program if memory is the
    bottleneck.
    """
    now, done, running, waiting = 0.0, 0.0, [], programs[::-1]  # done: tiles of a program that ran throughout
    while running or waiting:
        while waiting and len(running) < slots:
            heappush(running, done + waiting.pop())
        first = heappop(running)
        now += (first - done) * norm3(tile_s, together_s * (len(running) + 1))
        done = first
    return now


def decode_s(x):
    tiling = DECODE[x["head_dim"], 2]
    lengths, tile = lengths_of(x), tiling.tile
    programs, merged = programs_of(lengths, x["kv_heads"], tiling)
    tile_bytes = 2 * tile * x["head_dim"] * x["element_bytes"]
    filled = sum(lengths) / (tile * sum(ceil(length / tile) for length in lengths))
    latency = 1e-6 * (0.4 + 0.6 * x["head_dim"] * tile / 8192)
    ran = run_s(programs, tiling.at_once(GPU), latency, tile_bytes * filled / BANDWIDTH)
    paging = 1 + 0.35 / x["block_size"] ** 0.7
    return 3e-6 + 2.1e-6 * merged + paging * ran


def latent_s(x):
    """Blocks of query heads read the same rows, from memory once; each computes separately."""
    tiling, lengths = latent_tiling(x["element_bytes"], x["heads"], GPU), lengths_of(x)
    rows, width = min(x["heads"], tiling.rows), x["latent"] + x["rope"]
    programs, merged = programs_of(lengths, x["heads"] // rows, tiling)
    tile_bytes = tiling.tile * width * x["element_bytes"] * rows / x["heads"]
    filled = sum(lengths) / (tiling.tile * sum(ceil(length / tiling.tile) for length in lengths))
    flops = 2 * tiling.tile * max(rows, 16) * (width + x["latent"])
    tile_s = 4e-7 + flops / (5.5e14 / 132)
    ran = run_s(programs, tiling.at_once(GPU), tile_s, tile_bytes * filled / BANDWIDTH)
    return 3.2e-6 + 2.4e-6 * merged + (1 + 0.35 / x["block_size"] ** 0.7) * ran


def prefill_s(x):
    tiling, chunk = PREFILL[x["head_dim"], 2], x["chunk"]
    queries = tiling.rows // x["group"]
    per_tile = 4 * tiling.rows * tiling.tile * x["head_dim"] / (5.5e14 / 132)
    programs = [  # of a head: those that see most begin first
        ceil((x["prefix"] + min((i + 1) * queries, chunk)) / tiling.tile) * per_tile + 1e-6
        for i in reversed(range(ceil(chunk / queries)))
    ]
    free_s = [0.0] * GPU.multiprocessors  # when each has nothing to do
    for program_s in programs * (x["kv_heads"] * x["sequences"]):
        heapreplace(free_s, free_s[0] + program_s)
    return 4e-6 + max(free_s)


def product_s(x, start_s=2.5e-6, weight=2, given=2, faster=1.0):
    rows = 64 if x["tokens"] <= 64 else 128
    tiles = ceil(x["tokens"] / rows) * ceil(x["outputs"] / 128)
    waves = tiles / 132 if tiles < 132 else 0.3 * ceil(tiles / 132) + 0.7 * tiles / 132
    flops = waves * 132 * rows * 128 * 2 * x["inputs"]
    moved = weight * x["inputs"] * x["outputs"] + x["tokens"] * (given * x["inputs"] + 2 * x["outputs"])
    return start_s + norm3(moved / BANDWIDTH, flops / PEAK / faster)


def narrow_product_s(x):
    """In 8 bits; converting the inputs is a launch more."""
    return product_s(x, 4.5e-6, 1, 4, 1.8)


@cache
def loads_of(tokens, count, top_k, skew):
    """How many rows each expert has on average, of all experts, in a few drawings of their popularity."""
    found = []
    for seed in range(8 if skew else 1):
        random = Random(seed)
        most = MOST_POPULAR ** (1 - skew)
        drawn = [
            (1 + random.random() * (most - 1)) ** (1 / (1 - skew)) if skew else 1.0 for _ in range(count)
        ]
        shares, left = [top_k * each / sum(drawn) for each in drawn], 0.0
        while max(shares) > 1.000001:  # a token takes an expert once, and others for the rest
            left = sum(share - 1 for share in shares if share > 1)
            free = sum(share for share in shares if share < 1)
            shares = [1.0 if share >= 1 else share * (1 + left / free) for share in shares]
        found.append([tokens * share for share in shares])
    return found


def experts_s(x, size=2, start_s=1.1e-5, faster=1.0):
    """Each chosen expert reads its weights once, and computes whole tiles of its rows."""
    tokens, weights = x["tokens"], 3 * x["matrix"]
    tile = tile_of(round(x["rows"] * x["local"]), x["local"])
    seconds = []
    for loads in loads_of(tokens, x["experts"], x["top_k"], x["skew"]):
        own = loads[: x["local"]]
        chosen = [1 - (1 - min(load / tokens, 1)) ** tokens for load in own]
        tiles = sum(chance * ceil(load / tile) for chance, load in zip(chosen, own, strict=True))
        moved = size * weights * sum(chosen) + 2 * sum(own) * (2 * x["hidden"] + 3 * x["inner"])
        seconds.append(norm3(moved / BANDWIDTH, 2 * weights * tile * tiles / PEAK / faster))
    return start_s + fmean(seconds)


def bytes_s(point):
    start, rate, step = {
        "sampling": (2e-5, 4e11, 0),
        "elementwise": (1.8e-6, 3.6e12, 1e-6),
        "kv_write": (1.9e-6, 3.2e12, 2e-7),
        "block_copy": (3.5e-6, 3.7e12, 5e-7),
        "to_host": (1.7e-6, 5.2e10, 0),
        "to_gpu": (1.6e-6, 5.4e10, 0),
        "all_reduce": (9e-6, 1.4e11, 0),
    }[point.part]
    moved = BYTES[point.part](point.x)
    return start + moved / rate + step * (moved > 2**20)


OTHERS = {
    ("ceilings", "copy"): None, ("ceilings", "read"): None, ("ceilings", "product"): None,
    ("launch", "eager"): 5e-6, ("launch", "graph"): 1.4e-6, ("launch", "replay"): 1.3e-5,
    ("launch", "cut"): 8e-6,
}  # fmt: skip


def true_s(point):
    """Seconds of one launch, without noise."""
    if point.part == "composed":
        return sum(count * (true_s(one) - 0.2e-6) for one, count in components(point.x))
    if point.part == "launch":
        return OTHERS["launch", point.x["what"]]
    if point.part == "ceilings":
        moved, flops = useful(point)
        return moved / BANDWIDTH + flops / PEAK
    own = {
        "decode": decode_s, "latent": latent_s, "prefill": prefill_s, "product": product_s,
        "product_fp8": narrow_product_s, "lm_head": product_s, "experts": experts_s,
        "experts_fp8": lambda x: experts_s(x, 1, 1.4e-5, 1.8),
    }  # fmt: skip
    return own[point.part](point.x) if point.part in own else bytes_s(point)


DEAD = Sample((), 0, "AcceleratorError: CUDA error: unspecified launch failure")


class SyntheticGpu:
    """A Stopwatch: noise of 1 % on every turn, the same for the same point; counts the points asked for.

    After `dies_after` points every point fails, as on a GPU with a broken context; points of the part `slow`
    take a fifth longer. After `slows_after` points everything takes `by` times as long. Sentinels are not
    counted, and have new noise every time.
    """

    def __init__(
        self, turns=9, noise=0.01, stop_after=None, impossible=(), dies_after=None, slow=None,
        slows_after=None, by=1.0,
    ):  # fmt: skip
        self.slows_after, self.by, self.readings = slows_after, by, 0
        self.turns, self.noise, self.stop_after, self.impossible = turns, noise, stop_after, set(impossible)
        self.dies_after, self.slow, self.asked = dies_after, slow, []

    def seconds(self, points):
        if self.stop_after is not None and len(self.asked) >= self.stop_after:
            raise KeyboardInterrupt
        found = []
        for point in points:
            self.readings += point.role == SENTINEL
            self.asked += [point.key] * (point.role != SENTINEL)
            dead = self.dies_after is not None and len(self.asked) > self.dies_after
            found.append(DEAD if dead else self.slowed(self.sample(point)))
        return found

    def slowed(self, sample):
        by = self.by if self.slows_after is not None and len(self.asked) > self.slows_after else 1.0
        return replace(sample, seconds=tuple(by * each for each in sample.seconds))

    def under_load(self, read):
        return read()

    def sample(self, point):
        random = Random(f"{point.key} {self.readings}" if point.role == SENTINEL else point.key)
        true = true_s(point) / (100 if point.key in self.impossible else 1)
        true *= 1.2 if point.part == self.slow else 1
        return Sample(tuple(true * (1 + random.gauss(0, self.noise)) for _ in range(self.turns)), 16)


def few_points(part):
    """A part with one point of each role."""
    roles = {point["role"]: point for point in reversed(part["points"])}  # the first of each
    return part | {"points": list(reversed(roles.values()))}


def example():
    """The example that other tests read: forms and tables from eight such GPUs, the rest made by hand."""
    device = replace(H200, count=8)
    planned = Plan(device, False, tuple(points(device, False)))
    fitted = calibrate(planned, stopwatch=SyntheticGpu(), read_clocks=dict)
    found = json.loads(EXAMPLE.read_text(encoding="utf-8"))
    names = [*fitted["parts"], *(name for name in found["parts"] if name not in fitted["parts"])]
    found["parts"] = {name: found["parts"].get(name) or few_points(fitted["parts"][name]) for name in names}
    for name, part in found["parts"].items():
        keep = ("form", "constants", "base", "tables", "range", "unmeasured")
        part.update({key: fitted["parts"][name][key] for key in keep})
    return found | {"launch": fitted["launch"]}


if __name__ == "__main__":
    write_profile(example(), EXAMPLE)
