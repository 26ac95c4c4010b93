"""Conversations of a measured run: which request waits for which, and what consecutive turns have in common.

    pauses     a turn follows the previous answer after the measured delay
    clients    a limit of N in flight means N conversations: the next replaces the first to end
    texts      a turn begins with the previous prompt, and with as much of its answer as the server found

    turn 0     prompt  96                     answer  49
    turn 1     prompt 232 = 96 + 49 + 87      found 128 in blocks of 128: all of turn 0, as far as possible
    turn 2     prompt 396, found 256          not 384: the answer was not kept word for word

AIPerf and GuideLLM record how many tokens of a prompt the server found in its prefix cache if the server
reports it (`--enable-prompt-tokens-details`). Without that, a turn contains all of the previous turn. Hits of
first prompts are assumed to come from one text in front of them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from math import gcd

import numpy as np

from kvsim.sim.bench.measured import Floats, Requests
from kvsim.sim.content import Texts
from kvsim.sim.errors import KvsimError
from kvsim.sim.workload import PS_PER_S, Chain, Int64Column

Runs = list[tuple[int, int, int]]


def has_turns(requests: Requests) -> bool:
    """Whether some conversation has a second turn."""
    session = requests.session
    return session is not None and requests.start_s is not None and len(set(session)) < len(session)


def turns_of(requests: Requests, measured: int | None, clients: int | None) -> tuple[Int64Column, Chain]:
    """The order in which requests come, and the earlier request that each follows, in that order.

    Parameters
    ----------
    measured, clients : int or None
        Conversations in flight at once, in the measurement and now; None: each begins at its arrival.
    """
    start = requests.start_s
    assert requests.session is not None and start is not None
    end = start + np.nan_to_num(requests.e2e_s)
    n = len(requests)
    after, think = np.full(n, -1, dtype=np.int64), np.zeros(n)
    conversations: dict[str, list[int]] = {}
    for row, name in enumerate(requests.session):
        turns = conversations.setdefault(name, [])
        if turns:
            after[row] = turns[-1]
            think[row] = max(float(start[row] - end[turns[-1]]), 0.0)
        turns.append(row)
    begins = start.copy()
    if clients is not None:
        talks = list(conversations.values())
        firsts, lasts = ([turns[place] for turns in talks] for place in (0, -1))
        pauses = _pauses(start[firsts], (start + requests.e2e_s)[lasts], measured, clients)
        think[firsts[clients:]] = pauses
        _take_turns(talks, begins, end, after, pauses)
    order = np.argsort(begins, kind="stable").astype(np.int64)
    place = np.empty(n + 1, dtype=np.int64)
    place[order], place[-1] = np.arange(n), -1
    return order, Chain(place[after[order]], np.round(think[order] * PS_PER_S).astype(np.int64))


def pauses_ps(requests: Requests, measured: int | None, clients: int) -> Int64Column:
    """Delay of each request after an answer, in a closed loop without conversations.

    Parameters
    ----------
    measured, clients : int or None
        Number of clients, then and now; None: arrivals were not a closed loop, and no client pauses.
    """
    found = np.zeros(len(requests), dtype=np.int64)
    if requests.start_s is not None:
        pauses = _pauses(requests.start_s, requests.start_s + requests.e2e_s, measured, clients)
        found[clients:] = np.round(pauses * PS_PER_S)
    return found


def _pauses(start: Floats, end: Floats, measured: int | None, clients: int) -> Floats:
    """Pauses of all requests but the clients' first: request i came after the end of request i - `measured`.

    A different number of clients reuses the measured pauses in turn. Cut requests end last (nan).
    """
    later = max(len(start) - clients, 0)
    if measured is None or measured >= len(start):
        return np.zeros(later)
    came = np.sort(start)[measured:]
    found: Floats = np.nan_to_num(np.maximum(came - np.sort(end)[: len(came)], 0.0))
    return np.resize(found, later)


def _take_turns(
    conversations: list[list[int]], begins: Floats, end: Floats, after: Int64Column, pauses: Floats
) -> None:
    """Each later conversation follows the one that ended first, by their measured durations."""
    clients = len(conversations) - len(pauses)
    places = [(float(end[turns[-1]]), turns[-1]) for turns in conversations[:clients]]
    heapify(places)
    for turns, pause in zip(conversations[clients:], pauses.tolist(), strict=True):
        free, after[turns[0]] = places[0]
        later = free + pause - float(begins[turns[0]])
        begins[turns] += later
        heapreplace(places, (float(end[turns[-1]]) + later, turns[-1]))


@dataclass(frozen=True)
class SharedPrefix:
    """Each first prompt starts with one of `groups` texts of `tokens` tokens, all equally likely."""

    groups: int
    tokens: int

    def __str__(self) -> str:
        return f"{self.groups}x{self.tokens}"

    @classmethod
    def parsed(cls, text: str) -> "SharedPrefix":
        """Parse `GROUPSxTOKENS`; KvsimError for anything else."""
        found = re.fullmatch(r"(\d{1,7})x(\d{1,9})", text, re.ASCII)
        if not found or not int(found[1]) or not int(found[2]):
            raise KvsimError(f"shared_prefix must be GROUPSxTOKENS, as in 6x256, or none, got {text!r}")
        return cls(int(found[1]), int(found[2]))


def texts_of(requests: Requests, shared: SharedPrefix | None = None) -> Texts | None:
    """The texts that prompts have in common; None if nothing is known about them.

    Parameters
    ----------
    shared : SharedPrefix or None
        What first prompts start with; None: from the server's hits.
    """
    found, session = requests.cached_tokens, requests.session
    turns = has_turns(requests)
    if not turns and shared is None and (found is None or not found.any()):
        return None
    block = gcd(*found.tolist()) if found is not None else 1
    in_front: _Front | _Drawn = _Front(found, session if turns else None)
    if shared is not None:
        in_front = _Drawn(shared, len(requests))
    last: dict[str, tuple[int, Runs]] = {}
    offsets, columns = [0], ([], [], [])  # type: tuple[list[int], tuple[list[int], list[int], list[int]]]
    for row in range(len(requests)):
        prompt, answer = int(requests.input_tokens[row]), int(requests.output_tokens[row])
        hit = None if found is None else int(found[row])
        before = last.get(session[row]) if turns and session is not None else None
        if before is None:
            text = in_front.text(row, prompt)
        else:
            text = _cut(before[1], _in_common(before[0], _tokens(before[1]), prompt, hit, block))
        text.append((row + 1, 0, prompt + answer - _tokens(text)))
        if session is not None:
            last[session[row]] = prompt, text
        for column, values in zip(columns, zip(*text, strict=True), strict=True):
            column.extend(values)
        offsets.append(len(columns[0]))
    arrays = (np.array(column, dtype=np.int64) for column in (offsets, *columns))
    return Texts(*arrays)


def _in_common(asked: int, said: int, prompt: int, hit: int | None, block: int) -> int:
    """Tokens shared with the previous turn, whose prompt has `asked` tokens and whose total is `said`."""
    whole = min(said, prompt)
    if hit is None or not block or min(whole, prompt - 1) // block * block <= hit:
        return whole
    return min(max(asked, hit), whole)


class _Front:
    """The text in front of first prompts: as long as the longest hit, from the first hit on."""

    def __init__(self, found: Int64Column | None, session: Sequence[str] | None) -> None:
        n = 0 if found is None else len(found)
        first = np.ones(n, dtype=bool)
        seen: set[str] = set()
        for row, name in enumerate(session or ()):
            if row < n:
                first[row] = name not in seen
            seen.add(name)
        self._found = np.zeros(0, dtype=np.int64) if found is None else np.where(first, found, 0)
        hits = np.flatnonzero(self._found)
        self._longest = int(self._found.max(initial=0))
        self._begun = int(hits[0]) if len(hits) else -1

    def text(self, row: int, prompt: int) -> Runs:
        if row > self._begun:
            tokens = int(self._found[row]) if row < len(self._found) else 0
        else:
            tokens = self._longest
        tokens = min(tokens, prompt)
        return [(0, 0, tokens)] if tokens else []


class _Drawn:
    """One of several texts, drawn at random, in front of each first prompt."""

    def __init__(self, shared: SharedPrefix, n: int) -> None:
        self._which = np.random.default_rng(0).integers(shared.groups, size=n) + n + 1
        self._tokens = shared.tokens

    def text(self, row: int, prompt: int) -> Runs:
        return [(int(self._which[row]), 0, min(self._tokens, prompt))]


def _cut(text: Runs, tokens: int) -> Runs:
    """The first tokens of a text."""
    found: Runs = []
    for stream, first, length in text:
        if tokens <= 0:
            break
        found.append((stream, first, min(length, tokens)))
        tokens -= length
    return found


def _tokens(text: Runs) -> int:
    return sum(length for _, _, length in text)
