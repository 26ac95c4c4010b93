"""The order of waiting requests, as SGLang sorts them before it admits any.

    fcfs        in order of arrival; every 32nd time their cache hits count as uses
    priority    the lowest number first, then by arrival
    sjf         (kvsim's) the shortest answer first
    lof         the longest answer first
    priority-lof
                the lowest number first, then the longest answer: SGLang's lof with its priorities
    random      reshuffled each time
    lpm         the longest cached prefix first
    shortest-prefill-first
                the fewest tokens to compute first
    hrrn        the highest response ratio next: prompt tokens processed since its arrival, divided by the
                tokens that it has to compute itself
    routing-key the key that most running requests have first, ties by the key's text; then the others
                by their keys. The key is the trace's `client`
    dfs-weight  along the radix tree: first where most requests wait

`lpm`, `shortest-prefill-first` and `hrrn` let one request go ahead of those with the same uncached beginning:
these come last, so that they hit what it computes. `lpm` and `hrrn` keep the order while more than 128 wait.
Source: SGLang 0.5.23, `schedule_policy.py` (SchedulePolicy).
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from kvsim.allocators.base import Match
from kvsim.allocators.sglang.cached import SglangCached
from kvsim.allocators.sglang.nodes import Node
from kvsim.allocators.sglang.rows import SglangMatch, WindowMatch
from kvsim.allocators.sglang.tree import SglangTree
from kvsim.sim.serving.request import Request
from kvsim.sim.serving.sglang_parts import SglangMemory, WaitingList

Key = tuple[float | str, ...]

BY_PREFIX = ("lpm", "hrrn", "shortest-prefill-first")
MOST_MATCHED = 128
REFRESH_EVERY = 32
SHORT_HIT = LONG_COMMON = 32


class Orders:
    """Sorts waiting requests; `most_new` gives the longest answer to a request.

    Attributes
    ----------
    processed : int
        Prompt tokens computed by the engine: the clock of waiting requests for `hrrn`.
    """

    def __init__(self, policy: str, most_new: Callable[[Request], int], random_seed: int = 0) -> None:
        self.policy = policy
        self.most_new = most_new
        self.processed = 0
        self._random = random.Random(random_seed)
        self._came: dict[Request, int] = {}  # value of `processed` at arrival
        self._refreshes = 0

    def sort(self, waiting: WaitingList, memory: SglangMemory, running: Iterable[Request] = ()) -> None:
        """Sort the waiting requests; look-ups in the cache for this count as uses."""
        policy = self.policy
        if policy in (*BY_PREFIX, "dfs-weight") and not memory.allocator.caches:
            policy = "fcfs"
        if policy == "hrrn":
            for request in waiting:
                self._came.setdefault(request, self.processed)
        if policy in BY_PREFIX:
            if policy == "shortest-prefill-first" or len(waiting) <= MOST_MATCHED:
                key = self._key_by_prefix(waiting, memory)
                waiting.arrange(sorted(waiting, key=key))
            return
        if policy == "dfs-weight":
            waiting.arrange(_along_the_tree(memory, list(waiting)))
            return
        if (by := self._key(waiting)) is not None:
            waiting.arrange(sorted(waiting, key=by))
        elif policy == "routing-key":
            keys = Counter(filter(None, (request.facts.client for request in running)))
            if keys:
                waiting.arrange(sorted(waiting, key=lambda r: _by_key(r.facts.client, keys)))
        elif policy == "random":
            shuffled = list(waiting)
            self._random.shuffle(shuffled)
            waiting.arrange(shuffled)
        self._refresh(waiting, memory.cached)

    def forget(self, request: Request) -> None:
        """It is finished."""
        self._came.pop(request, None)

    def _key(self, waiting: WaitingList) -> Callable[[Request], Key] | None:
        """What a policy sorts by that asks nothing of the cache; None: it does not sort by a key."""
        keys: dict[str, Callable[[Request], Key]] = {
            "priority": lambda request: (request.priority, waiting.came(request)),
            "priority-lof": lambda request: (request.priority, -self.most_new(request)),
            "sjf": lambda request: (request.output_tokens,),
            "lof": lambda request: (-self.most_new(request),),
        }
        return keys.get(self.policy)

    def _key_by_prefix(self, waiting: WaitingList, memory: SglangMemory) -> Callable[[Request], Key]:
        hits, alike = _matched(memory, list(waiting))

        def longest(request: Request) -> Key:
            return (1, 0) if request in alike else (0, -hits[request])

        def shortest(request: Request) -> Key:
            missing = max(1, request.known_tokens - hits[request])
            return request in alike, missing, waiting.came(request)

        def response_ratio(request: Request) -> Key:
            number = str(request.index)  # ties are broken by the key as text
            if request in alike:
                return 1, 0.0, number
            missing = request.prompt_tokens - hits[request]
            if missing <= 0:
                return 0, float("-inf"), number
            return 0, -(self.processed - self._came[request]) / missing, number

        return {"lpm": longest, "shortest-prefill-first": shortest, "hrrn": response_ratio}[self.policy]

    def _refresh(self, waiting: WaitingList, cached: SglangCached | None) -> None:
        if cached is None or not (cached.caches and cached.eviction == "lru" and waiting):
            return
        self._refreshes += 1
        if self._refreshes % REFRESH_EVERY == 1:
            for request in reversed(list(islice(waiting, MOST_MATCHED))):
                cached.touch(request.content, request.own, request.known_tokens)


def _by_key(key: str, running: Counter[str]) -> tuple[int, int, str]:
    return (0, -running[key], key) if running[key] else (1, 0, key)


def _matched(memory: SglangMemory, waiting: Sequence[Request]) -> tuple[dict[Request, int], set[Request]]:
    """Cached tokens of each, without its last token; and requests whose prefix an earlier one computes.

    Tokens on the host count as cached, but a request with no other hits may be in the second set.
    """
    others: SglangTree[Node] = SglangTree(1)
    hits, alike = {}, set()
    for request in waiting:
        match = memory.look(request, request.known_tokens)
        found = match.tokens
        hits[request] = min(found + memory.hicache.on_host(match), request.known_tokens - 1)
        if found > SHORT_HIT:
            continue
        text = text_of(request)
        if others.match(text, request.known_tokens).end >= LONG_COMMON:
            alike.add(request)
        else:
            others.insert(text, range(request.known_tokens))
    return hits, alike


def woken(match: Match | None) -> tuple[int, int]:
    """Tokens of a match that are not in use now, and those of them that windowed layers also have."""
    if match is None:
        return 0, 0
    if isinstance(match, WindowMatch):
        return match.idle, match.idle_windowed
    return match.woken_slots, 0


def text_of(request: Request) -> list[tuple[int, int, int]]:
    """The known text of a request, as runs; its private part has a stream of its own."""
    text, left = [], request.known_tokens
    for stream, first, length in request.content:
        if left > 0:
            text.append((stream, first, min(length, left)))
        left -= length
    if left > 0:
        text.append((-1 - request.own, request.known_tokens - left, left))
    return text


def _along_the_tree(memory: SglangMemory, waiting: Sequence[Request]) -> list[Request]:
    """Depth first, the child with the most requests below it first; a node's own requests come last."""
    cached = memory.cached
    assert cached is not None
    ends: dict[Node, list[Request]] = {}
    for request in waiting:
        match = memory.look(request, request.known_tokens)
        assert isinstance(match, SglangMatch)
        ends.setdefault(match.node, []).append(request)
    # a text is split if a later one ends inside it, so an end stays the end of its node
    weights: dict[Node, int] = {}
    nodes = [cached.tree.root, *cached.tree.nodes()]
    for node in reversed(nodes):
        weights[node] = len(ends.get(node, ())) + sum([weights[child] for child in node.children.values()])
    order: list[Request] = []
    stack = [(cached.tree.root, False)]
    while stack:
        node, below = stack.pop()
        if below:
            order += ends.get(node, ())
            continue
        stack.append((node, True))
        children = sorted(node.children.values(), key=lambda child: -weights[child])
        stack += [(child, False) for child in reversed(children)]
    return order
