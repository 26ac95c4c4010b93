"""How fast the kernels are on this GPU, compared with alternatives and with its memory bandwidth.

    python benchmarks/kernels.py                        everything but `tune`, under 10 minutes
    python benchmarks/kernels.py --parts decode,blocks
    python benchmarks/kernels.py --parts tune           other tilings and splits of the decode kernel
    python benchmarks/kernels.py --dry-run              the same code on toy sizes, interpreted on the CPU

Needs only torch and triton. Every time is the median over replays of a CUDA graph with at least 16 launches
over different keys and values (kernels/calibration/timing.py), divided by their number; contestants
alternate. Decode attention is timed with pieces cut beforehand, as an engine cuts them once per step for all
layers; the cutting has its own row, `cutting, once a step`. Before contestants are timed, their results are
compared. Times that imply more than the datasheet's bandwidth, or the measured peak of matrix products, are
refused. GPU.md says what to run.
"""

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)
if "--dry-run" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"

try:
    import torch
    import triton
except ImportError as error:
    sys.exit(f"error: {error.name} is not installed: pip install '.[gpu]' in a clone of kvsim")

from kvsim.kernels.calibration.card import clocks
from kvsim.kernels.calibration.errors import DeviceLostError
from kvsim.kernels.calibration.layer import read
from kvsim.kernels.calibration.timing import (
    LEAST_LAUNCHES,
    WARM_UP_S,
    captured,
    datasheet_of,
    expect_alive,
    interleaved,
    launches_wanted,
    on_host_clock,
    refusal,
    spread,
    words_of,
)
from kvsim.kernels.copy import copy_blocks
from kvsim.kernels.decode import decode_attention
from kvsim.kernels.latent import cut_latents, latent_attention
from kvsim.kernels.launch import Tiling
from kvsim.kernels.pieces import Pieces, cut
from kvsim.kernels.prefill import prefill_attention
from kvsim.kernels.swap import gather_blocks, scatter_blocks
from kvsim.kernels.write import write_kv


