"""The launches of each part of a profile: tensors of random numbers, and calls on them.

A function takes the room and a point's x, and returns the calls of one graph, one launch each (a decode and
its reduction count as one, as does a block copy of keys and values). Blocks are shuffled.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from kvsim.kernels.calibration import layer
from kvsim.kernels.calibration.points import BYTES, MOST_POPULAR, Arguments, Point, lengths_of, useful
from kvsim.kernels.calibration.room import NARROW, Room
from kvsim.kernels.copy import copy_blocks
from kvsim.kernels.decode import decode_attention
from kvsim.kernels.experts import routed_experts
from kvsim.kernels.latent import cut_latents, latent_attention
from kvsim.kernels.pieces import cut
from kvsim.kernels.prefill import prefill_attention
from kvsim.kernels.swap import gather_blocks, scatter_blocks
from kvsim.kernels.write import write_kv

Call = Callable[[], object]

EMPTY_LAUNCHES = 200
CUT_BATCH = 256
"""Sequences whose contexts are split; up to pieces.AT_ONCE the time does not depend on their number."""


def block_tables(room: Room, lengths: Iterable[int], block_size: int) -> tuple[torch.Tensor, int]:
    """(tables [sequences, most blocks] of shuffled blocks, number of blocks)."""
    counts = [-(-length // block_size) for length in lengths]
    order, table, first = room.shuffled(sum(counts)), torch.zeros(len(counts), max(counts)).int(), 0
    for row, count in enumerate(counts):
        table[row, :count] = order[first : first + count]
        first += count
    return table.to(room.device), sum(counts)


def pools(room: Room, blocks: int, x: Arguments) -> list[torch.Tensor]:
    """Keys and values."""
    shape = (blocks, x["block_size"], x["kv_heads"], x["head_dim"])
    kind = NARROW if x.get("element_bytes", 2) == 1 else None
    return [room.cut(*shape, dtype=kind) for _ in "kv"]


def decode(room: Room, x: Arguments) -> list[Call]:
    """Decode one token of each sequence over its blocks."""
    lengths = lengths_of(x)
    table, blocks = block_tables(room, lengths, x["block_size"])
    on_device, longest = room.integers(lengths), max(lengths)
    pieces = cut(
        on_device, longest=longest, tokens=sum(lengths), kv_heads=x["kv_heads"], head_dim=x["head_dim"],
        element_bytes=x["element_bytes"], group=x["group"],
    )  # fmt: skip
    query = room.normal(len(lengths), x["kv_heads"] * x["group"], x["head_dim"])
    out = torch.empty_like(query)
    count = room.launches(2 * sum(lengths) * x["kv_heads"] * x["head_dim"] * x["element_bytes"])

    def one(keys: torch.Tensor, values: torch.Tensor) -> Call:
        return lambda: decode_attention(
            query, keys, values, on_device, longest=longest, block_table=table, out=out, pieces=pieces
        )

    return [one(*pools(room, blocks, x)) for _ in range(count)]


def cutting(room: Room) -> list[Call]:
    """Split the contexts of a batch, as before the first layer of a step."""
    lengths = lengths_of({"batch": 4 if room.rehearsal else CUT_BATCH, "context": 1000, "skew": "lognormal"})
    on_device, most = room.integers(lengths), {"longest": max(lengths), "tokens": sum(lengths)}
    geometry = {"kv_heads": 8, "head_dim": 128, "group": 4}
    pieces = cut(on_device, **most, **geometry)
    return [lambda: cut(on_device, **most, **geometry, out=pieces)] * room.launches(0)


def latent(room: Room, x: Arguments) -> list[Call]:
    """Decode one token of each sequence over its blocks of latents."""
    lengths, width = lengths_of(x), x["latent"] + x["rope"]
    table, blocks = block_tables(room, lengths, x["block_size"])
    on_device, longest = room.integers(lengths), max(lengths)
    pieces = cut_latents(
        on_device, heads=x["heads"], element_bytes=x["element_bytes"], longest=longest, tokens=sum(lengths)
    )
    query = room.normal(len(lengths), x["heads"], width)
    out = query.new_empty((*query.shape[:2], x["latent"]))
    kind = NARROW if x["element_bytes"] == 1 else None

    def one() -> Call:
        cache = room.cut(blocks, x["block_size"], width, dtype=kind)
        return lambda: latent_attention(
            query, cache, on_device, latent=x["latent"], scale=width**-0.5, longest=longest,
            block_table=table, out=out, pieces=pieces,
        )  # fmt: skip

    return [one() for _ in range(room.launches(*useful(Point("latent", x))))]


def prefill(room: Room, x: Arguments) -> list[Call]:
    """Prefill chunks of some sequences over their blocks."""
    sequences, chunk = x["sequences"], x["chunk"]
    lengths = [x["prefix"] + chunk] * sequences
    table, blocks = block_tables(room, lengths, x["block_size"])
    on_device, firsts = room.integers(lengths), room.integers([i * chunk for i in range(sequences + 1)])
    query = room.normal(sequences * chunk, x["kv_heads"] * x["group"], x["head_dim"])
    out = torch.empty_like(query)

    def one() -> Call:
        keys, values = pools(room, blocks, x)
        return lambda: prefill_attention(
            query, keys, values, on_device, firsts, most_queries=chunk, block_table=table, out=out
        )

    moved, flops = 2 * sum(lengths) * x["kv_heads"] * x["head_dim"] * 2, useful(Point("prefill", x))[1]
    return [one() for _ in range(room.launches(moved, flops))]


def product(room: Room, x: Arguments, part: str = "product") -> list[Call]:
    """Multiply activations by weights."""
    activations, out = room.normal(x["tokens"], x["inputs"]), room.new(x["tokens"], x["outputs"])
    count = room.launches(*useful(Point(part, x)))
    return [multiplication(room, activations, out, part == "product_fp8") for _ in range(count)]


def multiplication(room: Room, activations: torch.Tensor, out: torch.Tensor, narrow: bool = False) -> Call:
    """[tokens, inputs] times new weights into [tokens, outputs]; weights are laid out as in torch.

    For `narrow` weights, of 8 bits, the activations are converted first; all scales are those of a tensor.
    """
    shape = out.shape[1], activations.shape[1]
    if not narrow:
        weights = room.cut(*shape).t()
        return lambda: torch.mm(activations, weights, out=out)
    weights, converted = room.cut(*shape, dtype=NARROW).t(), room.new(*activations.shape, dtype=NARROW)
    scales = [torch.tensor(scale, device=room.device) for scale in (1 / layer.SCALE, 1.0)]

    def run() -> None:
        layer.quantize(activations, converted).run()
        torch._scaled_mm(converted, weights, *scales, out_dtype=out.dtype, use_fast_accum=True, out=out)

    return run


def experts(room: Room, x: Arguments, part: str = "experts") -> list[Call]:
    """Routed experts: rows by expert, both products and the sum; in 8 bits, converting the tokens first."""
    tokens = room.normal(x["tokens"], x["hidden"]) / x["hidden"] ** 0.5
    out = torch.empty_like(tokens)
    count = room.launches(*useful(Point(part, x)))
    return [routed(room, tokens, out, x, part == "experts_fp8") for _ in range(count)]


def routed(room: Room, tokens: torch.Tensor, out: torch.Tensor, x: Arguments, narrow: bool) -> Call:
    """[tokens, hidden] through new experts, chosen anew, into `out`; `narrow` as in `multiplication`."""
    hidden, inner, local, kind = x["hidden"], x["inner"], x["local"], NARROW if narrow else None
    gate_up, down = (room.cut(local, *each, dtype=kind) for each in ((2 * inner, hidden), (hidden, inner)))
    chosen = choice(room, x)
    factors = torch.full(chosen.shape, 1 / x["top_k"], device=room.device)
    if not narrow:
        return lambda: routed_experts(tokens, chosen, factors, gate_up, down, out=out)
    converted = room.new(*tokens.shape, dtype=NARROW)

    def run() -> None:
        layer.quantize(tokens, converted).run()
        routed_experts(converted, chosen, factors, gate_up, down, out=out, scale=layer.SCALE)

    return run


def choice(room: Room, x: Arguments) -> torch.Tensor:
    """The experts of each token, [tokens, top_k] int32; those of this GPU come first.

    All are equally popular if `skew` is 0. Else popularity is drawn from a power law with that exponent,
    between 1 and MOST_POPULAR. A token's experts differ.
    """
    tokens, count, skew = x["tokens"], x["experts"], x["skew"]
    popularity = torch.zeros(count, device=room.device)  # its logarithm
    if skew:
        drawn = torch.rand(count, generator=room.generator, device=room.device)
        popularity = (1 + drawn * (MOST_POPULAR ** (1 - skew) - 1)).log() / (1 - skew)
    waits = torch.empty(tokens, count, device=room.device).exponential_(generator=room.generator)
    return (popularity - waits.log()).topk(x["top_k"]).indices.int()


def sample(logits: torch.Tensor) -> torch.Tensor:
    """Sample one token per row: the argmax of probability over exponential noise."""
    probabilities = logits.float().softmax(-1)
    return probabilities.div_(torch.empty_like(probabilities).exponential_()).argmax(-1)


def sampling(room: Room, x: Arguments) -> list[Call]:
    """Sample tokens from rows of logits."""

    def one() -> Call:
        logits = room.cut(x["rows"], x["vocabulary"])
        return lambda: sample(logits)

    return [one() for _ in range(room.launches(BYTES["sampling"](x)))]


def elementwise(room: Room, x: Arguments) -> list[Call]:
    """Norm, rotary embedding or activation."""
    tokens, width = x["tokens"], x["width"]
    weight = room.normal(width)
    head_dim = min(width, 128)
    tables = [room.normal(tokens, head_dim // 2, dtype=torch.float32) for _ in "cs"]

    def one() -> Call:
        if x["op"] == "norm":
            inputs, residual, out = (room.cut(tokens, width) for _ in "xro")
            return layer.norm(inputs, residual, weight, out).run
        if x["op"] == "rotary":
            inputs, out = room.cut(tokens, width), room.cut(tokens, width // head_dim, head_dim)
            return layer.rotary(inputs, out, *tables).run
        inputs, out = room.cut(tokens, 2 * width), room.cut(tokens, width)
        return layer.activation(inputs, out).run

    return [one() for _ in range(room.launches(BYTES["elementwise"](x)))]


def kv_write(room: Room, x: Arguments) -> list[Call]:
    """Write new tokens, each into a slot of a different block."""
    tokens, shape = x["tokens"], (x["kv_heads"], x["head_dim"])

    def one(turn: int) -> Call:
        keys, values = (room.cut(tokens, 16, *shape) for _ in "kv")
        key, value = (room.cut(tokens, *shape) for _ in "kv")
        slots = (room.shuffled(tokens, turn) * 16 + turn % 16).to(room.device)
        return lambda: write_kv(key, value, keys, values, slots)

    return [one(turn) for turn in range(room.launches(BYTES["kv_write"](x)))]


def block_copy(room: Room, x: Arguments) -> list[Call]:
    """Copy blocks within the pools, or between them and a staging buffer."""
    blocks, block = x["blocks"], (x["block_size"], x["kv_heads"], x["head_dim"])

    def one(turn: int) -> Call:
        keys, values = (room.cut(2 * blocks, *block) for _ in "kv")
        order = room.shuffled(2 * blocks, turn).to(room.device)
        if x["op"] == "copy":
            pairs = order.view(blocks, 2)
            return lambda: copy_blocks(keys, values, pairs)
        some, staging = order[:blocks].contiguous(), room.cut(2, blocks, *block)
        move = gather_blocks if x["op"] == "gather" else scatter_blocks
        return lambda: move(keys, values, some, staging)

    return [one(turn) for turn in range(room.launches(BYTES["block_copy"](x)))]


def host_copies(room: Room, x: Arguments, to_host: bool) -> list[Call]:
    """Copy bytes between the GPU and pinned memory, a different range of both each time."""
    size = x["bytes"]
    count = 2 if room.rehearsal else room.launches(size)
    pinned = room.pinned(min(count * size, max(2**28, size)))
    stretches = len(pinned) // size

    def one(turn: int) -> Call:
        there = pinned[turn % stretches * size :][:size]
        here = room.cut(size, dtype=torch.uint8)
        target, source = (there, here) if to_host else (here, there)
        return lambda: target.copy_(source, non_blocking=True)

    return [one(turn) for turn in range(count)]


def ceilings(room: Room, x: Arguments) -> list[Call]:
    """Read and write equally much, only read, or multiply large matrices; each over different ranges.

    The copy is a kernel that negates: in a graph, torch's own copies run on the copy engines, at two thirds
    of the speed on an H200.
    """
    count = room.launches(0 if room.rehearsal else 2**30)
    if x["what"] == "product":
        a, b, out = (room.cut(x["side"], x["side"]) for _ in "abo")
        return [lambda: torch.mm(a, b, out=out)] * count
    if x["what"] == "copy":
        pairs = [(room.cut(x["bytes"] // 4), room.cut(x["bytes"] // 4)) for _ in range(count)]
        return [
            lambda target=target, source=source: torch.neg(source, out=target) for target, source in pairs
        ]
    sums = room.new(x["bytes"] // 4 // 8192, dtype=torch.float32)
    sources = [room.cut(x["bytes"] // 4, dtype=torch.float32) for _ in range(count)]
    return [layer.read(source, sums).run for source in sources]


def empty(room: Room) -> Call:
    """A kernel that does nothing."""
    return layer.empty(room.new(16)).run


def eager(room: Room) -> list[Call]:
    """Small kernels launched as by an engine without graphs, alternating torch's and Triton's."""
    x, residual, out, weight = (room.normal(16, 64) for _ in "xrow")
    square = room.normal(64, 64)
    pair: list[Call] = [
        lambda: torch.mm(x, square, out=out),
        layer.norm(x, residual, weight[0], out).run,
    ]
    return pair * (1 if room.rehearsal else EMPTY_LAUNCHES // 2)


PARTS: Mapping[str, Callable[[Room, Any], list[Call]]] = {
    "ceilings": ceilings,
    "decode": decode,
    "latent": latent,
    "prefill": prefill,
    "product": product,
    "product_fp8": lambda room, x: product(room, x, "product_fp8"),
    "lm_head": product,
    "experts": experts,
    "experts_fp8": lambda room, x: experts(room, x, "experts_fp8"),
    "sampling": sampling,
    "elementwise": elementwise,
    "kv_write": kv_write,
    "block_copy": block_copy,
    "to_host": lambda room, x: host_copies(room, x, to_host=True),
    "to_gpu": lambda room, x: host_copies(room, x, to_host=False),
}
"""Part -> the calls of a point. Whole layers are in steps.py, all-reduces in all_reduce.py."""
