"""Recorded rounds of SGLang's queue as kvsim's requests, texts and tree (`goldens/policies`)."""

from kvsim.allocators.sglang.cached import SglangCached
from kvsim.sim.serving.facts import Facts
from kvsim.sim.serving.request import Request
from kvsim.sim.serving.sglang_parts import WaitingList

SLOTS = 1 << 20


def runs(ids):
    """Token ids as text: consecutive ids are consecutive tokens of one stream."""
    found = []
    for token in ids:
        if found and found[-1][1] + found[-1][2] == token:
            found[-1] = (0, found[-1][1], found[-1][2] + 1)
        else:
            found.append((0, token, 1))
    return found


class Entered(WaitingList):
    """A waiting list that knows when each request came."""

    def __init__(self, entries):
        super().__init__()
        self.entries = entries
        for request in entries:
            self.append(request)

    def came(self, request):
        return self.entries[request]


def request_of(told, sign=1):
    """A request from its row; `sign` turns SGLang's priority into kvsim's."""
    answer = told.get("out", [])
    request = Request(told["id"], len(told["ids"]), len(answer) + 1)
    request.generated = len(answer)
    request.known_tokens += request.generated
    request.priority = told["priority"] * sign
    request.facts = Facts(client=told["rk"] or "")
    request.content = runs([*told["ids"], *answer])
    return request


def memory_of(config):
    """The tree and its pages, far larger than any case needs."""
    return SglangCached(SLOTS, config["page_size"], caches=not config["tree_disabled"])


def insert(cached, texts):
    """Insert texts into the tree, whole pages of each."""
    size = cached.page_size
    for ids in texts:
        whole = len(ids) // size
        if cached.caches and whole:
            cached.tree.insert(runs(ids[: whole * size]), range(whole))