@dataclass(frozen=True)
class Shape:
    """One decode or prefill point."""

    name: str
    lengths: tuple[int, ...]
    chunk: int = 1
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    dtype: torch.dtype = torch.bfloat16

    @property
    def query_dtype(self) -> torch.dtype:
        """Of queries; `dtype` is that of keys and values, which may have 8 bits."""
        return self.dtype if self.dtype.itemsize == 2 else torch.bfloat16

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values that must be read."""
        return 2 * sum(self.lengths) * self.kv_heads * self.head_dim * self.dtype.itemsize

    @property
    def flops(self) -> int:
        """FLOPs of both products, over the (query, key) pairs that attention covers."""
        pairs = sum(self.chunk * length - self.chunk * (self.chunk - 1) // 2 for length in self.lengths)
        return 4 * self.heads * self.head_dim * pairs


def lognormal(count: int, mean: int, seed: int = 0) -> tuple[int, ...]:
    """Lengths with a long tail."""
    drawn = torch.randn(count, generator=torch.Generator().manual_seed(seed)).exp()
    return tuple((drawn / drawn.mean() * mean).int().clamp(16, 16 * mean).tolist())


DECODE = (
    Shape("64 x 4096", (4096,) * 64),
    Shape("8 x 256", (256,) * 8),
    Shape("1 x 131072", (131_072,)),
    Shape("8 x 4096", (4096,) * 8),
    Shape("64 x 1024", (1024,) * 64),
    Shape("256 x 1024", (1024,) * 256),
    *(Shape(f"{batch} x 4096", (4096,) * batch) for batch in (24, 34, 67, 72)),  # just over one wave
    Shape("64, lognormal", lognormal(64, 4096)),
    Shape("63 x 512 and 65536", (512,) * 63 + (65_536,)),
)
PREFILL = (
    Shape("2048 of 2048", (2048,), 2048),
    Shape("8192 of 8192", (8192,), 8192),
    Shape("2048 of 16384", (16_384,), 2048),
    Shape("4 x 512 of 4096", (4096,) * 4, 512),
    Shape("16 x 128 of 4096", (4096,) * 16, 128),
)
TOY = {"heads": 4, "kv_heads": 2, "head_dim": 32, "dtype": torch.float16}


ONCE = "cutting, once a step"


class Stage:
    """The device on which launches are timed: a GPU, or a rehearsal on the CPU."""

    def __init__(self, dry: bool, repeats: int) -> None:
        if not dry and not torch.cuda.is_available():
            sys.exit(
                "error: no GPU that torch can use; `--dry-run` rehearses on the CPU without timing anything"
            )
        self.dry, self.repeats = dry, 2 if dry else repeats
        self.device = torch.device("cpu" if dry else "cuda")
        self.generator = torch.Generator(self.device).manual_seed(0)
        self.name = "rehearsal" if dry else torch.cuda.get_device_name()
        self.uuid = None if dry else str(getattr(torch.cuda.get_device_properties(0), "uuid", ""))
        self.sheet = None if dry else datasheet_of(self.name)
        self.most_tflops = math.inf
        self.copy_gb_per_s: float | None = None  # unknown

    def random(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """A random tensor; never zeros, which are faster."""
        return torch.randn(shape, generator=self.generator, device=self.device, dtype=torch.float32).to(dtype)

    def buffers(self, pool_bytes: int) -> tuple[int, int]:
        """How many buffers to make and launches to capture, if each launch reads `pool_bytes`."""
        if self.dry:
            return 2, 2
        launches = launches_wanted(pool_bytes)
        room = int(0.7 * torch.cuda.mem_get_info()[0] // pool_bytes)
        return max(2, min(launches, room)), launches

    def time(
        self, contestants: dict[str, Sequence[Callable[[], object]]]
    ) -> tuple[dict[str, list[float]], dict[str, str]]:
        """Seconds per launch, `repeats` times each, in alternation; and which ones failed, and how."""
        clock, replays, wrong = on_host_clock if self.dry else captured, {}, {}

        def failed(name: str, error: Exception) -> None:
            expect_alive(error, self.device)
            wrong[name] = words_of(error)
            print(f"         {name}: left out, {wrong[name]}", flush=True)

        for name, launches in contestants.items():
            try:
                replays[name] = clock(launches), len(launches)
            except Exception as error:  # any error: the others continue
                failed(name, error)
        warm_up_s = 0 if self.dry else WARM_UP_S
        return interleaved(replays, self.repeats, warm_up_s=warm_up_s, failed=failed), wrong

    def check(self, contestants: dict[str, list[Callable[[], torch.Tensor]]]) -> dict[str, str]:
        """Remove contestants that fail, or disagree with the first; returns the reasons."""
        wrong, right = {}, None
        for name in list(contestants):
            try:
                out = contestants[name][0]().double()
                if "shuffled" in name or "gathering" in name:  # these use other numbers: see tests/kernels
                    agrees = bool(out.isfinite().all())
                else:
                    right = out if right is None else right
                    agrees = bool((out - right).norm() <= 1e-2 * right.norm())
                if not agrees:
                    wrong[name] = "its result differs"
            except Exception as error:  # any error: the others continue
                expect_alive(error, self.device)
                wrong[name] = words_of(error)
            if name in wrong:
                del contestants[name]
                print(f"         {name}: left out, {wrong[name]}", flush=True)
        return wrong

    def numbers(self, values: Sequence[int]) -> torch.Tensor:
        """Integers on the device."""
        return torch.tensor(values, dtype=torch.int32, device=self.device)

    def contest(
        self,
        part: str,
        contestants: dict,
        work: dict,
        *,
        once: dict | None = None,
        called: str = "",
        facts: dict | None = None,
    ) -> list[dict]:
        """Check contestants, time them and `once`, which does none of the `work`, and record everything."""
        wrong = self.check(contestants)
        times, failed = self.time(contestants | (once or {}))
        rows = [{"part": part, "name": name, "refused": why} for name, why in (wrong | failed).items()]
        for name, seconds in times.items():
            done = {} if once and name in once else work
            rows.append(self.row(part, f"{called}{name}", seconds, **done) | (facts or {}))
        return rows

    def row(self, part: str, name: str, seconds: list[float], moved: int = 0, flops: int = 0) -> dict:
        """One measured point, or the reason for refusing it; also printed."""
        middle, low, high = spread(seconds)
        if middle <= 0:
            row = {"part": part, "name": name, "refused": refusal(self.sheet, middle)}
            print(f"         {name}: left out, {row['refused']}", flush=True)
            return row
        row = {"part": part, "name": name, "us": middle * 1e6, "us_p10": low * 1e6, "us_p90": high * 1e6}
        rate, speed = moved / middle / 1e9, flops / middle / 1e12
        of_copy = rate / self.copy_gb_per_s if self.copy_gb_per_s else None
        row |= {"bytes": moved, "gb_per_s": rate, "tflops": speed, "of_copy": of_copy}
        if reason := refusal(self.sheet, middle, moved, flops, self.most_tflops):
            row["refused"] = reason
        share = f"{of_copy:7.1%} of copy" if moved and of_copy else ""
        work = f"{rate:8.0f} GB/s" if moved else f"{speed:8.0f} TFLOP/s" if flops else ""
        print(f"{part:9}{name:42}{middle * 1e6:10.1f} us +-{(high - low) / 2 / middle:5.1%}{work} {share}"
              f"{'  REFUSED' if 'refused' in row else ''}", flush=True)  # fmt: skip
        return row


class Pools:
    """Keys and values of one shape in several buffers, viewed at any block size, in order or shuffled."""

    def __init__(self, stage: Stage, shape: Shape) -> None:
        self.stage, self.shape = stage, shape
        room = [-(-length // 256) * 256 for length in shape.lengths]
        self.slots, self.firsts = sum(room), [sum(room[:i]) for i in range(len(room))]
        per_slot = 2 * shape.kv_heads * shape.head_dim * shape.dtype.itemsize
        count, self.launches = stage.buffers(self.slots * per_slot)
        size = (self.slots, shape.kv_heads, shape.head_dim)
        self.buffers = [[stage.random(*size, dtype=shape.dtype) for _ in "kv"] for _ in range(count)]
        queries = len(shape.lengths) * shape.chunk
        self.query = stage.random(queries, shape.heads, shape.head_dim, dtype=shape.query_dtype)
        self.lengths = self.stage.numbers(shape.lengths)
        self.first_queries = self.stage.numbers([i * shape.chunk for i in range(len(room) + 1)])

    def where(self, block_size: int | None, shuffle: bool = False) -> dict[str, torch.Tensor]:
        """The argument that gives the addresses of sequences."""
        if block_size is None:
            return {"starts": self.stage.numbers(self.firsts)}
        order = torch.arange(self.slots // block_size)
        if shuffle:
            order = torch.randperm(len(order), generator=torch.Generator().manual_seed(1))
        width = max(-(-length // block_size) for length in self.shape.lengths)
        table = torch.zeros(len(self.firsts), width, dtype=torch.int32)
        for row, (first, length) in enumerate(zip(self.firsts, self.shape.lengths, strict=True)):
            blocks = -(-length // block_size)
            table[row, :blocks] = order[first // block_size :][:blocks]
        return {"block_table": table.to(self.stage.device)}

    def cut(self, **more) -> Pieces:
        """Cut the contexts into pieces; in the memory of earlier pieces if given, as in each step."""
        shape = self.shape
        return cut(
            self.lengths, longest=max(shape.lengths), tokens=sum(shape.lengths), kv_heads=shape.kv_heads,
            head_dim=shape.head_dim, element_bytes=shape.dtype.itemsize,
            group=shape.heads // shape.kv_heads, **more,
        )  # fmt: skip

    def cutting(self) -> dict[str, list[Callable[[], object]]]:
        """The launches before the first layer of a step."""
        pieces = self.cut()
        return {ONCE: [lambda: self.cut(out=pieces)] * self.launches}

    def attention(self, buffer: Sequence[torch.Tensor], block_size: int | None, **more) -> torch.Tensor:
        """Our kernel over one buffer."""
        keys, values = (pool.view(-1, block_size or 256, *pool.shape[1:]) for pool in buffer)
        if self.shape.chunk == 1:
            longest = max(self.shape.lengths)
            return decode_attention(self.query, keys, values, self.lengths, longest=longest, **more)
        return prefill_attention(
            self.query, keys, values, self.lengths, self.first_queries,
            most_queries=self.shape.chunk, **more,
        )  # fmt: skip

    def ours(self, block_size: int | None, shuffle: bool = False, **more) -> list[Callable[[], torch.Tensor]]:
        """The launches of one of our kernels, over the buffers in turn; decode uses pieces cut beforehand."""
        if self.shape.chunk == 1:
            how = {name: more.pop(name) for name in ("splits", "tiling") if name in more}
            pieces = self.cut(**how)
            more |= {"pieces": pieces, "tiling": pieces.tiling}
        more = self.where(block_size, shuffle) | more
        return self.each(lambda buffer: self.attention(buffer, block_size, **more))

    def each(
        self, call: Callable[[Sequence[torch.Tensor]], torch.Tensor]
    ) -> list[Callable[[], torch.Tensor]]:
        """A call over the buffers in turn, once per captured launch."""
        chosen = [self.buffers[i % len(self.buffers)] for i in range(self.launches)]
        return [lambda buffer=buffer: call(buffer) for buffer in chosen]

    def theirs(self) -> dict[str, list[Callable[[], torch.Tensor]]]:
        """Torch's attention on the same numbers, unpaged; only if all lengths are equal."""
        shape, batch = self.shape, len(self.shape.lengths)
        if len(set(shape.lengths)) > 1 or self.slots != sum(shape.lengths):
            return {}
        from torch.nn import functional

        query = self.query.view(batch, shape.chunk, shape.heads, shape.head_dim).transpose(1, 2)

        def unpaged(pool: torch.Tensor) -> torch.Tensor:
            return pool.view(batch, -1, *pool.shape[1:]).transpose(1, 2)

        def back(out: torch.Tensor) -> torch.Tensor:
            return out.transpose(1, 2).reshape(self.query.shape)

        causal = {"is_causal": shape.chunk > 1, "enable_gqa": True}
        table = self.where(16, shuffle=True)["block_table"].long()

        def sdpa(buffer: Sequence[torch.Tensor]) -> torch.Tensor:
            return back(functional.scaled_dot_product_attention(query, *map(unpaged, buffer), **causal))

        def gathered(buffer: Sequence[torch.Tensor]) -> torch.Tensor:
            pools = (pool.view(-1, 16, *pool.shape[1:])[table].flatten(0, 2) for pool in buffer)
            return back(functional.scaled_dot_product_attention(query, *map(unpaged, pools), **causal))

        if shape.chunk not in {1, shape.lengths[0]}:
            return {}
        found = {"torch SDPA, KV in order": self.each(sdpa)}
        if shape.chunk == 1:
            found["torch SDPA, gathering counted"] = self.each(gathered)
            if not self.stage.dry:
                from torch.nn.attention.flex_attention import flex_attention

                flex = torch.compile(flex_attention, dynamic=False)
                found["flex_attention, KV in order"] = self.each(
                    lambda buffer: back(flex(query, *map(unpaged, buffer), enable_gqa=True))
                )
        return found

    def contest(self, part: str, contestants: dict, cutting: bool = False) -> list[dict]:
        """Check, time and record the contestants; `cutting` is timed with them."""
        facts = {"shape": asdict(self.shape) | {"dtype": str(self.shape.dtype)}, "launches": self.launches}
        facts |= {"buffers": len(self.buffers)}
        work = {"moved": self.shape.kv_bytes} if self.shape.chunk == 1 else {"flops": self.shape.flops}
        once = self.cutting() if cutting else None
        called = f"{self.shape.name}: "
        return self.stage.contest(part, contestants, work, once=once, called=called, facts=facts)


