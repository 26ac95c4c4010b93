"""kvcached: every block, page and list after every call of the genuine code, and its prefix pool."""

import re

import pytest
from support.zoo import first_difference, recording

from kvsim.allocators.virtual_memory.elastic_blocks import ElasticBlocks
from kvsim.allocators.virtual_memory.elastic_prefixes import ElasticPrefixes
from kvsim.allocators.virtual_memory.hash_order import hash_order
from kvsim.allocators.virtual_memory.page_pool import PagePool

pytestmark = pytest.mark.golden
DUPLICATE_IDS = "duplicate_ids"
"""In the name of the recording that shows a defect, which is not restated: growth after a shrink."""


def blocks_of(config, physical):
    page_bytes = config.get("page_mb", 2) << 20
    block_bytes = config["block_size"] * config["cell_size"]
    pages = config["num_blocks"] * block_bytes // page_bytes
    pool = PagePool(
        pages,
        physical,
        config.get("min_reserved", 5),
        config.get("max_reserved", 10),
        config.get("prealloc", False),
    )
    return ElasticBlocks(pool, page_bytes, block_bytes, config.get("null_block", False))


def bundle_bytes(config):
    return (config.get("page_mb", 2) << 20) * config["layers"] * config.get("kv_buffers", 2)


def lists_of(blocks):
    pool = blocks.pool
    return {
        "avail_pages": [[page, free] for page, free in blocks.part_free.items()],
        "full_pages": list(blocks.full),
        "free_pages": list(pool.free),
        "reserved_pages": list(pool.reserved),
        "inuse_pages": pool.in_use,
        "maps": pool.maps,
        "unmaps": pool.unmaps,
    }


def state_of(blocks, config):
    pool = blocks.pool
    state = {
        **lists_of(blocks),
        "avail_blocks": blocks.free_blocks,
        "available_size": blocks.available,
        "alloced_blocks_fn": blocks.allocated_blocks,
        "reserved_blocks": blocks.set_aside,
        "in_shrink": blocks.shrinks_to is not None,
        "target_num_blocks": blocks.shrinks_to,
        "reclaimed_pages": list(pool.reclaimed),
        "total_pages": pool.total,
        "num_free_pages": pool.available,
        "avail_physical_pages": pool.physical_left,
        "mapped": pool.mapped,
        "mapped_bytes_fn": pool.in_use * bundle_bytes(config),
    }
    return state | ({"null_block": [0]} if blocks.null_block else {})


