"""Composed steps: whole layers in sequence as in an engine, with blocks scattered over the pool.

A layer is norm, product (queries, keys, values), rotary embedding, KV write, attention of the decoding
sequences and of the chunks, product, norm, product (gate, up), activation, product (down). With experts the
last three are a product (router) and the experts, which are chosen beforehand. Activations pass from one to
the next; weights, keys and values differ in each layer.
"""

from dataclasses import dataclass

import torch

from kvsim.kernels.calibration import layer
from kvsim.kernels.calibration.launches import Call, block_tables, multiplication, pools, routed, sample
from kvsim.kernels.calibration.points import Arguments, Point, lengths_of, routing, useful
from kvsim.kernels.calibration.room import Room
from kvsim.kernels.decode import decode_attention
from kvsim.kernels.pieces import cut
from kvsim.kernels.prefill import prefill_attention
from kvsim.kernels.write import write_kv


def composed(room: Room, x: Arguments) -> list[Call]:
    """Layers, or heads after the last layer; one call each."""
    count = room.launches(useful(Point("composed", x))[0])
    if x["what"] == "head":
        return [_head(room, x) for _ in range(count)]
    batch = Batch.of(room, x)
    return [_layer(room, x, batch) for _ in range(count)]


@dataclass(frozen=True)
class Batch:
    """Data shared by all layers of a step: block tables, lengths and activations."""

    decoding: list[int]
    blocks: int
    table: torch.Tensor
    lengths: torch.Tensor
    first_queries: torch.Tensor
    slots: torch.Tensor
    turned: list[torch.Tensor]
    hidden: torch.Tensor
    residual: torch.Tensor
    rotated: torch.Tensor
    attended: torch.Tensor
    normed: torch.Tensor
    qkv: torch.Tensor
    gates: torch.Tensor
    activated: torch.Tensor

    @classmethod
    def of(cls, room: Room, x: Arguments) -> "Batch":
        """The batch of a composed step: decoding sequences first, then the chunks."""
        block_size, chunk, chunks = x["block_size"], x["chunk"], x["sequences"]
        decoding = lengths_of(x) if x["batch"] else []
        lengths = [*decoding, *[x["prefix"] + chunk] * chunks]
        tokens = len(decoding) + chunks * chunk
        table, blocks = block_tables(room, lengths, block_size)
        return cls(
            decoding,
            blocks,
            table,
            room.integers(lengths),
            room.integers([i * chunk for i in range(chunks + 1)]),
            new_slots(table.cpu(), lengths, [1] * len(decoding) + [chunk] * chunks, block_size).to(
                room.device
            ),
            [room.normal(tokens, x["head_dim"] // 2, dtype=torch.float32) for _ in "cs"],
            room.normal(tokens, x["hidden"]),
            room.normal(tokens, x["hidden"]),
            room.normal(tokens, x["heads"] + x["kv_heads"], x["head_dim"]),
            room.normal(tokens, x["heads"], x["head_dim"]),
            room.new(tokens, x["hidden"]),
            room.new(tokens, (x["heads"] + 2 * x["kv_heads"]) * x["head_dim"]),
            room.new(tokens, 2 * x["intermediate"]),
            room.new(tokens, x["intermediate"]),
        )


def new_slots(table: torch.Tensor, lengths: list[int], new: list[int], block_size: int) -> torch.Tensor:
    """The slots of the last `new` tokens of each sequence, concatenated."""
    found = []
    for row, (length, count) in enumerate(zip(lengths, new, strict=True)):
        token = torch.arange(length - count, length)
        found.append(table[row, token // block_size].long() * block_size + token % block_size)
    return torch.cat(found).int()


def _layer(room: Room, x: Arguments, batch: Batch) -> Call:
    hidden, heads, kv_heads = x["hidden"], x["heads"], x["kv_heads"]
    head_dim, tokens = x["head_dim"], len(batch.hidden)
    ends = (batch.normed, batch.qkv), (batch.attended.view(tokens, -1), batch.hidden)
    to_qkv, to_hidden = (multiplication(room, *each, narrow=x["weight_bytes"] == 1) for each in ends)
    mlp = _mlp(room, x, batch)
    gain, value = _gain(room, hidden), room.cut(tokens, kv_heads, head_dim)
    keys, values = pools(room, batch.blocks, x)
    # The kernels take contiguous tensors: the rotated heads of all tokens are viewed as queries, then keys.
    flat, queries, decoding = batch.rotated.view(-1), tokens * heads * head_dim, len(batch.decoding)
    query = flat[:queries].view(tokens, heads, head_dim)
    key = flat[queries:].view(tokens, kv_heads, head_dim)

    pieces = None
    if decoding:
        longest, together = max(batch.decoding), sum(batch.decoding)
        pieces = cut(
            batch.lengths[:decoding], longest=longest, tokens=together, kv_heads=kv_heads, head_dim=head_dim,
            group=heads // kv_heads,
        )  # fmt: skip

    def run() -> None:
        layer.norm(batch.hidden, batch.residual, gain, batch.normed).run()
        to_qkv()
        layer.rotary(batch.qkv, batch.rotated, *batch.turned).run()
        write_kv(key, value, keys, values, batch.slots)
        if decoding:
            decode_attention(
                query[:decoding], keys, values, batch.lengths[:decoding], longest=longest, pieces=pieces,
                block_table=batch.table[:decoding], out=batch.attended[:decoding],
            )  # fmt: skip
        if x["sequences"]:
            prefill_attention(
                query[decoding:], keys, values, batch.lengths[decoding:], batch.first_queries,
                most_queries=x["chunk"], block_table=batch.table[decoding:], out=batch.attended[decoding:],
            )  # fmt: skip
        to_hidden()
        layer.norm(batch.hidden, batch.residual, gain, batch.normed).run()
        for call in mlp:
            call()

    return run


def _mlp(room: Room, x: Arguments, batch: Batch) -> list[Call]:
    """What follows the second norm, in order."""
    tokens, narrow, count = len(batch.hidden), x["weight_bytes"] == 1, x.get("experts")
    if count:
        scores = multiplication(room, batch.normed, room.new(tokens, count))
        chosen = routing(tokens, x["hidden"], x["intermediate"], count, x["top_k"])
        return [scores, routed(room, batch.normed, batch.hidden, chosen, narrow)]
    return [
        multiplication(room, batch.normed, batch.gates, narrow),
        layer.activation(batch.gates, batch.activated).run,
        multiplication(room, batch.activated, batch.hidden, narrow),
    ]


def _head(room: Room, x: Arguments) -> Call:
    rows, hidden = x["rows"], x["hidden"]
    inputs, residual, normed = (room.cut(rows, hidden) for _ in "xrn")
    gain, weights = _gain(room, hidden), room.cut(x["vocabulary"], hidden).t()
    logits = room.new(rows, x["vocabulary"])

    def run() -> None:
        layer.norm(inputs, residual, gain, normed).run()
        torch.mm(normed, weights, out=logits)
        sample(logits)

    return run


def _gain(room: Room, hidden: int) -> torch.Tensor:
    """Norm weights after which a product with the slab's numbers has variance 1.

    With larger weights half of all activations would be 0, and products with them faster.
    """
    return room.normal(hidden) / hidden**0.5