def ceilings(stage: Stage) -> Iterator[dict]:
    """Peaks of memory and matrix units: copy, read, an 8192-cubed product."""
    size, side = (2**14, 64) if stage.dry else (2**29, 8192)
    count = 2 if stage.dry else 4
    pools = [stage.random(size, dtype=torch.bfloat16).float() for _ in range(count)]
    sums = torch.empty(size // 2**13, device=stage.device)
    a, b = (stage.random(side, side, dtype=torch.bfloat16) for _ in "ab")
    product = torch.empty_like(a)

    pairs = list(zip(pools, pools[1:] + pools[:1], strict=True))
    times, wrong = stage.time(
        {
            "copy": [
                lambda source=source, target=target: torch.neg(source, out=target) for source, target in pairs
            ],
            "read": [read(pool, sums).run for pool in pools],
            "product": [lambda: torch.mm(a, b, out=product)] * count,
        }
    )
    if seconds := median(times.get("copy", [0])):
        stage.copy_gb_per_s = 8 * size / seconds / 1e9
    for name, what, work in (
        ("copy", "copy, bytes read and written", {"moved": 8 * size}),
        ("read", "read", {"moved": 4 * size}),
        ("product", f"{side}-cubed bf16 product", {"flops": 2 * side**3}),
    ):
        if name in times:
            row = stage.row("ceilings", what, times[name], **work)
            if name == "product" and not stage.dry:
                stage.most_tflops = 1.1 * row.get("tflops", math.inf)
            yield row
    if wrong:  # the baseline of the others
        raise RuntimeError("; ".join(f"{name}: {why}" for name, why in wrong.items()))


def decode(stage: Stage) -> Iterator[dict]:
    """Every decode shape: contiguous, paged in order and shuffled with blocks of 16, and torch's."""
    shapes = (Shape("3 x 60", (60,) * 3, **TOY), Shape("2 x 256", (256,) * 2, **TOY)) if stage.dry else DECODE
    for shape in shapes:
        pools = Pools(stage, shape)
        ours = {
            "contiguous": pools.ours(None),
            "paged 16, in order": pools.ours(16),
            "paged 16, shuffled": pools.ours(16, shuffle=True),
        }
        yield from pools.contest("decode", ours | pools.theirs(), cutting=True)


def blocks(stage: Stage) -> Iterator[dict]:
    """The first decode shape with block sizes 16 to 256, in order and shuffled, beside contiguous."""
    pools = Pools(stage, Shape("2 x 70", (70, 70), **TOY) if stage.dry else DECODE[0])
    contestants = {"contiguous": pools.ours(None)}
    for size in (16, 256) if stage.dry else (16, 32, 64, 128, 256):
        contestants[f"paged {size}, in order"] = pools.ours(size)
        contestants[f"paged {size}, shuffled"] = pools.ours(size, shuffle=True)
    rows = pools.contest("blocks", contestants)
    twin = next((row["us"] for row in rows if row["name"].endswith(": contiguous") and "us" in row), None)
    for row in rows:
        if "us" in row and twin:
            row["over_contiguous"] = row["us"] / twin - 1
            print(f"         {row['name']:42}{row['over_contiguous']:+8.1%} over contiguous")
    yield from rows


def models(stage: Stage) -> Iterator[dict]:
    """Features of current models in decode attention: softcap, sinks, and DeepSeek's latents."""
    few = (40,) * 2 if stage.dry else (4096,) * 64
    size = (lambda **toy: TOY | toy) if stage.dry else (lambda **real: real)
    capped = Shape("gemma-2-27b", few, **size(heads=4 if stage.dry else 32, kv_heads=2 if stage.dry else 16))
    sunk = Shape("gpt-oss", few, **size(heads=8 if stage.dry else 64, head_dim=32 if stage.dry else 64))
    for shape, name, more in (
        (capped, "softcap", {"softcap": 50.0}),
        (sunk, "sinks", {"sinks": torch.zeros(sunk.heads, device=stage.device)}),
    ):
        pools = Pools(stage, shape)
        plain, other = pools.ours(16, shuffle=True), pools.ours(16, shuffle=True, **more)
        yield from pools.contest("models", {"shuffled": plain, f"shuffled, {name}": other})
    yield from latents(stage, few)


class Latents:
    """DeepSeek-V3's latents of some sequences in several buffers, contiguous or in blocks of 64."""

    def __init__(self, stage: Stage, lengths: Sequence[int], dtype: torch.dtype = torch.bfloat16) -> None:
        self.stage, self.lengths, self.element_bytes = stage, lengths, dtype.itemsize
        (self.latent, rope), self.block = (64, 16) if stage.dry else (512, 64), 64
        self.width = self.latent + rope
        room = [-(-length // self.block) * self.block for length in lengths]
        self.slots, self.moved = sum(room), sum(lengths) * self.width * dtype.itemsize
        count, self.launches = stage.buffers(self.slots * self.width * dtype.itemsize)
        self.buffers = [stage.random(self.slots, self.width, dtype=dtype) for _ in range(count)]
        self.firsts = self.stage.numbers([sum(room[:i]) for i in range(len(room))])
        self.queries: dict[int, torch.Tensor] = {}

    def query(self, heads: int) -> torch.Tensor:
        """The same for all contestants."""
        if heads not in self.queries:
            shape = len(self.lengths), heads, self.width
            self.queries[heads] = self.stage.random(*shape, dtype=torch.bfloat16)
        return self.queries[heads]

    def where(self, paged: bool, shuffle: bool = False) -> dict[str, torch.Tensor]:
        """The argument that gives the addresses of sequences."""
        if not paged:
            return {"starts": self.firsts}
        order = torch.arange(self.slots // self.block)
        if shuffle:
            order = torch.randperm(len(order), generator=torch.Generator().manual_seed(1))
        return {"block_table": order.view(len(self.lengths), -1).int().to(self.stage.device)}

    def ours(
        self, heads: int, where: dict[str, torch.Tensor], tiling: Tiling | None = None
    ) -> list[Callable[[], torch.Tensor]]:
        """The launches over the buffers in turn, with pieces cut beforehand."""
        query = self.query(heads)
        facts = {"lengths": self.stage.numbers(self.lengths), "longest": max(self.lengths)}
        how = {"heads": heads, "element_bytes": self.element_bytes, "tokens": sum(self.lengths)}
        pieces = cut_latents(**facts, **how, tiling=tiling)
        facts |= {"latent": self.latent, "scale": 192**-0.5, "pieces": pieces, "tiling": pieces.tiling}

        def attend(pool: torch.Tensor) -> torch.Tensor:
            return latent_attention(query, pool.view(-1, self.block, self.width), **facts, **where)

        chosen = [self.buffers[i % len(self.buffers)] for i in range(self.launches)]
        return [lambda pool=pool: attend(pool) for pool in chosen]


def latents(stage: Stage, lengths: Sequence[int]) -> Iterator[dict]:
    """DeepSeek-V3's latents, whole and on one of eight GPUs: contiguous, and in blocks of 64."""
    pools = Latents(stage, lengths)
    where = {
        "contiguous": pools.where(paged=False),
        f"paged {pools.block}, in order": pools.where(paged=True),
        f"paged {pools.block}, shuffled": pools.where(paged=True, shuffle=True),
    }
    for heads in (4,) if stage.dry else (128, 16):
        contestants = {
            f"{heads} heads on latents: {name}": pools.ours(heads, place) for name, place in where.items()
        }
        yield from stage.contest("models", contestants, {"moved": pools.moved})


def prefill(stage: Stage) -> Iterator[dict]:
    """Chunks after prefixes, paged and contiguous, and torch's attention for whole prompts."""
    for shape in (Shape("20 of 40", (40,), 20, **TOY),) if stage.dry else PREFILL:
        pools = Pools(stage, shape)
        ours = {"contiguous": pools.ours(None), "paged 16, shuffled": pools.ours(16, shuffle=True)}
        yield from pools.contest("prefill", ours | pools.theirs())


def moves(stage: Stage) -> Iterator[dict]:
    """KV write, block copy, gather and scatter, with blocks of 16 tokens of 8 heads of 128 in bf16."""
    shape = (32, 16, 2, 32) if stage.dry else (65_536, 16, 8, 128)
    token_bytes = 2 * shape[2] * shape[3] * 2
    keys, values = (stage.random(*shape, dtype=torch.bfloat16) for _ in "kv")
    counts = (2, 1) if stage.dry else (LEAST_LAUNCHES, 64)

    def timed(what: str, calls: dict[str, list[Callable[[], object]]], moved: int) -> Iterator[dict]:
        times, wrong = stage.time(calls)
        for name, why in wrong.items():
            yield {"part": "moves", "name": f"{name} {what}", "refused": why}
        for name, seconds in times.items():
            yield stage.row("moves", f"{name} {what}", seconds, moved=moved)

    order = torch.randperm(shape[0], generator=torch.Generator().manual_seed(2)).to(stage.device).int()
    for tokens in (8,) if stage.dry else (64, 2048, 8192):
        key = stage.random(tokens, *shape[2:], dtype=torch.bfloat16)
        slots = [(order[i * tokens :][:tokens].long() * 16 + i % 16) for i in range(counts[0])]
        if any(len(some) < tokens for some in slots):
            slots = [slots[0]] * counts[0]
        calls = [lambda some=some, key=key: write_kv(key, key, keys, values, some) for some in slots]
        yield from timed(f"{tokens} tokens", {"write": calls}, 2 * tokens * token_bytes)
    for count in (2,) if stage.dry else (1, 64, 1024):
        lists = [order[2 * i * count :][: 2 * count].contiguous() for i in range(counts[0])]
        half = [some[:count].contiguous() for some in lists]
        staging = [gather_blocks(keys, values, some) for some in half]
        calls = {
            "copy": [lambda some=some: copy_blocks(keys, values, some.view(-1, 2)) for some in lists],
            "gather": [
                lambda some=some, room=room: gather_blocks(keys, values, some, room)
                for some, room in zip(half, staging, strict=True)
            ],
            "scatter": [
                lambda some=some, room=room: scatter_blocks(keys, values, some, room)
                for some, room in zip(half, staging, strict=True)
            ],
        }
        yield from timed(f"{count} blocks", calls, 2 * count * 16 * token_bytes)


DECODE_TILINGS = [Tiling(*sizes, programs=programs) for *sizes, programs in (
    (64, 4, 2, 3), (64, 4, 2, 2), (64, 4, 2, 4), (64, 4, 3, 3), (64, 4, 3, 2), (32, 4, 3, 4),
    (32, 4, 4, 3), (32, 4, 5, 3), (128, 4, 2, 2), (64, 8, 2, 1), (64, 8, 3, 1),
    (128, 8, 2, 1), (32, 2, 4, 5), (128, 4, 3, 2), (128, 4, 2, 3),
)]  # fmt: skip
LATENT_TILINGS = [Tiling(*sizes, rows=rows, programs=programs) for *sizes, rows, programs in (
    (32, 8, 2, 32, 1), (32, 8, 3, 32, 1), (64, 8, 2, 32, 1), (16, 8, 3, 32, 1), (32, 8, 2, 16, 1),
    (32, 4, 2, 16, 2), (32, 4, 3, 16, 2), (64, 4, 2, 16, 1), (64, 8, 2, 16, 1), (16, 4, 3, 16, 2),
    (64, 8, 3, 32, 1), (64, 8, 2, 64, 1), (64, 4, 3, 16, 1), (128, 8, 2, 32, 1),
)]  # fmt: skip
PREFILL_TILINGS = [Tiling(*sizes, rows=rows) for *sizes, rows in (
    (64, 8, 3, 128), (64, 8, 2, 128), (64, 8, 4, 128), (128, 8, 2, 128), (128, 8, 3, 128),
    (32, 8, 3, 128), (64, 4, 3, 64), (64, 4, 2, 64), (128, 4, 2, 64), (64, 4, 3, 128),
)]  # fmt: skip


def eight_bits_too(shapes: Sequence[Shape]) -> list[Shape]:
    """These shapes, then the same with keys and values of 8 bits."""
    return [*shapes, *(
        replace(shape, name=f"{shape.name}, 8 bits", dtype=torch.float8_e4m3fn) for shape in shapes
    )]  # fmt: skip


def tune(stage: Stage) -> Iterator[dict]:
    """Other tilings of decode attention (and split counts), of latents and of prefill; fastest first."""
    few = slice(2) if stage.dry else slice(None)

    def named(tiling: Tiling) -> str:
        rows = f", {tiling.rows} rows" if tiling.rows else ""
        programs = f", {tiling.programs} at once" if tiling.programs else ""
        return f"tile {tiling.tile}, {tiling.warps} warps, {tiling.stages} stages{rows}{programs}, shuffled"

    def ranked(what: str, rows: list[dict]) -> list[dict]:
        best, *_ = rows = sorted(rows, key=lambda row: row.get("us", math.inf))
        print(f"         {what}: best is {best['name']}, {best.get('us', math.nan):.1f} us", flush=True)
        return rows

    toy = Shape("2 x 70", (70, 70), **TOY)
    for shape in eight_bits_too((toy,) if stage.dry else DECODE[:3]):
        pools = Pools(stage, shape)
        contestants = {
            named(tiling): pools.ours(16, shuffle=True, tiling=tiling) for tiling in DECODE_TILINGS[few]
        }
        for splits in (1, 2) if stage.dry else (1, 2, 4, 8, 16, 33, 66, 132):
            if splits * 64 <= max(shape.lengths):
                contestants[f"{splits} splits, shuffled"] = pools.ours(16, shuffle=True, splits=splits)
        yield from ranked(shape.name, pools.contest("tune", contestants))
        del pools, contestants
    for dtype, heads in product((torch.bfloat16, torch.float8_e4m3fn), (4,) if stage.dry else (128, 16)):
        latents = Latents(stage, (40,) * 2 if stage.dry else (4096,) * 64, dtype)
        what = f"{heads} heads on latents of {8 * dtype.itemsize} bits"
        contestants = {
            f"{what}: {named(tiling)}": latents.ours(heads, latents.where(True, True), tiling)
            for tiling in LATENT_TILINGS[few]
        }
        yield from ranked(what, stage.contest("tune", contestants, {"moved": latents.moved}))
        del latents, contestants
    for shape in (Shape("20 of 40", (40,), 20, **TOY),) if stage.dry else (PREFILL[1], PREFILL[4]):
        pools = Pools(stage, shape)
        contestants = {
            named(tiling): pools.ours(16, shuffle=True, tiling=tiling) for tiling in PREFILL_TILINGS[few]
        }
        yield from ranked(shape.name, pools.contest("tune", contestants))
        del pools, contestants


PARTS = {part.__name__: part for part in (ceilings, decode, models, blocks, prefill, moves, tune)}


def main() -> None:
    """Measure the requested parts and write the report after each part."""
    usual = [part for part in PARTS if part != "tune"]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", default=",".join(usual), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--out", type=Path, help="a JSON file to write")
    parser.add_argument("--repeats", type=int, default=15, help="replays of each graph")
    parser.add_argument("--dry-run", action="store_true", help="rehearse on the CPU: no measurement")
    options = parser.parse_args()
    parts = options.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"--parts must be of {', '.join(PARTS)}, got {', '.join(sorted(unknown))}")
    if "ceilings" not in parts:
        parts = ["ceilings", *parts]  # the baseline of the others
    stage = Stage(options.dry_run, options.repeats)
    report = {
        "measurement": not options.dry_run,
        "device": stage.name,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "datasheet_gb_per_s": stage.sheet.gb_per_s if stage.sheet else None,
        "clocks": [clocks(stage.uuid)],
        "rows": [],
        "failed": [],
    }
    for part in parts:
        start = time.perf_counter()
        try:
            for row in PARTS[part](stage):
                report["rows"].append(row)
        except DeviceLostError as error:
            report["failed"].append(f"{part}: {error}")
            parts.clear()  # nothing else can run
        except Exception as error:  # any error: the other parts continue
            report["failed"].append(f"{part}: {words_of(error)}")
        report["clocks"].append(clocks(stage.uuid))
        print(f"         {part} took {time.perf_counter() - start:.0f} s", flush=True)
        if options.out:
            options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if report["failed"]:
        sys.exit("\n".join(f"error: {failure}" for failure in report["failed"]))
    if options.dry_run:
        print("a rehearsal on the CPU: none of these times is a measurement")


if __name__ == "__main__":
    main()
