"""vLLM's CPU tier answers every operation as the genuine manager of vLLM 0.33.0 did."""

import pytest
from support.offloaded import evicted_keys, least_first
from support.scheduled import names_in, recording

from kvsim.allocators.tiers.pieces import keys_of
from kvsim.allocators.tiers.vllm import VllmTier

pytestmark = pytest.mark.golden
FOLDER = "offload"


class Told:
    """The keys of a recording, numbered in the order of vLLM's bytes; each is a piece of its own."""

    def __init__(self, operations):
        named = {tuple(key[:2]) for each in operations for key in keys_in(each)}
        self.names = [list(name) for name in sorted(named)]
        self.numbers = {tuple(name): number for number, name in enumerate(self.names)}
        self.depths = {}

    def pieces(self, user, keys):
        depths = self.depths.get(user, {})
        return [(depths.get(number, 0), number, 1) for number in map(self.number, keys)]

    def number(self, key):
        return self.numbers[tuple(key[:2])]

    def told(self, keys):
        return [self.names[key] for key in keys]


def keys_in(operation):
    return [*operation.get("keys", ()), *(operation.get("positions") or ()), *one_key(operation)]


def one_key(operation):
    return [operation["key"]] if "key" in operation else []


def answer(tier, names, operation):
    """What the tier returns to an operation, in the recording's words."""
    name, user = operation["op"], operation.get("req")
    pieces = names.pieces(user, operation.get("keys", ()))
    if name == "new_request":
        names.depths[user] = {names.number(each): each[2] for each in operation["positions"] or ()}
        if operation["positions"]:
            tier.introduce(user)
    elif name == "lookup":
        hits, written = tier.find(names.pieces(user, [operation["key"]]))
        return "MISS" if not hits else "HIT_PENDING" if written else "HIT"
    elif name == "prepare_store":
        stored = tier.store(user, pieces)
        if stored is None:
            return None
        return {
            "keys_to_store": names.told(keys_of(stored.pieces)),
            "chunk_ids": list(stored.chunks),
            "evicted": names.told(evicted_keys(stored)),
        }
    elif name == "complete_store":
        tier.stored(pieces, failed=not operation["success"])
    elif name == "prepare_load":
        return tier.load(user, pieces)
    elif name == "complete_load":
        tier.loaded(pieces)
    elif name == "touch":
        tier.touch(user, pieces)
    elif name == "request_finished":
        tier.leave(user)
    else:
        assert name == "reset_cache"
        tier.clear()
    return None


def state(tier, names, policy):
    """All that a recording may say of the tier."""
    number, references, order, told = tier.chunks.number, tier.chunks.references, tier.order, names.told
    there = [key for key, state in enumerate(tier.chunks.state) if state]
    found = {
        "free": tier.chunks.free,
        "evictable": tier.chunks.idle,
        "write_pending": sum(references(key) < 0 for key in there),
    }
    if policy == "lru":
        chunks = [[*each, number(key), references(key)] for key, each in zip(there, told(there), strict=True)]
        idle = [key for key in least_first(order) if not references(key)]
        return found | {"resident": tier.held, "chunks": chunks, "eviction_order": told(idle)}
    lists = {"t1": order.once, "t2": order.again, "b1": order.left_once, "b2": order.left_again}
    found |= {name: len(keys) for name, keys in lists.items()} | {"target_t1": order.target}
    for name in ("t1", "t2"):
        keys = lists[name]
        found[name.upper()] = [[*told([key])[0], number(key), references(key)] for key in keys]
    return found | {name.upper(): told(lists[name]) for name in ("b1", "b2")}


@pytest.mark.parametrize("name", names_in(FOLDER))
def test_every_answer_and_state_is_as_in_the_engine(name):
    case = recording(FOLDER, name)
    config = case["config"]
    tier = VllmTier(config["num_chunks"], config["policy"], config["store_threshold"])
    names = Told(case["operations"])
    tier.know(len(names.names))
    for number, operation in enumerate(case["operations"]):
        assert answer(tier, names, operation) == operation["result"], (number, operation)
        ours = state(tier, names, config["policy"])
        assert {fact: ours[fact] for fact in operation["state"]} == operation["state"], (number, operation)
