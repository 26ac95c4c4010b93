"""vLLM's CPU tier answers every operation as the genuine manager of vLLM 0.33.0 did."""

import pytest
from support.scheduled import names_in, recording

from kvsim.allocators.tiers.vllm import VllmTier

pytestmark = pytest.mark.golden
FOLDER = "offload"


def key_of(told):
    """A key and its group, in the order of vLLM's bytes."""
    number, group = told
    return number << 8 | group


def told(keys):
    return [[key >> 8, key & 255] for key in keys]


def answer(tier, operation):
    """What the tier returns to an operation, in the recording's words."""
    name, user = operation["op"], operation.get("req")
    keys = [key_of(each) for each in operation.get("keys", ())]
    if name == "new_request":
        tier.introduce(user, {key_of(each[:2]): each[2] for each in operation["positions"] or ()})
    elif name == "lookup":
        found = tier.find([key_of(operation["key"])])
        return "MISS" if not found.hits else "HIT_PENDING" if found.written else "HIT"
    elif name == "prepare_store":
        stored = tier.store(user, keys)
        if stored is None:
            return None
        return {
            "keys_to_store": told(stored.keys),
            "chunk_ids": list(stored.chunks),
            "evicted": told(stored.evicted),
        }
    elif name == "complete_store":
        tier.stored(keys, failed=not operation["success"])
    elif name == "prepare_load":
        return tier.load(user, keys)
    elif name == "complete_load":
        tier.loaded(keys)
    elif name == "touch":
        tier.touch(user, keys)
    elif name == "request_finished":
        tier.leave(user)
    else:
        assert name == "reset_cache"
        tier.clear()
    return None


def state(tier, policy):
    """All that a recording may say of the tier."""
    number, references, order = tier.chunks.number, tier.chunks.references, tier.order
    found = {
        "free": tier.chunks.free,
        "evictable": tier.chunks.idle,
        "write_pending": sum(count < 0 for count in references.values()),
    }
    if policy == "lru":
        keys = sorted(references)
        chunks = [[*each, number[key], references[key]] for key, each in zip(keys, told(keys), strict=True)]
        idle = [key for key in order.least_first() if not references[key]]
        return found | {"resident": tier.held, "chunks": chunks, "eviction_order": told(idle)}
    lists = {"t1": order.once, "t2": order.again, "b1": order.left_once, "b2": order.left_again}
    found |= {name: len(keys) for name, keys in lists.items()} | {"target_t1": order.target}
    for name in ("t1", "t2"):
        keys = lists[name]
        found[name.upper()] = [[*told([key])[0], number[key], references[key]] for key in keys]
    return found | {name.upper(): told(lists[name]) for name in ("b1", "b2")}


@pytest.mark.parametrize("name", names_in(FOLDER))
def test_every_answer_and_state_is_as_in_the_engine(name):
    case = recording(FOLDER, name)
    config = case["config"]
    tier = VllmTier(config["num_chunks"], config["policy"], config["store_threshold"])
    for number, operation in enumerate(case["operations"]):
        assert answer(tier, operation) == operation["result"], (number, operation)
        ours = state(tier, config["policy"])
        assert {fact: ours[fact] for fact in operation["state"]} == operation["state"], (number, operation)
