"""What is read off an allocator itself, without a server: for papers that tell of allocators alone.

A cell with a `measure` is not a simulation of a server. Its numbers come from one of these:

kvblock   a sequence of one token in vAttention's memory: how many tokens its pages hold, and its bytes
store     Mooncake's benchmark of a full store: how much of it holds objects, in percent
"""

import time
from collections.abc import Callable
from itertools import repeat
from typing import Any

from kvsim.allocators.options import Options
from kvsim.allocators.size_classes.store import Segment
from kvsim.allocators.size_classes.utilisation import SIZES, Objects, one_by_one, pairs, splitmix64
from kvsim.allocators.virtual_memory.vattention import VAttention
from kvsim.sim.errors import unknown
from kvsim.sim.scenario.registry import allocator_class

Numbers = dict[str, float | None]
MIB = 1 << 20
BASE = 0x1000


def measured(cell: dict[str, Any]) -> Numbers:
    """The numbers of such a cell."""
    found = MEASURES.get(cell["measure"])
    if found is None:
        raise unknown("measure", cell["measure"], list(MEASURES))
    cpu_s = time.process_time()
    numbers = found(cell)
    return {
        **numbers,
        "requests": cell["workload"]["num_prompts"],
        "rejected": 0,
        "cpu_s": time.process_time() - cpu_s,
    }


def _kvblock(cell: dict[str, Any]) -> Numbers:
    sizes, parallel = cell["sizes"], cell["tensor_parallel_size"]
    heads = sizes["kv_heads"] // parallel
    token_bytes = 2 * sizes["layers"] * heads * sizes["head_dim"] * sizes["dtype_bytes"]
    options = Options(**{**sizes, "kv_heads": heads, "token_bytes": token_bytes})
    allocator = allocator_class(cell["engine"]["allocator"]).from_options(1 << 16, options)
    assert isinstance(allocator, VAttention)
    assert allocator.admit(0, 1, 1)
    lent = allocator.used_slots * token_bytes // allocator.slots_per_token
    return {"tokens": allocator.capacity(0), "waste": lent * parallel / MIB}


def _store(cell: dict[str, Any]) -> Numbers:
    """The shares that the benchmark prints: after each allocation, or at each refusal."""
    store, count = cell["store"], cell["workload"]["num_prompts"]
    seed = cell["workload"].get("seed", 7)
    segment = Segment(store["pool"], BASE, cell["rounds"])
    objects, draws = Objects(segment, seed), splitmix64(seed ^ SIZES)
    if "kv" in store:
        sizes = store["kv"], store["indexer"]
        loop = pairs(objects, *sizes, draws, warm_up=store["warm_up"], rounds=count, share=0.05)
    elif "size" in store:
        warm_up = store["pool"] // store["size"]
        loop = one_by_one(objects, repeat(store["size"]), warm_up, count)
    else:
        low, span = store["low"], store["high"] - store["low"] + 1
        loop = one_by_one(objects, (low + draw % span for draw in draws), None, count)
    *_, outcome = loop
    return {"utilisation": 100 * outcome.mean}


MEASURES: dict[str, Callable[[dict[str, Any]], Numbers]] = {"kvblock": _kvblock, "store": _store}
