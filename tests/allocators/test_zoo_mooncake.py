"""Mooncake's OffsetAllocator, both builds: every address, size and state of the genuine code."""

import gc
from array import array
from itertools import repeat

import numpy as np
import pytest
from support.zoo import first_difference, recording, rows_at

from kvsim.allocators.size_classes.bins import class_down, class_size, class_up
from kvsim.allocators.size_classes.store import Segment
from kvsim.allocators.size_classes.utilisation import MASK, SIZES, Objects, one_by_one, pairs, splitmix64

pytestmark = pytest.mark.golden
BUILDS = ("mooncake", "upstream")


def total_free(segment):
    """Free bytes as the storage report says them: 0 without a node to allocate them with."""
    heap = segment.heap
    return heap.free_units * heap.has_node << segment.quantum_bits


def state_of(segment):
    heap, bits = segment.heap, segment.quantum_bits
    extents = list(heap.extents())
    return {
        "total_free": total_free(segment),
        "largest_free": segment.largest_free,
        "allocated": segment.requested,
        "allocated_num": sum(each.allocated for each in extents),
        "hint": segment.hint,
        "nodes_in_use": len(extents),
        "node_capacity": heap.num_nodes,
        "extents": [
            [each.start << bits, each.size << bits, int(each.allocated), each.node] for each in extents
        ],
        "bins": [
            [number, class_size(number, 3) << bits, [each.node for each in reversed(free)]]
            for number, free in enumerate(heap._classes)
            if free
        ],
    }


def segment_of(case, build):
    return Segment(
        case["size"], case["base"], build == "mooncake", case["init_capacity"], case["max_capacity"]
    )


def as_rows(ops):
    """Operations of the small recordings as rows of the large ones."""
    for op in ops:
        if isinstance(op, list):
            yield op
        elif op["op"] == "alloc":
            ret = op["ret"] and [op["ret"]["addr"], op["ret"]["lent"], op["ret"]["node"]]
            yield ["a", *op["args"], ret, op["state"]]
        else:
            yield ["f", *op["args"], op["ret"], op["state"]]


def replay(segment, ops):
    """The first operation whose answer or state is another, with both."""
    loans = {}
    for at, (kind, handle, *rest) in enumerate(as_rows(ops)):
        if kind == "a":
            size, theirs, *state = rest
            loan = segment.take(size)
            if loan is not None:
                loans[handle] = loan
            ours = loan and [segment.address(loan), loan.size << segment.quantum_bits, loan.node]
        else:
            theirs, *state = rest
            segment.give_back(loans.pop(handle))
            ours = True
        if ours != theirs:
            return at, ours, theirs
        if state and state[0] is not None and (wrong := first_difference(state_of(segment), state[0])):
            return at, *wrong
    return None


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("kind", ["small", "medium"])
def test_every_address_size_and_state_is_as_in_the_genuine_code(kind, build):
    cases = recording(f"mooncake/{kind}_{build}.json.gz")
    wrong = {}
    for name, case in cases.items():
        segment = segment_of(case, build)
        assert segment.quantum_bits == case["multiplier_bits"], name
        found = first_difference(state_of(segment), case["initial_state"]) or replay(segment, case["ops"])
        if found:
            wrong[name] = found
    assert cases
    assert not wrong


def test_sizes_fall_into_the_classes_of_the_genuine_code():
    columns, rows = recording("mooncake/bins.json.gz").values()
    assert columns == ["size", "bin_round_up", "bin_round_down", "size_of_bin_up", "size_of_bin_down"]
    for size, *theirs in rows:
        up, down = class_up(size, 3), class_down(size, 3)
        assert [up, down, class_size(up, 3), class_size(down, 3)] == theirs, size


def test_large_pools_are_counted_in_quanta():
    for row in recording("mooncake/normalized.json"):
        segment = Segment(row["pool"])
        assert segment.quantum_bits == row["multiplier_bits"], row["pool"]
        for size, theirs in row["size_to_lent"]:
            assert segment.allocated_size(size) == theirs, (row["pool"], size)


