"""Preble's E2: exploit the cached prefix of most of a prompt, else explore the replica where it costs least.

    exploit   more of the prompt is known than not: of the replicas with its longest prefix the least loaded
    explore   else: the least L + M + P, in seconds
    L         prompt tokens missed by requests of the last `--preble-window` seconds, computed, plus their
              number x the mean answer of those that ended x a decode step there now
    M         blocks to evict for it, computed again, x the mean share of those requests that had them
    P         its own missed tokens, computed

Loads are balanced when the most loaded replica is exploited and its L exceeds `--preble-balance` times the
least: the prefix moves to the least loaded replica, with its share of L, unless that would leave the old one
with less than the new. A prefix too heavy to move is replicated there once the mean time to first token of
its requests has doubled from the former half of the window to the latter. Neither happens before
`--preble-warm-up` requests per replica, or to a prefix sent once.

Sources: Srivatsa et al., Preble (arXiv 2407.00023), section 3, for E2; its code (WukLab/preble at 8e7906a,
global_scheduler_with_time.py) for 3 minutes, 1.5, 50, how prefixes move and when they are replicated. As in
the code, the router keeps its own tree of the texts it sent, here in blocks of 16 tokens, and evicts the
texts sent least recently. Step times come from the run's clock, whereas Preble fits them. The code counts
only decodes of unfinished requests, assumes that memory is full, and moves the lightest prefixes, not the
requested one. Left out: the balance of prefill and decode, for which the code has no rule, and the order of
queues, which the replicas' scheduler decides.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

import numpy as np

from kvsim.allocators.option import option
from kvsim.allocators.texts import Texts
from kvsim.sim.routers.base import Router, Seen
from kvsim.sim.serving.request import Request, State, prefix_of
from kvsim.sim.workload import PS_PER_S

BLOCK = 16
"""Tokens per block of text, the unit of comparison."""


@dataclass(frozen=True, kw_only=True)
class E2:
    """Options of preble."""

    preble_window: float = option(
        "Seconds of history that count as load.", default=180.0, value="S", least=0.001, most=86_400
    )
    preble_balance: float = option(
        "Least ratio of the largest load to the smallest before prefixes move.",
        default=1.5,
        value="X",
        least=1,
    )
    preble_warm_up: int = option(
        "Requests per replica before any prefix moves.", default=50, value="N", least=0
    )


@dataclass(slots=True)
class Sent:
    """A request of the window; `prefix` is its last block that was sent before, or else its last block."""

    at_ps: int
    place: int
    prefix: int
    keys: Sequence[int]
    missed_s: float
    request: Request
    answer: int = 0  # tokens of its answer, once it has ended


class Load:
    """Requests of the window: their number, and the seconds to compute their missed tokens."""

    def __init__(self) -> None:
        self.requests = 0
        self.missed_s = 0.0

    def count(self, sent: Sent, sign: int) -> None:
        """Add or remove a request."""
        self.requests += sign
        self.missed_s = self.missed_s + sign * sent.missed_s if self.requests else 0.0


class Account(Load):
    """A replica: its load, its blocks (least recently sent first), and the requests that had them."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[int, None] = {}
        self.hits: Counter[int] = Counter()

    def count(self, sent: Sent, sign: int) -> None:
        """Add or remove a request and its blocks."""
        super().count(sent, sign)
        for key in sent.keys:
            self.hits[key] += sign
            if not self.hits[key]:
                del self.hits[key]

    def missed(self, keys: Sequence[int], prompt_tokens: int) -> int:
        """Prompt tokens after the longest prefix that the replica has."""
        known = next((at for at, key in enumerate(keys) if key not in self.held), len(keys))
        return prompt_tokens - known * BLOCK

    def surplus(self, keys: Sequence[int], capacity_tokens: int) -> list[int]:
        """The blocks to evict to make room for these."""
        new = sum(key not in self.held for key in keys)
        more = len(self.held) + new - capacity_tokens // BLOCK
        kept = {*keys}
        return [*islice((key for key in self.held if key not in kept), max(more, 0))]