class Limit:
    """What an operator tells a running kvcached: most bytes, with a revision."""

    def __init__(self, blocks, config):
        self.blocks, self.bundle = blocks, bundle_bytes(config)
        self.most, self.limit, self.revision = blocks.pool.total, None, -1

    def __call__(self, limit, revision):
        if revision > self.revision:
            self.limit, self.revision = limit, revision
            self.blocks.resize(min(limit // self.bundle, self.most) * self.blocks.page_bytes)
        if revision < self.revision:
            status, reason = "stale", ""
        elif limit != self.limit:
            status, reason = "conflict", "revision_reused_with_different_limit"
        elif self.blocks.shrinks_to is not None:
            status, reason = "deferred", "inuse_capacity_above_limit"
        else:
            status, reason = "applied", ""
        effective = min(self.limit // self.bundle, self.most) * self.bundle
        mapped = self.blocks.pool.mapped * self.bundle
        return {
            "status": status,
            "pool_name": "",
            "group_id": 0,
            "limit_bytes": self.limit,
            "effective_limit_bytes": effective,
            "current_capacity_bytes": self.blocks.pool.total * self.bundle,
            "revision": self.revision,
            "mapped_bytes": mapped,
            "remaining_bytes": max(0, effective - mapped),
            "overage_bytes": max(0, mapped - effective),
            "reason": reason,
        }


def call(blocks, limit, op):
    """Do what was recorded, and say what it returns."""
    name, args = op["op"], op["args"]
    if name == "alloc":
        return blocks.allocate(args[1])
    if name == "free":
        groups = op.get("page_groups")
        return blocks.give_back(args[0], groups[0] if groups else None)
    if name == "set_phys":
        blocks.pool.physical = args[0]
        return None
    if name == "trim":
        return blocks.pool.trim()
    if name == "memory_limit":
        return limit(*args)
    return getattr(blocks, name)(*args)


def replay(case):
    config, initial = case["config"], case["initial"]
    physical = initial["state"]["avail_physical_pages"] + initial["state"]["mapped"]
    blocks = blocks_of(config, physical)
    limit = Limit(blocks, config)
    pool = blocks.pool
    ranges = initial["page_blocks"]
    assert ranges == [[one.start, one.stop] for one in map(blocks.blocks_of, range(len(ranges)))]
    assert initial["min_max_reserved"] == [pool.least_reserved, pool.most_reserved]
    if wrong := first_difference(state_of(blocks, config), initial["state"]):
        return -1, *wrong
    for at, op in enumerate(case["ops"]):
        ours = call(blocks, limit, op)
        if ours != op["ret"]:
            return at, ours, op["ret"]
        if wrong := first_difference(state_of(blocks, config), op.get("state", {})):
            return at, *wrong
    return None


@pytest.mark.parametrize("kind", ["small", "medium"])
def test_every_block_and_page_is_as_in_the_genuine_code(kind):
    cases = recording(f"kvcached/{kind}.json.gz")
    sound = {name: case for name, case in cases.items() if DUPLICATE_IDS not in name and "error" not in case}
    assert sound
    assert {name: wrong for name, case in sound.items() if (wrong := replay(case))} == {}


def test_a_block_larger_than_a_page_is_refused_with_the_page_that_would_hold_it():
    cases = recording("kvcached/small.json.gz")
    refused = [case for case in cases.values() if "error" in case]
    assert refused
    for case in refused:
        assert case["error"] == "KVCachedConfigError"
        with pytest.raises(ValueError, match="does not fit a page") as ours:
            blocks_of(case["config"], 1)
        numbers = re.search(r"block size \((\d+) .*page size \((\d+) .*PAGE_SIZE_MB=(\d+)", case["message"])
        assert [int(each) for each in re.findall(r"[\d,]+", str(ours.value).replace(",", ""))] == [
            int(each) for each in numbers.groups()
        ]


def test_growth_after_a_shrink_numbers_no_page_twice():
    case = recording("kvcached/small.json.gz")["c26_duplicate_ids_after_shrink_and_growth"]
    at, field, ours, theirs = replay(case)
    assert (at, field, case["ops"][at]["op"]) == (10, "free_pages", "resize")
    assert ours == [2, 0, 9, 8, 7, 6, 5, 10, 11]
    assert theirs == [2, 0, 9, 8, 7, 6, 5, 3, 4]


def test_pages_are_handled_in_the_order_of_the_hash_table():
    tried = 0
    for kind in ("small", "medium"):
        for case in recording(f"kvcached/{kind}.json.gz").values():
            if "error" in case:
                continue
            blocks = blocks_of(case["config"], 1)
            for op in case["ops"]:
                if op["op"] == "free" and op.get("page_groups"):
                    pages = [blocks.page_of(block) for block in op["args"][0]]
                    reserve = len(pages) // blocks.blocks_per_page + 1
                    assert hash_order(pages, reserve) == op["page_groups"][0]
                    tried += 1
    assert tried > 1000


def prefix_state_of(pool):
    return {
        **lists_of(pool.blocks),
        "evictable": list(pool.evictable),
        "cached": {key: list(blocks) for key, blocks in pool.known.items()},
        "ref": {str(block): count for block, count in sorted(pool.counts.items())},
        "num_free_blocks": pool.free,
        "manager_available": pool.blocks.available,
    }


def reset(pool):
    pool.reset()
    return True


def enter(pool, blocks, keys, start, stop):
    pool.enter(blocks[start:stop], keys[start:stop])


POOL_CALLS = {
    "lookup": ElasticPrefixes.find,
    "touch": ElasticPrefixes.share,
    "get_new_blocks": ElasticPrefixes.allocate,
    "cache_full_blocks": enter,
    "free_blocks": ElasticPrefixes.give_back,
    "evict_blocks": ElasticPrefixes.drop,
    "reset_prefix_cache": reset,
}


def replay_pool(case):
    config = case["config"]
    blocks = blocks_of({**config, "null_block": True}, 1 << 30)
    pool = ElasticPrefixes(blocks, config["max_cached"], config.get("caching", True))
    if wrong := first_difference(prefix_state_of(pool), case["initial_state"]):
        return -1, *wrong
    for at, op in enumerate(case["ops"]):
        ours = POOL_CALLS[op["op"]](pool, *op["args"])
        if ours != op["ret"]:
            return at, ours, op["ret"]
        if wrong := first_difference(prefix_state_of(pool), op.get("state", {})):
            return at, *wrong
    return None


def test_every_block_of_the_prefix_pool_is_as_in_the_genuine_code():
    cases = recording("kvcached/elastic_pool.json.gz")
    assert cases
    assert {name: wrong for name, case in cases.items() if (wrong := replay_pool(case))} == {}