class Digest:
    """FNV-1a of 64 bits over addresses, 8 bytes little endian each: value = (value ^ byte) * PRIME."""

    PRIME = 0x100000001B3

    def __init__(self):
        self._value, self._addresses = 0xCBF29CE484222325, array("Q")
        self.add = self._addresses.append

    @property
    def value(self):
        """Of all addresses so far: `^ byte` adds `mixed - low`, and the low bytes are known beforehand.

        Bit k of the next low byte is that of `mixed`, turned by the bits below it: no other bit is asked.
        """
        data = np.array(self._addresses, dtype="<u8").view(np.uint8)
        del self._addresses[:]
        mixed = np.zeros_like(data)  # low ^ byte
        for bit in 1 << np.arange(8, dtype=np.uint8):
            turns = data & bit
            turns[0] ^= self._value & int(bit)
            turns[1:] ^= mixed[:-1] * np.uint8(self.PRIME & 0xFF) & bit
            mixed |= np.bitwise_xor.accumulate(turns)
        added = mixed.astype(np.uint64) - (mixed ^ data)
        powers = np.full(len(data), self.PRIME, np.uint64).cumprod()
        self._value = (self._value * int(powers[-1]) + int((added * powers[::-1]).sum())) & MASK
        return self._value


def benchmark(kind, row):
    """The recorded run: outcomes at each sample, the digests there, the objects."""
    smallest = row.get("lo") or row.get("size") or row["indexer"] or row["kv"]
    nodes = row["pool"] // smallest + (1024 if kind == "pair" else 10)
    digest = Digest()
    segment = Segment(row["pool"], 0x1000, row["variant"] == "mooncake", nodes, nodes)
    objects = Objects(segment, row["seed"], digest.add)
    draws = splitmix64(row["seed"] ^ SIZES)
    parts = len(row["samples"])
    if kind == "pair":
        sizes = (row["kv"], row["indexer"])
        loop = pairs(
            objects,
            *sizes,
            draws,
            warm_up=row["warmup_rounds"],
            rounds=row["rounds"],
            share=row["evict_ratio"],
            parts=parts,
        )
    elif kind == "mixed":
        span = row["hi"] - row["lo"] + 1
        loop = one_by_one(objects, (row["lo"] + draw % span for draw in draws), None, row["N"], parts)
    else:
        warm_up = row["pool"] // row["size"]
        loop = one_by_one(objects, repeat(row["size"]), warm_up, row["N"], parts)
    outcomes, digests = zip(*((outcome, f"{digest.value:016x}") for outcome in loop), strict=True)
    outcome = outcomes[-1]
    samples = [[*sample, each] for sample, each in zip(outcome.samples, digests, strict=True)]
    return outcome, samples, objects


def utilisation_runs():
    for kind, runs in rows_at("mooncake/utilisation.json").items():
        for row in runs:
            name = "-".join(
                str(row[key]) for key in ("variant", "pool", "size", "lo", "kv", "indexer") if key in row
            )
            slow = row.get("rounds", 0) > 1000 or row.get("N", 0) > 10_000
            yield pytest.param(kind, row, id=f"{kind}-{name}", marks=[pytest.mark.slow] if slow else [])


@pytest.fixture
def no_search_for_cycles():
    """Python would look through half a million objects again and again."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.slow
@pytest.mark.usefixtures("no_search_for_cycles")
@pytest.mark.parametrize(("kind", "row"), list(utilisation_runs()))
def test_benchmark_fills_the_store_as_recorded(kind, row):
    outcome, samples, objects = benchmark(kind, row)
    assert samples == row["samples"]
    shares = outcome.utilisations
    if kind == "pair":
        assert (len(shares), outcome.warm_up) == (row["triggers"], row["warmup_rounds"])
        assert [round(share, 9) for share in shares[:40]] == row["first_triggers"]
        assert (round(min(shares), 9), round(max(shares), 9)) == (row["min"], row["max"])
        assert round(outcome.mean, 9) == row["mean_util_at_trigger"]
    else:
        assert (outcome.warm_up, outcome.evictions) == (row["warmup_allocs"], row["evictions"])
        assert (round(min(shares), 9), round(outcome.mean, 9)) == (row["min_util"], row["avg_util"])
        assert objects.segment.requested == row["final_used"]
        segment = objects.segment
        assert row["final_state_free"] == {
            "total_free": total_free(segment),
            "largest_free": segment.largest_free,
        }
