"""LightLLM's pool and tree against its own, step by step; the allocator made of them by hand."""

from itertools import pairwise

import pytest
from support.zoo_lightllm import Cell, Rows, names, recorded, runs

from kvsim.allocators.base import InvariantError, Ledger, Region
from kvsim.allocators.lightllm import LightLLM, TokenPool
from kvsim.allocators.lightllm_tree import Node, TokenTree

SYSTEM, OTHER = (0, 0, 4), (1, 0, 6)


# -- against LightLLM itself ----------------------------------------------------------------------


@pytest.mark.golden
@pytest.mark.parametrize("name", names("lightllm/mem_manager"))
def test_the_pool_allocates_the_slots_that_lightllm_allocated(name):
    sequence = recorded("lightllm/mem_manager")[name]
    pool, states = TokenPool(sequence["size"]), 0
    for number, op in enumerate(sequence["ops"]):
        if op["op"] == "alloc":
            assert pool.alloc(op["args"][1]) == op["ret"], number
        else:
            assert op["op"] == "free"
            pool.give_back(op["args"][0])
        if "state" in op:
            assert {"mem_state": pool.slots, "mark_start": pool.mark, "can_use": pool.free} == op["state"]
            states += 1
    assert states


class Replay:
    """A pool, a tree and a table of requests, which do what a recording says."""

    def __init__(self, size: int) -> None:
        self.pool, self.tree, self.rows = TokenPool(size), TokenTree(), Rows()
        self.held: dict[int, tuple[Node, list[Cell]]] = {}
        self.lengths: dict[int, int] = {}
        self.names = {self.tree.root: 0}  # numbers of nodes as the recording gives them: when first seen

    def op_start(self, seq: int, tokens: list[int]) -> dict:
        node, found = self.match(tokens)
        mem = self.take(len(tokens) - len(found))
        self.held[seq] = node, self.rows.take(found + mem)
        self.lengths[seq] = len(tokens)
        return {"hit": len(found), "mem": mem}

    def op_start_refused(self, seq: int, tokens: list[int]) -> dict:
        node, found = self.match(tokens)
        self.rows.write(found)
        assert len(tokens) - len(found) > self.pool.free + self.tree.tokens - self.tree.locked
        self.tree.unlock(node)
        return {"hit": len(found)}

    def op_decode(self, seqs: list[int]) -> dict:
        mem = self.take(len(seqs))
        for seq, slot in zip(seqs, mem, strict=True):
            self.held[seq][1][self.lengths[seq]].slot = slot
            self.lengths[seq] += 1
        return {"mem": mem}

    def op_decode_refused(self, seqs: list[int]) -> None:
        assert len(seqs) > self.pool.free + self.tree.tokens - self.tree.locked

    def op_finish(self, seq: int, tokens: list[int]) -> dict:
        node, row = self.held.pop(seq)
        assert self.lengths[seq] == len(tokens)
        known, _ = self.tree.insert(runs(tokens), row[: len(tokens)])
        doubles = [cell.slot for cell in row[node.end : known]]
        self.pool.give_back(doubles)
        self.tree.unlock(node)
        self.rows.give_back(row)
        return {"freed_duplicates": doubles}

    op_pause = op_finish

    def op_evict(self, tokens: int) -> dict:
        freed = [cell.slot for cell in self.tree.evict(tokens)]
        self.pool.give_back(freed)
        return {"freed": freed}

    def match(self, tokens: list[int]) -> tuple[Node, list[int]]:
        node = above = self.tree.match(runs(tokens[:-1]))
        found: list[int] = []
        while above.parent is not above:
            found = [cell.slot for cell in above.slots] + found
            above = above.parent
        return node, found

    def take(self, count: int) -> list[int]:
        if count > self.pool.free:
            self.op_evict(count - self.pool.free)
        slots = self.pool.alloc(count)
        assert slots is not None
        return slots

    def state(self) -> dict:
        for node in self.tree.nodes():
            self.names.setdefault(node, len(self.names))
        leaves = [node for node in (self.tree.root, *self.tree.nodes()) if not node.children]
        leaves.sort(key=lambda node: (node.locks > 0, node.time))
        return {
            "nodes": [
                [
                    *(self.names[node], self.names[node.parent], node.runs),
                    *([cell.slot for cell in node.slots], node.locks, node.time),
                ]
                for node in self.tree.nodes()
            ],
            "refed": self.tree.locked,
            "tree_total": self.tree.tokens,
            "can_use": self.pool.free,
            "mark_start": self.pool.mark,
            "free_stack": self.pool.slots[self.pool.mark :],
            "evict_order": [self.names[node] for node in leaves],
        }


