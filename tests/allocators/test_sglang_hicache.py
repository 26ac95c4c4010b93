"""HiCache's tree of SGLang 0.5.23, replayed: 70 sequences of calls, each answer, all nodes of both memories.

tests/data/sglang_hicache.json.gz was recorded from the genuine `UnifiedRadixCache` with its Python tree core
and its `FullComponent`, on a CPU, with a plain allocator, host pool and controller around it that allocate,
free and queue. Each call has what it was asked and what came of it; then tokens free on the GPU, evictable,
protected, free on the host; and a digest of all nodes: first token, length, whether the GPU and the host have
it, locks, hits, priority.
"""

import gzip
import hashlib
import json
from pathlib import Path

import pytest

from kvsim.allocators.sglang.cached import SglangCached

pytestmark = pytest.mark.golden
FILE = Path(__file__).parents[1] / "data" / "sglang_hicache.json.gz"
RECORDED = json.loads(gzip.decompress(FILE.read_bytes()))


class Replay:
    """An allocator, driven as the recording was."""

    def __init__(self, config):
        size = config["page_size"]
        self.allocator = SglangCached(config["pages"] * size, size, True, config["eviction"])
        self.tree = self.allocator.put_below(config["host_tokens"], config["write_policy"])
        self.under_way, self.loads, self.match, self.fetches = [], [], None, []

    def look(self, text, most, on_gpu, on_host):
        self.match = match = self.allocator.look(tuple(map(tuple, text)), 0, most)
        assert (match.tokens, match.below.end - match.tokens) == (on_gpu, on_host)

    def load(self, tokens):
        below = self.match.below
        enough = below.end - self.match.tokens >= 10
        assert (self.allocator.load(self.match) if enough else 0) == tokens
        self.loads += [below] if tokens else []

    def admit(self, seq, tokens, placed):
        self.allocator.hold(self.match)
        assert self.allocator.admit_after(self.match, seq, tokens, 0) == placed

    def grow(self, seq, tokens, placed):
        assert self.allocator.grow(seq, tokens) == placed

    def fill(self, seq, tokens, prompt, ends):
        self.allocator.fill(seq, tokens, ends)
        self.allocator.part(seq, prompt)
        if ends:
            self.allocator.release(seq)

    def evict(self, slots):
        self.allocator.make_room(slots)

    def written(self, jobs):
        if self.tree.queued:
            self.under_way.append(self.tree.queued)
            self.tree.queued = []
        ended, self.under_way = self.under_way[:jobs], self.under_way[jobs:]
        self.allocator.end_copies([node for nodes in ended for node in nodes], [])

    def loaded(self):
        self.allocator.end_copies([], self.loads)
        self.loads = []

    def ask(self, text, most, taken, begins=False):
        """Somebody fetches what follows a match from a storage: room for it is taken on the host."""
        text, tree = list(map(tuple, text)), self.tree
        anchor = self.allocator.look(tuple(text), 0, most).below
        if begins:
            start, size = tree.hold_on_host(anchor), self.allocator.page_size
            wanted = (most - anchor.end) // size * size
            if tree.room < wanted:
                tree.evict_host(wanted)
            assert taken == min(wanted, tree.room // size * size)
            tree.room -= taken
            self.fetches.append((anchor, start, text, taken))

    def fetched(self, tokens):
        """So many of them came."""
        anchor, start, text, taken = self.fetches.pop(0)
        if tokens:
            self.tree.insert_below(anchor, text, tokens)
        self.tree.room += taken - tokens
        self.tree.let_go(anchor, start)

    def state(self):
        tree = self.tree
        nodes = sorted(
            (
                each.runs[0][1],
                each.tokens,
                bool(each.pages),
                each.on_host,
                each.locks,
                each.hits,
                each.priority,
            )
            for each in tree.nodes()
        )
        digest = hashlib.sha256(repr(nodes).encode()).hexdigest()[:12]
        return [self.allocator.pool.available, tree.evictable, tree.protected, tree.room], digest


@pytest.mark.parametrize("number", range(len(RECORDED)))
def test_every_call_as_recorded(number):
    config = RECORDED[number]
    replay = Replay(config)
    for at, (name, asked, *after) in enumerate(config["ops"]):
        getattr(replay, name)(*asked)
        if after:
            assert replay.state() == tuple(after), (at, name, asked)


def test_what_the_recordings_meet():
    """Each policy and strategy, loads, and what comes from a storage."""
    assert {each["write_policy"] for each in RECORDED} == {
        "write_through",
        "write_through_selective",
        "write_back",
    }
    assert len({each["eviction"] for each in RECORDED}) == 7
    calls = [call for each in RECORDED for call in each["ops"]]
    assert sum(name == "load" and asked[0] > 0 for name, asked, *_ in calls) == 75
    assert len(calls) == 9_975
    assert sum(name == "fetched" and asked[0] > 0 for name, asked, *_ in calls) > 100


def test_no_page_that_is_taken_is_drawn_as_free():
    """Also while only a copy to the host holds it."""
    only_copied = 0
    for config in RECORDED[::7]:
        replay = Replay(config)
        allocator = replay.allocator
        for name, asked, *_ in config["ops"]:
            getattr(replay, name)(*asked)
            drawn = sum(each.size for each in allocator.regions() if each.owners or each.cached)
            assert drawn == allocator.capacity_slots - allocator.pool.available
            only_copied += replay.tree.pinned > 0
    assert only_copied > 50
