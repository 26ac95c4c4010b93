"""TGI's free list and trie against its own, step by step; the allocator made of them by hand."""

import pytest
from support.zoo_lightllm import names, recorded, runs

from kvsim.allocators.base import InvariantError, Ledger, Region
from kvsim.allocators.runs import cut
from kvsim.allocators.tgi import FreeBlocks, Tgi, slots_of
from kvsim.allocators.tgi_tree import BlockTree, Node

SYSTEM = (0, 0, 8)


# -- against TGI itself ---------------------------------------------------------------------------


class Simple:
    """TGI's allocator without a prefix cache."""

    def __init__(self, config: dict) -> None:
        self.hpu = "hpu" in str(config.get("kind")) or bool(config.get("hpu"))
        self.size = config["block_size"]
        self.pool = FreeBlocks(config["blocks"], self.size, config.get("window") or 0, self.hpu)
        self.held: dict[int, list[int]] = {}

    def op_allocate(self, args: dict) -> dict | None:
        blocks = self.pool.take(self.pool.blocks_needed(args["tokens"]))
        if blocks is None:
            return None
        self.held[args["id"]] = blocks
        slots = slots_of(blocks, self.size, args["tokens"] + self.hpu)
        return {"blocks": blocks, "slots": slots, "prefix_len": 0}

    def op_free(self, args: dict) -> bool:
        self.pool.give_back(self.held.pop(args["id"]))
        return True

    def state(self, told: dict) -> tuple[dict, dict]:
        return {"free": self.pool.free}, told


