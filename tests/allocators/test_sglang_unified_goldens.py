"""SGLang's unified pool, replayed: what was allocated, moved and waited for, and all pools."""

from itertools import pairwise

import pytest
from support.sglang_floating import Floating
from support.sglang_unified import TokenPair
from support.zoo import rows_at

from kvsim.allocators.sglang.ends import End
from kvsim.allocators.sglang.members import Pass

pytestmark = pytest.mark.golden
POOLS = rows_at("sglang/unified_pool.json.gz")
UPWARDS = ("up", "float", "down")


class Replay:
    """The pools of a recording, one above the other."""

    def __init__(self, case):
        config = case["config"]
        self.lazy, self.size = config["lazy"], config["page_size"]
        self.pools, self.passes, self.moves = {}, {}, []
        for told in sorted(case["pools"], key=lambda pool: UPWARDS.index(pool["grow"])):
            geometry = (told["page_bytes"], told["num_pages"], told["min_page_index"], case["total_bytes"])
            if told["grow"] == "float":
                pool = Floating(*geometry)
            else:
                pool = End(*geometry, told["grow"] == "up", self.lazy)
            self.pools[told["pool"]] = pool
            pool.on_move = self.watch(told["pool"])
        for lower, upper in pairwise(self.pools.values()):
            lower.above, upper.below = upper, lower
        if "swa" in self.pools:
            self.both = TokenPair(self.pools["full"], self.pools["swa"], self.size)

    def watch(self, name):
        return lambda sources, targets: self.moves.extend(
            [name, *pair] for pair in zip(sources, targets, strict=True)
        )

    def alloc(self, pool, _handle, pages):
        return self.pools[pool].alloc(pages)

    def free(self, pool, pages):
        by_number = self.size > 1 or not self.lazy  # SGLang takes tokens, and sorts out their pages
        self.pools[pool].free(sorted(pages) if by_number else pages)

    def flush_opportunistic(self, *pool):
        return self.pools[pool[0]].flush(urgent=False) if pool else self.both.flush()

    def forward_begin(self, name, written):
        running = self.passes[name] = Pass()
        for pool_name, pool in self.pools.items():
            pool.passes.begin(running, written.get(pool_name, []))

    def forward_end(self, name):
        self.passes[name].over = True

    def alloc_extend(self, ids, seq_lens, prefix_lens=None, last_loc=None):
        return self.both.extend(prefix_lens or [0] * len(ids), seq_lens, last_loc or [-1] * len(ids))

    def alloc_decode(self, ids, seq_lens, last_loc):
        return self.both.decode(seq_lens, last_loc)

    def free_swa(self, slots, _start):
        self.both.free_swa(slots)

    def free_row(self, slots, left):
        self.both.free_row(slots, left)

    def waits(self):
        names = {running: name for name, running in self.passes.items()}
        found = [names[running] for pool in self.pools.values() for running in pool.passes.waits]
        for pool in self.pools.values():
            pool.passes.waits.clear()
        return found

    def seen(self):
        state = {name: self.of(name, pool) for name, pool in self.pools.items()}
        if "swa" in state:
            state["available"] = self.both.available()
            state["full_available"] = self.both.full_available()
            state["swa_available"] = self.both.swa_available()
        return state

    def of(self, name, pool):
        state = {
            "low_byte": pool.low_byte,
            "high_byte": pool.high_byte,
            "holes": pool.holes,
            "live": len(pool.physical),
            "v2p": [list(pair) for pair in sorted(pool.physical.items())],
            "free_virtual": None if name == "swa" else pool.free_virtual,
            "available": pool.available() * self.size,
            "schedulable": pool.schedulable() * self.size,
        }
        if isinstance(pool, Floating):
            state |= {"watermark": -1, "pending": [], "span": [pool.low, pool.high]}
            state["transparent"] = pool.transparent
            return state | {"next_hole_end": "low" if pool._from_low else "high"}
        pending = sorted(page for pages in pool.pending.values() for page in pages)
        return state | {"watermark": pool.watermark, "pending": pending, "gap_bytes": pool.gap_bytes()}


@pytest.mark.parametrize("name", POOLS)
def test_pools_allocate_move_and_wait_as_in_sglang(name):
    case = POOLS[name]
    replay = Replay(case)
    assert replay.seen() == case["initial_state"]
    for at, op in enumerate(case["ops"]):
        call, args = getattr(replay, op["op"]), op["args"]
        found = call(**args) if isinstance(args, dict) else call(*args)
        assert found == op["ret"], (at, op["op"])
        assert replay.moves == op.get("moves", []), (at, op["op"])
        assert replay.waits() == op.get("waited_for", []), (at, op["op"])
        replay.moves.clear()
        if "state" in op:
            assert replay.seen() == op["state"], (at, op["op"])
    assert "state" in op
