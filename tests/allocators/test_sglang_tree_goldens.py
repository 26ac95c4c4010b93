"""The radix trees of SGLang 0.5.23, replayed: each answer, all nodes and free pages."""

from itertools import pairwise

import pytest
from support.zoo import rows_at

from kvsim.allocators.sglang.eviction import STRATEGIES
from kvsim.allocators.sglang.pools import pool_of
from kvsim.allocators.sglang.tree import DEPTH, SglangTree

pytestmark = pytest.mark.golden
TREES = rows_at("sglang/radix.json.gz")
ROOT, FIRST = 5, 10  # how the newer tree numbers its nodes


def text(tokens):
    """Integers as runs of one stream."""
    runs = []
    for token in tokens:
        if runs and sum(runs[-1][1:]) == token:
            runs[-1] = (0, runs[-1][1], runs[-1][2] + 1)
        else:
            runs.append((0, token, 1))
    return runs


def strategy(config):
    """By name; `tlru`: what cannot help the next turn goes first, then as in `lru`.

    Of a cached path more than history + estimate - threshold tokens cannot bring the next prefill below its
    time limit.
    """
    if config["policy"] != "tlru":
        return STRATEGIES[config["policy"]]
    chosen = config["policy_config"]
    more = chosen["next_prompt_estimate"] - chosen["threshold"]
    return lambda node: (-(node.end - node.tokens >= max(node.history + more, 0)), node.last)


class Replay:
    """A tree and its pool, as the recording drives them."""

    def __init__(self, config):
        size = self.size = config["page_size"]
        self.unified = config["tree"] == "unified"
        self.tree = SglangTree(size, strategy(config), self.unified)
        self.pool = pool_of(config["size"] // size, size)
        self.locked = {}

    def slots(self, pages):
        return [page * self.size + place for page in pages for place in range(self.size)]

    def match(self, tokens):
        node = self.tree.match(text(tokens), len(tokens))
        return {"len": node.end, "indices": self.slots(node.path())}

    def lock(self, handle, tokens):
        node = self.locked[handle] = self.tree.match(text(tokens), len(tokens))
        self.tree.lock(node)
        return {"len": node.end}

    def unlock(self, handle):
        self.tree.unlock(self.locked.pop(handle))

    def insert(self, tokens, slots, priority, entered):
        pages = self.pool.take(len(slots) // self.size)
        assert self.slots(pages) == slots
        key = text(tokens[: len(slots)])
        found, _ = self.tree.insert(key, pages, priority, entered)
        for start, end in self.doubles(key, found):
            self.pool.give(pages[start // self.size : end // self.size])
        return {"prefix_len": found}

    def doubles(self, key, found):
        """What was there already: at once, or by the newer tree node by node."""
        if not self.unified:
            return [(0, found)]
        node, ends = self.tree.find(key, found)[0], [0]
        while node is not self.tree.root:
            ends.append(node.end)
            node = node.parent
        ends.sort()
        return list(pairwise(ends))

    def evict(self, tokens):
        gone = self.tree.evict(tokens)
        for pages in gone.pages:
            self.pool.give(pages)
        return gone.tokens

    def seen(self):
        tree, nodes = self.tree, list(self.tree.nodes())
        return {
            "free": list(self.pool.free),
            "available": self.pool.available,
            "evictable": tree.evictable,
            "protected": tree.protected,
            "nodes": [self.row(node, nodes) for node in nodes],
        }

    def row(self, node, nodes):
        parent, serial, last, created = node.parent.serial, node.serial, node.last, node.created
        if self.unified:
            parent = parent + FIRST - 1 if parent else ROOT
            serial += FIRST - 1
            last = 1 + sorted({each.last // DEPTH for each in nodes}).index(last // DEPTH)
            created = 1 + sorted({each.created for each in nodes}).index(created)
        tokens = [first + at for _, first, length in node.runs for at in range(length)]
        counts = (node.locks, node.hits, last, created, node.priority)
        return [serial, parent, tokens, self.slots(node.pages), *counts]


@pytest.mark.parametrize("name", TREES)
def test_a_tree_finds_splits_locks_and_evicts_as_in_sglang(name):
    case = TREES[name]
    replay = Replay(case["config"])
    for at, op in enumerate(case["ops"]):
        found, told = getattr(replay, op["op"])(*op["args"]), op["ret"]
        assert found == (told["evicted"] if op["op"] == "evict" else told), (at, op["op"])
        if "state" in op:
            assert replay.seen() == op["state"], (at, op["op"])