class WithTrie:
    """TGI's allocator with one."""

    def __init__(self, config: dict) -> None:
        self.size = config["block_size"]
        self.pool, self.tree = FreeBlocks(config["blocks"], self.size), BlockTree(self.size)
        self.held: dict[int, tuple[list[int], Node, int, list[int] | None]] = {}

    def op_allocate(self, args: dict) -> dict | None:
        prompt, found, node = args["prefill_tokens"], [], self.tree.root
        if prompt is not None:
            found, node, _ = self.tree.find(runs(prompt), len(prompt))
        self.tree.lock(node)
        missing = -(-(args["tokens"] - len(found) * self.size) // self.size)
        if missing > len(self.pool.free):
            self.pool.give_back(self.tree.evict(missing - len(self.pool.free)))
        blocks = self.pool.take(missing)
        if blocks is None:
            self.tree.unlock(node)
            return None
        self.held[args["id"]] = found + blocks, node, len(found), prompt
        slots = slots_of(found + blocks, self.size, args["tokens"])
        return {"blocks": found + blocks, "slots": slots, "prefix_len": len(found) * self.size}

    def op_free(self, args: dict) -> bool:
        blocks, node, found, prompt = self.held.pop(args["id"])
        self.tree.unlock(node)
        whole = len(prompt or ()) // self.size
        if whole and len(prompt) > found * self.size:
            known = self.tree.insert(cut(runs(prompt), 0, whole * self.size), blocks[:whole])
            self.pool.give_back(blocks[found:known])
        self.pool.give_back(blocks[whole:])
        return True

    def state(self, told: dict) -> tuple[dict, dict]:
        def named(node: Node | None) -> str:
            return f"{node.number}v{node.version}"

        nodes = [
            [named(node), named(node.parent), node.runs, node.blocks, node.users, node.time]
            for node in self.tree.nodes()
        ]
        ours = {
            "free": self.pool.free,
            "time": self.tree.time,
            "leaves": [[node.time, named(node)] for node in self.tree.leaves()],
            "nodes": sorted(nodes),
        }
        return ours, {**told, "nodes": sorted([*row[:2], runs(row[2]), *row[3:]] for row in told["nodes"])}


@pytest.mark.golden
@pytest.mark.parametrize("name", names("tgi/blocks"))
def test_blocks_slots_and_tries_are_those_of_tgi(name):
    sequence = recorded("tgi/blocks")[name]
    config = sequence["config"]
    replay, states = (WithTrie if config["kind"] == "radix" else Simple)(config), 0
    for number, op in enumerate(sequence["ops"]):
        assert getattr(replay, f"op_{op['op']}")(op["args"]) == op["ret"], (number, op["op"])
        if "state" in op:
            ours, told = replay.state(op["state"])
            assert ours == told, (number, op["op"])
            states += 1
    assert states


def test_on_gaudi_the_lowest_blocks_go_first_and_a_request_takes_a_slot_more():
    pool = FreeBlocks(10, 4, hpu=True)
    assert pool.blocks_needed(8) == 3
    assert [pool.take(3), pool.take(2)] == [[1, 2, 3], [4, 5]]
    pool.give_back([1, 2, 3])
    assert [pool.take(4), pool.take(4)] == [[1, 2, 3, 6], None]


def test_a_window_makes_a_ring_of_the_blocks():
    pool = FreeBlocks(10, 4, window=6)
    assert [pool.blocks_needed(tokens) for tokens in (3, 6, 7, 900)] == [1, 2, 2, 2]
    assert slots_of([7, 9], 4, 11) == [28, 29, 30, 31, 36, 37, 38, 39, 28, 29, 30]


# -- by hand --------------------------------------------------------------------------------------


def place(tgi, seq, content, tokens, bound):
    """Admit a sequence and compute its prompt; how many of its tokens were there already."""
    match = tgi.match(content, seq, tokens - 1)
    assert tgi.admit_after(match, seq, tokens, bound)
    tgi.fill(seq, tokens)
    return match.tokens


def test_the_whole_reservation_is_allocated_at_once_from_the_end_of_the_list():
    tgi = Tgi(32, 4)
    assert tgi.admit(1, 5, 14)  # 13 tokens are ever stored: 4 blocks
    assert (tgi.block_table(1), tgi.used_slots, tgi.capacity(1)) == ((5, 6, 7, 8), 16, 16)
    assert tgi.grow(1, 16) and not tgi.grow(1, 17)
    assert tgi.ledger({1: 5}, {1: 13}) == Ledger(5, 8, 3, 0, 0, 16)
    assert not tgi.can_admit(1, 18) and tgi.admit(2, 13, 9)
    assert list(tgi.regions())[4:6] == [Region(16, 4, (1,), 0), Region(20, 4, (1,), 4)]
    tgi.release(1)
    assert tgi.pool.free == [5, 6, 7, 8]


def test_the_prompt_stays_in_whole_blocks_and_the_answer_goes():
    tgi = Tgi(32, 4, caches=True)
    assert place(tgi, 1, (SYSTEM,), 10, 14) == 0
    tgi.release(1)
    assert (tgi.used_slots, tgi.cached_slots, tgi.tree.blocks) == (0, 8, 2)
    assert place(tgi, 2, (SYSTEM,), 10, 14) == 8
    assert place(tgi, 3, ((0, 0, 5),), 6, 6) == 4  # the node is split there
    assert (tgi.used_slots, tgi.cached_slots, tgi.shared_tokens) == (20, 0, 4)
    tgi.release(2)
    assert (tgi.used_slots, tgi.cached_slots) == (8, 4)


def test_the_oldest_leaf_gives_blocks_from_its_end():
    tgi = Tgi(16, 4, caches=True)
    place(tgi, 1, (SYSTEM,), 9, 9)
    tgi.release(1)
    assert tgi.cached_slots == 8
    assert tgi.admit(2, 12, 12)
    assert tgi.match((SYSTEM,), 3, 8).tokens == 4
    assert (tgi.cached_slots, tgi.free_slots) == (4, 4)


def test_mistakes_are_told_with_their_numbers():
    tgi = Tgi(16, 4, caches=True)
    old = tgi.match((SYSTEM,), 1, 8)
    place(tgi, 1, (SYSTEM,), 9, 9)
    with pytest.raises(InvariantError, match="a match of 0 tokens after 0 changes, now 1"):
        tgi.admit_after(old, 2, 2, 2)
    with pytest.raises(InvariantError, match="cannot have computed 13 tokens: it holds 3 blocks"):
        tgi.fill(1, 13)
    with pytest.raises(ValueError, match="capacity_slots must hold one block of 16, got 9"):
        Tgi(9)
