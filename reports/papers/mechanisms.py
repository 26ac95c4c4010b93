"""Papers without a server: a closed form, or one mechanism of an allocator, from the numbers of a data file.

A figure says `reads = "mechanism"` and `measure = NAME`; the `arguments` of its cells are the measure's own.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import Any

from kvsim.allocators.llama import search
from kvsim.allocators.llama.defrag import most_moves, moves_of
from kvsim.allocators.options import Options
from kvsim.allocators.size_classes.store import Segment
from kvsim.allocators.size_classes.utilisation import SIZES, Objects, one_by_one, pairs, splitmix64
from kvsim.reports.papers.copies import copies
from kvsim.reports.papers.fleets import tiered_fleet
from kvsim.sim.deployment.registry import allocator_class
from kvsim.sim.serving.engine import no_cycle_collection

MIB, GIB = 1 << 20, 1 << 30
BASE = 0x1000
"""The start address of the benchmark's memory."""
Values = dict[str, float | None]


def uniform_waste(kinds: Sequence[Mapping[str, int]], tokens: int) -> Values:
    """Waste if every layer gets memory for `tokens`, but the `layers` of each kind need only their `tokens`.

    waste = 1 - sum(layers * tokens of each kind) / (all layers * tokens), in percent.
    """
    layers = sum(kind["layers"] for kind in kinds)
    needed = sum(kind["layers"] * kind["tokens"] for kind in kinds)
    return {"waste": 100 * (1 - needed / (layers * tokens))}


def aligned_block(
    state_bytes: int = 1, token_bytes: int = 1, chunk: int = 1, groups: int = 1, pool_blocks: int = 1
) -> Values:
    """Tokens of a block that is at least as large as a recurrent state; the share of one block per group.

    tokens = ceil(state / bytes of a token), in whole chunks; share = groups / blocks of the pool, in percent.
    """
    tokens = -(-state_bytes // token_bytes)
    return {"tokens": -(-tokens // chunk) * chunk, "share": 100 * groups / pool_blocks}


def pinned_pool(buffers: int, buffer_bytes: int) -> Values:
    """GiB of pinned memory that tensors take: each is rounded up to a power of two."""
    return {"taken": buffers * (1 << (buffer_bytes - 1).bit_length()) / GIB}


def fill_time(free_gb: float, gb_per_s: float) -> Values:
    """Seconds until memory is full, at a given rate of new keys and values."""
    return {"seconds": free_gb / gb_per_s}


def graph_moves(nodes: int, layers: int) -> Values:
    """The maximum number of runs of cells that one defragmentation moves."""
    return {"moves": most_moves(nodes, layers)}


def interleaved(
    *, cells: int, lanes: int, tokens: int, gone: int, prompt: int, most: int, in_a_row: bool = True
) -> Values:
    """Lanes that decode side by side fill cells in turn; some end; then a prompt arrives.

    Returns
    -------
    dict
        `free` cells; the `longest` row of them; whether the prompt, which needs a row or any cells, is
        `refused`; defragmentations of `most` moves until it finds a row (`rounds`).
    """
    empty = bytearray(b"\1" * cells)
    for cell in range(lanes * tokens):
        empty[cell] = cell % lanes < gone
    free, longest = empty.count(1), search.longest(empty)
    rounds = 0
    while free >= prompt > search.longest(empty):
        for source, to, length in moves_of(empty, cells - free, most):
            empty[to : to + length] = bytes(length)
            empty[source : source + length] = b"\1" * length
        rounds += 1
    refused = float(prompt > (longest if in_a_row else free))
    return {"free": free, "longest": longest, "refused": refused, "rounds": rounds}


def kvblock(
    *, allocator: str, layers: int, kv_heads: int, head_dim: int, dtype_bytes: int, tensor_parallel: int
) -> Values:
    """The vAttention memory of a sequence of one token: a page in K and V of each layer.

    Returns
    -------
    dict
        `tokens` that its pages hold, and its MiB on all GPUs, a bound of any sequence's waste (`waste`).
    """
    heads = kv_heads // tensor_parallel
    token_bytes = 2 * layers * heads * head_dim * dtype_bytes
    options = Options(
        token_bytes=token_bytes, layers=layers, kv_heads=heads, head_dim=head_dim, dtype_bytes=dtype_bytes
    )
    memory = allocator_class(allocator).from_options(1 << 16, options)
    assert memory.admit(0, 1, 1)
    allocated = memory.used_slots * token_bytes // memory.slots_per_token
    return {"tokens": memory.capacity(0), "waste": allocated * tensor_parallel / MIB}


@no_cycle_collection()  # otherwise Python would scan all objects again and again
def full_store(*, pool: int, rounds: bool, count: int, seed: int = 7, store: Mapping[str, int]) -> Values:
    """Mooncake's benchmark: the share of a full store that holds objects, in percent.

    `store` has the `size` of all objects, or `low` and `high`, or `kv`, `indexer` and rounds of `warm_up`;
    `count` is the number of allocations, or rounds, in the mean. `rounds`: allocations are rounded up.
    """
    objects, draws = Objects(Segment(pool, BASE, rounds), seed), splitmix64(seed ^ SIZES)
    if "kv" in store:
        sizes = store["kv"], store["indexer"]
        loop = pairs(objects, *sizes, draws, warm_up=store["warm_up"], rounds=count, share=0.05)
    elif "size" in store:
        loop = one_by_one(objects, repeat(store["size"]), pool // store["size"], count)
    else:
        low, span = store["low"], store["high"] - store["low"] + 1
        loop = one_by_one(objects, (low + draw % span for draw in draws), None, count)
    *_, outcome = loop
    return {"utilisation": 100 * outcome.mean}


MEASURES: dict[str, Callable[..., Values]] = {
    "uniform-waste": uniform_waste,
    "aligned-block": aligned_block,
    "pinned-pool": pinned_pool,
    "fill-time": fill_time,
    "graph-moves": graph_moves,
    "interleaved": interleaved,
    "kvblock": kvblock,
    "full-store": full_store,
    "tiered-fleet": tiered_fleet,
    "copies": copies,
}


def measured(name: str, arguments: Mapping[str, Any]) -> Values:
    """The values of a measure."""
    return MEASURES[name](**arguments)
