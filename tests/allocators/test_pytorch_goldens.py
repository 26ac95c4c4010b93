"""The caching allocator keeps the books of the genuine one of PyTorch 2.6.0: addresses, blocks, counters."""

import gzip
import json
from functools import cache

import pytest
from support.pytorch_conf import settings_of
from support.shared_data import goldens

from kvsim.allocators.pytorch import CachingAllocator
from kvsim.allocators.pytorch.card import VIRTUAL

pytestmark = pytest.mark.golden


@cache
def sequences():
    """Name -> recording, of every file there."""
    found = {}
    for file in sorted(goldens("zoo/pytorch").glob("*.json.gz")):
        with gzip.open(file, "rt", encoding="utf-8") as opened:
            found.update(json.load(opened))
    return found


def names():
    try:
        return sorted(sequences())
    except pytest.skip.Exception:
        return []


def test_there_are_recordings():
    assert sequences()


@pytest.mark.parametrize("name", names())
def test_every_call_ends_as_recorded(name):
    recording = sequences()[name]
    config = recording["config"]
    allocator = CachingAllocator(config["total"], settings_of(config.get("conf")), config.get("fraction"))
    blocks = {}
    for number, call in enumerate(recording["ops"]):
        op, args, expected, state = read(call)
        returned = run(allocator, blocks, op, args)
        assert returned == expected, f"{name}, call {number}: {op} {args}"
        if state is not None:
            assert state_of(allocator) == state, f"{name}, call {number}: {op} {args}"


def read(call):
    """One call, written as an object or as a row."""
    if isinstance(call, dict):
        return call["op"], call["args"], call["ret"], call.get("state")
    if call[0] == "a":
        return "alloc", call[1:4], call[4], call[5] if len(call) > 5 else None
    return "free", call[1:2], call[2], call[3] if len(call) > 3 else None


def run(allocator, blocks, op, args):
    if op == "alloc":
        handle, size, stream = args
        if size == 0:
            return None
        block = allocator.malloc(size, stream)
        if block is None:
            return "OOM"
        blocks[handle] = block
        return address(block.addr)
    if op == "free":
        return allocator.free(blocks.pop(args[0]))
    assert op == "empty_cache"
    return allocator.empty_cache()


def address(addr):
    return f"v+{addr - VIRTUAL}" if addr >= VIRTUAL else addr


def state_of(allocator):
    counters, card = allocator.counters, allocator.card
    return {
        "segments": [
            {
                "addr": address(segment.addr),
                "size": segment.size,
                "large": int(not segment.small),
                "expandable": int(segment.expandable),
                "stream": segment.stream,
                "blocks": [
                    [block.size, block.requested, int(block.allocated), int(block.allocated)]
                    for block in segment.blocks
                ],
            }
            for segment in allocator.segments()
        ],
        "allocated_bytes": list(counters.allocated),
        "reserved_bytes": list(counters.reserved),
        "active_bytes": list(counters.active),
        "inactive_split_bytes": list(counters.inactive_split_bytes),
        "requested_bytes": list(counters.requested),
        "segment": list(counters.segments),
        "inactive_split": list(counters.inactive_split),
        "num_alloc_retries": counters.retries,
        "num_ooms": counters.ooms,
        "num_sync_all_streams": counters.syncs,
        "num_device_alloc": counters.device_allocs,
        "num_device_free": counters.device_frees,
        "card_used": card.used_bytes,
        "cudaMalloc": card.mallocs,
        "cudaFree": card.frees,
        "cuMemCreate": card.creates,
        "cuMemRelease": card.releases,
        "cuMemMap": card.maps,
        "cuMemUnmap": card.unmaps,
        "cuMemAddressReserve": card.reserves,
    }
