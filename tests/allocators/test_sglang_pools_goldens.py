"""The pools of SGLang 0.5.23, replayed: what each call returned, and both lists after it."""

import pytest
from support.sglang_dual import DualPool, pool_of
from support.zoo import rows_at

from kvsim.allocators.sglang.pools import PagePool, TokenPool

pytestmark = pytest.mark.golden
POOLS, DUAL = rows_at("sglang/allocators.json.gz"), rows_at("sglang/swa_dual_pool.json.gz")


def state(pool: PagePool, staged: str) -> dict:
    return {"free": list(pool.free), staged: pool.staged, "available": pool.available}


def extended(pool, args):
    return pool.extend(args["prefix_lens"], args["seq_lens"], args["last_loc"])


def flat(recorded: dict) -> dict:
    """What a recording says of staged pages, piece by piece, as one list."""
    pools = {name: flat(part) for name, part in recorded.items() if isinstance(part, dict)}
    if "staged" not in recorded:
        return {**recorded, **pools}
    pieces = [piece if isinstance(piece, list) else [piece] for piece in recorded["staged"]]
    return {**recorded, **pools, "staged": [page for piece in pieces for page in piece]}


CALLS = {
    "alloc": lambda pool, args: pool.take(args[1]),
    "alloc_extend": extended,
    "alloc_decode": lambda pool, args: pool.decode(args["seq_lens"], args["last_loc"]),
    "free": lambda pool, args: pool.free_slots(args[0]),
    "free_segment": lambda pool, args: pool.free_segment(args[0]),
    "free_group_begin": lambda pool, args: pool.begin_group(),
    "free_group_end": lambda pool, args: pool.end_group(),
    "free_swa": lambda pool, args: pool.free_swa(args[0]),
    "free_row": lambda pool, args: pool.free_row(*args),
}


def replay(case, pool, seen):
    assert seen(pool) == case["initial_state"]
    for at, op in enumerate(case["ops"]):
        assert CALLS[op["op"]](pool, op["args"]) == op["ret"], (at, op["op"])
        if "state" in op:
            assert seen(pool) == flat(op["state"]), (at, op["op"])
    assert "state" in op


@pytest.mark.parametrize("name", POOLS)
def test_a_pool_allocates_and_takes_back_as_in_sglang(name):
    case = POOLS[name]
    size = case["page_size"]
    pool = pool_of(case.get("pages", case.get("size")), size, case["need_sort"])
    staged = "release" if isinstance(pool, TokenPool) else "staged"
    replay(case, pool, lambda pool: state(pool, staged))


@pytest.mark.parametrize("name", DUAL)
def test_two_pools_and_their_map_are_as_in_sglang(name):
    case = DUAL[name]
    pool = DualPool(case["pages"], case["swa_pages"], case["page_size"], case["need_sort"])

    def seen(pool):
        return {
            "full": state(pool.full, "staged"),
            "swa": state(pool.swa, "staged"),
            "available": pool.available,
            "map": [list(pair) for pair in sorted(pool.swa_of.items())],
        }

    replay(case, pool, seen)