class Prefix(Load):
    """A prefix at a replica: its load, and times to first token in both halves of the window."""

    def __init__(self) -> None:
        super().__init__()
        self._halves: tuple[deque[tuple[int, int]], ...] = (deque(), deque())  # (when, ps): the latter first
        self._sums = [0, 0]

    def answered(self, now_ps: int, first_ps: int) -> None:
        """One more first token."""
        self._halves[0].append((now_ps, first_ps))
        self._sums[0] += first_ps

    def doubled(self, now_ps: int, window_ps: int) -> bool:
        """Whether the mean of the latter half is at least twice that of the former half."""
        for half, points in enumerate(self._halves):
            while points and points[0][0] < now_ps - window_ps * (half + 1) // 2:
                at_ps, first_ps = points.popleft()
                self._sums[half] -= first_ps
                if not half:
                    self._halves[1].append((at_ps, first_ps))
                    self._sums[1] += first_ps
        (late, early), (late_ps, early_ps) = map(len, self._halves), self._sums
        return late > 0 and early > 0 and late_ps * early >= 2 * early_ps * late


class Preble(Router):
    """Chooses by E2: exploit or explore."""

    declares: ClassVar[type] = E2

    def __init__(self, argument: str, rng: np.random.Generator, options: Mapping[str, object]) -> None:
        super().__init__(argument, rng, options)
        self._rules, self._texts = self.own(E2), Texts(BLOCK)
        self._window_ps = round(self._rules.preble_window * PS_PER_S)
        self._homes: defaultdict[int, set[int]] = defaultdict(set)  # block -> replicas at which to exploit it
        self._accounts: defaultdict[int, Account] = defaultdict(Account)
        self._prefixes: defaultdict[tuple[int, int], Prefix] = defaultdict(Prefix)  # by place and last block
        self._window: deque[Sent] = deque()
        self._open: list[Sent] = []  # requests that have not ended
        self._answers = [0, 0]  # requests of the window that have ended, and their tokens
        self._now_ps = self._chosen = 0

    def choose(self, request: Request, replicas: Sequence[Seen]) -> int:
        """The replica that has most of the prompt, else the one with the least cost."""
        self._pass(request.arrival_ps, {replica.place for replica in replicas})
        keys = self.keys(request)
        blocks, homes = self._match(keys, replicas)
        if 2 * blocks * BLOCK > request.prompt_tokens:
            chosen = self._exploit(keys[blocks - 1], homes, replicas)
        else:
            costs = [self.cost_s(request, keys, replica) for replica in replicas]
            chosen = costs.index(min(costs))
        self._send(request, keys, keys[blocks - 1] if keys else -1, replicas[chosen])
        return chosen

    def keys(self, request: Request) -> list[int]:
        """The full blocks of a request's prompt."""
        text = prefix_of(request.content, request.prompt_tokens)
        return [key for first, count in self._texts.keys(text) for key in range(first, first + count)]

    def _match(self, keys: Sequence[int], replicas: Sequence[Seen]) -> tuple[int, list[int]]:
        """The blocks of the longest prefix that has a home, and its homes among `replicas`."""
        for blocks in range(len(keys), 0, -1):
            places = self._homes.get(keys[blocks - 1], ())
            homes = [at for at, replica in enumerate(replicas) if replica.place in places]
            if homes:
                return blocks, homes
        return 0, []

    # -- costs, in seconds --------------------------------------------------------------------

    def _load_s(self, load: Load, replica: Seen) -> float:
        """L, or the part of it that is due to requests of one prefix."""
        ended, tokens = self._answers
        if not (load.requests and ended):
            return load.missed_s
        step_s = replica.step_s(0, 0, max(replica.running, 1), replica.decode_tokens)
        return load.missed_s + load.requests * tokens / ended * step_s

    def cost_s(self, request: Request, keys: Sequence[int], replica: Seen) -> float:
        """L + M + P of a prompt with these blocks."""
        account = self._accounts[replica.place]
        evicted = account.surplus(keys, replica.capacity_tokens)
        hits = sum(account.hits[key] for key in evicted)
        again_s = (
            replica.prefill_s(len(evicted) * BLOCK) * hits / (len(evicted) * account.requests)
            if hits
            else 0.0
        )
        return self._load_s(account, replica) + again_s + self._missed_s(request, keys, replica)

    def _missed_s(self, request: Request, keys: Sequence[int], replica: Seen) -> float:
        missed = self._accounts[replica.place].missed(keys, request.prompt_tokens)
        return replica.prefill_s(missed) if missed else 0.0

    # -- balance ------------------------------------------------------------------------------

    def _exploit(self, last: int, homes: Sequence[int], replicas: Sequence[Seen]) -> int:
        """The least loaded home, or the least loaded replica if the prefix is to be moved or replicated."""
        loads = [self._load_s(self._accounts[each.place], each) for each in replicas]
        home, least, rules = min(homes, key=lambda at: loads[at]), loads.index(min(loads)), self._rules
        even = loads[home] < max(loads) or loads[home] <= rules.preble_balance * loads[least]
        if even or self._chosen < rules.preble_warm_up * len(replicas):
            return home
        source, target = replicas[home].place, replicas[least].place
        prefix = self._prefixes[source, last]
        if prefix.requests < 2:
            return home
        share_s = self._load_s(prefix, replicas[home])
        if loads[home] - share_s >= loads[least] + share_s:
            self._move(last, source, target)
            return least
        return least if prefix.doubled(self._now_ps, self._window_ps) else home

    def _move(self, last: int, source: int, target: int) -> None:
        """Move a prefix, and its requests of the window, to another replica."""
        self._homes[last].discard(source)
        for sent in self._window:
            if (sent.place, sent.prefix) == (source, last):
                self._count(sent, -1)
                sent.place = target
                self._count(sent, 1)

    # -- accounts -----------------------------------------------------------------------------

    def _count(self, sent: Sent, sign: int) -> None:
        self._accounts[sent.place].count(sent, sign)
        prefix = self._prefixes[sent.place, sent.prefix]
        prefix.count(sent, sign)
        if not prefix.requests:
            del self._prefixes[sent.place, sent.prefix]

    def _send(self, request: Request, keys: Sequence[int], prefix: int, replica: Seen) -> None:
        place, account = replica.place, self._accounts[replica.place]
        sent = Sent(self._now_ps, place, prefix, keys, self._missed_s(request, keys, replica), request)
        for key in account.surplus(keys, replica.capacity_tokens):
            del account.held[key]
            self._homes[key].discard(place)
        for key in reversed(keys):  # the end of a text is evicted first
            account.held.pop(key, None)
            account.held[key] = None
            self._homes[key].add(place)
        self._window.append(sent)
        self._open.append(sent)
        self._count(sent, 1)
        self._chosen += 1

    def _pass(self, now_ps: int, places: set[int]) -> None:
        """Advance time: requests end or leave the window; replicas that left take their caches with them."""
        self._now_ps = now_ps = max(now_ps, self._now_ps)
        begin_ps = now_ps - self._window_ps
        for sent in self._open:
            if sent.request.state == State.FINISHED and sent.at_ps >= begin_ps:
                sent.answer = sent.request.output_tokens
                self._answers[0] += 1
                self._answers[1] += sent.answer
                first_ps = sent.request.first_token_ps
                if first_ps is not None:
                    prefix = self._prefixes[sent.place, sent.prefix]
                    prefix.answered(now_ps, first_ps - sent.request.arrival_ps)
        self._open = [each for each in self._open if not each.answer and each.at_ps >= begin_ps]
        while self._window and self._window[0].at_ps < begin_ps:
            sent = self._window.popleft()
            self._count(sent, -1)
            self._answers[0] -= sent.answer > 0
            self._answers[1] -= sent.answer
        for place, account in self._accounts.items():
            if place not in places and account.held:
                for key in account.held:
                    self._homes[key].discard(place)
                account.held.clear()