@pytest.mark.golden
@pytest.mark.parametrize("name", names("lightllm/radix"))
def test_the_tree_finds_splits_and_evicts_what_lightllm_did(name):
    sequence = recorded("lightllm/radix")[name]
    replay, states = Replay(sequence["config"]["size"]), 0
    for number, op in enumerate(sequence["ops"]):
        assert getattr(replay, f"op_{op['op']}")(*op["args"]) == op["ret"], (number, op["op"])
        if "state" in op:
            told = dict(op["state"])
            told["nodes"] = [[*row[:2], runs(row[2]), *row[3:]] for row in told["nodes"]]
            assert replay.state() == told, (number, op["op"])
            states += 1
    assert states


# -- by hand --------------------------------------------------------------------------------------


def place(allocator, seq, content, tokens, own=None):
    """Admit a sequence and compute all its tokens; how many were there already."""
    match = allocator.match(content, seq if own is None else own, tokens - 1)
    assert allocator.admit_after(match, seq, tokens, tokens)
    allocator.fill(seq, tokens)
    return match.tokens


def test_others_find_a_prompt_only_when_its_sequence_has_ended():
    pool = LightLLM(20)
    assert place(pool, 1, (SYSTEM,), 6) == 0
    assert place(pool, 2, (SYSTEM,), 6) == 0
    pool.release(1)
    assert (pool.used_slots, pool.cached_slots) == (6, 4)  # two slots of a private answer stay uncounted
    assert place(pool, 3, (SYSTEM,), 6) == 4
    assert pool.slots(3) == [0, 1, 2, 3, 12, 13]
    pool.release(2)  # its system prompt is there already: four slots are freed, and the next to be allocated
    assert pool.pool.slots[pool.pool.mark :][:4] == [6, 7, 8, 9]
    assert pool.ledger({3: 6}, {3: 6}) == Ledger(6, 0, 0, 0, 0, 14)


def test_what_was_freed_last_is_allocated_first():
    pool = LightLLM(10)
    for seq in (1, 2):
        assert pool.admit(seq, 3, 3)
    pool.evict(1)  # nothing of it was computed
    assert pool.admit(3, 4, 4)
    assert pool.slots(3) == [0, 1, 2, 6]
    assert list(pool.regions())[:3] == [Region(0, 3, (3,)), Region(3, 3, (2,)), Region(6, 1, (3,))]


def test_a_whole_leaf_goes_the_least_recently_used_first():
    pool = LightLLM(12)
    for seq, content in ((1, (SYSTEM,)), (2, (OTHER,))):
        place(pool, seq, content, content[0][2])
        pool.release(seq)
    assert (pool.cached_slots, pool.pool.free) == (10, 2)
    assert pool.admit(3, 3, 3)  # one slot short: all four of the system prompt go
    assert (pool.cached_slots, pool.match((SYSTEM,), 9, 4).tokens) == (6, 0)
    assert pool.slots(3) == [0, 1, 2]


def test_a_paused_sequence_finds_its_answer_again_and_a_finished_one_leaves_none_to_find():
    pool = LightLLM(30)
    place(pool, 1, (SYSTEM,), 9, own=7)
    pool.evict(1)
    assert pool.cached_slots == 9
    assert place(pool, 2, (SYSTEM,), 10, own=7) == 9
    pool.release(2)
    assert (pool.cached_slots, pool.used_slots, pool.match((SYSTEM,), 8, 9).tokens) == (4, 0, 4)


def test_mistakes_are_told_with_their_numbers():
    pool = LightLLM(10)
    old = pool.match((SYSTEM,), 1, 4)
    assert pool.admit(1, 4, 4)
    with pytest.raises(InvariantError, match="cannot use a match of 0 tokens after 0 changes, now 1"):
        pool.admit_after(old, 2, 2, 2)
    with pytest.raises(InvariantError, match="cannot have computed 5 tokens: it holds 0 tokens"):
        pool.fill(1, 5)
    with pytest.raises(InvariantError, match="7 growths were asked for, 6 promised"):
        pool.grow_many([1] * 7)


def test_growth_in_a_span_takes_the_slots_that_growth_step_by_step_takes():
    def full():
        pool = LightLLM(16)
        for seq, content in enumerate(((SYSTEM,), (OTHER,))):
            place(pool, seq, content, content[0][2])
            pool.release(seq)
        for seq in (2, 3, 4):
            assert pool.admit(seq, 1, 1)
        return pool

    once, often, steps = full(), full(), [[2, 3, 4], [2, 3, 4], [2, 4], [2, 4]]
    once.grow_many([seq for step in steps for seq in step])
    evicted = []
    for done, step in pairwise([0, *steps]):
        often.grow_many(step)
        before = len(evicted)
        evicted += often.evicted_by
        assert done is not None and len(evicted) >= before
    assert [once.slots(seq) for seq in (2, 3, 4)] == [often.slots(seq) for seq in (2, 3, 4)]
    assert len(once.evicted_by) == len(evicted) == 10
